"""experiments/groups: the table of rows, and how much of what overlap can save a kernel saves."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "groups"


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("measure_groups", FOLDER / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("torch_fused", None)


@pytest.mark.parametrize(
    ("fused", "share"), [(150.0, 0.0), (100.0, 1.0), (125.0, 0.5), (175.0, -0.5), (90.0, 1.2)]
)
def test_overlap_efficiency(measure: ModuleType, fused: float, share: float) -> None:
    assert measure.overlap_efficiency(150.0, fused, 100.0, 50.0) == pytest.approx(share)
    assert measure.overlap_efficiency(100.0, fused, 100.0, 50.0) is None


def test_rows_of_a_case_stand_side_by_side(measure: ModuleType) -> None:
    rows = [
        {"case": "a", "kind": "parts", "product_us": 100.0, "collective_us": 50.0, "sequential_us": 152.0},
        {"case": "a", "kind": "torch", "fused_us": 140.0},
        {"case": "a", "kind": "ours", "fused_us": 110.0, "sequential_us": 150.0},
        {"case": "b", "kind": "parts", "product_us": 10.0, "collective_us": 5.0, "sequential_us": 15.0},
        {"case": "b", "kind": "torch", "error": "no such operator"},
    ]
    lines = measure.table(rows).splitlines()
    assert lines[1:] == ["100.0  50.0  150.0  140.0  110.0  0.80  a", "10.0  5.0  15.0  -  -  -  b"]


def test_torch_has_fused_operators_for_some_only(measure: ModuleType) -> None:
    from torch_fused import TorchCase  # type: ignore[import-not-found]

    [(index, values)] = measure.time_torch([TorchCase(3, "all_reduce_norm", {"world": 2}, "bfloat16")], {}, 1)
    assert index == 3
    assert values == {"error": "torch has no fused operator for all_reduce_norm"}
