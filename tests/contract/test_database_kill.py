"""`kill -9` at any point of a write: committed rows stay, and no partial write is visible."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.preloaded import run_python

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes"),
]


def killed(url: str, *arguments: object) -> str:
    ended = run_python("-m", "tests.support.killed_writer", url, *map(str, arguments), cwd=ROOT, timeout=300)
    assert ended.returncode == 0, ended.stderr
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    return str(ended.stdout)


def test_killed_at_random_moments(url: str) -> None:
    reported = killed(url, 8, 1).split()
    assert reported[:3] == ["8", "processes", "killed,"]
    assert int(reported[3]) > 8  # most came as far as to write


def test_killed_at_its_statements(url: str) -> None:
    """Before and after each, and before each commit; every thirteenth of these moments of a session."""
    reported = killed(url, "steps", 13).split()
    assert int(reported[0]) > 10
    assert int(reported[3]) > 10


def test_killed_while_the_tables_are_made(new_url: str) -> None:
    """Every sixtieth of the moments at which a database is made, and then of a session in it."""
    assert int(killed(new_url, "steps", 60).split()[0]) >= 4
