"""Export, import and merge on each kind of database."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect

from tests.unit.database import samples
from tests.unit.database.stocked import stocked
from tilesight.database import Store, open_layers, open_store, overview, query
from tilesight.database.exchange.json_lines import export_everything, import_everything
from tilesight.database.exchange.merge import merge
from tilesight.database.exchange.t4_reader import import_t4
from tilesight.database.exchange.t4_writer import export_t4
from tilesight.database.layers import LayeredStore
from tilesight.database.maintenance import gc as cleaning
from tilesight.database.maintenance.check import backup, check
from tilesight.database.maintenance.gc import Rules, gc
from tilesight.database.maintenance.why import why
from tilesight.errors import InputError
from tilesight.records.session import Effort

PAGE = Path(__file__).resolve().parents[2] / "docs" / "database.md"
STATEMENTS = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    stocked(tmp_path / "stocked.db")
    return tmp_path / "stocked.db"


def dump(store: Store, file: Path) -> bytes:
    export_everything(store, file)
    return file.read_bytes()


def test_a_merge_brings_all_and_again_nothing(store: Store, file: Path, tmp_path: Path) -> None:
    with open_store(str(file), read_only=True) as other:
        merge(store, other)
        assert not sum(merge(store, other).values())
        assert dump(store, tmp_path / "a.jsonl") == dump(other, tmp_path / "b.jsonl")
        context = samples.context()
        assert store.recall(context) == other.recall(context)
        assert store.find_complete(context, Effort.QUICK, {}) == other.find_complete(
            context, Effort.QUICK, {}
        )
    assert check(store).faults == ()


def test_back_into_a_file(store: Store, file: Path, tmp_path: Path) -> None:
    with open_store(str(file), read_only=True) as other:
        merge(store, other)
        with open_store(samples.empty_database(tmp_path / "back.db")) as back:
            merge(back, store)
            assert dump(back, tmp_path / "a.jsonl") == dump(other, tmp_path / "b.jsonl")


@pytest.mark.parametrize("trusted", [True, False])
def test_export_and_import(store: Store, file: Path, tmp_path: Path, trusted: bool) -> None:
    with open_store(str(file), read_only=True) as other:
        exported = dump(other, tmp_path / "a.jsonl")
    import_everything(store, tmp_path / "a.jsonl", trusted=trusted)
    assert not sum(import_everything(store, tmp_path / "a.jsonl", trusted=trusted).written.values())
    assert (dump(store, tmp_path / "b.jsonl") == exported) == trusted
    assert bool(store.recall(samples.context())) == trusted
    assert check(store).faults == ()


def test_an_import_that_fails_leaves_nothing(store: Store, file: Path, tmp_path: Path) -> None:
    with open_store(str(file), read_only=True) as other:
        lines = dump(other, tmp_path / "a.jsonl").splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(InputError, match="it was cut short"):
        import_everything(store, tmp_path / "cut.jsonl", trusted=True)
    assert not sum(overview(store).tables.values())


def test_t4_and_cleaning_up(store: Store, file: Path, tmp_path: Path) -> None:
    with open_store(str(file), read_only=True) as other:
        export_t4(other, tmp_path / "x.json", query(other, "SELECT MIN(id) FROM sessions")[1][0][0])
        merge(store, other)
    before = overview(store).tables
    import_t4(store, tmp_path / "x.json")
    rules = Rules(imported=True)
    assert gc(store, rules, dry_run=True).rows == gc(store, rules).rows
    after = overview(store).tables
    assert {name for name in after if after[name] != before[name]} <= {
        "software",
        "targets",
        "failure_reasons",
    }
    gc(store, Rules({"matmul_hopper": "changed"}, "reader-2", predictions_days=0))
    assert set(overview(store).trials) == {"verified"}
    assert check(store).faults == ()


@pytest.mark.parametrize("dry_run", [True, False])
def test_indexes_are_there_while_rows_go_and_not_after(
    store: Store, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    def found(connection: Connection) -> set[str]:
        tables = inspect(connection).get_table_names()
        names = {str(index["name"]) for table in tables for index in inspect(connection).get_indexes(table)}
        return {name for name in names if name.startswith("gc_")}

    meanwhile: list[set[str]] = []
    monkeypatch.setattr(
        cleaning, "_STEPS", {"a step": lambda sweep, _: meanwhile.append(found(sweep.connection))}
    )
    removed = gc(store, Rules(), dry_run=dry_run)
    assert (removed.rows, removed.space_kept) == ({}, "")
    assert [len(names) for names in meanwhile] == [len(cleaning._REFERENCES)]
    assert "gc_trials_measurement_id" in meanwhile[0]
    assert store.database.read(found) == set()


def test_as_a_layer(url: str, file: Path, tmp_path: Path) -> None:
    with open_store(str(file), read_only=True) as other, open_store(url) as below:
        merge(below, other)
    with open_layers(samples.empty_database(tmp_path / "own.db"), [url]) as layered:
        assert isinstance(layered, LayeredStore)
        found = why(layered, samples.context())
        assert [seen.layer for seen in found.answers] == [layered.layers[0].name]
        assert samples.winner(layered, samples.context()) is not None
        assert layered.best(target="h200")


def test_the_sql_of_the_documentation_runs(store: Store, file: Path) -> None:
    with open_store(str(file), read_only=True) as other:
        merge(store, other)
    assert len(STATEMENTS) >= 5
    for statement in STATEMENTS:
        columns, _ = query(store, statement)
        assert columns


def test_a_servers_database_has_its_own_backup(postgres_url: str, tmp_path: Path) -> None:
    with (
        open_store(postgres_url) as store,
        pytest.raises(InputError, match=r"pg_dump --format=custom.*--everything"),
    ):
        backup(store, tmp_path / "x.db")
