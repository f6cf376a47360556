"""experiments/pods: collectives of several hosts are as near to published ones as the page says."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tilesight.costmodel.network.spanning import UNITS_NORM
from tilesight.target.spec import load_target

FOLDER = Path(__file__).parents[3] / "experiments" / "pods"


@pytest.fixture(scope="module")
def compare() -> Any:
    sys.path.insert(0, str(FOLDER))
    sys.modules.pop("compare", None)
    try:
        yield importlib.import_module("compare")
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("compare", None)


@pytest.mark.parametrize(
    ("kind", "fitted", "number", "most"),
    [
        ("InfiniBand", True, 54, 0.07),
        ("InfiniBand", False, 64, 0.105),
        ("EFA", False, 80, 0.165),
        ("kernels", True, 5, 0.02),
        ("kernels", False, 5, 0.03),
    ],
)
def test_errors_are_those_of_the_page(
    compare: Any, kind: str, fitted: bool, number: int, most: float
) -> None:
    target = load_target(str(compare.POD))
    given = [point for point in compare.points() if (point.kind, point.is_fitted) == (kind, fitted)]
    assert len(given) == number
    assert fmean(abs(compare.error(point, target)) for point in given) < most


def test_the_page_has_the_tables_that_the_program_prints(
    compare: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare.py"])
    compare.main()
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    tables = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert len(tables) == 2
    for table in tables:
        assert table in page


def test_points_are_whole(compare: Any) -> None:
    found = compare.points()
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"`points.csv` has {len(found)} times" in page
    assert max(Counter((*p.group, p.size_bytes, p.world) for p in found).values()) == 1
    assert {p.nodes for p in found} == {2, 4, 8, 16, 32}
    for point in found:
        assert point.world == 8 * point.nodes
        assert f"\n| {point.source} | " in page
        # no host sends faster than its eight ports of 50 GB/s; between two an all-reduce sends half
        sent = {"all_reduce": 1.0, "all_gather": 1.0, "all_to_all": 8.0}[point.collective]
        assert point.us > sent * point.size_bytes * (point.nodes - 1) / point.nodes / 400e3, point


def test_the_shipped_figures_are_those_that_are_fitted(compare: Any) -> None:
    fitted = compare.fitted_figures()
    (_, pod) = load_target(str(compare.POD)).levels
    assert fitted.pop(compare.NORM) == pytest.approx(UNITS_NORM, rel=0.02)
    assert len(fitted) == 6
    for path, value in fitted.items():
        assert pod[path] == pytest.approx(value, rel=0.02), path
        assert pod.figures[path].provenance == "predicted"
