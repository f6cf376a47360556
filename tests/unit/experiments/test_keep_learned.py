"""`experiments/evaluation/keep_learned.py`: when a learned part is kept for another analytical version."""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.costmodel.measured_samples import rows
from tilesight.costmodel.learned.model_file import load

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def keep_learned(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "experiments" / "evaluation"))
    return importlib.import_module("keep_learned")


def test_rows_with_other_times_are_counted_by_operator(keep_learned: ModuleType) -> None:
    some = rows(shapes=1)
    before = keep_learned.times(some, 1)
    assert before == json.loads(json.dumps(before))  # as the file of another checkout has them
    assert not keep_learned.changes(some, before, before)
    first = some[0]
    (kernel,) = first.kernels
    other = [replace(first, kernels=(replace(kernel, grid=(2 * kernel.grid[0], 1, 1)),)), *some[1:]]
    assert keep_learned.changes(some, before, keep_learned.times(other, 1)) == {first.operator: 1}


def test_the_card_names_both_versions(keep_learned: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "costmodel" / "pretrained", folder)
    trained = load(folder).card.get("trained_with", load(folder).analytical_version)
    for version in ("analytical-98.x", "analytical-99.x"):
        keep_learned.stamp(folder, version)
    assert load(folder).analytical_version == "analytical-99.x"
    text = (folder / "card.md").read_text()
    assert f"trained and judged with `{trained}`" in text
    assert "Corrects `analytical-99.x`" in text
