"""`experiments/datasets/merge.py`: which rows of several datasets are kept."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.costmodel.measured_samples import dataset
from tilesight.records.dataset import Dataset

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "datasets"


@pytest.fixture
def merge(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("merge")


def run(name: str, date: str, count: int, **changes: Any) -> Dataset:
    """A dataset of one run with the first rows of the made one."""
    rows = dataset(shapes=1).frame.head(count).to_dict("records")
    facts = {"environment": {"device": "NVIDIA H200"}, "date": date}
    return Dataset.of([{**row, "run": name, **changes} for row in rows], {name: facts})


def test_the_newest_row_of_a_candidate_is_kept(merge: ModuleType) -> None:
    old, new = run("old", "2026-01-01", 3, measured_us=50.0), run("new", "2026-01-02", 4, measured_us=40.0)
    found, left = merge.newest([old, new])
    assert found.frame["run"].tolist() == ["new"] * 4
    assert left == 3
    assert set(found.runs) == {"new"}
    found, _ = merge.newest([new, old], known_only=True)
    assert found.frame["run"].tolist() == ["new"] * 4


def test_only_known_candidates_are_replaced(merge: ModuleType) -> None:
    old, new = run("old", "2026-01-01", 2, measured_us=50.0), run("new", "2026-01-02", 4, measured_us=40.0)
    found, left = merge.newest([old, new], known_only=True)
    assert len(found) == 2
    assert left == 4


@pytest.mark.parametrize(("again_us", "kept"), [(9.0, "new"), (11.0, "old")])
def test_short_times_replace_longer_ones_alone(merge: ModuleType, again_us: float, kept: str) -> None:
    old, new = (
        run("old", "2026-01-01", 1, measured_us=10.0),
        run("new", "2026-01-02", 2, measured_us=again_us),
    )
    found, _ = merge.newest([old, new], least_us=15.0)
    assert found.frame["run"].tolist() == [kept]


@pytest.mark.parametrize(("code", "kept"), [("same", '{"a":1}'), ("other", None)])
def test_counters_stay_with_their_device_code(merge: ModuleType, code: str, kept: str | None) -> None:
    old = run("old", "2026-01-01", 1, measured_us=50.0, counters='{"a":1}', fingerprint="same")
    new = run("new", "2026-01-02", 1, measured_us=50.0, counters=None, fingerprint=code)
    found, _ = merge.newest([old, new])
    [counters] = found.frame["counters"]
    assert counters == kept if kept else not isinstance(counters, str)


def test_times_that_scatter_are_left_out(merge: ModuleType) -> None:
    still = run("still", "2026-01-01", 1, measured_us=50.0, samples_us=[49.0, 50.0, 51.0])
    wild = run("wild", "2026-01-01", 1, measured_us=50.0, samples_us=[10.0, 50.0, 90.0])
    assert len(merge.steady(still)) == 1
    assert len(merge.steady(wild)) == 0
