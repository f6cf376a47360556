"""The tables that the migrations make are those of schema.py, however a database comes to them."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

from tests.unit.database import samples
from tilesight.database import Store, migrate, open_store, schema
from tilesight.database.migrations.versions import v0001_first_tables
from tilesight.database.views import JSON_COLUMNS, VIEWS
from tilesight.session import Effort
from tilesight.space import Census

# Views are made anew by every migration. Whoever changes one adds a revision (empty will do) and puts its digest here.
VIEWS_DIGEST = {"0002": "e5d5cd4b0094"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/x.db") as opened:
        yield opened


def test_migrations_make_the_tables_of_the_schema(store: Store) -> None:
    options = {"compare_type": True, "compare_server_default": True, "version_table": schema.VERSION_TABLE}

    def compare(connection: object) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), schema.metadata))  # type: ignore[arg-type]

    assert store.database.read(compare) == []
    # and the comparison would see a difference
    extra = "CREATE TABLE extra (id INTEGER)"
    store.database.write(lambda connection: connection.execute(text(extra)))
    store.database.write(lambda connection: connection.execute(text("DROP INDEX ix_trials_candidate_id")))
    assert len(store.database.read(compare)) == 2


def test_migrations_make_the_same_keys_and_options_as_the_schema(store: Store) -> None:
    """What Alembic does not compare."""
    reference = create_engine("sqlite://")
    schema.metadata.create_all(reference)
    wanted, migrated = inspect(reference), inspect(store.database._engine)
    for table in schema.metadata.tables:
        assert migrated.get_pk_constraint(table) == wanted.get_pk_constraint(table)
        assert migrated.get_table_options(table) == wanted.get_table_options(table)
        assert _by_name(migrated.get_foreign_keys(table)) == _by_name(wanted.get_foreign_keys(table))
        assert {c["name"]: c["nullable"] for c in migrated.get_columns(table)} == {
            c["name"]: c["nullable"] for c in wanted.get_columns(table)
        }
    reference.dispose()


def test_revisions_are_a_line_that_ends_in_the_head() -> None:
    config = Config()
    config.set_main_option("script_location", "tilesight.database:migrations")
    scripts = ScriptDirectory.from_config(config)
    assert [script.revision for script in scripts.walk_revisions()] == list(reversed(schema.REVISIONS))
    assert scripts.get_heads() == [schema.HEAD]
    assert v0001_first_tables.revision == schema.REVISIONS[0]


def test_views_are_those_of_this_revision(store: Store) -> None:
    digest = hashlib.sha256("\n".join(f"{name}: {sql}" for name, sql in VIEWS.items()).encode()).hexdigest()[:12]
    assert {schema.HEAD: digest} == VIEWS_DIGEST
    assert set(store.database.read(lambda connection: inspect(connection).get_view_names())) == set(VIEWS)


def test_json_columns_of_the_views_are_named(store: Store) -> None:
    columns = set(store.database.read(lambda connection: connection.execute(text("SELECT * FROM records")).keys()))
    assert columns >= JSON_COLUMNS


def test_foreign_keys_are_enforced(store: Store) -> None:
    assert store.database.read(lambda connection: connection.execute(text("PRAGMA foreign_keys")).scalar()) == 1


def test_opening_an_up_to_date_database_loads_no_migrations(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    open_store(url).close()
    code = f"import sys; from tilesight.database import open_store; open_store({url!r}).close(); sys.exit('alembic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_failed_migration_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    monkeypatch.setattr(migrate, "VIEWS", {**VIEWS, "broken": "SELECT FROM"})
    with pytest.raises(Exception, match="syntax error"):
        open_store(str(path))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    monkeypatch.undo()
    open_store(str(path)).close()


def test_an_older_database_is_migrated_with_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, context = f"sqlite:///{tmp_path}/x.db", samples.context()
    with open_store(url) as store:
        store.record(store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {})), context, samples.verified(1, 10.0))
        # as the first version left it
        store.database.write(lambda connection: connection.execute(text("DROP TABLE profile_families")))
        store.database.write(lambda connection: connection.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0001'")))
    monkeypatch.setattr(migrate, "VIEWS", {**VIEWS, "best": "SELECT 1 AS one"})
    with pytest.raises(Exception, match="has the older schema 0001; open it for writing once"):
        open_store(url, read_only=True)
    with open_store(url) as store:
        assert len(store.recall(context)) == 1
        assert store.database.read(lambda connection: connection.execute(text("SELECT * FROM best")).all()) == [(1,)]
        assert store.database.read(lambda connection: connection.execute(text("SELECT * FROM profile_families")).all()) == []
    with open_store(url, read_only=True) as store:
        assert len(store.recall(context)) == 1


def _by_name(keys: list) -> list:  # type: ignore[type-arg]
    return sorted(keys, key=lambda key: str(key["name"]))
