"""Databases of earlier versions, opened by this one.

`tests/unit/database/dumps` has one of each earlier revision, written by the code of its time: five sessions
with trials of each status, on two targets, with several versions of software; since 0004 also a session of a
kernel with a dynamic dimension, cached profiles, misses and a calibration. The dump of 0005 is that of 0004,
migrated by the code of its time. On PostgreSQL these rows are put into the tables that the migrations up to
that revision make.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import JSON, DateTime, MetaData, Table, create_engine

from tests.contract.conftest import KINDS
from tests.support.postgres import Server
from tests.unit.database import samples
from tests.unit.database.stocked import FAMILY, miss
from tilesight.database import Store, open_store, overview, query
from tilesight.database.engine.connection import parse_url
from tilesight.database.maintenance.check import check
from tilesight.database.schema import tables as schema
from tilesight.database.tables import rows
from tilesight.errors import FailureKind
from tilesight.problem.space import Census
from tilesight.problem.workload import Workload
from tilesight.records.session import Context, Decision, Effort, SessionState
from tilesight.records.trial import Status

DUMPS = Path(__file__).resolve().parents[1] / "unit" / "database" / "dumps"
SOFTWARE = {"tilelang": "0.1.15", "nvcc": "nvcc 13.0.88", "torch": "2.13.0", "driver": "580.159.04"}
GEMV = Workload("gemv", {"m": 777, "k": 4096}, "float32")
PROCESSOR = {
    "device": "AMD EPYC",
    "target": "cpu",
    "arch": "x86_64",
    "workload": GEMV,
    "template": "gemv_cpu",
}


def test_there_is_a_dump_of_each_earlier_revision() -> None:
    assert sorted(path.stem for path in DUMPS.glob("*.sql")) == list(schema.REVISIONS[:-1])


@pytest.fixture(params=schema.REVISIONS[:-1])
def revision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Originals:
    return Originals(tmp_path_factory.mktemp("originals"), lambda: request.getfixturevalue("postgres"))


@pytest.fixture(params=KINDS)
def migrated(
    request: pytest.FixtureRequest, originals: Originals, revision: str, tmp_path: Path
) -> Iterator[Store]:
    """A database of `revision` with its data, as this version opens it."""
    if request.param == "sqlite":
        copied = shutil.copy(originals.file(revision), tmp_path / "old.db")
        with open_store(str(copied)) as store:
            yield store
        return
    server = originals.server()
    with (
        server.database(template=originals.database(revision)) as name,
        open_store(server.url(name)) as store,
    ):
        yield store


class Originals:
    """Databases that this version has opened, and so migrated, once. Tests get copies of them."""

    def __init__(self, folder: Path, server: Callable[[], Server]) -> None:
        self.server = server
        self._folder = folder
        self._databases: dict[str, str] = {}

    def file(self, revision: str) -> Path:
        """The migrated database of SQLite."""
        made = self._folder / f"{revision}.db"
        if not made.exists():
            self._dumped(made, revision)
            open_store(str(made)).close()
            assert list(self._folder.glob(f"{made.name}-*")) == [], "a part of it is in another file"
        return made

    def database(self, revision: str) -> str:
        """The name of the migrated database of PostgreSQL."""
        if revision not in self._databases:
            old, name = self._folder / f"{revision}-old.db", self.server().create()
            self._dumped(old, revision)
            copy_rows(old, self.server().url(name), revision)
            open_store(self.server().url(name)).close()
            self._databases[revision] = name
        return self._databases[revision]

    def _dumped(self, file: Path, revision: str) -> None:
        with closing(sqlite3.connect(file)) as connection:
            connection.executescript((DUMPS / f"{revision}.sql").read_text(encoding="utf-8"))


def copy_rows(old: Path, url: str, revision: str) -> None:
    """Make the tables of `revision` and put the rows of the SQLite file `old` into them."""
    engine = create_engine(parse_url(url))
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "tilesight.database.schema:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        tables = MetaData()
        tables.reflect(connection)
        with closing(sqlite3.connect(old)) as source:
            source.row_factory = sqlite3.Row
            for table in tables.sorted_tables:
                if table.name == schema.VERSION_TABLE:
                    continue
                found = [converted(table, row) for row in source.execute(f"SELECT * FROM {table.name}")]
                if found:
                    connection.execute(table.insert(), found)
    engine.dispose()


def converted(table: Table, row: sqlite3.Row) -> dict[str, Any]:
    """A row of SQLite with values in place of their text."""
    readers = {JSON: json.loads, DateTime: datetime.fromisoformat}
    found = dict(row)
    for column in table.c:
        reader = next((read for kind, read in readers.items() if isinstance(column.type, kind)), None)
        if reader is not None and found[column.name] is not None:
            found[column.name] = reader(found[column.name])
    return found


def context(revision: str, **changes: Any) -> Context:
    """A context of the dump's sessions: before 0003 there was one protocol, without a name."""
    made = samples.context(**{"software": SOFTWARE, **changes})
    return replace(made, protocol="") if revision < "0003" else made


def contexts(revision: str) -> list[Context]:
    return [
        context(revision),
        context(revision, software={**SOFTWARE, "torch": "2.12.0"}),
        context(revision, software={**SOFTWARE, "driver": "570.1"}),
        context(revision, device="", protocol="", software={"tilelang": "0.1.15", "nvcc": "nvcc 13.0.88"}),
        context(revision, software={"tilelang": "0.1.15", "c++": "g++ 12.2.0"}, **PROCESSOR),
        *([context(revision, dynamic=("m",))] if revision >= "0004" else []),
    ]


