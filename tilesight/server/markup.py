"""HTML of the pages that list something. They have no scripts; all texts of records are escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from urllib.parse import quote, urlencode

from ..pages.markup import asset, breaking, digest, text
from ..pages.values import Source

LONGEST = 160  # characters of a cell; what is longer is cut


@dataclass(frozen=True, slots=True)
class Link:
    """A text that leads to another page. `aim` is a relative address from `address`."""

    text: str
    aim: str


@dataclass(frozen=True, slots=True)
class ListCell:
    """A cell of a table: a text, perhaps with a link. A number stands at the right; a source has a colour."""

    text: str
    aim: str = ""
    is_number: bool = False
    source: Source = Source.PLAIN


@dataclass(frozen=True, slots=True)
class Listing:
    """A table with a title: columns, rows, and what stands below it, such as the link to further rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[ListCell]]
    empty: str
    below: Sequence[Link] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class ListChoice:
    """A list from which a reader chooses, by the name of its field; "" stands for all."""

    field: str
    label: str
    values: Sequence[str]
    chosen: str


def address(root: str, *parts: str, **query: str | int | None) -> str:
    """A relative address of a page, from the page at depth `root`; None is left out of the query."""
    given = {name: value for name, value in query.items() if value is not None}
    path = root + "/".join(quote(part, safe="") for part in parts)
    return path + ("?" + urlencode(given) if given else "")


def navigation(links: Iterable[Link], here: str) -> str:
    """Links to the main pages; that of the present page says so."""
    items = "".join(
        f'<li><a href="{text(link.aim)}"{_current(link.text == here)}>{text(link.text)}</a></li>'
        for link in links
    )
    return f'<nav class="site" aria-label="Pages"><ul>{items}</ul></nav>\n'


def _current(is_here: bool) -> str:
    return ' aria-current="page"' if is_here else ""


def document(title: str, subtitle: str, links: str, parts: Iterable[str]) -> str:
    """A whole page without scripts. `links` and `parts` are HTML."""
    styles = _styles()
    policy = f"default-src 'none'; style-src {digest(styles)}; img-src data:; form-action 'self'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<link rel="icon" href="data:,">
<style>{styles}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header>
{links}<h1>{text(title)}</h1>
<p>{text(subtitle)}</p>
</header>
<main id="main" tabindex="-1">
{"".join(parts)}
</main>
</body>
</html>
"""


def facts(rows: Mapping[str, str]) -> str:
    items = "".join(f"<dt>{text(name)}</dt><dd>{breaking(value)}</dd>" for name, value in rows.items())
    return f"<dl>{items}</dl>\n"


def paragraph(content: str, *, is_warning: bool = False) -> str:
    look = ' class="warning"' if is_warning else ""
    return f"<p{look}>{text(content)}</p>\n"


def listing(found: Listing) -> str:
    """A section with a table that scrolls by itself where it is wider than the screen."""
    note = f"<p class='note'>{text(found.note)}</p>" if found.note else ""
    opening = f"<section><h2>{text(found.title)}</h2>{note}"
    if not found.rows:
        return f"{opening}<p>{text(found.empty)}</p></section>\n"
    numbers = {place for row in found.rows for place, cell in enumerate(row) if cell.is_number}
    looks = ["number" if place in numbers else "" for place in range(len(found.columns))]
    head = "".join(
        f'<th scope="col" class="{look}">{text(column)}</th>'
        for column, look in zip(found.columns, looks, strict=True)
    )
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in found.rows)
    below = " ".join(f'<a href="{text(link.aim)}">{text(link.text)}</a>' for link in found.below)
    return (
        f'{opening}<div class="wide" tabindex="0" role="region" aria-label="{text(found.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
        f"<p class='more'>{below}</p></section>\n"
    )


def choices(aim: str, found: Iterable[ListChoice]) -> str:
    """A form that shows the page again with what was chosen."""
    fields = "".join(_choice(choice) for choice in found)
    return f'<form class="bar" method="get" action="{text(aim)}">{fields}<button>Show</button></form>\n'


def _choice(found: ListChoice) -> str:
    options = "".join(
        f'<option value="{text(value)}"{" selected" if value == found.chosen else ""}>'
        f"{text(value or 'all')}</option>"
        for value in ["", *found.values]
    )
    select = f'<select name="{text(found.field)}">{options}</select>'
    return f"<label><span>{text(found.label)}</span>{select}</label>"


def _cell(found: ListCell) -> str:
    shown = found.text if len(found.text) <= LONGEST else found.text[: LONGEST - 1] + "…"
    look = [name for name, is_so in (("number", found.is_number), ("long", len(shown) > 60)) if is_so]
    if found.source is not Source.PLAIN:
        look.append(found.source.value)
    content = text(shown) if found.is_number else breaking(shown)
    if found.aim:
        content = f'<a href="{text(found.aim)}">{content}</a>'
    return f'<td class="{" ".join(look)}">{content}</td>' if look else f"<td>{content}</td>"


@cache
def _styles() -> str:
    """The styles of all pages; without a script, the reader's system chooses between light and dark."""
    styles = asset("page.css")
    dark = re.search(r':root\[data-theme="dark"\] (\{.*?\n\})', styles, re.DOTALL)
    assert dark is not None
    return f"\n{styles}\n@media (prefers-color-scheme: dark) {{ :root {dark[1]} }}\n{asset('listing.css')}"
