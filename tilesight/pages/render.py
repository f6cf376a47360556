"""A page as the text of one HTML file, which loads nothing: its scripts, styles and data are in it.

All texts of records are data. Python escapes those in the HTML; the scripts write the others as text, never
as HTML. The policy in the file lets a browser use these scripts and styles only, and load nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..reports.numbers import value as value_text
from ..version import __version__
from .markup import asset, breaking, digest, text
from .shown import shown
from .values import Bar, Cell, Facts, Page, PageColumn, PageFigure, PageTable, Texts

GENERATOR = "TileSight"
DIGITS = 5  # significant digits of numbers in the file
_SCRIPTS = ("charts.js", "page.js")
_MARK = f'<meta name="generator" content="{GENERATOR}'


def is_page(head: str) -> bool:
    """Whether a file that begins with `head` is a page that TileSight wrote."""
    return _MARK in head


def html(page: Page, links: str = "") -> str:
    """The text of the page's file. Parts with nothing to show are left out.

    `links` is HTML that stands above the title where a server shows the page.
    """
    page = shown(page)
    scripts, styles = [asset(name) for name in _SCRIPTS], "\n" + asset("page.css")
    script_hashes = " ".join(map(digest, scripts))
    policy = (
        f"default-src 'none'; script-src {script_hashes}; style-src {digest(styles)}; img-src data: blob:"
    )
    body = "\n".join(_part(part, number) for number, part in enumerate(page.parts))
    contents = "\n".join(
        f'<li><a href="#part-{number}">{text(part.title)}</a></li>' for number, part in enumerate(page.parts)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
{_MARK} {text(__version__)}">
<title>{text(page.title)}</title>
<link rel="icon" href="data:,">
<style>{styles}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header>
{links}<h1>{breaking(page.title)}</h1>
<p>{text(page.subtitle)}</p>
<div class="bar" id="page-controls"></div>
<details class="contents"><summary>Contents</summary>
<nav aria-label="Contents"><ul>
{contents}
</ul></nav></details>
</header>
<main id="main" tabindex="-1">
<noscript><p class="warning">Figures need JavaScript, which is off here. The facts are below.</p></noscript>
{body}
</main>
<script type="application/json" id="data">{_json(_data(page))}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""


def _part(part: PageFigure | Facts | Texts, number: int) -> str:
    heading = f'<h2 id="heading-{number}">{text(part.title)}</h2>'
    opening = f'<section id="part-{number}" aria-labelledby="heading-{number}"'
    if isinstance(part, PageFigure):
        return f'{opening} data-figure="{text(part.key)}">{heading}<p>{text(part.text)}</p></section>'
    if isinstance(part, Facts):
        rows = "".join(f"<dt>{text(name)}</dt><dd>{breaking(value)}</dd>" for name, value in part.rows)
        return f"{opening}>{heading}<dl>{rows}</dl></section>"
    look = ' class="warning"' if part.is_warning else ""
    lines = "".join(f"<p>{text(line)}</p>" for line in part.lines)
    return f"{opening}{look}>{heading}{lines}</section>"


def _data(page: Page) -> dict[str, Any]:
    return {
        "title": page.title,
        "tables": {key: _table(table) for key, table in page.tables.items()},
        "figures": [_plain(part) for part in page.parts if isinstance(part, PageFigure)],
    }


def _table(table: PageTable) -> dict[str, Any]:
    columns = {key: _column(column) for key, column in table.columns.items()}
    return {"rows": table.rows, "length": len(table), "columns": columns}


def _column(column: PageColumn) -> dict[str, Any]:
    found = {
        "title": column.title,
        "unit": column.unit,
        "source": column.source.value,
        "parameter": column.is_parameter,
    }
    values = [_cell(value) for value in column.values]
    if any(isinstance(value, str) for value in values):
        # texts repeat: each is stored once
        places: dict[str, int] = {}
        codes = [None if v is None else places.setdefault(str(v), len(places)) for v in values]
        return {**found, "texts": list(places), "codes": codes}
    return {**found, "values": values}


def _cell(value: Cell) -> Cell:
    return value_text(value) if isinstance(value, bool) else _rounded(value)


def _rounded(value: Cell) -> Cell:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _plain(value: Any) -> Any:
    """A value of a figure in JSON types; `kind` is the name of its class."""
    if hasattr(value, "__dataclass_fields__"):
        members = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        return members if isinstance(value, Bar) else {"kind": type(value).__name__, **members}
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(member) for member in value]
    return _rounded(value)


def _json(data: Any) -> str:
    """JSON that cannot end the script element that contains it."""
    written = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


__all__ = ["GENERATOR", "html", "is_page"]
