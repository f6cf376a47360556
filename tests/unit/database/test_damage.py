"""Damaged files: every error names the file and what to do, and what can still be read is right."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

import pytest

from tests.unit.database import samples
from tilesight.database import Store, open_store, overview, query
from tilesight.errors import DatabaseCorruptError, DatabaseError, FailureKind
from tilesight.problem.space import Census
from tilesight.records.session import Baseline, Decision, Effort, SessionState
from tilesight.records.winners import Miss

ROUNDS = 12
CELLS = 20
WAYS_OUT = (
    "use another with --db",
    "restore a copy",
    "another database with --db",
    "name another",
    "check that its folder",
)
HEADER = 100  # bytes of a file's first page


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with a row in nearly every table, without a write-ahead log beside it."""
    path = tmp_path_factory.mktemp("whole") / "x.db"
    context = samples.context()
    with open_store(samples.empty_database(path)) as store:
        session_id = store.begin(
            context, Effort.QUICK, 0, {}, Census(9, 9, {}), flops=2_000_000_000, min_bytes=30_000_000
        )
        store.record_many(
            session_id, context, [samples.verified(number, 10.0 + number) for number in range(20)]
        )
        store.record(session_id, context, samples.failed(30, FailureKind.RUN_ERROR))
        store.record_baselines(session_id, [Baseline("vendor", (9.0,))])
        store.finish(session_id, SessionState.COMPLETE, decision=Decision(samples.config(0)))
        moment = datetime(2026, 1, 1)
        store.record_misses(
            [Miss(context.workload, "h200", "", "t", 1, samples.config(1), "model", 1.0, moment, moment)]
        )
    return path.read_bytes()


def unharmed(_content: bytearray) -> None:
    pass


def use_all(store: Store) -> None:
    """Call every reading and writing method."""
    context = samples.context()
    for call in (
        lambda: store.recall(context),
        lambda: store.find_complete(context, Effort.QUICK, {}),
        lambda: store.best(),
        lambda: samples.winner(store, context),
        lambda: store.misses(),
        lambda: overview(store),
        lambda: query(store, "SELECT * FROM records"),
        lambda: query(store, "SELECT * FROM leaderboard"),
    ):
        call()
    session_id = store.begin(context, Effort.QUICK, 0, {"again": True}, Census(1, 1, {}))
    store.record(session_id, context, samples.verified(99, 1.0))
    store.finish(session_id, SessionState.COMPLETE)


def survive(path: Path) -> str:
    """The result of using the file: `whole`, or the name of a `DatabaseError` whose message names the file.
    No other error may be raised."""
    try:
        with open_store(str(path), read_only=True) as store:
            store.recall(samples.context())
        with open_store(str(path), busy_seconds=0.2) as store:
            use_all(store)
    except DatabaseError as error:
        said = str(error)
        if path.name not in said or not any(way_out in said for way_out in WAYS_OUT):
            raise
        return type(error).__name__
    return "whole"


def damaged(whole: bytes, path: Path, damage: Callable[[bytearray], object]) -> Path:
    content = bytearray(whole)
    damage(content)
    for beside in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
    path.write_bytes(content)
    return path


def test_any_length(whole: bytes, tmp_path: Path) -> None:
    draw = random.Random(1)
    lengths = [1, 15, 16, 99, 100, 511, 4095, 4096, 4097, len(whole) - 1] + [
        draw.randrange(len(whole)) for _ in range(ROUNDS)
    ]
    found = [
        survive(
            damaged(
                whole, tmp_path / "x.db", lambda content, keep=keep: content.__delitem__(slice(keep, None))
            )
        )
        for keep in lengths
    ]
    assert found.count("DatabaseCorruptError") >= 0.8 * len(lengths), found


def test_bytes_of_the_header(whole: bytes, tmp_path: Path) -> None:
    found = set()
    for at in range(0, HEADER, 12):
        found.add(
            survive(
                damaged(
                    whole,
                    tmp_path / "x.db",
                    lambda content, at=at: content.__setitem__(at, 255 - content[at]),
                )
            )
        )
    assert "DatabaseCorruptError" in found


