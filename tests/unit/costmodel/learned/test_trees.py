"""Boosted trees evaluated by XGBoost's library: the same numbers as by its package."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tilesight.costmodel.learned import trees
from tilesight.costmodel.learned.trees import Trees, booster_of

ROWS = np.random.default_rng(3).normal(size=(500, 7)).astype(np.float32)


@pytest.fixture(scope="module")
def booster() -> Any:
    xgboost = pytest.importorskip("xgboost")
    values = ROWS[:, 0] * 2 + np.abs(ROWS[:, 3]) + 1.5
    return xgboost.train(
        {"max_depth": 3, "seed": 1, "nthread": 1}, xgboost.DMatrix(ROWS, values), num_boost_round=20
    )


def test_the_library_predicts_as_the_package(booster: Any) -> None:
    found = booster_of(bytes(booster.save_raw("ubj")))
    assert isinstance(found, Trees), "the library was not found in the package"
    margin = np.linspace(-1, 1, len(ROWS), dtype=np.float32)
    np.testing.assert_array_equal(found.inplace_predict(ROWS), booster.inplace_predict(ROWS))
    np.testing.assert_array_equal(
        found.inplace_predict(ROWS, predict_type="margin", base_margin=margin),
        booster.inplace_predict(ROWS, predict_type="margin", base_margin=margin),
    )
    first = found.inplace_predict(ROWS[:1])
    np.testing.assert_array_equal(
        found.inplace_predict(ROWS)[:1], first
    )  # an earlier answer stays what it was
    assert found.inplace_predict(ROWS[:0]).shape == (0,)


def test_rows_of_another_width_are_refused(booster: Any) -> None:
    with pytest.raises(ValueError, match="XGBoost"):
        booster_of(bytes(booster.save_raw("ubj"))).inplace_predict(ROWS[:, :3])


def test_the_package_is_used_if_the_library_is_elsewhere(
    booster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_library", lambda: None)
    found = booster_of(bytes(booster.save_raw("ubj")))
    assert not isinstance(found, Trees)
    np.testing.assert_array_equal(found.inplace_predict(ROWS), booster.inplace_predict(ROWS))


def test_loading_the_model_that_ships_imports_no_heavy_package() -> None:
    code = (
        "import sys\n"
        "from tilesight.costmodel import default_model\n"
        "default_model()\n"
        "print(sorted({'xgboost', 'sklearn', 'scipy', 'pandas'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
