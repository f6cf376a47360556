"""Pages in a headless Chromium: what they show at each width, what clicks and keys change, what a reload
keeps.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Visit, chromium, serious_findings, visiting
from tests.support.page_sessions import HOSTILE, recorded_session
from tests.unit.pages.samples import card, dataset, explanation, table, timeline
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.pages.card_page import card_page
from tilesight.pages.dataset_page import dataset_page
from tilesight.pages.kernel_page import explanation_page
from tilesight.pages.render import html
from tilesight.pages.session_page import session_page
from tilesight.pages.table_page import table_page
from tilesight.pages.timeline_page import timeline_page
from tilesight.pages.values import Page

VIEWS = ((360, "light"), (768, "dark"), (1440, "light"))
THEMES = ("light", "dark")
KINDS = ("hostile", "table", "card", "dataset", "kernel", "timeline")
NEXT_FRAMES = "async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); }"
OPEN_ALL = "() => document.querySelectorAll('details').forEach(each => each.open = true)"
OVERFLOWING = """() => [...document.querySelectorAll('main *, header *')].filter(element => {
    if (element.closest('.scroll, .quiet, select, svg') || !element.getClientRects().length) return false;
    const edge = element.getBoundingClientRect();
    return edge.right > innerWidth + 1 || edge.left < -1;
}).map(element => element.tagName + ' ' + element.textContent.slice(0, 40))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of each kind of page."""
    folder = tmp_path_factory.mktemp("pages")

    pages: dict[str, Page] = {
        "session": session_page(recorded_session(80)),
        "hostile": session_page(recorded_session(40, 12, HOSTILE)),
        "small": session_page(recorded_session(5, 4)),
        "table": table_page(table(), {64: 30.0}),
        "card": card_page(card()),
        "dataset": dataset_page("sample", dataset(), AnalyticalModel()),
        "kernel": explanation_page(explanation()),
        "timeline": timeline_page(timeline()),
    }
    paths = {}
    for kind, page in pages.items():
        paths[kind] = folder / f"{kind}.html"
        paths[kind].write_text(html(page), encoding="utf-8")
    return paths


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_empty_overflows_or_is_out_of_reach(
    browser: Any, files: dict[str, Path], kind: str
) -> None:
    with visiting(browser, files[kind]) as visit:
        assert visit.figures
        for width, theme in VIEWS:
            where = f"{kind}, {width} px, {theme}"
            show(visit, width, theme)
            assert visit.page.evaluate("() => document.documentElement.dataset.theme") == theme
            assert visit.page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0, where
            assert visit.page.evaluate(OVERFLOWING) == [], where
            for figure in visit.figures:
                assert visit.colours(figure) > 8, f"{figure}: {where}"
                note = visit.section(figure).locator("p.note").first
                assert "Nothing to draw" not in (note.text_content() or ""), f"{figure}: {where}"
        if kind != "hostile":  # its tables are long, and axe looks at each cell for seconds
            show(visit, 768, "light")
            axe_finds_nothing_serious(visit)


def test_axe_finds_nothing_serious_in_an_opened_session(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["small"], 768) as visit:
        visit.page.evaluate(OPEN_ALL)
        axe_finds_nothing_serious(visit)


def show(visit: Visit, width: int, theme: str) -> None:
    visit.page.set_viewport_size({"width": width, "height": 900})
    visit.page.emulate_media(color_scheme=theme)
    visit.page.evaluate(NEXT_FRAMES)


def axe_finds_nothing_serious(visit: Visit) -> None:
    visit.page.locator(".plot").first.press("ArrowRight")
    for theme in THEMES:
        assert serious_findings(visit.page, theme) == [], theme


def reloaded(visit: Visit) -> None:
    visit.page.reload()
    visit.page.wait_for_function("() => document.documentElement.dataset.drawn !== undefined")


def test_level_selector_changes_the_roofline_and_a_reload_keeps_it(
    browser: Any, files: dict[str, Path]
) -> None:
    with visiting(browser, files["session"]) as visit:
        before = visit.picture("roofline")
        visit.section("roofline").get_by_label("memory level").select_option("shared memory")
        changed = visit.picture("roofline")
        assert changed != before
        assert "GB/s" in visit.section("roofline").locator(".legend").inner_text()
        reloaded(visit)
        assert visit.section("roofline").get_by_label("memory level").input_value() == "shared memory"
        assert visit.picture("roofline") == changed


def test_legend_hides_a_series_and_a_reload_keeps_it(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["session"]) as visit:
        before = visit.picture("roofline")
        button = visit.section("roofline").get_by_role("button", name="predicted, not measured")
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert visit.picture("roofline") != before
        reloaded(visit)
        button = visit.section("roofline").get_by_role("button", name="predicted, not measured")
        assert button.get_attribute("aria-pressed") == "false"
        button.click()
        assert visit.picture("roofline") == before


def test_axes_change_their_scale(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["session"]) as visit:
        before = visit.picture("errors")
        visit.section("errors").get_by_role("button", name="x logarithmic").click()
        assert visit.picture("errors") != before
        assert "errors+x=linear" in visit.page.url


def first_cells(visit: Visit, figure: str, column: int) -> list[str]:
    script = """([key, n]) =>
        [...document.querySelectorAll(`[data-figure='${key}'] tbody tr`)]
            .map(row => row.cells[n].textContent)"""
    found: list[str] = visit.page.evaluate(script, [figure, column])
    return found


def test_sorting_a_table_and_a_reload_keep(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["session"]) as visit:
        section = visit.section("roofline")
        section.locator("summary").click()
        heading = section.get_by_role("columnheader", name="predicted time, us")
        column = heading.evaluate("cell => cell.cellIndex")
        heading.get_by_role("button").click()
        times = [float(text) for text in first_cells(visit, "roofline", column) if text]
        assert times == sorted(times)
        assert heading.get_attribute("aria-sort") == "ascending"
        heading.get_by_role("button").click()
        reloaded(visit)
        times = [float(text) for text in first_cells(visit, "roofline", column) if text]
        assert times == sorted(times, reverse=True)
        assert heading.get_attribute("aria-sort") == "descending"


def test_landscape_takes_any_two_parameters(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["session"]) as visit:
        before = visit.picture("landscape")
        visit.section("landscape").get_by_label("down", exact=True).select_option(label="stages")
        visit.section("landscape").get_by_label("across", exact=True).select_option(label="block_n")
        changed = visit.picture("landscape")
        assert changed != before
        reloaded(visit)
        assert visit.picture("landscape") == changed


def test_filters_apply_to_all_figures_of_candidates(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["session"]) as visit:
        before = {figure: visit.picture(figure) for figure in visit.figures}
        visit.section("parallel").get_by_label("block_m").select_option("256")
        changed = {figure for figure in visit.figures if visit.picture(figure) != before[figure]}
        assert {"roofline", "errors", "progress", "landscape", "parallel"} <= changed
        assert "finalists" not in changed
        assert "of 80 candidates" in visit.section("roofline").locator("p.note").first.inner_text()
        reloaded(visit)
        assert visit.section("parallel").get_by_label("block_m").input_value() == "=256"


def test_keys_alone_reach_and_operate_everything(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["session"]) as visit:
        page = visit.page
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("() => document.activeElement.id") == "main"
        seen = set()
        for _ in range(16):
            page.keyboard.press("Tab")
            seen.add(
                page.evaluate("() => document.activeElement.tagName + ' ' + document.activeElement.className")
            )
            if page.evaluate("() => document.activeElement.classList.contains('plot')"):
                break
        assert page.evaluate("() => document.activeElement.classList.contains('plot')")
        assert any(each.startswith("SELECT") for each in seen)
        assert any(each.startswith("BUTTON") for each in seen)
        page.keyboard.press("ArrowRight")
        spoken = visit.section("roofline").get_by_role("status").inner_text()
        assert "limiting (predicted)" in spoken
        assert "left at least without what limits (predicted)" in spoken
        page.keyboard.press("End")
        assert visit.section("roofline").get_by_role("status").inner_text() != spoken
        assert visit.section("roofline").locator(".hint").is_visible()
        page.keyboard.press("Escape")
        assert not visit.section("roofline").locator(".hint").is_visible()
        page.keyboard.press("Shift+Tab")
        pressed = page.evaluate("() => document.activeElement.getAttribute('aria-pressed')")
        page.keyboard.press("Space")
        assert page.evaluate("() => document.activeElement.getAttribute('aria-pressed')") != pressed


def test_pointing_at_a_point_shows_its_hint(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["session"]) as visit:
        plot = visit.section("finalists").locator(".plot")
        plot.scroll_into_view_if_needed()
        edge = plot.bounding_box()
        hint = visit.section("finalists").locator(".hint")
        for x in range(200, int(edge["width"]), 8):
            visit.page.mouse.move(edge["x"] + x, edge["y"] + 20)
            if hint.is_visible():
                break
        assert "measured time" in hint.inner_text()
        visit.page.mouse.move(0, 0)
        assert not hint.is_visible()


def test_theme_can_be_chosen_and_a_reload_keeps_it(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["session"]) as visit:
        before = visit.picture("roofline")
        visit.page.get_by_role("button", name="Dark").click()
        assert visit.picture("roofline") != before
        reloaded(visit)
        assert visit.page.evaluate("() => document.documentElement.dataset.theme") == "dark"
        assert visit.page.get_by_role("button", name="Dark").get_attribute("aria-pressed") == "true"


def test_contents_lead_to_sections_and_keep_the_state(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["session"]) as visit:
        visit.section("roofline").get_by_label("memory level").select_option("L2")
        visit.page.locator(".contents summary").click()
        visit.page.get_by_role("link", name="Failures by kind").click()
        assert "roofline+view=L2" in visit.page.url
        assert visit.page.evaluate("() => document.activeElement.dataset.figure") == "failures"


def test_downloads(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["hostile"]) as visit:
        with visit.page.expect_download() as given:
            visit.section("roofline").get_by_role("button", name="PNG").click()
        assert given.value.suggested_filename == "roofline.png"
        assert Path(given.value.path()).read_bytes().startswith(b"\x89PNG")
        with visit.page.expect_download() as given:
            visit.section("failures").get_by_role("button", name="CSV").click()
        text = Path(given.value.path()).read_text(encoding="utf-8")
        rows = list(csv.reader(io.StringIO(text)))
        assert rows[0] == ["kind of failure", "candidates", "message"]
        assert 'alert("hostile")' in rows[1][2]


def test_csv_has_no_formulas(browser: Any, tmp_path: Path) -> None:
    found = recorded_session(60, 12, "=HYPERLINK(1)")
    found = replace(found, result=replace(found.result, messages=()))
    file = tmp_path / "formula.html"
    file.write_text(html(session_page(found)), encoding="utf-8")
    with visiting(browser, file) as visit:
        with visit.page.expect_download() as given:
            visit.section("roofline").get_by_role("button", name="CSV").click()
        text = Path(given.value.path()).read_text(encoding="utf-8")
    assert "'=HYPERLINK(1)" in text
    assert ",=HYPERLINK" not in text


def test_hostile_texts_are_shown_as_text(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["hostile"]) as visit:
        page = visit.page
        page.evaluate(OPEN_ALL)
        for figure in visit.figures:
            plot = visit.section(figure).locator(".plot")
            plot.press("ArrowRight")
            plot.press("End")
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 3
        assert "<img src=x onerror=alert(1)>" in page.locator("main").inner_text()


def test_page_without_anything_measured(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "predicted.html"
    file.write_text(html(session_page(recorded_session(40, 0))), encoding="utf-8")
    with visiting(browser, file) as visit:
        assert "Nothing was measured" in visit.page.locator(".warning").inner_text()
        assert "errors" not in visit.figures
        body = json.loads(visit.page.locator("#data").text_content())
        assert set(body["tables"]["candidates"]["columns"]["measured_us"]["values"]) == {None}


def test_spans_of_a_timeline_can_be_hidden_and_read(browser: Any, files: dict[str, Path]) -> None:
    with visiting(browser, files["timeline"]) as visit:
        key = "timeline-whole-kernel"
        section, before = visit.section(key), visit.picture(key)
        section.get_by_role("button", name="waits, predicted").click()
        assert visit.picture(key) != before
        section.get_by_role("button", name="waits, predicted").click()
        plot = section.locator(".plot")
        plot.press("Home")
        hint = plot.locator(".hint").inner_text()
        assert "span: launch" in hint
        assert "waits, predicted: " in hint
        # a span is found by any of its points, not only by its middle
        plot.press("Escape")
        box = plot.bounding_box()
        visit.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 30)
        assert "wave 1 of" in plot.locator(".hint").inner_text()
