"""The migrations make the tables of `schema.tables`, from any earlier revision."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine, inspect, text

from tests.unit.database import samples
from tilesight.database import Store, open_store, overview, query
from tilesight.database.schema import migrate
from tilesight.database.schema import tables as schema
from tilesight.database.schema.migrations.versions import v0001_first_tables
from tilesight.database.schema.views import JSON_COLUMNS, VIEWS
from tilesight.database.tables import rows
from tilesight.database.tables import session_rows as sessions
from tilesight.errors import FailureKind
from tilesight.problem.space import Census
from tilesight.records.session import Effort
from tilesight.records.trial import ORDER_TERM, Status, TrialRecord

# Every migration makes the views anew. To change a view, add a revision (it may be empty) and put the new
# digest here.
VIEWS_DIGEST = {"0007": "9cee2a415cbf"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/x.db") as opened:
        yield opened


def test_migrations_make_the_tables_of_the_schema(store: Store) -> None:
    options = {"compare_type": True, "compare_server_default": True, "version_table": schema.VERSION_TABLE}

    def compare(connection: object) -> list[object]:
        found = MigrationContext.configure(connection, opts=options)  # type: ignore[arg-type]
        return list(compare_metadata(found, schema.metadata))

    assert store.database.read(compare) == []
    # the comparison finds differences
    extra = "CREATE TABLE extra (id INTEGER)"
    store.database.write(lambda connection: connection.execute(text(extra)))
    store.database.write(lambda connection: connection.execute(text("DROP INDEX ix_trials_candidate_id")))
    assert len(store.database.read(compare)) == 2


def test_migrations_make_the_same_keys_and_options_as_the_schema(store: Store) -> None:
    """Alembic does not compare these."""
    reference = create_engine("sqlite://")
    schema.metadata.create_all(reference)
    wanted, migrated = inspect(reference), inspect(store.database._engine)
    for table in schema.metadata.tables:
        assert migrated.get_pk_constraint(table) == wanted.get_pk_constraint(table)
        assert migrated.get_table_options(table) == wanted.get_table_options(table)
        assert _references(migrated.get_foreign_keys(table)) == _references(wanted.get_foreign_keys(table))
        assert {c["name"]: c["nullable"] for c in migrated.get_columns(table)} == {
            c["name"]: c["nullable"] for c in wanted.get_columns(table)
        }
    reference.dispose()


def test_revisions_are_a_line_that_ends_in_the_head() -> None:
    config = Config()
    config.set_main_option("script_location", "tilesight.database.schema:migrations")
    scripts = ScriptDirectory.from_config(config)
    assert [script.revision for script in scripts.walk_revisions()] == list(reversed(schema.REVISIONS))
    assert scripts.get_heads() == [schema.HEAD]
    assert v0001_first_tables.revision == schema.REVISIONS[0]


def test_views_are_those_of_this_revision(store: Store) -> None:
    digest = hashlib.sha256("\n".join(f"{name}: {sql}" for name, sql in VIEWS.items()).encode()).hexdigest()[
        :12
    ]
    assert {schema.HEAD: digest} == VIEWS_DIGEST
    assert set(store.database.read(lambda connection: inspect(connection).get_view_names())) == set(VIEWS)


def test_json_columns_of_the_views_are_named(store: Store) -> None:
    columns = set(
        store.database.read(lambda connection: connection.execute(text("SELECT * FROM records")).keys())
    )
    assert columns >= JSON_COLUMNS


def test_foreign_keys_are_enforced(store: Store) -> None:
    assert (
        store.database.read(lambda connection: connection.execute(text("PRAGMA foreign_keys")).scalar()) == 1
    )


def test_opening_an_up_to_date_database_loads_no_migrations(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    open_store(url).close()
    code = (
        "import sys; from tilesight.database import open_store; "
        f"open_store({url!r}).close(); sys.exit('alembic' in sys.modules)"
    )
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


def older_database(path: Path, revision: str, trials: Iterable[TrialRecord]) -> str:
    """A database as `revision` made it, with a complete session of `trials`; its URL."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "tilesight.database.schema:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        ids, prepared = rows.context_rows(samples.context(protocol=""))
        session = sessions.session_row(ids, Effort.QUICK, 0, {}, Census(1, 1, {}), 0, 0)
        prepared.append(
            (schema.sessions, {**session, "context_key": "as computed then", "state": "complete"})
        )
        prepared += [row for trial in trials for row in rows.trial_rows(session["id"], ids, trial)]
        unique = {(table, row.get("id", number)): row for number, (table, row) in enumerate(prepared)}
        tables = MetaData()
        tables.reflect(connection)
        gone = {"workload_dims": {"log2": 0.0}}  # later dropped columns that must be filled
        for table in (
            tables.tables[of.name] for of in schema.metadata.sorted_tables if of.name in tables.tables
        ):
            for row in (row for (of, _), row in unique.items() if of.name == table.name):
                values = {**gone.get(table.name, {}), **row}
                connection.execute(
                    table.insert().values(
                        {
                            name: values[name]
                            for name in values
                            if name in table.c and values[name] is not None
                        }
                    )
                )
    engine.dispose()
    return f"sqlite:///{path}"


