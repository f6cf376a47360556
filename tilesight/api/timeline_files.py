"""`write_timeline`: a timeline as a Chrome trace or as a report."""

from __future__ import annotations

from pathlib import Path

from ..errors import InputError
from ..files import check_out, check_replaces, replacing
from ..records.timeline import Timeline
from .reporting import check_report_out

_SUFFIXES = (".json", ".html")


def write_timeline(timeline: Timeline, out: str | Path) -> Path:
    """Write a timeline: a `.json` file is a Chrome trace, which Perfetto opens, an `.html` file a report.

    A file of the same kind that is there already is replaced; other files are not. Returns `out` as a path.
    Raises `InputError` if it cannot be written.
    """
    from ..pages.chrome_trace import chrome_trace
    from ..pages.render import html
    from ..pages.timeline_page import timeline_page

    path = Path(out)
    check_timeline_out(path)
    text = chrome_trace(timeline) if path.suffix == ".json" else html(timeline_page(timeline))
    with replacing(path, f"timeline '{path}' cannot be written") as partial_path:
        partial_path.write_text(text, encoding="utf-8")
    return path


def check_timeline_out(path: Path) -> None:
    """Raise `InputError` if no timeline can be written there, or if another file is there."""
    from ..pages.chrome_trace import is_trace

    if path.suffix not in _SUFFIXES:
        raise InputError(f"--out {path} must end in .json (a Chrome trace) or .html (a report)")
    if path.suffix == ".html":
        check_report_out(path)
        return
    check_out(path, ".json", "Chrome traces")
    check_replaces(path, is_trace, "trace")
