"""Metadata with which Datasette shows a database: titles, units, descriptions, and queries to begin with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import URL

from ...errors import InputError
from ...files import check_out, check_replaces, replacing
from ..engine import faults, sqlite
from ..schema import tables as schema
from ..schema.descriptions import DESCRIPTIONS, QUERIES, column_text, unit
from ..schema.views import JSON_COLUMNS, VIEWS

TITLE = "TileSight performance database"


def metadata(name: str) -> dict[str, Any]:
    """The metadata of a database that Datasette shows under `name`: that of its file without the ending."""
    return {
        "title": TITLE,
        "description": "Every candidate that TileSight tried: predictions, builds, times and failures. "
        "Times in microseconds (us) are predicted where a column says so.",
        "databases": {
            name: {
                "tables": {table: _table(table, columns) for table, columns in columns_of_all().items()},
                "queries": {
                    key: {"title": query.title, "description": query.text, "sql": query.sql}
                    for key, query in QUERIES.items()
                },
            }
        },
    }


def write_metadata(url: URL, out: Path) -> str:
    """Write the metadata of the database at `url` to a file; returns the name that Datasette gives to it.

    Raises `InputError` if the database is no SQLite file, or the file cannot be written or is another one.
    """
    file = sqlite.file_of(url)
    if file is None:
        raise InputError(
            f"database '{faults.display_name(url)}' is no SQLite file, and Datasette shows no others; copy "
            "it into one: tilesight db merge SERVER --db copy.db"
        )
    check_out(out, ".json", "metadata", "--out")
    check_replaces(out, lambda text: f'"title": "{TITLE}"' in text, "metadata", 1000)
    with replacing(out, f"metadata '{out}' cannot be written") as partial_path:
        partial_path.write_text(json.dumps(metadata(file.stem), indent=2) + "\n", encoding="utf-8")
    return file.stem


def _table(name: str, columns: Sequence[str]) -> dict[str, Any]:
    found = DESCRIPTIONS[name]
    described: dict[str, Any] = {
        "title": found.title,
        "description": found.text,
        "columns": {column: column_text(name, column) for column in columns},
    }
    units = {column: unit(column) for column in columns if column not in JSON_COLUMNS and unit(column)}
    if units:
        described["units"] = units
    if found.sort_desc:
        described["sort_desc"] = found.sort_desc
    return described


def columns_of_all() -> dict[str, list[str]]:
    """The columns of each table and view, as SQLite names them."""
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            schema.metadata.create_all(connection)
            for view, query in VIEWS.items():
                connection.exec_driver_sql(f"CREATE VIEW {view} AS {query}")
            found = inspect(connection)
            return {
                name: [column["name"] for column in found.get_columns(name)]
                for name in [*VIEWS, *schema.metadata.tables]
            }
    finally:
        engine.dispose()
