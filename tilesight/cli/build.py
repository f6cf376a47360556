"""`tilesight build`: compile one config and show the compiler's figures beside the model's estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options, output, suggestions
from .output import number, spread

if TYPE_CHECKING:
    from ..api.compilation import Compilation, Resources

_ROWS = {  # label -> field of `Resources`
    "registers per thread": "registers",
    "spilled registers": "spilled_registers",
    "shared memory, bytes": "smem_bytes",
    "blocks per core": "blocks_per_core",
    "limited by": "limited_by",
}


@click.command()
@options.with_options(
    options.kernel,
    options.target,
    click.option("--config", metavar="C", required=True, help="The config as k=v,... or a JSON object."),
    options.shape,
    options.dtype,
    click.option(
        "--dynamic",
        shell_complete=suggestions.dimensions,
        metavar="D",
        multiple=True,
        help="A dimension that the kernel takes at run time; may be repeated. One kernel for all.",
    ),
    click.option("--source", is_flag=True, help="Also show the generated source."),
    options.as_json,
    options.debug,
)
def build(
    kernel: str,
    target: str | None,
    config: str,
    shape: str | None,
    dtype: str | None,
    dynamic: tuple[str, ...],
    source: bool,
    as_json: bool,
) -> None:
    """Compile a config of KERNEL, also for a target that is not present, and show the compiler's figures.

    The report shows registers, spills and shared memory as the compiler reports them and as the model
    estimates them from the IR, and the prediction before and after correction by the compiler's figures.
    Nothing runs. The command needs a compiler for the target (`tilesight doctor` lists compilers).

    With --dynamic one kernel serves all values of a dimension; predictions are for the given shape.
    """
    from ..api.compilation import build as run

    found = run(kernel, target, shape, config=config, dtype=dtype, dynamic=dynamic)
    if as_json:
        output.print_json("build", **_fields(found, source))
    else:
        _print(found, source)


def _print(found: Compilation, source: bool) -> None:
    candidate, built = found.candidate, found.build
    output.print_text(f"{candidate.workload.label} on {candidate.target.title}", bold=True)
    output.print_line(f"config: {candidate.config}")
    if candidate.dynamic:
        output.print_text(
            f"dynamic {', '.join(candidate.dynamic)}: one {'library' if built.entry else 'code object'} for "
            "all values"
        )
    output.print_text(f"compiler: {built.compiler}, {number(built.seconds, 3)} s (including lowering)")
    what = "library" if built.entry else "code object (needs the vendor's runtime to run)"
    output.print_line(f"{what}: {built.artifact}")
    output.print_text()
    if found.from_ir is not None:
        output.print_table(
            ["", "estimated", "compiler"],
            _rows(found.from_ir, found.from_compiler),
            right=["estimated", "compiler"],
        )
    if built.resources:
        output.print_text()
        output.print_table(
            ["all figures of the compiler", ""],
            [[k.replace("_", " "), v] for k, v in built.resources.items()],
            right=[""],
        )
    output.print_text()
    before, after = found.predicted, found.corrected
    output.print_text(f"predicted from the IR: {number(before.latency_us)} us, {spread(before.uncertainty)}")
    if built.resources:
        output.print_text(
            f"predicted with the compiler's figures: {number(after.latency_us)} us, "
            f"limiting: {after.limiting}"
        )
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
        "dynamic": list(candidate.dynamic),
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
