"""The pages of the server in a headless Chromium: at each width, in light and dark, by keyboard, with hostile
texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.browser import chromium, serious_findings
from tests.unit.pages.test_browser import NEXT_FRAMES, OVERFLOWING, THEMES, VIEWS
from tests.unit.server.conftest import Served

PAGES = (
    "",
    "records",
    "kernels",
    "dispatch",
    "tables",
    "table/trials",
    "dispatch/matmul.json",
    "session/{hostile}",
)
BACKGROUND = "() => getComputedStyle(document.documentElement).backgroundColor"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium("--host-resolver-rules=MAP evil.example 127.0.0.1") as found:
        yield found


@contextmanager
def looking(browser: Any, served: Served, path: str = "", theme: str = "light") -> Iterator[Any]:
    """A page of the server. Messages, dialogs and requests of other servers are faults."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=theme)
    page, faults = context.new_page(), []
    page.on("console", lambda message: faults.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))

    def note(request: Any) -> None:
        if not request.url.startswith((served.listener.address, "blob:", "data:")):
            faults.append(f"request: {request.url}")

    def refuse(dialog: Any) -> None:
        faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("request", note)
    page.on("dialog", refuse)
    try:
        _, hostile, predicted = served.sessions
        page.goto(served.listener.address + path.format(hostile=hostile, predicted=predicted))
        yield page
        assert faults == []
    finally:
        context.close()


@pytest.mark.parametrize("path", PAGES)
def test_nothing_overflows_and_the_theme_is_that_of_the_system(browser: Any, full: Served, path: str) -> None:
    with looking(browser, full, path) as page:
        seen = set()
        for width, theme in VIEWS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=theme)
            page.evaluate(NEXT_FRAMES)
            where = f"{path}, {width} px, {theme}"
            assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0, where
            outside = OVERFLOWING.replace(".scroll, ", ".scroll, .wide, ")
            assert page.evaluate(outside) == [], where
            seen.add((theme, page.evaluate(BACKGROUND)))
        assert len(seen) == 2
        assert len({colour for _, colour in seen}) == 2


@pytest.mark.parametrize("path", ["", "records?session={predicted}", "dispatch", "tables"])
def test_axe_finds_nothing_serious(browser: Any, full: Served, path: str) -> None:
    with looking(browser, full, path) as page:
        for theme in THEMES if path.startswith("records") else THEMES[:1]:  # they share their styles
            assert serious_findings(page, theme) == [], theme


def test_keys_alone_lead_from_the_first_page_to_a_report_and_back(browser: Any, full: Served) -> None:
    with looking(browser, full) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("() => location.hash") == "#main"
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.evaluate("() => document.activeElement.textContent") == str(full.sessions[2]):
                break
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/session/{full.sessions[2]}")
        page.wait_for_function("() => document.documentElement.dataset.drawn !== undefined")
        assert str(full.sessions[2]) in page.inner_text("header")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.textContent") == "Sessions"
        page.keyboard.press("Enter")
        page.wait_for_url(full.listener.address)
        assert page.inner_text("h1") == "Tuning sessions"


def test_what_is_chosen_is_shown_and_stays_after_a_reload(browser: Any, full: Served) -> None:
    with looking(browser, full) as page:
        page.get_by_label("kernel").select_option("matmul")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**kernel=matmul**")
        page.reload()
        assert page.get_by_label("kernel").input_value() == "matmul"
        assert page.locator("tbody tr").count() == 3


def test_hostile_texts_open_nothing(browser: Any, full: Served) -> None:
    for path in ("records", "dispatch", "session/{hostile}", "table/records"):
        with looking(browser, full, path) as page:
            assert page.locator("img").count() == 0
            text = page.inner_text("main")
            assert "onerror=alert(1)" in text


def test_another_site_that_leads_here_by_its_name_sees_nothing(browser: Any, full: Served) -> None:
    """DNS rebinding: a name of the other site leads to this machine."""
    context = browser.new_context()
    try:
        page = context.new_page()
        answer = page.goto(full.listener.address.replace("127.0.0.1", "evil.example"))
        assert answer.status == 421
        assert "matmul" not in page.content()
    finally:
        context.close()