def of_old(trial: TrialRecord) -> TrialRecord:
    """The trial without what schemas before 0003 could not store."""
    build, measurement = trial.build, trial.measurement
    return replace(
        trial,
        build=build and replace(build, binary=""),
        measurement=measurement and replace(measurement, observed={}),
    )


def ordered(number: int, latency_us: float, order_us: float | None) -> TrialRecord:
    trial = samples.predicted(number, latency_us)
    assert trial.prediction is not None
    terms = {"dram": 1.0} if order_us is None else {"dram": 1.0, ORDER_TERM: order_us}
    return replace(trial, prediction=replace(trial.prediction, terms_us=terms))


@pytest.mark.parametrize("revision", schema.REVISIONS[:-1])
def test_an_older_database_is_migrated_with_its_data(tmp_path: Path, revision: str) -> None:
    predicted = [
        ordered(2, 10.0, None),
        ordered(3, 10.0, 0.3),
        ordered(4, 10.0, -2.5),
        ordered(5, 10.0, -11.0),
        ordered(6, 1e-5, None),
    ]
    wrong, slow = (
        of_old(samples.failed(7, FailureKind.WRONG_RESULT)),
        of_old(samples.failed(8, FailureKind.RUN_TIMEOUT)),
    )
    measured = of_old(samples.verified(1, 10.0, 11.0))
    url = older_database(tmp_path / "x.db", revision, [measured, *predicted, wrong, slow])
    with pytest.raises(Exception, match=f"has the older schema {revision}; open it for writing once"):
        open_store(url, read_only=True)
    with open_store(url) as store:
        columns = "config, predicted_us, ranking_us, protocol_key, observed, artifact, binary, samples_us"
        sql = f"SELECT {columns} FROM records"
        found = {json.loads(config)["block_m"]: row for config, *row in query(store, sql)[1]}
        assert {number: row[1] for number, row in found.items() if number < 7} == {
            1: 10.0,
            **{trial.config["block_m"]: trial.ranking_us for trial in predicted},
        }
        assert found[1] == [10.0, 10.0, "", "{}", "/cache/ab12/kernel.so", "", "[10.0, 11.0]"]
        assert query(store, "SELECT protocol, decision, winner_id, context_key FROM sessions")[1] == [
            ("", None, None, "as computed then")
        ]
        # the session answers no call, its builds hold, and its times hold only without a protocol
        context = samples.context(protocol="cold")
        assert store.find_complete(context, Effort.QUICK, {}) is None
        recalled = store.recall(context)
        first = recalled[samples.config(1).key]
        assert (first.status, first.measurement, first.build) == (Status.BUILT, None, measured.build)
        assert recalled[predicted[2].config.key] == predicted[2]
        assert [recalled[trial.config.key].status for trial in (wrong, slow)] == [Status.FAILED, Status.BUILT]
        assert store.recall(samples.context(protocol=""))[samples.config(1).key] == measured
        # recording the trials again adds no facts
        before = overview(store).tables
        store.record_many(
            store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {})), context, recalled.values()
        )
        after = overview(store).tables
        assert {name for name in after if after[name] != before[name]} == {"sessions", "trials"}
        assert store.best()[0].latency_us == 10.5
    with open_store(url, read_only=True) as store:
        assert len(store.recall(context)) == 8


def test_the_views_of_an_older_database_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = older_database(tmp_path / "x.db", schema.REVISIONS[-2], [samples.verified(1, 10.0)])
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.execute("CREATE VIEW best AS SELECT 1 AS old")
    monkeypatch.setattr(migrate, "VIEWS", {**VIEWS, "best": "SELECT 2 AS one"})
    with open_store(url) as store:
        assert query(store, "SELECT one FROM best")[1] == [(2,)]


def _references(keys: list) -> list:  # type: ignore[type-arg]
    """Without their names: SQLAlchemy does not read those of columns that were added to a table of SQLite."""
    return sorted(
        [(key["constrained_columns"], key["referred_table"], key["referred_columns"]) for key in keys]
    )
