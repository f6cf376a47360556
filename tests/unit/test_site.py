"""The documentation as a site: it builds without a warning, opens offline, and fits every screen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.browser import chromium
from tests.support.preloaded import run_python
from tests.unit.test_docs import DOCS, PAGES, program

WIDTHS = (360, 768, 1440)
# those with the widest tables and the longest words, and what a reader sees first
SHOWN = ("index", "cli", "python", "schema", "model", "kernels", "targets", "gallery", "worked")
LOADED = {"link": "href", "script": "src", "img": "src", "source": "src", "iframe": "src", "object": "data"}


class Links(HTMLParser):
    """The places of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADED and LOADED[tag] in given:
            self.loaded.append(given[LOADED[tag]])


@cache
def links(page: Path) -> Links:
    return Links(page.read_text(encoding="utf-8"))


def lost(page: Path, link: str) -> bool:
    """Whether a link of a page leads to no file, or to no place in it. Other addresses are not followed."""
    parts = urlsplit(link)
    if parts.scheme:
        return False
    aim = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not aim.is_file():
        return True
    is_place = parts.fragment and aim.suffix == ".html" and "reports" not in aim.parts
    return bool(is_place) and unquote(parts.fragment) not in links(aim).places


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("furo", reason="the dev extra has Sphinx and its theme")
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = run_python(DOCS / "build.py", folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.mark.full
def test_every_page_is_there_and_every_link_resolves(site: Path) -> None:
    assert {page.stem for page in PAGES} == {page.stem for page in (site / "docs").glob("*.html")}
    pages = [page for page in site.rglob("*.html") if "reports" not in page.parts]
    assert len(pages) > len(PAGES)
    assert [(page.name, link) for page in pages for link in links(page).links if lost(page, link)] == []
    gallery = {Path(link).name for link in links(site / "docs" / "gallery.html").links if "reports/" in link}
    assert gallery == {file.name for file in (site / "docs" / "reports").iterdir()}
    assert len(gallery) == 5


@pytest.mark.full
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for loaded in links(page).loaded:
            assert not re.match(r"https?:|//", loaded), f"{page}: {loaded}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:|//)", sheet.read_text(encoding="utf-8")), (
            sheet
        )


@pytest.mark.full
def test_pages_fit_every_width(site: Path, browser: Any) -> None:
    for theme in ("light", "dark"):
        context = browser.new_context(color_scheme=theme, offline=True)
        page, faults = context.new_page(), []
        page.on("console", lambda message, faults=faults: faults.append(message.text))
        page.on("pageerror", lambda error, faults=faults: faults.append(str(error)))
        page.on("requestfailed", lambda request, faults=faults: faults.append(request.url))
        for name in SHOWN[:: 1 if theme == "light" else 4]:
            page.goto((site / "docs" / f"{name}.html").as_uri())
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                wide = page.evaluate("() => document.documentElement.scrollWidth")
                assert wide <= width, f"{name} at {width}: {wide} pixels"
            assert page.inner_text("article").strip()
        assert faults == []
        context.close()


@pytest.mark.full
def test_search_works_from_files(site: Path, browser: Any) -> None:
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto((site / "docs" / "index.html").as_uri())
    page.fill("input[name=q]", "provenance")
    page.press("input[name=q]", "Enter")
    page.wait_for_selector("#search-results li a")
    found = page.eval_on_selector_all("#search-results li a", "all => all.map(a => a.getAttribute('href'))")
    assert any("targets.html" in link for link in found)
    context.close()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[there](b.md#nothing)", "'nothing'"),
        ("[there](c.md)", "'c.md'"),
        ("![picture](c.svg)", "c.svg"),
    ],
)
@pytest.mark.filterwarnings("ignore:'myst_parser")
@pytest.mark.full
def test_a_broken_link_is_an_error(
    text: str, fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("furo", reason="the dev extra has Sphinx and its theme")
    build, folder = program("build"), tmp_path / "source" / "docs"
    folder.mkdir(parents=True)
    for extra in ("_static", "_extra"):
        (tmp_path / "source" / extra).mkdir()
    pages = [Path("docs/index.md"), Path("docs/a.md"), Path("docs/b.md")]
    index = "# Index\n\n## Start\n- [a](a.md)\n- [b](b.md)\n"
    (folder / "index.md").write_text(index + build.navigation(index, pages), encoding="utf-8")
    (folder / "a.md").write_text(f"# A\n{text}\n", encoding="utf-8")
    (folder / "b.md").write_text("# B\n", encoding="utf-8")
    assert build.run_sphinx(tmp_path / "source", tmp_path / "site") == 1
    assert fault in capfd.readouterr().err


def test_navigation_follows_the_index() -> None:
    build = program("build")
    text = (
        "# Index\n\n## One\n- [a](a.md) and [part](b.md#part)\n\n## Two\n- [b](b.md)\n- [up](../README.md)\n"
    )
    pages = [Path(name) for name in ("docs/index.md", "docs/a.md", "docs/b.md", "README.md")]
    found = re.findall(r":caption: (\w+)\n\n(.*?)```", build.navigation(text, pages), re.DOTALL)
    assert [(title, entries.split()) for title, entries in found] == [
        ("One", ["/docs/a.md"]),
        ("Two", ["/docs/b.md", "/README.md"]),
    ]


def test_links_to_files_outside_the_site_become_text() -> None:
    build = program("build")
    pages = [Path("docs/a.md"), Path("experiments/x/README.md")]
    text = "[a](../../docs/a.md#b) [`run`](run.py) [t](../../docs/pod.toml) [w](https://example.org) [h](#h)"
    assert build.local_links(text, pages[1], pages) == (
        "[a](../../docs/a.md#b) `run` [t](../../docs/pod.toml) [w](https://example.org) [h](#h)"
    )
