"""Builds the documentation as a site that opens offline: `make docs`, or `python docs/build.py [FOLDER]`.

The pages are the Markdown files of the repository, which GitHub shows as well. This program copies them to a
folder of their own, makes the reports that gallery.md names, takes the navigation from the lists of index.md,
and runs Sphinx (extra `dev`). Every warning is an error: a link to a page or heading that does not exist, a
page that no other one lists.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / "build" / "site"
REPORTS = "reports"  # the folder of the gallery's reports, within the site
ORIGIN = "docs"  # the folder of the pages among the copied files, as in the repository
EXPERIMENTS = "experiments"  # its README lists those of its folders

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
REPORT = re.compile(r"^tilesight (report .*)$", re.MULTILINE)
OUTPUT = re.compile(r"-o (\S+\.html)")
SESSION = re.compile(r"^python experiments/datasets/as_session\.py (\S+) (\S+) (\S+)", re.MULTILINE)
KERNEL = re.compile(r"^```python\n(# scale\.py\n.*?)^```", re.MULTILINE | re.DOTALL)

SETTINGS: dict[str, object] = {
    "project": "TileSight",
    "extensions": ["myst_parser"],
    "html_theme": "furo",
    "html_title": "TileSight",
    "html_static_path": ["_static"],
    "html_css_files": ["site.css"],
    "html_extra_path": ["_extra"],
    "html_copy_source": False,
    "html_show_sourcelink": False,
    "html_show_copyright": False,
    # a summary of a search's results would be fetched, which browsers refuse for files
    "html_show_search_summary": False,
    "myst_heading_anchors": 4,
    "nitpicky": True,
    "smartquotes": False,
}
STYLE = """\
article { overflow-wrap: anywhere; }
article table code, article li code, article p code { overflow-wrap: anywhere; white-space: normal; }
article table.docutils { font-size: 0.85em; }
article table.docutils td, article table.docutils th { min-width: 5.5rem; }
article .table-wrapper { width: auto; }
article .table-wrapper > table.docutils { margin-left: 0; }
article table a { overflow-wrap: normal; }
article img { background: #fff; }
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=SITE, help="where the site is written")
    parser.add_argument("--without-reports", action="store_true", help="leave the gallery's reports out")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tilesight-docs-") as name:
        source = Path(name) / "source"
        copy_pages(source)
        if not given.without_reports:
            write_reports(source / "_extra" / ORIGIN / REPORTS)
        status = run_sphinx(source, given.folder)
    if status == 0:
        print(f"docs: {given.folder / 'index.html'}")
    return status


def documents() -> list[Path]:
    """All pages of the site, as paths from the root of the repository."""
    found = [*DOCS.glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "experiments").rglob("README.md")]
    return sorted(path.relative_to(ROOT) for path in found)


def copy_pages(source: Path) -> None:
    """Write the pages, their pictures, a navigation and a style sheet into the folder `source`."""
    pages = documents()
    for page in pages:
        copied = source / page
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_text(prepared(page, pages), encoding="utf-8")
    for pattern in ("docs/*.svg", "docs/*.toml", "experiments/**/*.png", "experiments/**/*.svg"):
        for file in ROOT.glob(pattern):
            copied = source / file.relative_to(ROOT)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copied)
    # the site begins with the index of docs/, and a file that leads there from the folder's top
    extra, static = source / "_extra", source / "_static"
    extra.mkdir()
    static.mkdir()
    (extra / "index.html").write_text(FORWARD, encoding="utf-8")
    (static / "site.css").write_text(STYLE, encoding="utf-8")


def prepared(page: Path, pages: list[Path]) -> str:
    """The text of a page with what the site adds: navigation, and links to files that the site has only."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page == Path(ORIGIN, "index.md"):
        text += navigation(text, pages)
    if page == Path(EXPERIMENTS, "README.md"):
        children = [each.as_posix() for each in pages if each.parts[0] == EXPERIMENTS and each != page]
        text += toctree("", children)
    if page == Path(ORIGIN, "gallery.md"):
        text = with_links_to_reports(text)
    return outside_code(text, lambda part: local_links(part, page, pages))


FORWARD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>TileSight</title>
<meta http-equiv="refresh" content="0; url=docs/index.html"></head>
<body><a href="docs/index.html">TileSight: documentation</a></body></html>
"""


