"""`tilesight plan`: choose a few kernels that cover a range of sizes, and write them as a dispatch table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..files import read_text
from . import options, output, suggestions

if TYPE_CHECKING:
    from ..planner.result import PlanResult
    from ..tuner.options import TuneOptions

MOST_WEIGHTS_BYTES = 16 << 20
EFFORTS = ("predict", "quick", "full")


@click.command()
@options.with_options(
    options.kernel,
    click.option(
        "--vary",
        shell_complete=suggestions.ranges,
        metavar="D=A..B",
        required=True,
        help="The dimension that varies, and its range, e.g. m=1..16384.",
    ),
    click.option(
        "--shape",
        shell_complete=suggestions.shapes,
        metavar="S",
        help=(
            "The other dimensions as k=v,..., or a published name. [default: those of the kernel's "
            "first shape]"
        ),
    ),
    click.option(
        "--kernels",
        metavar="K",
        type=click.IntRange(1, 256),
        default=8,
        show_default=True,
        help="Largest number of kernels.",
    ),
    options.target,
    options.world,
    options.dtype,
    click.option(
        "--shapes",
        metavar="N",
        type=click.IntRange(1, 1024),
        help="Largest number of sizes at which kernels are measured. [default: 48; 24 with --static]",
    ),
    click.option(
        "--effort",
        type=click.Choice(EFFORTS),
        help="How many configs to try at each size. [default: TILESIGHT_EFFORT, or quick]",
    ),
    options.protocol,
    options.budget_for("Stop after this time and choose from the results so far"),
    click.option(
        "--weights",
        metavar="FILE",
        help=(
            "Weights of the sizes: a file of lines 'SIZE WEIGHT', a shapes file of `tilesight db misses`, or "
            "`misses` for the counts of dispatchers."
        ),
    ),
    click.option(
        "--static",
        is_flag=True,
        help="Plan kernels of one size each; the table has the config to build for each size.",
    ),
    click.option("--out", metavar="FILE", help="Write the dispatch table to this .json file."),
    options.verbosity,
    options.as_json,
    options.database,
    options.seed,
    options.workers,
    options.debug,
)
@options.as_session_options
def plan(
    kernel: str,
    vary: str,
    shape: str | None,
    kernels: int,
    target: str | None,
    world: int | None,
    dtype: str | None,
    shapes: int | None,
    weights: str | None,
    static: bool,
    out: str | None,
    verbosity: output.Verbosity,
    as_json: bool,
    session: TuneOptions,
) -> None:
    """Choose a few kernels that cover a range of sizes, and report how much speed each size loses.

    Each kernel takes the varied dimension at run time, so it is built once and serves all sizes. Configs are
    predicted over the whole range. The promising ones are built and measured at sizes spread over the range,
    then at the first and last size that each chosen kernel serves. --out writes a dispatch table for
    `tilesight.dispatcher`; it is a text file that can be reviewed, committed and shipped.

    \b
    tilesight plan matmul --vary m=1..16384 --shape n=8192,k=8192 --kernels 8 --out matmul.json
    tilesight plan flash_attention --vary seq_len=128..16384 --shape batch=1,heads=32,head_dim=128,causal=true

    \b
    --effort predict  predictions only: nothing is built or measured
             quick    builds 64 configs and up to 96 more; measures at most 10 at each size
             full     builds 128 configs and up to 192 more; measures at most 24 at each size
    """
    from ..api.planning import plan_range
    from ..dispatch.table.table_file import write_table
    from ..files import check_out

    if out is not None:
        check_out(Path(out), ".json", "dispatch tables")
    given: Mapping[int, float] | str | None = weights
    if weights is not None and weights != "misses" and not is_shapes_file(Path(weights)):
        given = read_weights(Path(weights))
    with output.progress(verbosity) as observer:
        found = plan_range(
            kernel, vary, target, shape, kernels, dtype, shapes, given, static, session, observer, world
        )
    if out is not None:
        write_table(found.table, out)
    if as_json:
        output.print_json("plan", **_fields(found, out))
    else:
        output.print_report(found.report())
        if out is not None:
            output.print_line(f"table: {out}")


def is_shapes_file(path: Path) -> bool:
    """Whether a file of weights begins with the name of a kernel. Raises `InputError`."""
    from .. import kernels

    text = read_text(path, f"--weights: file '{path}'", MOST_WEIGHTS_BYTES)
    lines = (line.split("#")[0].split() for line in text.splitlines())
    first = next((words[0] for words in lines if words), "")
    return first in kernels.operators()


def read_weights(path: Path) -> dict[int, float]:
    """Read a file of lines `SIZE WEIGHT`; text after # is ignored. Raises `InputError`."""
    lines = read_text(path, f"--weights: file '{path}'", MOST_WEIGHTS_BYTES).splitlines()
    found: dict[int, float] = {}
    for place, line in enumerate(lines, 1):
        words = line.split("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            size, weight = int(words[0]), float(words[1])
        except (ValueError, IndexError):
            size, weight = 0, 0.0
        if len(words) != 2 or size < 1 or not 0 < weight < float("inf"):
            raise InputError(
                f"--weights: {path}, line {place}: '{line.strip()}' must be a size and a weight above 0, "
                "e.g. 4096 12"
            )
        found[size] = found.get(size, 0.0) + weight
    if not found:
        raise InputError(f"--weights: file '{path}' has no line with a size and a weight")
    return found


def _fields(found: PlanResult, out: str | None) -> dict[str, Any]:
    import json

    worst = found.worst
    return {
        "label": found.label,
        "table": json.loads(found.table.text()),
        "out": out,
        "is_measured": found.is_measured,
        "mean_loss": found.mean_loss,
        "worst_loss": None if worst is None else worst.loss,
        "worst_size": None if worst is None else worst.size,
        "expected_mean_loss": found.expected_mean,
        "expected_worst_loss": found.expected_worst,
        "default_us": {str(size): us for size, us in found.default_us.items()},
        "looked_at": found.looked_at,
        "built": found.built,
        "measured": found.measured,
        "recalled": found.recalled,
        "compared": found.compared,
        "seconds": found.seconds,
        "is_cut": found.is_cut,
        "messages": found.messages,
    }
