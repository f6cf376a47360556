"""The values of the page of a session."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.support.page_sessions import BEGAN, FLOPS, HOSTILE, recorded_session
from tilesight.errors import InputError
from tilesight.pages.candidates import candidate_table, next_limit
from tilesight.pages.levels import levels
from tilesight.pages.render import html, is_page
from tilesight.pages.session_page import session_page
from tilesight.pages.values import (
    Facts,
    Matrix,
    Page,
    PageColumn,
    PageFigure,
    PageTable,
    Plane,
    Points,
    Source,
    Texts,
)
from tilesight.problem.config import Config
from tilesight.records.session import SessionState
from tilesight.records.trial import Measurement, Prediction, Status
from tilesight.target.spec import load_target

H200 = load_target("h200")


def figures(page: Page) -> dict[str, PageFigure]:
    return {part.key: part for part in page.parts if isinstance(part, PageFigure)}


def facts(page: Page, title: str) -> dict[str, str]:
    return dict(next(part.rows for part in page.parts if isinstance(part, Facts) and part.title == title))


def warnings(page: Page) -> str:
    return " ".join(
        line for part in page.parts if isinstance(part, Texts) and part.is_warning for line in part.lines
    )


def data(page: Page) -> dict[str, Any]:
    """The data in the file of a page, as its scripts read it."""
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html(page), re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def test_it_has_every_figure() -> None:
    page = session_page(recorded_session(200))
    assert list(figures(page)) == [
        *("roofline", "finalists", "errors", "progress", "utilization", "landscape", "parallel", "failures"),
        "timeline",
    ]
    assert facts(page, "Environment")["device"] == "NVIDIA H200"
    assert facts(page, "Protocol of the measurements")["l2"] == "cold"
    assert warnings(page) == ""


def test_the_next_limit_is_the_longest_other_term_after_what_is_added() -> None:
    terms = {
        "launch": 2.0,
        "fill": 1.0,
        "dram": 40.0,
        "matrix": 60.0,
        "makespan": 70.0,
        "learned correction": 50.0,
    }
    assert next_limit(Prediction(73.0, {}, "matrix", terms)) == ("dram", 43.0)
    assert next_limit(Prediction(73.0, {}, "dram", terms)) == ("matrix", 63.0)
    # never more than the whole time
    assert next_limit(Prediction(50.0, {}, "dram", terms)) == ("matrix", 50.0)
    assert next_limit(Prediction(73.0, {}, "matrix", {"matrix": 60.0})) is None


def test_roofline_has_the_levels_of_the_target() -> None:
    roofline = figures(session_page(recorded_session(200)))["roofline"]
    assert list(roofline.charts) == ["device memory", "L2", "shared memory"]
    for chart in roofline.charts.values():
        assert isinstance(chart, Plane)
        roof, predicted, measured = chart.layers
        assert (roof.source, predicted.source, measured.source) == (
            Source.LIMIT,
            Source.PREDICTED,
            Source.MEASURED,
        )
        assert isinstance(predicted, Points)
        assert predicted.unless == "measured_us"  # a measured candidate is not also a predicted one


def test_operations_per_byte_follow_from_the_term_and_the_bandwidth() -> None:
    dram, l2, shared = levels(H200)
    prediction = Prediction(100.0, {}, "dram", {"dram": 50.0, "l2": 0.0})
    assert dram.intensity(prediction, FLOPS) == pytest.approx(FLOPS / (50e-6 * H200.dram_gb_per_s * 1e9))
    assert l2.intensity(prediction, FLOPS) is None
    assert shared.intensity(prediction, FLOPS) is None
    assert [level.key for level in levels(load_target("cpu"))] == ["dram", "llc", "l2"]


def test_without_operations_there_is_no_roofline() -> None:
    found = recorded_session(40, 6)
    page = session_page(replace(found, result=replace(found.result, flops=0)))
    assert "roofline" not in figures(page)


def test_predicted_and_measured_numbers_have_columns_of_their_own() -> None:
    found = recorded_session(200)
    table = session_page(found).tables["candidates"]
    assert table.columns["measured_us"].source is Source.MEASURED
    assert table.columns["predicted_us"].source is Source.PREDICTED
    for trial, measured in zip(found.result.trials, table.columns["measured_us"].values, strict=True):
        assert (measured is not None) == (trial.status is Status.VERIFIED)


def test_best_so_far_only_falls_and_ends_at_the_best() -> None:
    found = recorded_session(200)
    columns = candidate_table(found, ()).columns
    for name in ("predicted", "measured"):
        keys = (f"{name}_number", f"{name}_second", f"{name}_best_us", f"{name}_us")
        rows = sorted(
            row for row in zip(*(columns[key].values for key in keys), strict=True) if row[0] is not None
        )
        assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
        seconds, best, times = ([float(str(row[n])) for row in rows] for n in (1, 2, 3))
        assert seconds == sorted(seconds)
        assert best == sorted(best, reverse=True)
        assert best[-1] == min(times)


def test_recalled_results_stand_at_the_beginning() -> None:
    found = recorded_session(40, 6)
    earlier = {
        config: replace(times, measured_at=times.measured_at and BEGAN.replace(year=2025))
        for config, times in found.trial_times.items()
    }
    columns = candidate_table(replace(found, trial_times=earlier), ()).columns
    assert {v for v in columns["measured_second"].values if v is not None} == {0.0}


def test_failures_are_counted_by_kind_and_message() -> None:
    found = recorded_session(200)
    table = session_page(found).tables["failures"]
    counted = dict(zip(table.columns["kind"].values, table.columns["count"].values, strict=True))
    assert counted == {"does_not_fit": 5, "lower_error": 5}


def test_finalists_have_intervals_and_the_vendor_beside_them() -> None:
    table = session_page(recorded_session(200)).tables["finalists"]
    rows = zip(
        *(table.columns[k].values for k in ("measured_us", "vendor_us", "low_us", "high_us")), strict=True
    )
    for measured, vendor, low, high in rows:
        us = measured if measured is not None else vendor
        assert isinstance(us, float)
        assert isinstance(low, float)
        assert isinstance(high, float)
        assert low <= us <= high
    assert table.columns["name"].values[-1] == "cuBLAS "


def test_without_a_comparison_the_best_candidates_stand_beside_the_vendor() -> None:
    found = recorded_session(200)
    alone = tuple(
        replace(t, measurement=replace(t.measurement, observed={})) if t.measurement else t
        for t in found.result.trials
    )
    page = session_page(replace(found, result=replace(found.result, trials=alone)))
    names = page.tables["finalists"].columns["name"].values
    assert list(names) == [*(f"candidate {place}, timed alone" for place in range(1, 6)), "cuBLAS "]


def test_landscape_offers_the_parameters_that_vary() -> None:
    found = recorded_session(60, 6)
    chart = figures(session_page(found))["landscape"].charts[""]
    assert isinstance(chart, Matrix)
    assert "parameter block_m" in chart.rows
    same = tuple(replace(t, config=Config({**t.config, "stages": 3})) for t in found.result.trials[:20])
    chart = figures(session_page(replace(found, result=replace(found.result, trials=same))))[
        "landscape"
    ].charts[""]
    assert isinstance(chart, Matrix)
    assert "parameter stages" not in chart.rows


def test_an_empty_session_is_refused() -> None:
    found = recorded_session(40, 6)
    with pytest.raises(InputError, match="session 7 has no candidates yet"):
        session_page(replace(found, result=replace(found.result, trials=())))


@pytest.mark.parametrize(
    ("state", "words"),
    [(SessionState.RUNNING, "still running"), (SessionState.INTERRUPTED, "was interrupted")],
)
def test_an_unfinished_session_says_so(state: SessionState, words: str) -> None:
    assert words in warnings(session_page(recorded_session(40, 6, state=state)))


def test_several_devices_are_named() -> None:
    found = recorded_session(40, 6)
    trials = list(found.result.trials)
    assert isinstance(trials[0].measurement, Measurement)
    other = replace(trials[0].measurement, environment={"device": "NVIDIA H200", "uuid": "GPU-2"})
    trials[0] = replace(trials[0], measurement=other)
    page = session_page(replace(found, result=replace(found.result, trials=tuple(trials))))
    assert "Several devices measured: 6 on GPU-1, 1 on GPU-2" in warnings(page)


def test_a_stranger_s_target_has_no_roofline_but_a_page() -> None:
    found = recorded_session(40, 6)
    context = replace(found.result.context, target="another")
    page = session_page(
        replace(
            found,
            summary=replace(found.summary, context=context),
            result=replace(found.result, context=context),
        )
    )
    assert "roofline" not in figures(page)
    assert {"errors", "landscape"} <= figures(page).keys()


def test_the_file_is_small_and_known_as_ours() -> None:
    text = html(session_page(recorded_session(400)))
    assert len(text) < 1_000_000
    assert is_page(text[:2048])
    assert not is_page("<!DOCTYPE html><html>")


def test_5000_candidates_fit_three_megabytes() -> None:
    assert len(html(session_page(recorded_session(5000, 125)))) < 3_000_000


def test_hostile_texts_cannot_leave_their_places() -> None:
    page = session_page(recorded_session(40, 12, HOSTILE))
    text = html(page)
    assert text.count("<script") == text.count("</script>") == 3
    assert "<img" not in text
    assert 'alert("hostile")' in data(page)["tables"]["failures"]["columns"]["message"]["texts"][0]
    assert "\x1b" not in text


def test_the_file_names_no_other_file() -> None:
    text = html(session_page(recorded_session(40, 6)))
    assert not re.search(r'(?:src|href)="(?!#|data:)', text)
    assert "default-src 'none'" in text
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_numbers_in_the_file_are_rounded_and_finite() -> None:
    column = PageColumn("time", [1.23456789, float("inf"), float("nan"), None, 3.0, 12345678, True])
    page = Page("t", "s", [], {"one": PageTable("rows", {"us": column})})
    values = data(page)["tables"]["one"]["columns"]["us"]
    assert [values["texts"][c] if c is not None else None for c in values["codes"]] == [
        *("1.2346", None, None, None, "3", "12345678", "true"),
    ]


def test_columns_of_a_table_have_one_length() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        PageTable("rows", {"a": PageColumn("a", [1]), "b": PageColumn("b", [])})


def test_a_figure_shows_columns_that_exist() -> None:
    table = PageTable("rows", {"a": PageColumn("a", [1])})
    with pytest.raises(ValueError, match="has no column"):
        Page("t", "s", [PageFigure("f", "f", "", "one", {}, ("b",))], {"one": table})
