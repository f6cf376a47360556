"""`content_ids` and `row_fields` know every table and column, also those that a later version adds."""

from __future__ import annotations

from sqlalchemy import JSON

from tests.unit.database import samples
from tilesight.database.exchange.row_fields import SHAPES
from tilesight.database.schema import tables as schema
from tilesight.database.tables import rows
from tilesight.database.tables.content_ids import NATURAL, expected_id
from tilesight.database.tables.rows import software_keys

# their ids are times, and a hash over the keys of what they refer to
OTHERS = {"sessions", "dispatch_misses"}


def test_the_identity_of_every_fact_is_known() -> None:
    assert (
        set(NATURAL) == {name for name, table in schema.metadata.tables.items() if "id" in table.c} - OTHERS
    )
    for name, (natural, added) in NATURAL.items():
        assert {*natural, *added} <= set(schema.metadata.tables[name].c.keys())


def test_the_shape_of_every_json_column_is_known() -> None:
    tables = schema.metadata.tables.values()
    assert set(SHAPES) == {
        f"{table.name}.{column.name}"
        for table in tables
        for column in table.c
        if isinstance(column.type, JSON)
    }


def test_ids_are_those_of_the_rows() -> None:
    for seed in range(20):
        draw = samples.Draw(seed)
        context = samples.context(
            dynamic=("m",) if seed % 2 else (), software={"nvcc": draw.text(), "driver": "1"}
        )
        ids, found = rows.context_rows(context)
        found += rows.trial_rows(1, ids, draw.trial(seed))
        facts = [(table.name, row) for table, row in found if table.name in NATURAL]
        assert {name for name, _ in facts} >= {"software", "candidates"}
        for name, row in facts:
            assert expected_id(name, row) == row["id"], name
            if name == "software":
                assert software_keys(row["versions"]) == {
                    "code_key": row["code_key"],
                    "time_key": row["time_key"],
                }


def test_keys_of_software_stay_what_they_are() -> None:
    """The ids of recorded rows are those of their content."""
    versions = {
        "tilelang": "0.1.15",
        "nvcc": "nvcc 13.0.88",
        "tilesight-build": "3",
        "torch": "2.13.0",
        "driver": "580.1",
    }
    assert software_keys(versions) == {"code_key": "58b2fe673708287b", "time_key": "23c296701645ff84"}
    assert software_keys({**versions, "torch": "2.11.0"}) == software_keys(versions)
    code = {name: version for name, version in versions.items() if name not in ("torch", "driver")}
    assert software_keys(code) == {"code_key": "58b2fe673708287b", "time_key": "58b2fe673708287b"}


def test_what_was_replaced_cannot_be_told() -> None:
    row = {"id": 7, "name": "a\ufffdb", "version": "1"}
    assert expected_id("templates", row) is None
    assert expected_id("sessions", {"id": 7}) is None
