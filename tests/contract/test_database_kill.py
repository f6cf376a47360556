"""`kill -9` at any point of a write: committed rows stay, and no partial write is visible."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes"),
]


def killed(url: str, *arguments: object) -> str:
    command = [sys.executable, "-m", "tests.support.killed_writer", url, *map(str, arguments)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    return ended.stdout


def test_killed_at_random_moments(url: str) -> None:
    reported = killed(url, 16, 1).split()
    assert reported[:3] == ["16", "processes", "killed,"]
    assert int(reported[3]) > 16  # most came as far as to write


def test_killed_at_its_statements(url: str) -> None:
    """Before and after each, and before each commit; every thirteenth of these moments of a session."""
    reported = killed(url, "steps", 13).split()
    assert int(reported[0]) > 10
    assert int(reported[3]) > 10


def test_killed_while_the_tables_are_made(new_url: str) -> None:
    """Every sixtieth of the moments at which a database is made, and then of a session in it."""
    assert int(killed(new_url, "steps", 60).split()[0]) >= 4
