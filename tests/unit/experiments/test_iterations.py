"""experiments/iterations: kernels that took their predicted times would have the predicted iterations."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pages.samples import profile
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.profile.values import KernelProfile, Trips
from tilesight.target.spec import load_target

FOLDER = Path(__file__).parents[3] / "experiments" / "iterations"


@pytest.fixture
def iterations(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("iterations")
    sys.modules.pop("iterations", None)


def row(trips: int, **dims: int) -> dict[str, Any]:
    kernel: KernelProfile = profile().with_phases(lambda phase: replace(phase, trips=Trips((float(trips),))))
    found = AnalyticalModel().predict([kernel], load_target("h200"))
    names = dict.fromkeys(("operator", "shape", "dtype", "config"), "x")
    size = json.dumps({"m": 64, "k": trips, **dims})
    return {**names, "target": "h200", "kernel": kernel, "dims": size, "measured_us": found.latency_us}


def test_predicted_times_give_the_predicted_iteration(iterations: Any) -> None:
    [(short, long)] = iterations._ends_by_size([row(64), row(128), row(512)])
    found = iterations._pair(short, long)
    assert (found["trips"], found["longer_trips"]) == (64.0, 512.0)
    assert found["ratio"] == pytest.approx(1.0, abs=0.03)


def test_rows_that_differ_in_more_than_a_loop_are_no_pair(iterations: Any) -> None:
    assert list(iterations._ends_by_size([row(64), row(512, m=65)])) == []
    assert iterations._pair(row(64), row(64)) is None
