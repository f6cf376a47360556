"""Held-out predictions: nothing of a case is known to the model that predicts it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.unit.costmodel.measured_samples import FAST
from tests.unit.datasets.replay.made import failing, small
from tilesight.costmodel.analytical.constants import DEFAULT
from tilesight.costmodel.training import train as training
from tilesight.datasets.replay.cases import replayable_rows
from tilesight.datasets.replay.held_out import (
    MODELS,
    data_key,
    predict_held_out,
    read_predictions,
    write_predictions,
)
from tilesight.errors import InputError
from tilesight.profile.codec import profiles_of, profiles_text


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return replayable_rows(failing(small(), [3, 30], "build_error"))


@pytest.fixture(scope="module")
def held(rows: pd.DataFrame) -> Any:
    return predict_held_out(rows, "shape", constants=DEFAULT, **FAST)


def test_every_row_is_predicted_failed_ones_too(rows: pd.DataFrame, held: Any) -> None:
    assert held.folds == 4
    for column in (held.analytical_us, held.learned_us, held.ranking_us):
        assert column.shape == (len(rows),)
        assert (column > 0).all()
    assert not np.allclose(held.learned_us, held.analytical_us)
    assert [g.ranking_us for g in held.predictions("learned")] == list(held.ranking_us)
    assert [g.ranking_us for g in held.predictions("analytical")] == list(held.analytical_us)


@pytest.mark.parametrize("split", ["shape", "operator"])
def test_times_of_a_case_do_not_change_its_predictions(rows: pd.DataFrame, split: str) -> None:
    """Other times of one case change the predictions of the other folds, and none of its own fold."""
    before = predict_held_out(rows, split, **FAST)
    name = "operator" if split == "operator" else "workload"
    own = (rows[name] == rows[name].iloc[0]).to_numpy()
    moved = rows.assign(
        measured_us=rows["measured_us"].where(~own, rows["measured_us"] * np.linspace(1, 9, len(rows)))
    )
    after = predict_held_out(moved, split, **FAST)
    assert (before.learned_us[own] == after.learned_us[own]).all()
    assert (before.ranking_us[own] == after.ranking_us[own]).all()
    assert (before.learned_us[~own] != after.learned_us[~own]).any()


def test_failed_rows_train_nothing(rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Watched(training.LatencyCorrection):  # type: ignore[misc]
        def fit(self, X: Any, y: Any, groups: Any = None, kinds: Any = None, offset: Any = None) -> Any:  # noqa: N803
            seen.append(len(y))
            return super().fit(X, y, groups=groups, kinds=kinds, offset=offset)

    monkeypatch.setattr(training, "LatencyCorrection", Watched)
    predict_held_out(rows, "operator", constants=DEFAULT, **FAST)
    # both failed rows are of the first operator, which is held out in the first fold
    assert seen == [48, 46]


def test_a_refused_row_has_no_prediction(rows: pd.DataFrame) -> None:
    (kernel,) = profiles_of(rows["profile"].iloc[5])
    profiles = rows["profile"].tolist()
    profiles[5] = profiles_text([replace(kernel, shared_bytes=10**6)])
    found = predict_held_out(rows.assign(profile=profiles), "operator", constants=DEFAULT, **FAST)
    for model in MODELS:
        guesses = found.predictions(model)
        assert guesses[5] is None
        assert sum(guess is None for guess in guesses) == 1


def test_files_give_back_what_was_written(rows: pd.DataFrame, held: Any, tmp_path: Path) -> None:
    held.learned_us[1] = np.nan
    write_predictions(tmp_path / "p.json", held)
    found = read_predictions(tmp_path / "p.json", data_key(rows, "shape", 0))
    assert found.predictions("learned")[1] is None
    np.testing.assert_allclose(found.analytical_us, held.analytical_us, rtol=1e-6)
    np.testing.assert_allclose(found.ranking_us, held.ranking_us, rtol=1e-6)
    assert list(tmp_path.iterdir()) == [tmp_path / "p.json"]


def test_other_files_are_refused(rows: pd.DataFrame, held: Any, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_predictions(path, held)
    changed = rows.assign(measured_us=rows["measured_us"] * 2)
    for key in (
        data_key(rows, "operator", 0),
        data_key(rows, "shape", 1),
        data_key(changed, "shape", 0),
        data_key(rows[1:], "shape", 0),
    ):
        with pytest.raises(
            InputError, match="are of other rows, another split or seed, or another version of the models"
        ):
            read_predictions(path, key)
    for text in ("", "[]", "{}", json.dumps({"kind": "model"}), path.read_text()[:200]):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InputError, match=r"bad\.json' cannot be read"):
            read_predictions(tmp_path / "bad.json", held.key)
    with pytest.raises(InputError, match="cannot be written"):
        write_predictions(tmp_path / "none" / "p.json", held)


def test_nothing_to_train_on_is_an_error() -> None:
    with pytest.raises(InputError, match="one shape only"):
        predict_held_out(replayable_rows(small(1, 1)), "shape", constants=DEFAULT, **FAST)
