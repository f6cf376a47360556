"""`tilesight export`: built kernels as a folder for programs in C, Python or with torch, and for engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from . import options, output, suggestions
from .output import number

if TYPE_CHECKING:
    from ..api.exporting import Exported

FORMATS = ("c", "python", "torch", "vllm", "flashinfer-trace")


def _read_sizes(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"--sizes '{text}' must be whole numbers with commas, e.g. 64,128,256") from None


@click.command()
@options.with_options(
    click.argument("sources", metavar="TABLE.json|KERNEL...", nargs=-1, required=True),
    click.option("--out", metavar="DIR", required=True, help="The folder to write, a new or empty one."),
    click.option(
        "--format",
        type=click.Choice(FORMATS),
        default="c",
        show_default=True,
        help="What calls the kernels: C, C++ and Rust; Python with torch, too; an operator of torch, too; "
        "vLLM; FlashInfer's trace apply.",
    ),
    click.option(
        "--name", metavar="NAME", help="Prefix of the functions. [default: that of the table's file]"
    ),
    click.option(
        "--arch", metavar="ARCH", help="The architecture that the kernels must be for, e.g. sm_90a."
    ),
    options.target,
    options.shape,
    options.dtype,
    options.config,
    click.option(
        "--dynamic",
        shell_complete=suggestions.dimensions,
        metavar="D",
        multiple=True,
        help="Of a KERNEL: a dimension that it takes at run time; may be repeated.",
    ),
    click.option(
        "--sizes",
        metavar="N,N",
        callback=_read_sizes,
        help="Of a table whose kernels serve one size each: the sizes to export. [default: all, if few]",
    ),
    click.option(
        "--any-card",
        is_flag=True,
        help="Let the kernels run on any card of the architecture, not only on the target's.",
    ),
    options.protocol,
    options.database,
    options.workers_that("build"),
    options.as_json,
    options.debug,
)
def export(
    sources: tuple[str, ...],
    out: str,
    format: str,
    name: str | None,
    arch: str | None,
    target: str | None,
    shape: str | None,
    dtype: str | None,
    config: str | None,
    dynamic: tuple[str, ...],
    sizes: tuple[int, ...],
    any_card: bool,
    protocol: str,
    database: str | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Write built kernels and their interface into a folder that needs no TileSight.

    TABLE.json is a dispatch table of `tilesight plan`: the folder has its kernels, and chooses among them by
    size. KERNEL is exported for one shape: its recorded winner, or --config. Kernels that are not in the
    kernel cache are built. The folder needs no Python, TileLang, TVM or CUDA toolkit: on a GPU it needs the
    driver.

    \b
    tilesight export matmul.json --out matmul_c
    tilesight export matmul.json --out matmul_py --format python
    tilesight export rms_norm --shape m=4096,n=8192 --dynamic m --target h200 --out norm
    tilesight export matmul.json --out matmul_vllm --format vllm
    """
    from ..api.exporting import export as run

    found = run(
        list(sources),
        out,
        format=format,
        target=target,
        arch=arch,
        name=name,
        shape=shape,
        dtype=dtype,
        config=config,
        dynamic=dynamic,
        sizes=sizes,
        any_card=any_card,
        protocol=protocol,
        database=database,
        workers=workers,
    )
    if as_json:
        output.print_json("export", format=format, exports=[_fields(one) for one in found])
        return
    for one in found:
        _print(one)


def _print(found: Exported) -> None:
    kernels = found.kernels
    ranges = ", ".join(f"{one.name} = {one.first} .. {one.last}" for one in kernels.sizes) or "one shape"
    target = kernels.problem.target
    output.print_text(f"{found.name}: {kernels.problem.label}", bold=True)
    many = "1 kernel" if len(kernels.kernels) == 1 else f"{len(kernels.kernels)} kernels"
    output.print_text(f"{many} for {target.arch}, {ranges}, {number(found.seconds, 3)} s")
    output.print_line(f"folder: {found.folder}")
    for file in found.files:
        output.print_line(f"  {file}")
    for note in kernels.notes:
        output.print_text(f"note: {note}")


def _fields(found: Exported) -> dict[str, Any]:
    kernels = found.kernels
    return {
        "name": found.name,
        "folder": str(found.folder),
        "target": kernels.problem.target.name,
        "arch": kernels.problem.target.arch,
        "kernels": [{"config": dict(choice.config)} for choice in kernels.kernels],
        "sizes": [{"dim": one.name, "first": one.first, "last": one.last} for one in kernels.sizes],
        "files": list(found.files),
        "notes": list(kernels.notes),
        "seconds": found.seconds,
    }
