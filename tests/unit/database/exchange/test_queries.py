"""The views for people, SQL that reads only, and files."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sessions import add_session
from tests.unit.database import samples
from tilesight.database import Store, export, open_store, overview
from tilesight.database.schema.tables import HEAD
from tilesight.errors import FailureKind, InputError, ToolchainError, UnknownNameError
from tilesight.problem.workload import Workload

SMALL = Workload("matmul", {"m": 64, "n": 64, "k": 64}, "float16")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(samples.empty_database(tmp_path / "x.db")) as opened:
        yield opened


# ---- files


def test_export_to_csv(store: Store, tmp_path: Path) -> None:
    add_session(
        store, samples.context(), samples.verified(1, 1 / 3), samples.failed(2, FailureKind.RUN_ERROR)
    )
    path = tmp_path / "out.CSV"
    path.write_text("what was there before")
    assert export(store, path) == 2
    with path.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert {row["status"] for row in found} == {"verified", "failed"}
    verified = next(row for row in found if row["status"] == "verified")
    assert float(verified["measured_us"]) == 1 / 3
    assert json.loads(verified["samples_us"]) == [1 / 3]
    assert [file.name for file in tmp_path.glob("out*")] == ["out.CSV"]


def test_export_to_json_lines_keeps_json_as_json(store: Store, tmp_path: Path) -> None:
    awkward = samples.Draw(3).text() + '\n\u2028,"'
    add_session(store, samples.context(device=awkward), samples.verified(1, 10.0))
    assert export(store, str(tmp_path / "out.txt"), "jsonl") == 1
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")
    assert len(lines) == 2
    found = json.loads(lines[0])
    assert (found["device"], found["config"], found["samples_us"]) == (
        awkward,
        dict(samples.config(1)),
        [10.0],
    )
    assert found["dims"] == {"m": 4096, "n": 1024, "k": 8192}


def test_export_of_another_view(store: Store, tmp_path: Path) -> None:
    add_session(store, samples.context(), samples.verified(1, 10.0))
    assert export(store, tmp_path / "best.jsonl", view="best") == 1
    with pytest.raises(UnknownNameError, match="unknown view or table 'bst'; did you mean best"):
        export(store, tmp_path / "x.csv", view="bst")
    with pytest.raises(UnknownNameError):
        export(store, tmp_path / "x.csv", view="best; DROP TABLE trials")


def test_export_to_parquet(store: Store, tmp_path: Path) -> None:
    add_session(store, samples.context(), samples.verified(1, 10.0))
    if importlib.util.find_spec("pyarrow") or importlib.util.find_spec("fastparquet"):
        assert export(store, tmp_path / "x.parquet") == 1
        assert (tmp_path / "x.parquet").read_bytes()[:4] == b"PAR1"
    else:
        with pytest.raises(ToolchainError, match="pip install pyarrow"):
            export(store, tmp_path / "x.parquet")
        assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize("name", ["out.xlsx", "out", "out.csv.gz"])
def test_export_to_an_unknown_format(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"no known format; name a file that ends in \.csv, \.jsonl"):
        export(store, tmp_path / name)


def test_export_to_a_place_that_will_not_do(store: Store, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for path in (tmp_path / "missing" / "x.csv", tmp_path / "folder.csv", tmp_path / "x.db" / "x.csv"):
        with pytest.raises(InputError, match=r"export to '.*' failed: "):
            export(store, path)
    assert sorted(file.name for file in tmp_path.glob("*.partial")) == []


def test_overview_counts(store: Store) -> None:
    add_session(store, samples.context(), samples.verified(1, 10.0), samples.predicted(2))
    found = overview(store)
    assert (found.revision, found.trials, found.sessions) == (
        HEAD,
        {"predicted": 1, "verified": 1},
        {"complete": 1},
    )
    assert found.size_bytes % 4096 == 0
    assert found.tables["candidates"] == 2
