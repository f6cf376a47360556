"""`tilesight serve`: what it prints, and what it refuses before it listens."""

from __future__ import annotations

import json
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.cli.documented import check_fields
from tests.unit.cli.test_commands import Shell
from tests.unit.pages import samples
from tilesight.database import open_store
from tilesight.dispatch.table.table_file import write_table
from tilesight.server.listener import Listener


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    """In an empty folder; a server that would listen gets Ctrl-C at once."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Listener, "serve_forever", interrupted)
    monkeypatch.setenv("TILESIGHT_DB", f"sqlite:///{tmp_path}/performance.db")
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)


def test_it_prints_the_address_alone(shell: Shell) -> None:
    open_store("performance.db").close()
    code, out, err = shell("serve")
    assert code == 130
    assert out.startswith("http://127.0.0.1:")
    assert out.count("\n") == 1
    assert err.splitlines() == [
        "whoever has this address, on this machine, can read the database; Ctrl-C ends it",
        "serve: ended",
    ]


def test_json_fields_are_documented(shell: Shell) -> None:
    open_store("performance.db").close()
    answer = json.loads(shell("serve", "--json")[1])
    assert answer["address"].startswith(f"http://127.0.0.1:{answer['port']}/")
    check_fields("serve", [answer])


def test_tables_and_folders_are_served_without_a_database(shell: Shell, tmp_path: Path) -> None:
    write_table(samples.table(), tmp_path / "table.json")
    assert shell("serve", "table.json", ".")[0] == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.json"]


def test_what_cannot_be_served_is_one_line(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell("serve")
    assert (code, out) == (4, "")
    assert "there is no database at" in err
    with closing(sqlite3.connect("other.db")) as connection:
        connection.execute("CREATE TABLE t(x)")
    open_store("performance.db").close()
    (tmp_path / "odd.json").write_text("{}", encoding="utf-8")
    for arguments, expected, words in (
        (("--db", "other.db"), 4, "holds no TileSight tables"),
        (("odd.json",), 2, "dispatch table 'odd.json'"),
        (("none.json",), 2, "cannot be read"),
        (("--port", "70000"), 2, "70000"),
        (("--db", "mysql://x"), 2, "is not supported"),
    ):
        code, out, err = shell("serve", *arguments)
        assert (code, out) == (expected, ""), arguments
        assert words in err
        assert err.startswith(("error: ", "Usage: "))


def test_a_port_in_use_is_one_line(shell: Shell) -> None:
    open_store("performance.db").close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = shell("serve", "--port", str(port))
    assert (code, out) == (2, "")
    assert err == (
        f"error: port {port} of 127.0.0.1 is in use; name another with --port, or leave it out for a free "
        "one\n"
    )


def test_a_database_of_an_older_version_is_not_migrated(shell: Shell) -> None:
    open_store("performance.db").close()
    with closing(sqlite3.connect("performance.db")) as connection:
        connection.execute("UPDATE tilesight_version SET version_num = '0003'")
        connection.commit()
    code, _, err = shell("serve")
    assert code == 4
    assert "has the older schema 0003; open it for writing once to migrate it" in err
    with closing(sqlite3.connect("performance.db")) as connection:
        assert connection.execute("SELECT version_num FROM tilesight_version").fetchone() == ("0003",)
