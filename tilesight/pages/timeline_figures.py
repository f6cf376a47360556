"""Timelines as figures of a page: a figure for each view of a kernel, or one of a session."""

from __future__ import annotations

from collections.abc import Sequence

from ..records.timeline import Span, SpanKind, Timeline, TimelinePart, TimelineRow, View
from .values import Axis, Bar, Lanes, PageColumn, PageFigure, PageTable, Source, Texts

SIMPLIFIED = "What the timeline leaves out"
_SECOND_US = 1e6
_VIEWS = {
    View.KERNEL: (
        "Timeline of the whole kernel",
        "The first row adds up to the time that the analytical model predicts. Below it is how long "
        "device memory, L2, the network and the units of the cores are busy, as `explain` states it.",
    ),
    View.BLOCK: (
        "Timeline of one block",
        "The first row adds up to the time of a block of mean length; blocks that share a core advance "
        "together. The rows below it show each role, and how long each unit of the core is busy with all "
        "blocks on it.",
    ),
    View.ITERATION: (
        "Timeline of one steady iteration",
        "What one group of warps does and waits for between two iterations: the first row adds up to the "
        "period in which every group on the core has its iteration. The rows below it show how long each "
        "unit is busy with all of them: one that is busy for all of the period limits it. Copies in flight "
        "may take longer than an iteration.",
    ),
}
_TRACED = "Rows named 'traced' were measured, on the same axis."
# by kind of span: the key and the title of the column with its lengths, and their source
_SERIES = {
    SpanKind.WORK: ("work", "works, predicted", Source.PREDICTED),
    SpanKind.WAIT: ("wait", "waits, predicted", Source.PREDICTED),
    SpanKind.MOMENT: ("moment", "a moment, without a length", Source.PLAIN),
    SpanKind.MEASURED: ("measured", "measured length", Source.MEASURED),
    SpanKind.FAILED: ("failed", "measured length, failed", Source.NOISY),
}


def kernel_timeline_parts(
    timeline: Timeline,
) -> tuple[list[PageFigure | Texts], dict[str, PageTable]]:
    """Figures, notes and tables of the timeline of a kernel."""
    parts: list[PageFigure | Texts] = []
    tables = {}
    for view, (title, text) in _VIEWS.items():
        # the longest loop is shown first
        if shown := sorted(timeline.of(view), key=lambda part: -part.us * part.trips):
            key = f"timeline-{view.value.replace(' ', '-')}"
            starts = Source.PLAIN if timeline.traced else Source.PREDICTED
            tables[key] = _table(shown, "spans", 1.0, "us", starts)
            said = f"{text} {_TRACED}" if timeline.traced else text
            parts.append(_figure(key, title, said, shown, tables[key], Axis("time", "us")))
    parts.append(Texts(SIMPLIFIED, tuple(note.text for note in timeline.notes)))
    return parts, tables


def session_timeline_parts(timeline: Timeline) -> tuple[list[PageFigure | Texts], dict[str, PageTable]]:
    """The figure and the table of the timeline of a session; nothing if it has no spans."""
    shown = timeline.of(View.SESSION)
    if not any(lane.spans for part in shown for lane in part.lanes):
        return [], {}
    table = _table(shown, "spans", _SECOND_US, "s", Source.PLAIN)
    text = " ".join(("What was done for each candidate, by stage.", *(note.text for note in timeline.notes)))
    figure = _figure(
        "timeline", "Timeline of the session", text, shown, table, Axis("time since the session began", "s")
    )
    return [figure], {"timeline": table}


def _figure(
    key: str, title: str, text: str, parts: Sequence[TimelinePart], table: PageTable, axis: Axis
) -> PageFigure:
    kinds = [kind for kind, (column, _, _) in _SERIES.items() if column in table.columns]
    bars = {kind: Bar(_SERIES[kind][1], _SERIES[kind][2], _SERIES[kind][0]) for kind in kinds}
    series = tuple(bar for kind, bar in bars.items() if kind is not SpanKind.WAIT)
    waits = tuple(bar for kind, bar in bars.items() if kind is SpanKind.WAIT)
    charts = {
        part.title: Lanes(axis, "lane", "name", "start", series, waits, part="part", of=part.title)
        for part in parts
    }
    return PageFigure(key, title, text, key, charts, tuple(table.columns), choice="show")


def _table(parts: Sequence[TimelinePart], rows: str, unit_us: float, unit: str, source: Source) -> PageTable:
    """A row for each span."""
    spans: list[tuple[TimelinePart, TimelineRow, Span]] = [
        (part, lane, span) for part in parts for lane in part.lanes for span in lane.spans
    ]
    columns: dict[str, PageColumn] = {
        "part": PageColumn("part", [part.title for part, _, _ in spans]),
        "lane": PageColumn("row", [lane.name for _, lane, _ in spans]),
        "name": PageColumn("span", [span.name for _, _, span in spans]),
        "start": PageColumn("start", [span.start_us / unit_us for _, _, span in spans], unit, source),
    }
    for kind, (key, title, of) in _SERIES.items():
        lengths = [span.us / unit_us if span.kind is kind else None for _, _, span in spans]
        if any(length is not None for length in lengths):
            columns[key] = PageColumn(title, lengths, unit, of)
    return PageTable(rows, columns)
