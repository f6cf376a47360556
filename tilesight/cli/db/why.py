"""`tilesight db why`: why a tuning call is answered from the database, or is not."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from ...errors import ToolchainError
from ...settings import load_settings
from .. import options, output
from .opening import open_with_layers, url_of

if TYPE_CHECKING:
    from ...database.maintenance.why import ContextReport, RecordedContext
    from ...machine.placement import Placement
    from ...records.session import Context


@click.command()
@options.with_options(
    options.kernel,
    options.target,
    options.shape,
    options.dtype,
    options.protocol,
    click.option(
        "--dynamic",
        metavar="D",
        multiple=True,
        help="A dimension that the kernel takes at run time; may be repeated.",
    ),
    options.as_json,
    options.database,
    options.debug,
)
def why(
    kernel: str,
    target: str | None,
    shape: str | None,
    dtype: str | None,
    protocol: str,
    dynamic: tuple[str, ...],
    as_json: bool,
    database: str | None,
) -> None:
    """Show whether tuning KERNEL here and now is answered from the database, what is re-used, and what is not
    and why."""
    from ...database.maintenance.why import why as find

    context, notes = today(kernel, target, shape, dtype, protocol, dynamic)
    with open_with_layers(url_of(database)) as store:
        found = find(store, context)
    if as_json:
        output.print_json("db_why", **_fields(found), notes=notes)
    else:
        _print(found, notes)


def today(
    kernel: str,
    target: str | None,
    shape: str | None,
    dtype: str | None,
    protocol: str,
    dynamic: tuple[str, ...],
) -> tuple[Context, tuple[str, ...]]:
    """The context that `tilesight tune` would use now, and notes on it."""
    from ...costmodel import default_model
    from ...records.protocol import MeasurementProtocol
    from ...tuner.resolve import find_context, find_operator, find_template, find_workloads

    operator = find_operator(kernel)
    placement = _locate(target, operator.communicates)
    workload = find_workloads(operator, placement.target, shape, dtype)[0]
    template = find_template(operator, placement.target, workload.dtype)
    dynamic_dims = template.check_dynamic(dynamic)
    space = template.space(workload, placement.target)
    conditions = MeasurementProtocol.named(protocol, placement.target)
    return find_context(
        template, workload, placement, default_model().version, space, conditions, dynamic_dims
    ), placement.messages


def _locate(target: str | None, communicates: bool) -> Placement:
    from ...machine.placement import locate

    try:
        return locate(target, measures=True, communicates=communicates)
    except ToolchainError as error:
        if (target or load_settings().target) == "auto":
            raise
        return replace(
            locate(target, measures=False, communicates=communicates), messages=(str(error),)
        )  # the device is there, but nothing can be built for it


def _print(found: ContextReport, notes: tuple[str, ...]) -> None:
    context = found.context
    place = f"{context.target}{', ' + context.device if context.device else ', no device'}"
    output.print_text(f"{context.workload.label} on {place}", bold=True)
    for note in notes:
        output.print_text(note)
    for seen in found.answers:
        output.print_text(f"answered: effort {seen.effort} and below, by {_named(seen)}")
    if not found.answers:
        output.print_text("not answered: no session of exactly this context is complete")
    for seen in found.unfinished:
        output.print_text(f"{seen.state.value}: {_named(seen)}; the same command goes on from there")
    holds = found.holds
    output.print_text(
        f"re-used: {holds.predictions} predictions, {holds.builds} builds, {holds.measurements} "
        f"measurements, {holds.failures} failures"
    )
    if found.plan is not None:
        output.print_text(
            f"dispatch: {found.plan.origin}, has {context.workload.label}; a dispatcher uses it if neither "
            "a record nor a table of yours has this shape"
        )
    if found.is_due_for_recheck:
        output.print_text(
            "its winner is recorded for other versions of the software; this measures it again here, beside "
            "a few others:"
        )
        output.print_line(_recheck_command(context))
    if not found.near:
        output.print_text("nothing else is recorded for this kernel")
    for seen in found.near:
        output.print_line("")
        output.print_text(f"near: {_named(seen)}, where these differ:")
        rows = [[d.part, d.recorded or "-", d.now or "-", d.meaning] for d in seen.differences]
        columns = ["part", "recorded", "now", "meaning"]
        output.print_table(columns, rows, folded=columns[1:])


def _recheck_command(context: Context) -> str:
    return f"tilesight recheck {context.workload.operator} --target {context.target}"


def _named(seen: RecordedContext) -> str:
    counted = f", {seen.verified} verified" if seen.verified else ""
    return (
        f"session {seen.session_id} ({seen.effort}, {seen.state.value}, {seen.started_at:%Y-%m-%d %H:%M} "
        f"UTC{counted}) in {seen.layer}"
    )


def _fields(found: ContextReport) -> dict[str, Any]:
    context = found.context
    return {
        "workload": context.workload.key,
        "context": {
            "template": context.template,
            "template_version": context.template_version,
            "target": context.target,
            "target_fingerprint": context.target_fingerprint,
            "arch": context.arch,
            "model": context.model,
            "space": context.space,
            "device": context.device,
            "protocol": context.protocol,
            "dynamic": list(context.dynamic),
            "software": dict(context.software),
        },
        "answers": [asdict(seen) for seen in found.answers],
        "unfinished": [asdict(seen) for seen in found.unfinished],
        "near": [asdict(seen) for seen in found.near],
        "holds": asdict(found.holds),
        "plan": None if found.plan is None else asdict(found.plan),
        "recheck": _recheck_command(context) if found.is_due_for_recheck else None,
    }