@pytest.mark.parametrize("size", [1, 40, 4096])
def test_random_bytes_anywhere(whole: bytes, tmp_path: Path, size: int) -> None:
    draw = random.Random(size)
    found = []
    for _ in range(ROUNDS):
        at = draw.randrange(HEADER, len(whole) - size)
        found.append(
            survive(
                damaged(
                    whole,
                    tmp_path / "x.db",
                    lambda content, at=at: content.__setitem__(slice(at, at + size), draw.randbytes(size)),
                )
            )
        )
    if size > 1:
        assert "DatabaseCorruptError" in found


def test_random_cells(whole: bytes, tmp_path: Path) -> None:
    """A file that SQLite takes for whole, with values of the wrong kind."""
    draw = random.Random(3)
    path = damaged(whole, tmp_path / "x.db", unharmed)
    with closing(sqlite3.connect(path)) as connection:
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'tilesight_version'"
            )
        ]
        columns = {
            table: [row[1] for row in connection.execute(f"PRAGMA table_info({table})")] for table in tables
        }
    values = [
        "'text'",
        "'[]'",
        "'{}'",
        "'null'",
        "'[null]'",
        "'2026-13-99'",
        "NULL",
        "-1",
        "1e999",
        "x'ff00'",
        "CAST(x'fffe' AS TEXT)",
        "9e18",
    ]
    cells = draw.sample([(table, column) for table, names in columns.items() for column in names], CELLS)
    found = []
    for table, column in cells:
        value = draw.choice(values)
        damaged(whole, path, unharmed)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            with suppress(sqlite3.IntegrityError):  # SQLite itself does not let it be
                connection.execute(f"UPDATE OR IGNORE {table} SET {column} = {value}")
        found.append((table, column, value, survive(path)))
    assert {result for *_, result in found} <= {"whole", "DatabaseCorruptError", "DatabaseError"}, found


def test_a_damaged_log_loses_what_it_held_and_no_more(whole: bytes, tmp_path: Path) -> None:
    path = damaged(whole, tmp_path / "x.db", unharmed)
    context = samples.context()
    with open_store(str(path)) as store:
        session_id = store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}))
        for number in range(40, 60):
            store.record(session_id, context, samples.verified(number, 1.0))
        content, log = path.read_bytes(), path.with_name("x.db-wal").read_bytes()
    for part in (0.1, 0.5, 0.9):
        copy = tmp_path / f"copy{part}.db"
        copy.write_bytes(content)
        at = int(part * len(log))
        copy.with_name(copy.name + "-wal").write_bytes(
            log[:at] + bytes(255 - byte for byte in log[at : at + 64]) + log[at + 64 :]
        )
        with open_store(str(copy)) as store:
            kept = {int(record.config["block_m"]) for record in store.recall(context).values()}
        assert set(range(20)) < kept
        later = sorted(number for number in kept if number >= 40)
        assert later == list(range(40, 40 + len(later)))  # commits up to the damage, each in whole
        assert len(later) < 20


def test_the_message_says_how_to_save_what_can_be_read(whole: bytes, tmp_path: Path) -> None:
    path = damaged(
        whole,
        tmp_path / "x.db",
        lambda content: content.__setitem__(slice(HEADER, 4096), bytes(4096 - HEADER)),
    )
    with pytest.raises(DatabaseCorruptError, match=rf"sqlite3 '{path}' .recover \| sqlite3 saved.db"):
        open_store(str(path))


@pytest.mark.parametrize(
    "samples_us", ["[]", "{}", '{"a": 1e999}', '["fast"]', "[1e999]", "[-1]", "null", "7"]
)
def test_samples_of_a_vendor_that_are_no_times(whole: bytes, tmp_path: Path, samples_us: str) -> None:
    path = damaged(whole, tmp_path / "x.db", unharmed)
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE baselines SET samples_us = ?", (samples_us,))
    assert survive(path) == "DatabaseCorruptError"
