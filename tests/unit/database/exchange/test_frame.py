"""Data frames from one call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.database.stocked import stocked
from tilesight.database import frame, open_store
from tilesight.errors import DatabaseError, InputError, UnknownNameError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    stocked(tmp_path / "x.db")
    return tmp_path / "x.db"


def test_of_the_users_own_database(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESIGHT_DB", f"sqlite:///{file}")
    for found in (frame("leaderboard"), frame(None, "leaderboard"), frame("SELECT * FROM leaderboard")):
        assert len(found) >= 2
        assert "measured_us" in found.columns
    monkeypatch.setenv("TILESIGHT_DB", f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(DatabaseError, match="no database at"):
        frame("leaderboard")
    assert not (tmp_path / "none.db").exists()


def test_of_a_file_an_url_and_an_open_store(file: Path) -> None:
    with open_store(str(file), read_only=True) as store:
        frames = [frame(source, "best") for source in (file, str(file), f"sqlite:///{file}", store)]
    assert all(found.equals(frames[0]) for found in frames)
    assert frame(file, "SELECT COUNT(*) AS n FROM sessions")["n"].tolist() == [3]


def test_what_is_no_view_and_what_writes(file: Path) -> None:
    with pytest.raises(
        UnknownNameError, match="unknown view or table 'leaderbord'; did you mean leaderboard"
    ):
        frame(file, "leaderbord")
    with pytest.raises(InputError, match="query refused"):
        frame(file, "DELETE FROM trials")
