"""A headless Chromium for the tests of pages: Debian's, driven by Playwright, without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = "REQUIRE_CHROMIUM"  # .ci/run sets it: then a missing browser is an error
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def missing(reason: str) -> None:
    """Skip the test, or fail it where CI requires the browser."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason}, and {REQUIRED} requires it")
    pytest.skip(reason)


@contextmanager
def chromium(*more: str) -> Iterator[Any]:
    """A browser of Playwright, with an empty folder of its own and `more` arguments. Skips where there is
    none.
    """
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        missing("no Chromium: apt install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed: pip install playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*ARGUMENTS, *more])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """An opened page, and what it must not have: messages, dialogs, requests of other files."""

    page: Any
    faults: list[str] = field(default_factory=list)

    def picture(self, figure: str) -> str:
        """What the canvas of a figure shows, as text that can be compared."""
        found = self.page.evaluate(
            "key => document.querySelector(`[data-figure='${key}'] canvas`).toDataURL()", figure
        )
        return str(found)

    def colours(self, figure: str) -> int:
        """The number of colours in a figure; an empty one has very few."""
        script = """key => {
            const canvas = document.querySelector(`[data-figure='${key}'] canvas`);
            const copy = document.createElement('canvas');
            [copy.width, copy.height] = [canvas.width, canvas.height];
            const context = copy.getContext('2d', { willReadFrequently: true });
            context.drawImage(canvas, 0, 0);
            const data = context.getImageData(0, 0, copy.width, copy.height).data;
            return new Set(new Uint32Array(data.buffer)).size;
        }"""
        return int(self.page.evaluate(script, figure))

    def section(self, figure: str) -> Any:
        return self.page.locator(f"[data-figure='{figure}']")

    @property
    def figures(self) -> list[str]:
        found: list[str] = self.page.evaluate(
            "() => [...document.querySelectorAll('[data-figure]')].map(s => s.dataset.figure)"
        )
        return found


def serious_findings(page: Any, theme: str) -> list[Any]:
    """What axe finds serious in the theme `dark` by its rules of colours, since a theme changes nothing else,
    and in `light` by all rules.
    """
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        missing("axe-playwright-python is not installed")
    rules = {"runOnly": {"type": "tag", "values": ["cat.color"]}} if theme == "dark" else {}
    page.emulate_media(color_scheme=theme)
    found = Axe().run(page, options={"resultTypes": ["violations"], **rules}).response
    assert "color-contrast" in {rule["id"] for rule in (*found["passes"], *found["violations"])}
    return [
        (each["id"], [node["html"][:120] for node in each["nodes"]][:3])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


@contextmanager
def visiting(browser: Any, file: Path, width: int = 1440, theme: str = "light") -> Iterator[Visit]:
    """Open a file, offline, and check at the end that nothing went wrong."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, offline=True, accept_downloads=True
    )
    page = context.new_page()
    visit = Visit(page)
    page.on("console", lambda message: visit.faults.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: visit.faults.append(f"error: {error}"))
    page.on("request", lambda request: _note_request(visit, request.url, file))

    def refuse(dialog: Any) -> None:
        visit.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", refuse)
    try:
        page.goto(file.as_uri())
        page.wait_for_function("() => document.documentElement.dataset.drawn !== undefined")
        yield visit
        assert not visit.faults, "\n".join(visit.faults)
    finally:
        context.close()


def _note_request(visit: Visit, url: str, file: Path) -> None:
    if url.split("#")[0] != file.as_uri() and not url.startswith(("blob:", "data:")):
        visit.faults.append(f"request: {url}")
