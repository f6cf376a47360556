"""Timelines as Chrome trace JSON, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from typing import Any

from ..records.timeline import Timeline
from ..version import __version__

GENERATOR = "TileSight"


def chrome_trace(timeline: Timeline) -> str:
    """The text of a trace file. Each part is a process, each row a thread; times are in microseconds."""
    events: list[dict[str, Any]] = []
    for pid, part in enumerate((*timeline.parts, *timeline.details), 1):
        named = f"{part.view.value}: {part.title}"
        events += [_named("process_name", pid, 0, name=named), _sorted("process_sort_index", pid, 0, pid)]
        for tid, lane in enumerate(part.lanes, 1):
            total = " (adds up)" if lane.adds_up else ""
            events += [
                _named("thread_name", pid, tid, name=f"{lane.name}{total}"),
                _sorted("thread_sort_index", pid, tid, tid),
            ]
            events += [
                {
                    "ph": "X",
                    "pid": pid,
                    "tid": tid,
                    "name": span.name,
                    "cat": span.kind.value,
                    "ts": span.start_us,
                    "dur": span.us,
                }
                for span in lane.spans
            ]
    other = {"generator": f"{GENERATOR} {__version__}", "title": timeline.title, **dict(timeline.facts)}
    other |= {f"note {number}": note.text for number, note in enumerate(timeline.notes, 1)}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}, allow_nan=False)


def is_trace(text: str) -> bool:
    """Whether `text` is a trace that `chrome_trace` made."""
    try:
        other = json.loads(text)["otherData"]
        return str(other["generator"]).startswith(GENERATOR)
    except (ValueError, KeyError, TypeError):
        return False


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _sorted(kind: str, pid: int, tid: int, index: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"sort_index": index}}