def navigation(index: str, pages: Iterable[Path]) -> str:
    """A hidden table of contents for each section of index.md, of the pages that its list links to.

    A page is listed where the first link leads to the whole of it. Sphinx warns of pages that no list has.
    """
    left = {page.as_posix() for page in pages if page != Path(ORIGIN, "index.md")}
    parts = []
    for title, body in SECTION.findall(index):
        entries = []
        for _, link in LINK.findall(body):
            page = os.path.normpath(os.path.join(ORIGIN, link))
            if page in left:
                left.remove(page)
                entries.append(page)
        parts.append(toctree(title, entries))
    return "".join(parts)


def toctree(title: str, entries: Iterable[str]) -> str:
    lines = "".join(f"/{entry}\n" for entry in entries)
    caption = f":caption: {title}\n" if title else ""
    return f"\n```{{toctree}}\n:hidden:\n{caption}\n{lines}```\n"


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """`text` with all parts changed that are not code. Links whose text is code are not code themselves."""
    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def local_links(text: str, page: Path, pages: Iterable[Path]) -> str:
    """`text` without links to files that the site does not have, such as programs: their text remains."""
    known = {known.as_posix() for known in pages}

    def link(found: re.Match[str]) -> str:
        label, aim = found.groups()
        if re.match(r"\w+:|#", aim) or aim.startswith(REPORTS):
            return found[0]
        path = os.path.normpath(os.path.join(page.parent, aim.partition("#")[0]))
        is_kept = path in known or (path.startswith(f"{ORIGIN}/") and path.endswith((".svg", ".toml")))
        return found[0] if is_kept else label

    return LINK.sub(link, text)


def with_links_to_reports(text: str) -> str:
    """The gallery, with a link in place of each name of a report in backticks."""
    for name in OUTPUT.findall(" ".join(REPORT.findall(text))):
        text = text.replace(f"`{name}`", f'<a href="{REPORTS}/{name}">{name}</a>')
    return text


def write_reports(folder: Path) -> None:
    """Run the commands of gallery.md, which write reports, and nothing else that is written there."""
    folder.mkdir(parents=True)
    gallery = (DOCS / "gallery.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="tilesight-gallery-") as name:
        places = {"scale.py:scale": write_worked_kernel(Path(name))}
        if found := SESSION.search(gallery):
            dataset, shape, database = found.groups()
            places[database] = str(Path(name) / database)
            places["SESSION"] = record_session(ROOT / dataset, shape, places[database])
        for command in REPORT.findall(gallery):
            run_command([places.get(word, word) for word in shlex.split(command)], folder)


def write_worked_kernel(folder: Path) -> str:
    """The kernel of worked.md, in a file of its own."""
    [kernel] = KERNEL.findall((DOCS / "worked.md").read_text(encoding="utf-8"))
    (folder / "scale.py").write_text(kernel, encoding="utf-8")
    return f"{folder / 'scale.py'}:scale"


def record_session(dataset: Path, shape: str, database: str) -> str:
    program = runpy.run_path(str(ROOT / "experiments" / "datasets" / "as_session.py"))
    return str(program["record"](dataset, shape, database))


def run_command(words: list[str], folder: Path) -> None:
    from tilesight.cli.main import main as run

    out = words.index("-o") + 1
    words[out] = str(folder / words[out])
    words = [str(ROOT / word) if word.startswith("experiments/") else word for word in words]
    try:
        run(words)
    except SystemExit as ended:
        if ended.code:
            raise


def run_sphinx(source: Path, folder: Path) -> int:
    """Sphinx's exit code; 0 if there was no warning."""
    from sphinx.application import Sphinx
    from sphinx.util.console import nocolor

    nocolor()
    shutil.rmtree(folder, ignore_errors=True)
    sphinx = Sphinx(
        source,
        None,
        folder,
        source.parent / "doctrees",
        "html",
        confoverrides=SETTINGS | {"root_doc": f"{ORIGIN}/index"},
        status=None,
        warning=sys.stderr,
        freshenv=True,
        warningiserror=True,
    )
    sphinx.build()
    return int(sphinx.statuscode)


if __name__ == "__main__":
    sys.exit(main())
