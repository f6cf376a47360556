"""`tilesight timeline`: the predicted pipeline of a kernel, or the stages of a session, over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..records.timeline import View
from . import options, output, suggestions
from .output import number

if TYPE_CHECKING:
    from ..records.timeline import Timeline, TimelineRow


@click.command()
@options.with_options(
    click.argument("kernel", required=False, shell_complete=suggestions.kernels),
    options.file(required=False),
    options.arguments,
    options.dims,
    click.option("--session", "session_id", type=int, metavar="ID", help="A recorded session, by its id."),
    options.target,
    options.shape,
    options.dtype,
    options.config,
    click.option(
        "--trace",
        is_flag=True,
        help="Run the kernel with time stamps on a GPU of the target, and show them under the prediction.",
    ),
    click.option(
        "--out",
        "-o",
        metavar="FILE",
        help="The file to write: .json is a Chrome trace (Perfetto opens it), .html a report.",
    ),
    options.as_json,
    options.database,
    options.workers,
    options.debug,
)
def timeline(
    kernel: str | None,
    file: str | None,
    arguments: Mapping[str, Any],
    dims: str | None,
    session_id: int | None,
    target: str | None,
    shape: str | None,
    dtype: str | None,
    config: str | None,
    trace: bool,
    out: str | None,
    as_json: bool,
    database: str | None,
    workers: int | None,
) -> None:
    """Show the predicted pipeline of KERNEL over time: one iteration, one block, the waves of the grid.

    The rows are the numbers of the analytical model: a role or unit each. Without --config it is the best
    config that is known, as for `tilesight explain`. --file takes the place of KERNEL for a kernel of your
    own. With --trace the kernel is also built with time stamps and run on a GPU of this machine; what they
    show lies under the prediction. With --session it is a recorded session: lowering, predicting, building,
    measuring.

    \b
    tilesight timeline matmul --target h200 --shape M0 -o matmul.json
    tilesight timeline --session 3677777799376769 -o session.html
    """
    from ..api.timeline_files import check_timeline_out, write_timeline

    if sum(given is not None for given in (kernel, file, session_id)) != 1:
        raise InputError("timeline needs one of: a kernel, --file kernel.py:name, --session ID")
    if out is not None:
        check_timeline_out(Path(out))
    stated = {
        "--target": target, "--shape": shape, "--dtype": dtype, "--config": config, "--dims": dims,
        "--arg": arguments or None, "--workers": workers, "--trace": trace or None,
    }  # fmt: skip
    if session_id is not None:
        _refuse("--session", stated)
        found = _session(session_id, database)
    elif file is not None:
        _refuse(
            "--file",
            {k: v for k, v in stated.items() if k in ("--shape", "--dtype", "--workers")},
        )
        found = _file(file, target, dims, arguments, config, trace)
    else:
        _refuse(str(kernel), {k: v for k, v in stated.items() if k in ("--dims", "--arg")})
        found = _kernel(str(kernel), target, shape, dtype, config, database, workers, trace)
    path = None if out is None else write_timeline(found, out)
    if as_json:
        output.print_json("timeline", out=None if path is None else str(path), **_fields(found))
    elif path is not None:
        output.print_line(f"timeline: {path}")
    else:
        _print(found)


def _refuse(what: str, stated: Mapping[str, Any]) -> None:
    if unused := [name for name, value in stated.items() if value is not None]:
        raise InputError(f"timeline of {what} takes no {', '.join(unused)}")


def _session(session_id: int, database: str | None) -> Timeline:
    from ..api.timelines import session_timeline

    return session_timeline(session_id, database=database)


def _file(
    place: str,
    target: str | None,
    dims: str | None,
    arguments: Mapping[str, Any],
    config: str | None,
    trace: bool,
) -> Timeline:
    from ..api.run_time_facts import RunTimeFacts
    from ..api.timelines import file_timeline

    return file_timeline(place, target, RunTimeFacts(dims), arguments, config=config, trace=trace)


def _kernel(
    kernel: str,
    target: str | None,
    shape: str | None,
    dtype: str | None,
    config: str | None,
    database: str | None,
    workers: int | None,
    trace: bool,
) -> Timeline:
    from ..api.timelines import kernel_timeline

    with output.progress() as progress:
        return kernel_timeline(
            kernel, target, shape, config=config, dtype=dtype, database=database, workers=workers,
            observer=progress, trace=trace,
        )  # fmt: skip


def _print(found: Timeline) -> None:
    """Facts, then a table of each part: the spans of rows that add up, and the total of the others."""
    output.print_text(found.title, bold=True)
    for name, value in found.facts:
        output.print_text(f"{name}: {value}")
    for finding in found.findings:
        output.print_text(finding)
    for part in found.parts:
        unit, us = ("s", 1e6) if part.view is View.SESSION else ("us", 1.0)
        output.print_text()
        output.print_text(f"{part.view.value}: {part.title}, {number(part.us / us)} {unit}", bold=True)
        rows = [
            [lane.name, span.name, number(span.start_us / us), number(span.us / us), span.kind.value]
            for lane in part.summed
            for span in lane.spans
        ]
        rows += [
            [lane.name, _total(lane), number(lane.spans[0].start_us / us), number(lane.us / us), ""]
            for lane in part.lanes
            if not lane.adds_up and lane.spans
        ]
        columns = ["row", "span", f"start, {unit}", unit, "kind"]
        output.print_table(columns, rows, right=columns[2:4], folded=["row", "span"])
    for note in found.notes:
        output.print_text(f"note: {note.text}")


def _total(lane: TimelineRow) -> str:
    return "total" if len(lane.spans) == 1 else f"total of {len(lane.spans)}"


def _fields(found: Timeline) -> dict[str, Any]:
    return {
        "title": found.title,
        "traced": found.traced,
        "facts": [{"name": name, "value": value} for name, value in found.facts],
        "parts": [
            {
                "view": part.view.value,
                "title": part.title,
                "us": part.us,
                "rows": [
                    {
                        "row": lane.name,
                        "adds_up": lane.adds_up,
                        "spans": [
                            {"name": s.name, "start_us": s.start_us, "us": s.us, "kind": s.kind.value}
                            for s in lane.spans
                        ],
                    }
                    for lane in part.lanes
                ],
            }
            for part in found.parts
        ],
        "findings": list(found.findings),
        "notes": [note.text for note in found.notes],
    }
