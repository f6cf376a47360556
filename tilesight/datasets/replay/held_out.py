"""Held-out predictions for replays: each fold is predicted by models trained on the other folds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...costmodel.analytical.analytical_model import AnalyticalModel
from ...costmodel.analytical.constants import Constants
from ...costmodel.learned.features import feature_digest
from ...costmodel.training.evaluation import folds
from ...costmodel.training.fit_constants import ROUGH
from ...costmodel.training.measured import measured_rows
from ...costmodel.training.train import describe, train_correction
from ...errors import InputError
from ...files import read_bounded, replacing
from ...records.dataset import Dataset
from .cases import ReplayPrediction

if TYPE_CHECKING:
    import pandas as pd

MODELS = ("learned", "analytical")
KIND = "held-out predictions"
DIGITS = 7
MOST_BYTES = 256 << 20  # of a file of predictions


@dataclass(frozen=True)
class ReplayPredictions:
    """Held-out predictions of n rows, in their order.

    Arrays have shape (n,) and are in us; NaN if the model refuses the row or it was not held out.

    Attributes:
        key: hash of the rows, the split and the models' code.
        analytical_us: predictions with constants fitted to the other folds.
        learned_us: the same, corrected by a learned model of the other folds.
        ranking_us: ranking scores of that learned model.
    """

    key: str
    split: str
    folds: int
    analytical_us: NDArray[np.float64]
    learned_us: NDArray[np.float64]
    ranking_us: NDArray[np.float64]

    def predictions(self, model: str) -> list[ReplayPrediction | None]:
        """Predictions of `model` (one of `MODELS`) by row; None where it has none."""
        times, order = (
            (self.learned_us, self.ranking_us)
            if model == "learned"
            else (self.analytical_us, self.analytical_us)
        )
        return [
            ReplayPrediction(float(us), float(by)) if us == us else None
            for us, by in zip(times, order, strict=True)
        ]


def predict_held_out(
    rows: pd.DataFrame,
    split: str,
    *,
    constants: Constants = ROUGH,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
    **parameters: Any,
) -> ReplayPredictions:
    """Train models on all folds but one, and predict that one, for every fold.

    Args:
        rows: rows of `replayable_rows`.
        split: how rows are divided, see `costmodel.training.evaluation.folds`.
        constants: of the analytical model.
        seed: of the learned model.
        progress: receives a line per fold.
        parameters: of `train_correction`.

    Raises:
        InputError: there are no rows to train on.
    """
    verified = rows["measured_us"].notna().to_numpy()
    # failed rows are predicted as well; their placeholder time is never used
    all_rows = measured_rows(Dataset(rows.assign(measured_us=rows["measured_us"].fillna(1.0))))
    assert len(all_rows) == len(rows)
    verified_rows = [row for row, right in zip(all_rows, verified, strict=True) if right]
    times, learned, ranking = (np.full(len(rows), np.nan) for _ in range(3))
    held = list(folds(verified_rows, split))
    described = describe(all_rows, AnalyticalModel(constants))
    for number, test in enumerate(held):
        progress(
            f"fold {number + 1} of {len(held)}: {int((~test).sum())} rows train, {int(test.sum())} are held "
            "out"
        )
        groups = {row.group(split) for row, out in zip(verified_rows, test, strict=True) if out}
        inside = np.array([row.group(split) in groups for row in all_rows])
        train = verified & ~inside
        inside &= described.usable
        found = train_correction(all_rows, described, train, random_state=seed, **parameters).applied(
            described.features[inside]
        )
        times[inside] = described.analytical_us[inside]
        learned[inside] = times[inside] * np.exp(found.time)
        ranking[inside] = learned[inside] * np.exp(found.order)
    return ReplayPredictions(data_key(rows, split, seed), split, len(held), times, learned, ranking)


def data_key(rows: pd.DataFrame, split: str, seed: int) -> str:
    """Hash (16 hex digits) of all that held-out predictions depend on."""
    digest = hashlib.sha256(f"{split} {seed} {AnalyticalModel().version} {feature_digest()}".encode())
    for column in ("workload", "target", "template_version", "config", "status", "measured_us", "profile"):
        digest.update("\n".join(map(str, rows[column])).encode())
    return digest.hexdigest()[:16]


def write_predictions(path: Path, found: ReplayPredictions) -> None:
    """Write predictions as JSON. Raises `InputError` if the path cannot be written."""
    columns = {name: _plain(getattr(found, name)) for name in ("analytical_us", "learned_us", "ranking_us")}
    text = json.dumps(
        {"kind": KIND, "key": found.key, "split": found.split, "folds": found.folds, **columns},
        separators=(",", ":"),
    )
    with replacing(path, f"predictions '{path}' cannot be written") as partial_path:
        partial_path.write_text(text + "\n", encoding="utf-8")


def read_predictions(path: Path, key: str) -> ReplayPredictions:
    """Read predictions of `write_predictions`.

    Raises:
        InputError: the file has another format, or its key is not `key`: it is of other rows, another split
            or models.
    """
    name = f"predictions '{path}'"
    try:
        found: Mapping[str, Any] = json.loads(read_bounded(path, MOST_BYTES))
        if found["kind"] != KIND:
            raise ValueError(f"kind '{found['kind']}'")
        columns = {
            c: np.array(found[c], dtype=np.float64) for c in ("analytical_us", "learned_us", "ranking_us")
        }
        made = ReplayPredictions(str(found["key"]), str(found["split"]), int(found["folds"]), **columns)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{name} cannot be read ({error}); name a file that `tilesight replay --predictions` wrote, or a "
            "new one"
        ) from error
    if made.key != key:
        raise InputError(
            f"{name} are of other rows, another split or seed, or another version of the models (key "
            f"{made.key}, needed {key}); "
            "name a new file to make them again"
        )
    return made


def _plain(values: NDArray[np.float64]) -> list[float | None]:
    return [float(f"{v:.{DIGITS}g}") if v == v else None for v in values]
