"""`tilesight explain`: what limits a config, and how a faster config differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..api.run_time_facts import RunTimeFacts
from ..errors import InputError
from ..tuner.observers import Observers
from . import options, output, suggestions
from .explain_json import fields

if TYPE_CHECKING:
    from ..explanation import Explanation


class _Untitled(Observers):
    """Progress without a title, since the report has one."""

    def started(self, title: str) -> None:
        pass


@click.command()
@options.with_options(
    click.argument("kernel", required=False, shell_complete=suggestions.kernels),
    options.file(required=False),
    options.arguments,
    options.target,
    click.option(
        "--shape",
        metavar="S",
        help=("Published name (M0) or k=v,... [default: the first of the kernel's default shapes]"),
    ),
    options.dims,
    options.inputs,
    options.density,
    options.calls,
    options.dtype,
    options.config,
    click.option(
        "--measured",
        metavar="DATASET",
        multiple=True,
        help="Compare with rows of a dataset; may be repeated.",
    ),
    options.as_json,
    options.database,
    options.workers,
    options.debug,
)
def explain(
    kernel: str | None,
    file: str | None,
    arguments: Mapping[str, Any],
    target: str | None,
    shape: str | None,
    dims: str | None,
    inputs: Mapping[str, Any] | None,
    density: float | None,
    calls: str | None,
    dtype: str | None,
    config: str | None,
    measured: tuple[str, ...],
    as_json: bool,
    database: str | None,
    workers: int | None,
) -> None:
    """Show what limits a config of KERNEL, why it is slower than the best one, and how reliable that is.

    Without --config the command explains the best config: the fastest measured one if the database has
    measurements of this device, else the config with the best prediction. If the database has neither, the
    space is ranked first, as `tilesight rank` does. With --measured the configs, times and hardware counters
    come from datasets (files or folders) instead of the database.

    With --file in place of KERNEL the command shows what limits any TileLang kernel in a Python file. Nothing
    but its IR is known of it: there is no better config to compare it with. Of a function under
    @tilelang.autotune or @tilesight.autotune it is the config of its own that is predicted fastest, or the
    one that --config names: by its number in `tilesight rank --file`, or as k=v,...
    """
    if file is not None:
        given = {
            "KERNEL": kernel, "--shape": shape, "--dtype": dtype, "--measured": measured or None,
            "--db": database, "--workers": workers,
        }  # fmt: skip
        facts = RunTimeFacts(dims, inputs, density, calls)
        found = _explain_file(file, target, facts, arguments, config, given)
    else:
        options.refuse_without_file(
            {"--dims": dims, "--input": inputs, "--density": density, "--calls": calls}
        )
        found = _explain_kernel(
            kernel, target, shape, dtype, config, measured, database, workers, arguments, as_json
        )
    if as_json:
        output.print_json("explain", **fields(found))
    else:
        output.print_report(found.report())


def _explain_file(
    file: str,
    target: str | None,
    facts: RunTimeFacts,
    arguments: Mapping[str, Any],
    config: str | None,
    others: Mapping[str, Any],
) -> Explanation:
    from ..api.kernel_files import explain_file

    if unused := [name for name, value in others.items() if value is not None]:
        raise InputError(
            f"explain --file takes no {', '.join(unused)}: nothing but the file's IR is known; sizes that it "
            "takes at run time go into --dims"
        )
    return explain_file(file, target, facts, arguments, config)


def _explain_kernel(
    kernel: str | None,
    target: str | None,
    shape: str | None,
    dtype: str | None,
    config: str | None,
    measured: tuple[str, ...],
    database: str | None,
    workers: int | None,
    arguments: Mapping[str, Any],
    as_json: bool,
) -> Explanation:
    from ..api.explaining import explain as run

    if kernel is None:
        raise InputError(
            "explain needs a kernel: a name of `tilesight kernels`, or one of your own: --file kernel.py:name"
        )
    if arguments:
        raise InputError(f"--arg is for the function in --file; {kernel} takes --shape and --config")
    with output.progress() as progress:
        observer = progress if as_json else _Untitled([progress])
        return run(
            kernel, target, shape, config=config, dtype=dtype, measured=measured or None,
            database=database, workers=workers, observer=observer,
        )  # fmt: skip
