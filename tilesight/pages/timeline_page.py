"""The page of a timeline alone."""

from __future__ import annotations

from ..records.timeline import Timeline, View
from .timeline_figures import kernel_timeline_parts, session_timeline_parts
from .values import Facts, Page, PageFigure, Texts


def timeline_page(timeline: Timeline) -> Page:
    """The page of the timeline of a kernel or a session."""
    of_session = bool(timeline.of(View.SESSION))
    figures, tables = (session_timeline_parts if of_session else kernel_timeline_parts)(timeline)
    parts: list[PageFigure | Facts | Texts] = [Facts("Result", timeline.facts)]
    if timeline.findings:
        parts.append(Texts("What costs it time, predicted", timeline.findings))
    parts += figures
    return Page(timeline.title, _subtitle(timeline), parts, tables)


def _subtitle(timeline: Timeline) -> str:
    if timeline.of(View.SESSION):
        return "Recorded stages of its candidates"
    if timeline.traced:
        return "Predicted; rows named 'traced' were measured"
    return "Nothing here was measured: all is predicted"