def test_what_later_columns_hold_is_what_is_recorded_today(migrated: Store, revision: str) -> None:
    software = {row[0]: row[1:] for row in query(migrated, "SELECT id, code_key, time_key FROM software")[1]}
    columns = "id, uuid, driver, toolkit, tilelang, torch"
    environments = {row[0]: row[1:] for row in query(migrated, f"SELECT {columns} FROM environments")[1]}
    sessions = query(
        migrated, "SELECT workload_id, environment_id, template_id, shape_family, dynamic FROM sessions"
    )[1]
    wanted = []
    for known in contexts(revision):
        ids, prepared = rows.context_rows(known)
        by_table = {table.name: row for table, row in prepared}
        assert software[ids.software_id] == (ids.code_key, ids.time_key)
        row = by_table["environments"]
        assert environments[ids.environment_id] == tuple(row[name] for name in columns.split(", ")[1:])
        wanted.append((ids.workload_id, ids.environment_id, ids.template_id, ids.shape_family, ids.dynamic))
    assert sorted(sessions) == sorted(wanted)
    assert {row for row in environments.values() if row[0]} == {
        ("GPU-5f7e", "580.159.04", "nvcc 13.0.88", "0.1.15", "2.13.0")
    }
    times = query(
        migrated,
        "SELECT t.status, t.measured_us, m.latency_us FROM trials t LEFT JOIN measurements m ON m.id = "
        "t.measurement_id",
    )
    assert {
        (status, measured == latency) for status, measured, latency in times[1] if status == "verified"
    } == {("verified", True)}
    assert {measured for status, measured, _ in times[1] if status != "verified"} == {None}
    assert query(migrated, "SELECT DISTINCT dynamic FROM candidates ORDER BY dynamic")[1] == (
        [("",), ("m",)] if revision >= "0004" else [("",)]
    )


def test_what_held_before_holds_now(migrated: Store, revision: str) -> None:
    here = context(revision)
    known = migrated.recall(here)
    found = {number: known[samples.config(number).key] for number in range(1, 10)}
    assert found[1].measured_us == 11.0
    assert found[1].measurement is not None
    assert found[1].measurement.environment["uuid"] == "GPU-5f7e"
    assert found[2].measured_us == 9.5, "measured again beside another torch"
    assert (found[3].predicted_us, found[4].status, found[5].status) == (4.5, Status.BUILT, Status.MEASURED)
    kinds = {number: trial.failure.kind for number, trial in found.items() if trial.failure}
    assert kinds == {6: FailureKind.WRONG_RESULT, 7: FailureKind.RUN_TIMEOUT, 8: FailureKind.BUILD_ERROR}
    assert found[9].status is Status.BUILT, "its time is another driver's"
    assert [len(migrated.recall(one)) for one in contexts(revision)] == [9, 9, 9, 9, 1, 3][
        : len(contexts(revision))
    ]


def test_dispatch_finds_what_was_tuned_before(migrated: Store, revision: str) -> None:
    found = samples.winner(migrated, context(revision))
    assert found is not None
    # decisions are kept since 0003; 2 was measured later, and is the fastest
    assert (found.config, found.latency_us) == (
        (samples.config(1), 11.0) if revision >= "0003" else (samples.config(2), 9.5)
    )
    dynamic = samples.winner(migrated, context(revision, dynamic=("m",)))
    assert (dynamic and (dynamic.config, dynamic.latency_us, dynamic.dynamic)) == (
        (samples.config(1), 12.0, ("m",)) if revision >= "0004" else None
    )


def test_misses_calibrations_and_profiles_are_kept(migrated: Store, revision: str) -> None:
    if revision < "0004":
        assert migrated.misses() == []
        assert migrated.calibrations() == []
        return
    assert migrated.misses() == [miss()]
    assert [found.name for found in migrated.calibrations()] == ["mine"]
    profiles = {found.config.key: found for found in migrated.cached_profiles(FAMILY)}
    assert {key: (found.dynamic, found.samples[0].fingerprint) for key, found in profiles.items()} == {
        samples.config(1).key: ((), "f1"),
        samples.config(2).key: (("m",), "f2"),
    }


def test_complete_sessions_answer_as_before(migrated: Store, revision: str) -> None:
    options = {"sampler": "tpe"}
    found = migrated.find_complete(context(revision), Effort.QUICK, options)
    # contexts have a protocol since 0003
    assert (found is not None) == (revision >= "0003")
    dynamic = migrated.find_complete(context(revision, dynamic=("m",)), Effort.QUICK, options)
    assert (dynamic is not None) == (revision >= "0004")
    if dynamic is not None:
        assert dynamic.decision == Decision(samples.config(1), (samples.config(2),), "the simplest")
        assert [trial.status for trial in dynamic.trials] == [
            Status.VERIFIED,
            Status.VERIFIED,
            Status.PREDICTED,
        ]


def test_the_migrated_database_is_sound(migrated: Store) -> None:
    assert check(migrated).faults == ()


def test_sessions_go_on_and_add_no_second_rows_of_facts(migrated: Store, revision: str) -> None:
    here = context(revision)
    known = migrated.recall(here)
    before = overview(migrated).tables
    session_id = migrated.begin(here, Effort.FULL, 0, {}, Census(1, 1, {}))
    own = [trial for key, trial in known.items() if key not in (samples.config(2).key, samples.config(9).key)]
    migrated.record_many(session_id, here, own)
    migrated.finish(session_id, SessionState.COMPLETE, decision=Decision(samples.config(1)))
    after = overview(migrated).tables
    assert {name for name in after if after[name] != before[name]} == {"sessions", "trials"}
    assert overview(migrated).revision == schema.HEAD
