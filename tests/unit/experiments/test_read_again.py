"""`experiments/datasets/read_again.py`: which rows are read, and what is said of them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from tests.unit.costmodel.measured_samples import dataset

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "datasets"


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("read_again")


def values(frame: pd.DataFrame) -> set[tuple[str, str, str]]:
    """Operators, and the names and values of the parameters of their rows."""
    pairs = zip(frame["operator"], frame["config"], strict=True)
    return {(operator, k, str(v)) for operator, text in pairs for k, v in json.loads(text).items()}


def test_a_sample_has_each_value_of_each_operator(read_again: ModuleType) -> None:
    frame = dataset(shapes=3).frame
    rows = frame.loc[read_again.sample(frame, most=len(frame))]
    assert values(rows) == values(frame)
    assert len(rows) < len(frame) / 2


def test_a_sample_has_at_most_so_many_rows_of_an_operator(read_again: ModuleType) -> None:
    frame = dataset(shapes=3).frame
    assert read_again.sample(frame, most=1).size == frame["operator"].nunique()


def test_a_change_tells_the_profiles_and_times_of_an_operator(read_again: ModuleType) -> None:
    frame = dataset(shapes=1).frame
    operator = frame["operator"].iloc[0]
    same = list(frame["profile"])
    (found,) = [c for c in read_again.changes(frame, same) if c.operator == operator]
    assert found.text() == f"{operator}: {found.read} rows, no profile changes"
    other = [text.replace('"grid":[', '"grid": [', 1) for text in same]  # another text of the same profile
    (found,) = [c for c in read_again.changes(frame, other) if c.operator == operator]
    assert found.ratios == [1.0] * found.read
    assert "the times of 0 by more than 0.1 %" in found.text()
