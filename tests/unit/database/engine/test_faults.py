"""Faults of a database's surroundings, and the errors that a user gets."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine import make_url

from tests.unit.database import samples
from tilesight.database import Store, open_store, overview
from tilesight.database.engine.connection import parse_url
from tilesight.database.schema.tables import HEAD
from tilesight.errors import (
    DatabaseBusyError,
    DatabaseCorruptError,
    DatabaseError,
    DatabaseFullError,
    DatabaseReadOnlyError,
    DatabaseVersionError,
    InputError,
)
from tilesight.problem.space import Census
from tilesight.records.session import Effort

NOBODY = 65534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with one session and one trial, closed."""
    path = tmp_path / "performance.db"
    with open_store(samples.empty_database(path)) as store:
        fill(store, 1)
    return path


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users can reach; pytest's own folders are private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Run as a user who is not root: permissions do not stop root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def fill(store: Store, number: int) -> int:
    context = samples.context()
    session_id = store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}))
    store.record(session_id, context, samples.predicted(number))
    return session_id


# ---- a place that will not do


def test_missing_parents_are_made(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/a/b/c.db") as store:
        fill(store, 1)
    assert (tmp_path / "a/b/c.db").exists()


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(
        DatabaseError, match=rf"'{tmp_path}' is a folder; .*--db sqlite:///{tmp_path}/performance.db"
    ):
        open_store(f"sqlite:///{tmp_path}")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    for path in (tmp_path / "plain/x.db", tmp_path / "plain/deep/x.db"):
        with pytest.raises(DatabaseError, match="is a file, not a folder; use another path"):
            open_store(f"sqlite:///{path}")


def test_a_folder_that_may_not_be_written(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    with (
        without_privileges(),
        pytest.raises(DatabaseReadOnlyError, match=r"x.db' is not accessible .*Permission denied"),
    ):
        open_store(f"sqlite:///{open_folder}/sub/x.db")
    with without_privileges(), pytest.raises(DatabaseError, match=r"x.db' cannot be .*folder"):
        open_store(f"sqlite:///{open_folder}/x.db")


def test_a_path_longer_than_the_system_takes(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=r"cannot be made .*name too long"):
        open_store(f"sqlite:///{tmp_path}/{'x' * 300}/{'y' * 300}.db")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a /proc file system")
def test_a_file_system_that_makes_no_folders() -> None:
    with pytest.raises(DatabaseError, match=r"'/proc/nothing/x.db' cannot be made"):
        open_store("sqlite:////proc/nothing/x.db")


# ---- read-only


def test_a_file_that_may_only_be_read(open_folder: Path) -> None:
    path = open_folder / "x.db"
    with open_store(str(path)) as store:
        fill(store, 1)
    path.chmod(0o444)
    with (
        without_privileges(),
        pytest.raises(
            DatabaseReadOnlyError, match=r"x.db' cannot be written .*writable, or use another with --db"
        ),
    ):
        open_store(str(path))
    with without_privileges(), open_store(str(path), read_only=True) as store:
        assert len(store.recall(samples.context())) == 1


def test_a_database_in_a_folder_that_may_only_be_read_can_be_read(open_folder: Path) -> None:
    path = open_folder / "x.db"
    with open_store(str(path)) as store:
        fill(store, 1)
    path.chmod(0o444)
    open_folder.chmod(0o555)  # SQLite cannot make its index file beside it
    with without_privileges(), open_store(str(path), read_only=True) as store:
        assert len(store.recall(samples.context())) == 1


LEFT_A_LOG = """
import os, signal, sys
from tests.unit.database.engine.test_faults import fill
from tilesight.database import open_store
store = open_store(sys.argv[1])
fill(store, 2)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_in_its_log_is_read_where_nothing_can_be_written(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, temporary = open_folder / "place" / "x.db", open_folder / "temporary"
    temporary.mkdir()
    temporary.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with open_store(str(path)) as store:
        fill(store, 1)
    root = str(Path(__file__).resolve().parents[4])
    subprocess.run([sys.executable, "-c", LEFT_A_LOG, path], cwd=root, check=False)
    assert path.with_name("x.db-wal").stat().st_size
    path.with_name("x.db-shm").unlink()  # SQLite's index file, which a copy of the folder may lack
    for file in path.parent.iterdir():
        file.chmod(0o444)
    path.parent.chmod(0o555)
    with without_privileges():
        store = open_store(str(path), read_only=True)
        assert len(store.recall(samples.context())) == 2
        assert list(temporary.iterdir())
        store.close()
        del store
        gc.collect()
    assert not list(temporary.iterdir())


def test_a_file_that_may_not_even_be_read(open_folder: Path) -> None:
    path = open_folder / "x.db"
    open_store(str(path)).close()
    path.chmod(0)
    for read_only in (True, False):
        with (
            without_privileges(),
            pytest.raises(DatabaseReadOnlyError, match=r"x.db' is not accessible .*Permission denied"),
        ):
            open_store(str(path), read_only=read_only)


def test_a_store_for_reading_refuses_every_write(file: Path) -> None:
    context = samples.context()
    with open_store(f"sqlite:///{file}", read_only=True) as store:
        writes: list[Callable[[], object]] = [
            lambda: fill(store, 2),
            lambda: store.record(1, context, samples.predicted(2)),
            lambda: store.find_interrupted(context, Effort.QUICK, {}),
            lambda: store.record_baselines(1, []),
        ]
        for write in writes:
            with pytest.raises(DatabaseReadOnlyError, match="opened for reading only"):
                write()
        assert overview(store).tables["trials"] == 1


def test_a_store_for_reading_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=r"no database at '.*x.db' yet; `tilesight tune` makes it"):
        open_store(f"sqlite:///{tmp_path}/sub/x.db", read_only=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty.db").touch()
    with pytest.raises(DatabaseError, match="holds no TileSight tables"):
        open_store(f"sqlite:///{tmp_path}/empty.db", read_only=True)
    assert (tmp_path / "empty.db").stat().st_size == 0


# ---- locked


def test_a_lock_is_waited_for_and_then_named(file: Path) -> None:
    context = samples.context()
    with (
        open_store(f"sqlite:///{file}", busy_seconds=0.3) as store,
        closing(sqlite3.connect(file, isolation_level=None)) as other,
    ):
        session_id = fill(store, 2)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(
            DatabaseBusyError,
            match=r"performance.db' is locked by another process \(waited 0.3 s\); let it finish",
        ):
            store.record(session_id, context, samples.predicted(3))
        assert len(store.recall(context)) == 2  # readers are not blocked
        with pytest.raises(DatabaseBusyError):
            open_store(f"sqlite:///{file}", busy_seconds=0.1)
        other.execute("ROLLBACK")
        store.record(session_id, context, samples.predicted(3))
        assert len(store.recall(context)) == 3


def test_a_lock_on_a_database_without_write_ahead_log(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=DELETE")
        other.execute("BEGIN EXCLUSIVE")
        for read_only in (True, False):
            with pytest.raises(DatabaseBusyError, match="locked by another process"):
                open_store(f"sqlite:///{file}", busy_seconds=0.1, read_only=read_only)


# ---- damaged


@pytest.mark.parametrize("size", [1, 99, 5000])
def test_garbage_is_no_database(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(bytes(range(1, 256)) * (size // 255 + 1))
    for read_only in (True, False):
        with pytest.raises(
            DatabaseCorruptError, match=r"x.db' is damaged or is not a database .*; move it away"
        ):
            open_store(f"sqlite:///{path}", read_only=read_only)
    assert path.read_bytes().startswith(b"\x01\x02\x03")  # left as it was


@pytest.mark.parametrize("share", [0.03, 0.5, 0.9])
def test_a_truncated_file(file: Path, share: float) -> None:
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    with pytest.raises(DatabaseCorruptError, match="damaged"), open_store(f"sqlite:///{file}") as store:
        store.recall(samples.context())


def test_overwritten_pages(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)  # all but the first page
    file.write_bytes(content)
    with pytest.raises(DatabaseCorruptError, match="damaged"), open_store(f"sqlite:///{file}") as store:
        store.recall(samples.context())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE trials SET status = 'splendid'",
        "UPDATE predictions SET latency_us = -1",
        "UPDATE predictions SET utilization = 'no json'",
        "UPDATE candidates SET config = '[]'",
        "DELETE FROM predictions",
    ],
)
def test_rows_that_make_no_value(file: Path, damage: str) -> None:
    with closing(sqlite3.connect(file)) as other, other:
        other.execute(damage)
    with (
        open_store(f"sqlite:///{file}") as store,
        pytest.raises(DatabaseCorruptError, match=r"performance.db' holds a damaged record .*restore a copy"),
    ):
        store.recall(samples.context())


# ---- of another version, or another's


def test_a_newer_database_names_both_versions(file: Path) -> None:
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("UPDATE tilesight_version SET version_num = '0042'")
    for read_only in (True, False):
        with pytest.raises(
            DatabaseVersionError, match=rf"schema 0042, .*up to {HEAD}.*pip install --upgrade tilesight.*--db"
        ):
            open_store(f"sqlite:///{file}", read_only=read_only)


def test_a_version_table_without_a_version(file: Path) -> None:
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("DELETE FROM tilesight_version")
    with pytest.raises(DatabaseCorruptError, match="must hold one row, found 0"):
        open_store(f"sqlite:///{file}")


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE studies (study_id INTEGER)")
    with pytest.raises(
        DatabaseError,
        match=r"belongs to another program \(it has the table 'studies'\); give TileSight one of its own",
    ):
        open_store(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("studies",)]


def test_a_table_that_is_gone(file: Path) -> None:
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("DROP TABLE baselines")
    with (
        open_store(f"sqlite:///{file}") as store,
        pytest.raises(DatabaseError, match=r"no such table: .*baselines"),
    ):
        store.best()


# ---- full


def test_a_full_disk_loses_nothing_that_was_recorded(file: Path) -> None:
    context = samples.context()
    with open_store(f"sqlite:///{file}") as store:
        event.listen(
            store.database._engine, "connect", lambda driver, _: driver.execute("PRAGMA max_page_count = 1")
        )
        store.database._engine.dispose()  # SQLite takes the present size for the least limit
        session_id = store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}))
        done = 1

        def record_until_full() -> None:
            nonlocal done
            for number in range(2, 1000):
                store.record(session_id, context, samples.predicted(number))
                done = number

        with pytest.raises(
            DatabaseFullError,
            match=r"no space left for database '.*performance.db'.*free some.*recorded before is kept",
        ):
            record_until_full()
        assert 2 <= done < 999
    with open_store(f"sqlite:///{file}") as store:
        assert len(store.recall(context)) == done


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_is_no_database() -> None:
    with pytest.raises(DatabaseError, match="/dev/full"):
        open_store("sqlite:////dev/full")


# ---- the URL


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "mysql://me:secret@host/x",
            r"'mysql://me:\*\*\*@host/x': 'mysql' is not supported; use one of: sqlite, postgresql",
        ),
        ("mysql://host/x?password=secret", r"host/x\?password=(\*|%2A){3}': 'mysql' is not supported"),
        ("postgresql://me:secret@host:port/x", r"'postgresql://me:\*\*\*@host:port/x' is not a database URL"),
        (
            "postgresql+asyncpg://me:secret@host/x",
            r"'postgresql\+asyncpg://me:\*\*\*@host/x': driver 'postgresql\+asyncpg' is not",
        ),
        ("//me:sec@ret@secret@host/x", r"'//me:\*\*\*@host/x' is not a database URL"),
        ("host=me password=secret", r"'host=me password=\*\*\*' is not a database URL"),
        ("postgresql:/me:secret@host/x", r"is not a database URL"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    with pytest.raises(InputError, match=shown) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(caught.value.__cause__)


@pytest.mark.parametrize(
    "url", ["", "nonsense", "sqlite//x.db", "://x", "martian://x/y", "postgresql+pg8000://x/y"]
)
def test_what_is_no_url_of_ours(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"database URL|not supported"):
        open_store(url)
    assert list(tmp_path.iterdir()) == []


def test_a_path_will_do(tmp_path: Path) -> None:
    assert parse_url("runs/today.db") == make_url("sqlite:///runs/today.db")
    with open_store(str(tmp_path / "odd ?#%41.db")) as store:
        fill(store, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["odd ?#%41.db"]
    with open_store(str(tmp_path / "odd ?#%41.db"), read_only=True) as store:
        assert len(store.recall(samples.context())) == 1


def test_a_missing_driver_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        DatabaseError,
        match=r"postgresql://me:\*\*\*@host/x': its driver is not installed.*pip install 'psycopg\[binary\]'",
    ):
        open_store("postgresql://me:secret@host/x")


def test_a_server_that_is_not_there() -> None:
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'psycopg[binary]'")
    with pytest.raises(DatabaseError, match=r"127.0.0.1:1/x' cannot be reached .*check that the server runs"):
        open_store("postgresql://me@127.0.0.1:1/x")


def test_a_database_in_memory() -> None:
    with open_store("sqlite://") as store:
        fill(store, 1)
        assert store.name == ":memory:"
        assert len(store.recall(samples.context())) == 1
