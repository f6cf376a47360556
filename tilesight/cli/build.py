"""`tilesight build`: one config through the compiler, its figures beside the model's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options, output
from .output import number, percent

if TYPE_CHECKING:
    from ..compilation import Compilation, Resources

_ROWS = {  # what is shown -> field of `Resources`
    "registers a thread": "registers",
    "registers that spill": "spilled_registers",
    "shared memory, bytes": "smem_bytes",
    "blocks on a core": "blocks_per_core",
    "bounded by": "limited_by",
}


@click.command()
@options.with_options(
    options.kernel,
    options.target,
    click.option("--config", metavar="C", required=True, help="A config as k=v,..."),
    options.shape,
    options.dtype,
    click.option(
        "--dynamic", metavar="D", multiple=True, help="A dimension that the kernel takes at run time; may be repeated. One kernel for all."
    ),
    click.option("--source", is_flag=True, help="Show the generated source too."),
    options.as_json,
    options.debug,
)
def build(
    kernel: str, target: str, config: str, shape: str | None, dtype: str | None, dynamic: tuple[str, ...], source: bool, as_json: bool
) -> None:
    """Build a config of KERNEL for a target that need not be here, and show what the compiler says of it.

    Its registers, spills and shared memory stand beside what the model had estimated from the IR, and correct the
    prediction. Nothing runs; a compiler for the target is needed (`tilesight doctor`).

    With --dynamic it is one kernel for all values of a dimension; predictions are for the shape that is given.
    """
    from ..compilation import build as run

    found = run(kernel, target, shape, config=config, dtype=dtype, dynamic=dynamic)
    if as_json:
        output.print_json("build", **_fields(found, source))
    else:
        _print(found, source)


def _print(found: Compilation, source: bool) -> None:
    candidate, built = found.candidate, found.build
    output.print_text(f"{candidate.workload.label} on {candidate.target.title}", bold=True)
    output.print_line(f"config: {candidate.config}")
    if candidate.open:
        output.print_text(
            f"takes {', '.join(candidate.open)} at run time: one {'library' if built.entry else 'code object'} for all values"
        )
    output.print_text(f"compiler: {built.compiler}, {number(built.seconds, 3)} s (lowering included)")
    what = "library" if built.entry else "code object, which runs where the vendor's runtime is"
    output.print_line(f"{what}: {built.artifact}")
    output.print_text()
    if found.from_ir is not None:
        output.print_table(["", "from the IR", "compiler"], _rows(found.from_ir, found.from_compiler), right=["from the IR", "compiler"])
    if built.resources:
        output.print_text()
        output.print_table(["the compiler's figures", ""], [[k.replace("_", " "), v] for k, v in built.resources.items()], right=[""])
    output.print_text()
    before, after = found.predicted, found.corrected
    output.print_text(f"predicted from the IR: {number(before.latency_us)} us, give or take {percent(before.uncertainty)} (one sigma)")
    if built.resources:
        output.print_text(f"predicted with the compiler's figures: {number(after.latency_us)} us, paced by {after.limiting}")
    for note in after.notes:
        output.print_text(f"note: {note}")
    if source:
        output.print_text()
        for line in found.source.splitlines():
            output.print_line(line)


def _rows(from_ir: Resources, from_compiler: Resources | None) -> list[list[object]]:
    def shown(resources: Resources | None, field: str) -> object:
        value = getattr(resources, field) if resources else None
        return f"{value:g}" if isinstance(value, float) else value

    return [[title, shown(from_ir, field), shown(from_compiler, field)] for title, field in _ROWS.items()]


def _fields(found: Compilation, source: bool) -> dict[str, Any]:
    candidate, built = found.candidate, found.build
    return {
        "kernel": candidate.workload.operator,
        "workload": candidate.workload.key,
        "target": candidate.target.name,
        "template": candidate.template.name,
        "config": candidate.config,
        "dynamic": list(candidate.open),
        "compiler": built.compiler,
        "seconds": built.seconds,
        "artifact": built.artifact,
        "runnable": bool(built.entry),
        "resources": built.resources,
        "from_ir": _resources(found.from_ir),
        "from_compiler": _resources(found.from_compiler),
        "predicted_us": found.predicted.latency_us,
        "predicted_uncertainty": found.predicted.uncertainty,
        "corrected_us": found.corrected.latency_us if built.resources else None,
        "limiting": found.corrected.limiting,
        "notes": found.corrected.notes,
        "source": found.source if source else None,
    }


def _resources(resources: Resources | None) -> dict[str, Any] | None:
    return None if resources is None else {field: getattr(resources, field) for field in _ROWS.values()}
