"""Checking, copying and cleaning a database."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.database import samples
from tests.unit.database.stocked import FAMILY, LARGE, add_session, stock, stocked
from tilesight.database import Store, open_store, overview, query
from tilesight.database.engine import faults
from tilesight.database.exchange.json_lines import export_everything, import_everything
from tilesight.database.maintenance import check as upkeep
from tilesight.database.maintenance import gc as upkeep_gc
from tilesight.database.maintenance import space
from tilesight.database.maintenance.check import MOST_SHOWN, backup, check
from tilesight.database.maintenance.gc import Rules, gc
from tilesight.database.schema import tables as schema
from tilesight.errors import DatabaseError, FailureKind, InputError
from tilesight.problem.space import Census
from tilesight.records.session import Effort, SessionState

TODAY = {"matmul_hopper": "0123456789ab"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(stocked(tmp_path / "x.db")) as opened:
        yield opened


def run(store: Store, *statements: str) -> None:
    """Make damage that foreign keys would refuse."""
    with closing(sqlite3.connect(store.name)) as raw, raw:  # foreign keys are off by default
        for statement in statements:
            raw.execute(statement)


def age(store: Store, days: int) -> None:
    """Change all times, as if everything had been recorded so many days ago."""
    columns = {
        "sessions": ("started_at", "finished_at"),
        "trials": ("recorded_at",),
        **dict.fromkeys(("predictions", "builds", "measurements", "parametric_profiles"), ("created_at",)),
    }
    for table, names in columns.items():
        for name in names:
            run(
                store,
                f"UPDATE {table} SET {name} = strftime('%Y-%m-%d %H:%M:%f000', {name}, '-{days} days') WHERE "
                f"{name} IS NOT NULL",
            )


# ---- check


def test_a_sound_database(store: Store) -> None:
    found = check(store)
    assert found.faults == ()
    assert found.rows == {name: count for name, count in overview(store).tables.items() if count}


DAMAGE = {
    "UPDATE trials SET status = 'splendid' WHERE status = 'verified'": r"trials session_id=\d+ "
    r"candidate_id=\d+: .*'splendid' must",
    "UPDATE measurements SET samples_us = '[1.0, 2.0]', latency_us = 1.5 WHERE sample_count = 2": "not the "
    "id of this content",
    "UPDATE measurements SET samples_us = 'no json'": "measurements id=.*: JSON cannot be read",
    "UPDATE measurements SET samples_us = '[NaN]'": "JSON cannot be read: NaN is no number",
    "UPDATE predictions SET latency_us = -1": "predictions.latency_us=-1.0 must be a finite number above 0",
    "UPDATE predictions SET latency_us = 'fast'": "predictions: a value is of another "
    "type|predictions.latency_us='fast'",
    "DELETE FROM candidates WHERE id = (SELECT MIN(candidate_id) FROM trials)": r"\d+ rows refer to rows of "
    r"candidates that are not",
    "UPDATE trials SET measured_us = 1.0 WHERE status = 'verified'": r"trials.measured_us=1.0 is not the "
    r"time of its measurement \(12.75\)",
    "UPDATE trials SET recorded_at = 'yesterday'": "trials: a value is of another type",
    "UPDATE software SET code_key = 'f' ": "software.code_key='f' does not follow from its versions",
    "UPDATE sessions SET options = '{\"a\": 1}'": "sessions.options_key=.* does not follow",
    "UPDATE workloads SET dims = '{\"m\": 1}'": "workloads.key=.* is not that of its dimensions",
    "UPDATE parametric_profiles SET body = x'00'": "parametric_profiles.body is no parametric profile",
    "DROP VIEW leaderboard": "view (leaderboard|best) does not work: .*leaderboard",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(store: Store, damage: str) -> None:
    run(store, damage)
    faults = check(store).faults
    assert any(re.search(DAMAGE[damage], fault) for fault in faults), faults


def test_many_faults_of_one_table_are_told_shortly(store: Store) -> None:
    run(store, "UPDATE failure_reasons SET kind = 'x'")
    found = check(store)
    assert found.rows["failure_reasons"] > MOST_SHOWN + 1
    listed = [fault for fault in found.faults if fault.startswith("failure_reasons")]
    assert len(listed) == MOST_SHOWN + 1
    assert listed[-1] == f"failure_reasons: {found.rows['failure_reasons'] - MOST_SHOWN} more rows like these"


def test_a_damaged_file(store: Store) -> None:
    store.close()
    content = bytearray(Path(store.name).read_bytes())
    content[20 * 4096 : 22 * 4096] = b"\xa5" * 2 * 4096
    Path(store.name).write_bytes(content)
    with open_store(store.name, read_only=True) as opened:
        assert [fault for fault in check(opened).faults if "damaged" in fault or "JSON" in fault]


# ---- backup


def test_a_backup_is_the_database(store: Store, tmp_path: Path) -> None:
    size = backup(store, tmp_path / "copy.db")
    assert size == (tmp_path / "copy.db").stat().st_size
    with open_store(str(tmp_path / "copy.db")) as copy:
        export_everything(copy, tmp_path / "a.jsonl")
        assert check(copy).faults == ()
        stock(copy)  # it works on
    export_everything(store, tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_backup_while_others_write_is_of_one_moment(store: Store, tmp_path: Path) -> None:
    context = samples.context(model="busy")
    stop = threading.Event()

    def write() -> None:
        with open_store(store.name) as other:
            session_id = other.begin(context, Effort.FULL, 0, {}, Census(1, 1, {}))
            number = 100
            while not stop.is_set():
                number += 1
                other.record(session_id, context, samples.verified(number, 10.0))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(3):
            backup(store, tmp_path / f"{number}.db")
    finally:
        stop.set()
        thread.join()
    for number in range(3):
        with open_store(str(tmp_path / f"{number}.db"), read_only=True) as copy:
            assert check(copy).faults == ()


def test_a_backup_replaces_a_file_only_when_it_is_whole(store: Store, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("of before")
    backup(store, tmp_path / "copy.db")
    with open_store(str(tmp_path / "copy.db"), read_only=True) as copy:
        assert overview(copy).tables == overview(store).tables
    with pytest.raises(InputError, match="that is the database itself"):
        backup(store, Path(store.name))
    with pytest.raises(InputError, match=r"backup to '.*none/copy.db' failed"):
        backup(store, tmp_path / "none" / "copy.db")
    assert not list(tmp_path.glob("*.partial"))


# Writes into a database and dies with it open, so that the rows stay in the log.
KILLED = """
import os, signal, sqlite3, sys
raw = sqlite3.connect(sys.argv[1])
raw.execute(f"PRAGMA journal_mode={sys.argv[2]}")
if sys.argv[2] == "DELETE":
    raw.execute("PRAGMA cache_size=1")
    raw.execute("PRAGMA synchronous=OFF")
