"""The pages that list something: sessions, records, tables of the database, dispatch tables, kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..pages.values import Source as Provenance
from ..problem.config import Config
from ..reports.numbers import number
from . import markup
from .markup import Link, ListCell, ListChoice, Listing, address
from .source import ServedData

if TYPE_CHECKING:
    from ..database.lookups.browse import DatabaseContents, RowPage
    from ..records.recorded_session import SessionSummary

ROWS = 50  # of a page
# the columns of records that are shown; `table/records` has all of them
_RECORD_COLUMNS = (
    *("session_id", "status", "measured_us", "predicted_us", "limiting", "failure_kind", "config"),
    *("workload", "target", "device", "recorded_at"),
)
_PROVENANCE = {"measured_us": Provenance.MEASURED, "vendor_us": Provenance.VENDOR}
_PREDICTED = ("predicted_us", "ranking_us", "limiting", "uncertainty", "utilization", "terms_us")


def links(root: str) -> list[Link]:
    """The main pages."""
    return [
        Link("Sessions", root or "./"),
        Link("Records", root + "records"),
        Link("Kernels", root + "kernels"),
        Link("Dispatch tables", root + "dispatch"),
        Link("Database", root + "tables"),
        Link("Cost model", root + "model"),
    ]


def page(root: str, here: str, title: str, subtitle: str, parts: Sequence[str]) -> str:
    """A page with the links to the main ones."""
    return markup.document(title, subtitle, markup.navigation(links(root), here), parts)


def home(source: ServedData, query: Mapping[str, str]) -> str:
    """The sessions of the database, the latest first."""
    from ..database.lookups.browse import contents

    store = source.store
    if store is None:
        note = f"There is no database at '{source.location}': `tilesight tune` makes it."
        return page("", "Sessions", "Tuning sessions", source.location, [markup.paragraph(note)])
    before = _number(query, "before")
    found = source.read(contents)
    listed = store.session_summaries(
        query.get("kernel") or None,
        query.get("target") or None,
        ROWS + 1,
        workload=query.get("workload") or None,
        before=before,
    )
    parts = [
        markup.facts(
            {
                "sessions": f"{found.sessions:,}",
                "records": f"{found.records:,}",
                "kernels": ", ".join(found.kernels) or "none",
                "targets": ", ".join(found.targets) or "none",
            }
        ),
        _session_choices(found, query),
        _sessions(listed, query),
    ]
    return page("", "Sessions", "Tuning sessions", source.location, parts)


def _session_choices(found: DatabaseContents, query: Mapping[str, str]) -> str:
    return markup.choices(
        "./",
        [
            ListChoice("kernel", "kernel", found.kernels, query.get("kernel", "")),
            ListChoice("target", "target", found.targets, query.get("target", "")),
        ],
    )


def _sessions(found: Sequence[SessionSummary], query: Mapping[str, str]) -> str:
    kept = {name: query[name] for name in ("kernel", "target", "workload") if query.get(name)}
    below = []
    if query.get("before"):
        below.append(Link("The latest sessions", address("./", **kept)))
    if len(found) > ROWS:
        below.append(Link("Older sessions", address("./", **kept, before=found[ROWS - 1].id)))
    note = f"Of the workload {query['workload']}." if query.get("workload") else ""
    return markup.listing(
        Listing(
            "Sessions",
            ("session", "workload", "target", "winner, us", "candidates", "state", "effort", "began (UTC)"),
            [_session_row(summary) for summary in found[:ROWS]],
            "No session is recorded here: `tilesight tune KERNEL` records one.",
            below,
            f"{note} ~ marks predicted times.".strip(),
        )
    )


def _session_row(found: SessionSummary) -> list[ListCell]:
    context = found.context
    time = "-" if found.winner_us is None else f"{'' if found.is_measured else '~'}{number(found.winner_us)}"
    provenance = Provenance.MEASURED if found.is_measured else Provenance.PREDICTED
    return [
        ListCell(str(found.id), address("", "session", str(found.id))),
        ListCell(context.workload.label, address("./", workload=context.workload.key)),
        ListCell(context.target),
        ListCell(time, is_number=True, source=provenance),
        ListCell(
            f"{sum(found.counts.values()):,}",
            address("", "records", session=found.id),
            is_number=True,
        ),
        ListCell(found.state.value),
        ListCell(found.effort.value),
        ListCell(f"{found.started_at:%Y-%m-%d %H:%M}"),
    ]


def records(source: ServedData, query: Mapping[str, str]) -> str:
    """The candidates of all sessions or of one, the latest sessions first."""
    from ..database.lookups.browse import row_page

    session_id, after = _number(query, "session"), query.get("after", "")
    found = source.read(
        lambda connection: row_page(connection, "records", after, ROWS, session_id=session_id)
    )
    title = "Records" if session_id is None else f"Records of session {session_id}"
    below = _further(found, "records", "Further records", session=session_id)
    shown = _rows(found, _RECORD_COLUMNS, root="")
    note = "One row for each candidate of a session. predicted_us and limiting are predictions."
    empty = "No candidate is recorded here: `tilesight tune KERNEL` records some."
    part = markup.listing(Listing("Candidates", _RECORD_COLUMNS, shown, empty, below, note))
    return page("", "Records", title, source.location, [part])


def tables(source: ServedData) -> str:
    """The views and tables of the database, with the number of rows of each table."""
    from ..database.lookups.browse import table_sizes
    from ..database.schema.descriptions import DESCRIPTIONS
    from ..database.schema.tables import HEAD
    from ..database.schema.views import VIEWS

    sizes = source.read(table_sizes)
    size_bytes = source.read(source.opened.database.backend.size_bytes)
    views = [
        [ListCell(name, address("", "table", name)), ListCell(DESCRIPTIONS[name].text)] for name in VIEWS
    ]
    rows = [
        [
            ListCell(name, address("", "table", name)),
            ListCell(f"{count:,}", is_number=True),
            ListCell(DESCRIPTIONS[name].text),
        ]
        for name, count in sorted(sizes.items())
    ]
    parts = [
        markup.facts({"size": f"{size_bytes / 1e6:,.1f} MB", "schema": HEAD}),
        markup.listing(Listing("Views", ("view", "what it has"), views, "")),
        markup.listing(Listing("Tables", ("table", "rows", "what it has"), rows, "")),
    ]
    return page("", "Database", "Tables of the database", source.location, parts)


def table(source: ServedData, name: str, query: Mapping[str, str]) -> str:
    """The rows of a table or view."""
    from ..database.lookups.browse import row_page
    from ..database.schema.descriptions import DESCRIPTIONS

    after = query.get("after", "")
    found = source.read(lambda connection: row_page(connection, name, after, ROWS))
    below = _further(found, name, "Further rows")
    rows = _rows(found, found.columns, root="../")
    text = DESCRIPTIONS[name].text
    part = markup.listing(Listing("Rows", found.columns, rows, f"{name} has no rows.", below, text))
    return page("../", "Database", name, source.location, [part])


def _further(found: RowPage, aim: str, text: str, **kept: int | None) -> list[Link]:
    given = {name: value for name, value in kept.items() if value is not None}
    return [Link(text, address("", aim, **given, after=found.after))] if found.after else []


def _rows(found: RowPage, columns: Sequence[str], root: str) -> list[list[ListCell]]:
    places = [found.columns.index(column) for column in columns]
    return [
        [_value(column, row[place], root) for column, place in zip(columns, places, strict=True)]
        for row in found.rows
    ]


def _value(column: str, value: Any, root: str) -> ListCell:
    if column == "session_id" and isinstance(value, int):
        return ListCell(str(value), address(root, "session", str(value)))
    provenance = Provenance.PREDICTED if column in _PREDICTED else _PROVENANCE.get(column, Provenance.PLAIN)
    if value is None:
        return ListCell("", source=provenance)
    if column == "config" and isinstance(value, str):
        return ListCell(_config(value))
    if isinstance(value, bytes):
        return ListCell(f"{len(value):,} bytes")
    if isinstance(value, float):
        return ListCell(number(value, 6), is_number=True, source=provenance)
    if isinstance(value, int):
        return ListCell(str(value), is_number=True, source=provenance)
    return ListCell(value if isinstance(value, str) else _text(value), source=provenance)


def _config(text: str) -> str:
    """A config as people write it; the text itself if it is none."""
    try:
        return str(Config(json.loads(text)))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return text


def _text(value: Any) -> str:
    """A value that a driver made of JSON or of a time."""
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def dispatch_tables(source: ServedData) -> str:
    """The dispatch tables."""
    found = source.tables()
    rows = [
        [ListCell(name), ListCell(str(path))]
        if isinstance(path, InputError)
        else [ListCell(name, address("", "dispatch", name)), ListCell(str(path))]
        for name, path in found.items()
    ]
    empty = "No dispatch table was given: `tilesight serve TABLE.json` or `serve FOLDER` shows some."
    part = markup.listing(Listing("Dispatch tables", ("table", "file"), rows, empty))
    return page("", "Dispatch tables", "Dispatch tables", source.location, [part])


def kernels(source: ServedData) -> str:
    """The kernels with records."""
    from ..database.lookups.browse import contents

    found = source.read(contents).kernels
    rows = [
        [
            ListCell(name),
            ListCell("its sessions", address("./", kernel=name)),
            ListCell("its best configs", address("", "kernel", name)),
        ]
        for name in found
    ]
    empty = "No kernel has records here: `tilesight tune KERNEL` records some."
    part = markup.listing(Listing("Kernels", ("kernel", "sessions", "report"), rows, empty))
    return page("", "Kernels", "Kernels", source.location, [part])


def fault(root: str, text: str) -> str:
    """A page that says why another one is not shown."""
    return page(root, "", "Not shown", "", [markup.paragraph(text, is_warning=True)])


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or not text.isascii() or not int(text) < 2**63:
        raise InputError(f"{name}={text[:60]!r} must be a whole number")
    return int(text)
