"""Timelines in files: Chrome traces and pages, and the timeline of a session."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.page_sessions import BEGAN, HOSTILE, recorded_session
from tests.unit.pages.samples import dataset, timeline
from tests.unit.pages.test_session_page import data, figures
from tilesight.api.timeline_files import write_timeline
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.errors import InputError
from tilesight.pages.chrome_trace import chrome_trace
from tilesight.pages.dataset_page import dataset_page
from tilesight.pages.render import html
from tilesight.pages.session_page import session_page
from tilesight.pages.timeline_page import timeline_page
from tilesight.pages.values import Axis, Bar, BarChart, Page, PageColumn, PageFigure, PageTable, Source, Texts
from tilesight.records.dataset import Dataset
from tilesight.records.session_timeline import session_timeline
from tilesight.records.timeline import SpanKind, Timeline
from tilesight.records.trial import DEVICE_S


def events(found: Timeline) -> list[dict[str, Any]]:
    trace = json.loads(chrome_trace(found))
    listed: list[dict[str, Any]] = trace["traceEvents"]
    return listed


@pytest.mark.parametrize("found", [timeline(), session_timeline(recorded_session(40, 12, HOSTILE))])
def test_a_trace_is_what_perfetto_reads(found: Timeline) -> None:
    spans: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    names: dict[str, dict[tuple[int, int], str]] = defaultdict(dict)
    for event in events(found):
        place = event["pid"], event["tid"]
        if event["ph"] == "M":
            if "name" in event["args"]:
                names[event["name"]][place] = event["args"]["name"]
            continue
        assert event["ph"] == "X"
        assert event["name"]
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        spans[place].append((event["ts"], event["ts"] + event["dur"]))
    assert spans.keys() == names["thread_name"].keys()
    assert {pid for pid, _ in spans} == {pid for pid, _ in names["process_name"]}
    for part in spans.values():
        # spans of one thread must not overlap
        assert all(start >= end - 1e-6 for (_, end), (start, _) in pairwise(sorted(part)))


def test_the_durations_of_a_trace_are_microseconds() -> None:
    found = timeline()
    adding = sum(e["dur"] for e in events(found) if e["ph"] == "X" and (e["pid"], e["tid"]) == (1, 1))
    assert adding == pytest.approx(found.parts[0].us)


def test_the_rows_of_a_page_add_up_to_the_prediction() -> None:
    found = timeline()
    page = timeline_page(found)
    assert list(figures(page)) == ["timeline-whole-kernel", "timeline-one-block", "timeline-one-iteration"]
    columns = page.tables["timeline-whole-kernel"].columns
    lengths = [
        float(str(length))
        for key in ("work", "wait")
        for lane, length in zip(columns["lane"].values, columns[key].values, strict=True)
        if lane == columns["lane"].values[0] and length is not None
    ]
    assert sum(lengths) == pytest.approx(found.parts[0].us)
    assert columns["work"].source is Source.PREDICTED
    assert data(page)["figures"][0]["charts"]["kernel: launch"]["kind"] == "Lanes"


def test_a_session_shows_its_stages() -> None:
    session = recorded_session(40, 12)
    found = session_timeline(session)
    stages = {lane.name.partition(",")[0] for lane in found.parts[0].lanes}
    assert stages == {"lowering", "predicted", "building", "measuring on NVIDIA H200 GPU-1"}
    measured = [
        span for lane in found.parts[0].lanes if lane.name.startswith("measuring") for span in lane.spans
    ]
    timed = [t.measurement for t in session.result.trials if t.measurement is not None]
    assert len(measured) == len(timed)
    stated = [m.observed[DEVICE_S] for m in timed if DEVICE_S in m.observed]
    assert sum(span.us for span in measured) == pytest.approx(1e6 * sum(stated))
    moments = sum(span.kind is SpanKind.MOMENT for span in measured)
    assert moments == len(timed) - len(stated) > 0
    assert any(f"{moments} of {len(timed)} do not state" in note.text for note in found.notes)


def test_recalled_results_are_left_out_of_a_session() -> None:
    session = recorded_session(40, 12)
    times = {
        config: replace(known, built_at=BEGAN - timedelta(days=1) if known.built_at else None)
        for config, known in session.trial_times.items()
    }
    found = session_timeline(replace(session, trial_times=times))
    assert not any(lane.name.startswith("building") for lane in found.parts[0].lanes)
    assert any("older than the session" in note.text for note in found.notes)


def test_a_session_without_times_has_no_timeline() -> None:
    session = recorded_session(40, 12)
    assert "timeline" in figures(session_page(session))
    assert "timeline" not in figures(session_page(replace(session, trial_times={})))


def test_files_that_are_no_timelines_are_kept(tmp_path: Path) -> None:
    for name, text in (("other.json", '{"traceEvents": []}'), ("other.html", "<html>")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match="is there and no"):
            write_timeline(timeline(), tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == text
    with pytest.raises(InputError, match=r"must end in \.json"):
        write_timeline(timeline(), tmp_path / "timeline.txt")
    for suffix in (".json", ".html"):
        path = tmp_path / f"mine{suffix}"
        assert write_timeline(timeline(), path).stat().st_size > 1000
        write_timeline(timeline(), path)  # our own file is replaced


# --- what has nothing to show ---


def test_empty_parts_are_left_out_of_a_file() -> None:
    table = PageTable("rows", {"name": PageColumn("name", ["a"]), "us": PageColumn("time", [None], "us")})
    chart = BarChart(Axis("time", "us"), "name", (Bar("time", Source.MEASURED, "us"),))
    empty = PageFigure("empty", "An empty figure", "", "rows", {"": chart}, ("name", "us"))
    page = Page(
        "title", "", [empty, Texts("Empty texts", []), Texts("Full texts", ["a line"])], {"rows": table}
    )
    text = html(page)
    assert "Full texts" in text
    assert "An empty figure" not in text
    assert "Empty texts" not in text


def test_a_dataset_without_vendor_times_says_so() -> None:
    whole = dataset()
    page = dataset_page(
        "sample", Dataset(whole.frame.assign(vendor_us=None), whole.metadata), AnalyticalModel()
    )
    assert "cases" not in figures(page)
    [beside] = [part for part in page.parts if part.title == "Beside other implementations"]
    assert isinstance(beside, Texts)
    assert "No row has the time" in beside.lines[0]
    assert "What to know first" not in [part.title for part in page.parts]