raw.execute("CREATE TABLE filler (x)")
raw.executemany("INSERT INTO filler VALUES (?)", [("y" * 900,)] * 3000)
if sys.argv[2] == "WAL":
    raw.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("mode", "log"), [("WAL", "-wal"), ("DELETE", "-journal")])
def test_what_a_killed_process_left_beside_an_older_file_stays_out_of_the_copy(
    store: Store, tmp_path: Path, mode: str, log: str
) -> None:
    older = tmp_path / "older.db"
    backup(store, older)
    before = overview(store).tables
    stock(store, 2)
    assert (
        subprocess.run([sys.executable, "-c", KILLED, str(older), mode], check=False).returncode
        == -signal.SIGKILL
    )
    assert older.with_name(older.name + log).stat().st_size > 0
    assert backup(store, older) == older.stat().st_size
    assert sorted(file.name for file in tmp_path.glob("older*")) == ["older.db"]
    with open_store(str(older)) as copy:
        assert check(copy).faults == ()
        assert overview(copy).tables == overview(store).tables != before


def test_a_database_that_a_process_has_open_is_not_replaced(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_FREE_S", 0.1)
    live = tmp_path / "live.db"
    with open_store(stocked(live)) as other:
        add_session(other, samples.context(model="theirs"), samples.predicted(1))
        theirs = overview(other).tables
        with pytest.raises(
            InputError, match=r"live.db': a process has that database open.*; end it, or name another file"
        ):
            backup(store, live)
        add_session(other, samples.context(model="theirs"), samples.predicted(2))
        assert check(other).faults == ()
        assert overview(other).tables["sessions"] == theirs["sessions"] + 1
    backup(store, live)
    with open_store(str(live)) as copy:
        assert overview(copy).tables == overview(store).tables
        assert check(copy).faults == ()


def test_a_backup_every_night_whoever_looked_at_the_last_one(store: Store, tmp_path: Path) -> None:
    nightly = tmp_path / "nightly.db"
    for night in range(3):
        backup(store, nightly)
        assert sorted(file.name for file in tmp_path.glob("nightly*")) == ["nightly.db"]
        with open_store(str(nightly), read_only=True) as copy:
            assert overview(copy).tables == overview(store).tables
        # a read-only process cannot delete the log
        assert [file.name for file in tmp_path.glob("nightly.db-wal")] == ["nightly.db-wal"]
        add_session(store, samples.context(model=f"of night {night}"), samples.predicted(1))


def test_a_log_that_belongs_to_no_database_would_be_read_into_the_copy(store: Store, tmp_path: Path) -> None:
    copy, log = tmp_path / "copy.db", tmp_path / "copy.db-wal"
    log.write_bytes(b"of another")
    with pytest.raises(
        InputError,
        match=r"the log '.*copy.db-wal' of another database is there.*; remove '.*db-wal' once no process",
    ):
        backup(store, copy)
    assert not copy.exists()
    copy.write_text("no database, and the log is none, as SQLite finds\n" * 1000)
    backup(store, copy)
    assert not log.exists()
    log.mkdir()  # stands for all that SQLite cannot open
    size = copy.stat().st_size
    add_session(store, samples.context(model="later"), *map(samples.predicted, range(500)))
    with pytest.raises(
        InputError, match=r"cannot be put into the file that is there \(.*\); remove '.*copy.db-wal' once"
    ):
        backup(store, copy)
    assert copy.stat().st_size == size
    log.rmdir()
    log.write_bytes(b"of another")
    copy.unlink()
    copy.mkdir()
    with pytest.raises(InputError, match="unable to open database file"):
        backup(store, copy)
    copy.rmdir()
    copy.symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(InputError, match="would be read into the copy"):
        backup(store, copy)
    log.unlink()
    backup(store, copy)
    assert not copy.is_symlink()
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_a_name_that_sqlite_keeps_for_itself_is_refused(store: Store, tmp_path: Path, ending: str) -> None:
    with pytest.raises(
        InputError,
        match=rf"SQLite takes a file that ends in {ending} for a part of 'x.db'; name another file",
    ):
        backup(store, store.name + ending)
    add_session(store, samples.context(model="later"), samples.predicted(1))
    assert check(store).faults == ()
    with pytest.raises(InputError, match=r"for a part of 'other.db'"):
        backup(store, tmp_path / f"other.db{ending}")


def test_two_backups_to_one_file_at_once(store: Store, tmp_path: Path) -> None:
    both, found = threading.Barrier(2), list[object]()

    def copy() -> None:
        with open_store(store.name, read_only=True) as own:
            for _ in range(15):
                both.wait(60)
                try:
                    found.append(backup(own, tmp_path / "copy.db"))
                except Exception as error:
                    found.append(error)

    threads = [threading.Thread(target=copy) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(tmp_path / "copy.db").stat().st_size] * 30
    with open_store(str(tmp_path / "copy.db"), read_only=True) as copied:
        assert check(copied).faults == ()
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize("content", [b"", b"no database at all" * 500], ids=["empty", "garbage"])
def test_a_copy_that_is_no_database_is_not_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    (tmp_path / "copy.db").write_text("of before")
    monkeypatch.setattr(upkeep, "copy_file", lambda _, out: out.write_bytes(content))
    with pytest.raises(
        DatabaseError,
        match=r"backup to '.*copy.db' failed: the copy cannot be read again \(.*\); run it again",
    ):
        backup(store, tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "of before"
    assert not list(tmp_path.glob("*.partial*"))


def test_a_database_in_memory_has_no_backup() -> None:
    with (
        open_store("sqlite://") as store,
        pytest.raises(InputError, match=r"copies SQLite files.*--everything"),
    ):
        backup(store, "copy.db")


# ---- gc


def verified(store: Store) -> int:
    return int(query(store, "SELECT COUNT(*) FROM trials WHERE status = 'verified'")[1][0][0])


def test_nothing_goes_that_can_be_used(store: Store) -> None:
    before = overview(store).tables
    found = gc(store, Rules(TODAY, FAMILY.reader))
    assert found.rows == {}
    assert overview(store).tables == before


def test_a_dry_run_says_what_would_go_and_leaves_it(store: Store) -> None:
    age(store, 200)
    before = overview(store).tables
    rules = Rules({"matmul_hopper": "changed"}, "reader-2")
    would = gc(store, rules, dry_run=True)
    assert overview(store).tables == before
    assert would.total > 10
    assert (would.bytes_after, would.is_dry_run) == (would.bytes_before, True)
    assert gc(store, rules).rows == would.rows


def test_older_code_goes_but_for_its_verified_measurements(store: Store) -> None:
    age(store, 2)
    kept = verified(store)
    measured = query(store, "SELECT measured_us FROM leaderboard ORDER BY 1")[1]
    found = gc(store, Rules({"matmul_hopper": "changed"}))
    assert set(found.rows) >= {"older code of a template", "facts that nothing refers to"}
    assert overview(store).trials == {"verified": kept}
    assert query(store, "SELECT measured_us FROM leaderboard ORDER BY 1")[1] == measured
    assert overview(store).tables["parametric_profiles"] == 0
    assert check(store).faults == ()
    assert gc(store, Rules({"matmul_hopper": "changed"})).rows == {}


def test_templates_that_are_not_known_are_left_alone(store: Store) -> None:
    before = overview(store).tables
    assert gc(store, Rules({"another": "changed"})).rows == {}
    assert overview(store).tables == before


def test_profiles_of_another_reader_go(store: Store) -> None:
    assert gc(store, Rules(TODAY, "reader-2")).rows == {
        "profiles of another reader": {"parametric_profiles": 1}
    }


def test_superseded_sessions_go_but_not_what_they_verified_or_saw_wrong(tmp_path: Path) -> None:
    context = samples.context()
    with open_store(samples.empty_database(tmp_path / "x.db")) as store:
        add_session(
            store,
            context,
            samples.verified(1, 10.0),
            samples.predicted(2),
            samples.failed(3, FailureKind.WRONG_RESULT),
            samples.built(4),
        )
        add_session(store, context, samples.predicted(5))  # a later session of the same context and options
        add_session(store, context, samples.predicted(6), state=SessionState.INTERRUPTED)
        add_session(store, samples.context(model="m2"), samples.predicted(7))
        assert gc(store, Rules()).rows == {"superseded by a later session": {"trials": 2}}
        left = query(store, "SELECT config ->> 'block_m' FROM records ORDER BY 1")[1]
        assert [int(block) for (block,) in left] == [1, 3, 5, 6, 7]


def test_old_predictions_go_with_their_session_and_those_beside_measurements_alone(tmp_path: Path) -> None:
    with open_store(samples.empty_database(tmp_path / "x.db")) as store:
        add_session(
            store,
            samples.context(),
            samples.verified(1, 10.0),
            samples.predicted(2),
            samples.failed(3, FailureKind.BUILD_ERROR),
        )
        add_session(
            store,
            samples.context(device=""),
            samples.predicted(4),
            samples.failed(5, FailureKind.LOWER_ERROR),
        )
        age(store, 100)
        add_session(store, samples.context(workload=LARGE, device=""), samples.predicted(6))
        assert gc(store, Rules(predictions_days=101)).rows == {}
        found = gc(store, Rules(predictions_days=99))
        assert found.rows["old predictions"] == {"trials": 3, "sessions": 1}
        assert sorted(int(b) for (b,) in query(store, "SELECT config ->> 'block_m' FROM records")[1]) == [
            1,
            3,
            6,
        ]
        assert check(store).faults == ()


def test_verified_measurements_go_only_when_asked(store: Store) -> None:
    age(store, 400)
    kept = verified(store)
    gc(store, Rules(predictions_days=0))
    assert verified(store) == kept
    gc(store, Rules(predictions_days=0, measurements_days=399))
    assert overview(store).tables | {
        "templates": 0,
        "targets": 0,
        "software": 0,
        "workloads": 0,
        "workload_dims": 0,
    } == dict.fromkeys(overview(store).tables, 0) | {
        "parametric_profiles": 1,
        "dispatch_misses": 1,
        "calibrations": 1,
    }
    assert query(store, "SELECT * FROM misses")[1]


def test_what_was_imported_goes_when_asked(tmp_path: Path) -> None:
    with open_store(stocked(tmp_path / "a.db")) as store:
        before = overview(store).tables
        export_everything(store, tmp_path / "x.jsonl")
        import_everything(store, tmp_path / "x.jsonl")
        gc(store, Rules(TODAY, FAMILY.reader))
        assert overview(store).tables["sessions"] == 2 * before["sessions"]
        age(store, 2)
        gc(store, Rules(TODAY, FAMILY.reader, imported=True))
        after = overview(store).tables
        assert after == before
        assert check(store).faults == ()


def test_while_a_session_runs_nothing_goes(store: Store) -> None:
    session_id = store.begin(samples.context(), Effort.QUICK, 0, {}, Census(1, 1, {}))
    with pytest.raises(DatabaseError, match=rf"session {session_id} runs on .*; remove when it has finished"):
        gc(store, Rules())
    # a session of another host counts as running for a week
    run(store, "UPDATE sessions SET owner = 'elsewhere|1|1' WHERE state = 'running'")
    with pytest.raises(DatabaseError, match="runs on elsewhere"):
        gc(store, Rules())
    age(store, 8)
    gc(store, Rules())
    assert query(store, "SELECT COUNT(*) FROM sessions WHERE state = 'running'")[1] == [(1,)]


@pytest.mark.parametrize("days", [-1.0, float("nan"), float("inf"), 1e9])
def test_an_age_is_a_number_of_days(store: Store, days: float) -> None:
    with pytest.raises(
        InputError, match=r"--predictions-older-than .* must be a number of days in 0 \.\. 36500"
    ):
        gc(store, Rules(predictions_days=days))
    with pytest.raises(InputError, match="--measurements-older-than"):
        gc(store, Rules(measurements_days=days))


def test_whatever_may_refer_to_a_row_that_goes_is_found_by_an_index() -> None:
    """Without an index each deleted row costs a scan of another table."""
    gone = {
        "trials",
        "baselines",
        "sessions",
        "measurements",
        "predictions",
        "builds",
        "failure_reasons",
        "candidates",
        "environments",
        "templates",
        "targets",
        "software",
        "workloads",
    }
    for table in schema.metadata.tables.values():
        found = {
            next(iter(columns)).name
            for columns in (table.primary_key.columns, *(index.columns for index in table.indexes))
        }
        found |= {column for of, column in upkeep_gc._REFERENCES if of is table}
        referring = {
            column.name for column in table.c for key in column.foreign_keys if key.column.table.name in gone
        }
        assert referring <= found, table.name


def test_space_that_cannot_be_given_back_now_is_said_and_the_rows_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = samples.empty_database(tmp_path / "x.db")
    with (
        open_store(url, busy_seconds=0.1) as store,
        closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as other,
    ):
        add_session(store, samples.context(device=""), *(samples.predicted(number) for number in range(300)))
        age(store, 100)
        vacuum = space._vacuum

        def locked(of: Store) -> None:
            if not other.in_transaction:
                other.execute("BEGIN IMMEDIATE")
            vacuum(of)

        monkeypatch.setattr(space, "_vacuum", locked)
        found = gc(store, Rules())
        other.rollback()
        assert re.search(r"x.db' is locked by another process", found.space_kept)
        assert found.total > 300
        assert overview(store).tables["trials"] == 0
        assert found.bytes_after >= found.bytes_before
        monkeypatch.undo()
        again = gc(store, Rules())
        assert (again.rows, again.space_kept) == ({}, "")
        assert again.bytes_after < found.bytes_after / 2


def test_one_who_reads_keeps_the_file_from_getting_shorter(tmp_path: Path) -> None:
    url = samples.empty_database(tmp_path / "x.db")
    with (
        open_store(url, busy_seconds=0.1) as store,
        closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as other,
    ):
        add_session(store, samples.context(device=""), *(samples.predicted(number) for number in range(300)))
        age(store, 100)
        other.execute("BEGIN")
        assert other.execute("SELECT COUNT(*) FROM trials").fetchone() == (300,)
        found = gc(store, Rules())
        assert re.search(r"x.db' is locked by another process \(others read it\)", found.space_kept)
        other.rollback()
        again = gc(store, Rules())
        assert again.space_kept == ""
        assert (tmp_path / "x.db").stat().st_size == again.bytes_after < 0.6 * found.bytes_before


def test_a_full_disk_keeps_the_space_and_nothing_else(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(of: Store) -> None:
        raise faults.full(of.name, "no room for a copy")

    monkeypatch.setattr(space, "_vacuum", full)
    found = gc(store, Rules({"matmul_hopper": "changed"}))
    assert found.rows
    assert "no room for a copy" in found.space_kept


def test_the_space_is_given_back(tmp_path: Path) -> None:
    with open_store(samples.empty_database(tmp_path / "x.db")) as store:
        add_session(store, samples.context(device=""), *(samples.predicted(number) for number in range(800)))
        age(store, 100)
        found = gc(store, Rules())
        assert found.bytes_after < found.bytes_before / 2
        assert (tmp_path / "x.db").stat().st_size == found.bytes_after
        assert json.dumps(found.rows)
