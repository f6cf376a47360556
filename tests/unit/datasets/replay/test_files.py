"""What a replay writes."""

from __future__ import annotations

import csv
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.unit.datasets.replay.made import CONFIGS, case
from tilesight.datasets.replay.curves import Curve
from tilesight.datasets.replay.files import PICTURE, write_curves, write_picture
from tilesight.datasets.replay.replay_runner import Replay
from tilesight.errors import InputError, ToolchainError
from tilesight.reports.pictures import check_picture

CURVES = tuple(
    Curve(name, seed, number, "made", shares)
    for name, shares in (("random", (0.4, 0.8, 0.8)), ("model", (0.9, 1.0)))
    for seed in range(2)
    for number in range(2)
)
FOUND = Replay((case(), case()), 1, CURVES, 3, "learned", "shape")
drawn = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")


def test_curves_have_a_row_for_each_count(tmp_path: Path) -> None:
    write_curves(tmp_path / "c.csv", FOUND)
    with (tmp_path / "c.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 3
    ended = [row["share"] for row in rows if row["strategy"] == "model" and row["operator"] == "all"]
    assert ended == ["0.90000", "1.00000", "1.00000"]
    assert {row["operator"] for row in rows} == {"all", "made"}
    with pytest.raises(InputError, match=r"curves .* cannot be written"):
        write_curves(tmp_path / "none" / "c.csv", FOUND)


@drawn
@pytest.mark.parametrize(("name", "begin"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml")])
def test_pictures(name: str, begin: bytes, tmp_path: Path) -> None:
    write_picture(tmp_path / name, FOUND)
    assert (tmp_path / name).read_bytes().startswith(begin)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@drawn
def test_pictures_name_every_strategy(tmp_path: Path) -> None:
    write_picture(tmp_path / "p.svg", FOUND)
    text = (tmp_path / "p.svg").read_text()
    for name in ("random", "model", "all operators, 2 cases"):
        assert f"<!-- {name} -->" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("p.pdf", "must end in .png or .svg"),
        ("none/p.png", "there is no folder"),
        ("folder.png", "is a folder"),
    ],
)
def test_wrong_paths_of_pictures(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=message):
        check_picture(tmp_path / name, PICTURE)


def test_a_missing_matplotlib_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ToolchainError, match=r"a picture of a replay needs .*: pip install matplotlib"):
        check_picture(tmp_path / "p.png", PICTURE)
    assert list(tmp_path.iterdir()) == []


def test_properties_of_a_replay() -> None:
    assert FOUND.recorded == 2 * len(CONFIGS)
    assert FOUND.failed == 0
    assert FOUND.legal_share is None
    assert FOUND.longest == 3
    assert FOUND.marks == [1, 2, 3]
