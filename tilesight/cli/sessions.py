"""`tilesight sessions`: list recorded sessions, show one, compare two."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..records.session_fields import decision_fields, session_fields
from . import options, output, suggestions
from .group import Group
from .output import number

if TYPE_CHECKING:
    from ..records.recorded_session import RecordedSession, SessionSummary

LIMIT = 20


@click.group(cls=Group, default="list", invoke_without_command=True)
@click.pass_context
def sessions(context: click.Context) -> None:
    """List recorded sessions, show one, or compare two. Without a subcommand: list."""
    if context.invoked_subcommand is None:
        context.invoke(list_sessions)


@sessions.command("list")
@click.argument("kernel", required=False, shell_complete=suggestions.kernels)
@options.with_options(
    click.option("--target", metavar="T", help="Only this target."),
    click.option(
        "--limit",
        metavar="N",
        type=click.IntRange(min=1),
        default=LIMIT,
        show_default=True,
        help="Number of sessions, the latest first.",
    ),
    options.database,
    options.as_json,
    options.debug,
)
def list_sessions(
    kernel: str | None = None,
    target: str | None = None,
    limit: int = LIMIT,
    database: str | None = None,
    as_json: bool = False,
) -> None:
    """List the sessions of KERNEL, or of all kernels, the latest first."""
    from ..api.history import sessions as run

    found = run(kernel, target, limit=limit, database=database)
    if as_json:
        output.print_json("sessions", sessions=[_summary_fields(summary) for summary in found])
        return
    if not found:
        of_kernel = f" of kernel '{kernel}'" if kernel else ""
        output.print_line(
            f"no session{of_kernel} is recorded; `tilesight tune KERNEL` records one, "
            "`tilesight sessions show ID` shows one"
        )
        return
    right = ["session", "winner us", "candidates"]
    columns = ["session", "began (UTC)", "state", "effort", "target", "winner us", "candidates", "workload"]
    output.print_table(columns, [_row(summary) for summary in found], right=right, folded=["workload"])
    if any(not summary.is_measured for summary in found):
        output.print_text("~ marks predicted times.")
    output.print_text("`tilesight sessions show ID` shows one of them.")


@sessions.command()
@click.argument("session_id", metavar="ID", type=int)
@options.with_options(options.top, options.database, options.as_json, options.debug)
def show(session_id: int, top: int, database: str | None, as_json: bool) -> None:
    """Show the session ID: its conditions, phases, finalists and winner, and its best candidates."""
    from ..api.history import session

    found = session(session_id, database=database)
    if as_json:
        output.print_json("session", **_session_fields(found, top))
    else:
        output.print_report(found.report(top))


@sessions.command()
@click.argument("first", metavar="ID", type=int)
@click.argument("second", metavar="ID", type=int)
@options.with_options(options.database, options.as_json, options.debug)
def compare(first: int, second: int, database: str | None, as_json: bool) -> None:
    """Compare two sessions: what differs in their contexts, runs, winners and times."""
    from ..api.history import compare_sessions

    found = compare_sessions(first, second, database=database)
    if as_json:
        times = [
            {"config": config, "first_us": first_us, "second_us": second_us}
            for config, first_us, second_us in found.times
        ]
        summaries = [_summary_fields(s.summary) for s in (found.first, found.second)]
        same = found.first.summary.context_key == found.second.summary.context_key
        output.print_json(
            "sessions_compare",
            sessions=summaries,
            same_context=same,
            differences=[asdict(difference) for difference in found.differences],
            times=times,
        )
    else:
        output.print_report(found.report())


def _row(found: SessionSummary) -> list[object]:
    mark = "" if found.is_measured else "~"
    time = "-" if found.winner_us is None else f"{mark}{number(found.winner_us)}"
    began, context = f"{found.started_at:%Y-%m-%d %H:%M}", found.context
    total = sum(found.counts.values())
    dynamic = f", dynamic {', '.join(context.dynamic)}" if context.dynamic else ""
    labels = (found.state.value, found.effort.value, context.target)
    return [found.id, began, *labels, time, total, f"{context.workload.label}{dynamic}"]


def _summary_fields(found: SessionSummary) -> dict[str, Any]:
    context = found.context
    return {
        "id": found.id,
        "kernel": context.workload.operator,
        "template": context.template,
        "workload": context.workload.key,
        "shape": context.workload.name,
        "dynamic": list(context.dynamic),
        "target": context.target,
        "device": context.device or None,
        "protocol": context.protocol or None,
        "effort": found.effort.value,
        "seed": found.seed,
        "state": found.state.value,
        "started_at": found.started_at.isoformat(),
        "finished_at": None if found.finished_at is None else found.finished_at.isoformat(),
        "seconds": found.seconds,
        "counts": found.counts,
        "winner": None if found.winner is None else dict(found.winner),
        "winner_us": found.winner_us,
        "is_measured": found.is_measured,
    }


def _session_fields(found: RecordedSession, top: int) -> dict[str, Any]:
    decision = found.result.decision
    finalists = None if decision is None else decision_fields(decision)
    return {
        "session": _summary_fields(found.summary),
        "phases": found.phases,
        "finalists": finalists,
        "result": session_fields(found.result, top),
    }
