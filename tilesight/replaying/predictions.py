"""Predictions of models that have not seen the case: each fold's are of models trained on the other folds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..costmodel.analytical import AnalyticalModel
from ..costmodel.calibration import fit_held_out
from ..costmodel.evaluation import folds
from ..costmodel.features import feature_digest
from ..costmodel.measured import measured_rows
from ..costmodel.training import ConstantsFit, describe, train_correction
from ..dataset import Dataset
from ..errors import InputError
from ..out_file import replacing
from .cases import Guess

if TYPE_CHECKING:
    import pandas as pd

MODELS = ("learned", "analytical")
KIND = "held-out predictions"
DIGITS = 7


@dataclass(frozen=True)
class HeldOut:
    """Of n rows, in their order; each (n,) in microseconds, NaN where the model refuses the row or nothing was held out."""

    key: str  # of the rows, the split and the models' code
    split: str
    folds: int
    analytical_us: NDArray[np.float64]  # constants fitted to the other folds
    learned_us: NDArray[np.float64]  # corrected by a learned model of the other folds
    ranking_us: NDArray[np.float64]  # by which that model puts candidates in order

    def guesses(self, model: str) -> list[Guess | None]:
        times, order = (self.learned_us, self.ranking_us) if model == "learned" else (self.analytical_us, self.analytical_us)
        return [Guess(float(us), float(by)) if us == us else None for us, by in zip(times, order, strict=True)]


def predict_held_out(
    rows: pd.DataFrame,
    split: str,
    *,
    fit_constants: ConstantsFit | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
    **parameters: Any,
) -> HeldOut:
    """`rows` are those of `asked_rows`; `split` as in `costmodel.evaluation.folds`, which divides them; `fit_constants` fits
    the analytical model's (default: as `tilesight model evaluate` does); `parameters` are those of `LatencyCorrection`.

    Raises `InputError` where there is nothing to train on.
    """
    fit = fit_held_out if fit_constants is None else fit_constants
    verified = rows["measured_us"].notna().to_numpy()
    # failed rows are predicted as others are; the time that stands in for theirs is never looked at
    all_rows = measured_rows(Dataset(rows.assign(measured_us=rows["measured_us"].fillna(1.0))))
    assert len(all_rows) == len(rows)
    known = [row for row, right in zip(all_rows, verified, strict=True) if right]
    times, learned, ranking = (np.full(len(rows), np.nan) for _ in range(3))
    held = list(folds(known, split))
    for number, test in enumerate(held):
        progress(f"fold {number + 1} of {len(held)}: {int((~test).sum())} rows train, {int(test.sum())} are held out")
        groups = {row.group(split) for row, out in zip(known, test, strict=True) if out}
        inside = np.array([row.group(split) in groups for row in all_rows])
        train = verified & ~inside
        model = AnalyticalModel(fit([row for row, used in zip(all_rows, train, strict=True) if used]))
        seen = describe(all_rows, model)
        inside &= seen.usable
        found = train_correction(all_rows, seen, train, random_state=seed, **parameters).applied(seen.features[inside])
        times[inside] = seen.analytical_us[inside]
        learned[inside] = times[inside] * np.exp(found.time)
        ranking[inside] = learned[inside] * np.exp(found.order)
    return HeldOut(data_key(rows, split, seed), split, len(held), times, learned, ranking)


def data_key(rows: pd.DataFrame, split: str, seed: int) -> str:
    """16 hex digits over what held-out predictions depend on."""
    digest = hashlib.sha256(f"{split} {seed} {AnalyticalModel().version} {feature_digest()}".encode())
    for column in ("workload", "target", "template_version", "config", "status", "measured_us", "profile"):
        digest.update("\n".join(map(str, rows[column])).encode())
    return digest.hexdigest()[:16]


def write_predictions(path: Path, found: HeldOut) -> None:
    """Raises `InputError` for a path that cannot be written."""
    columns = {name: _plain(getattr(found, name)) for name in ("analytical_us", "learned_us", "ranking_us")}
    text = json.dumps({"kind": KIND, "key": found.key, "split": found.split, "folds": found.folds, **columns}, separators=(",", ":"))
    with replacing(path, f"predictions '{path}' cannot be written") as partial_path:
        partial_path.write_text(text + "\n", encoding="utf-8")


def read_predictions(path: Path, key: str) -> HeldOut:
    """Raises `InputError` for a file that is no such file, or was made of other rows, of another split, or by another version."""
    name = f"predictions '{path}'"
    try:
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["kind"] != KIND:
            raise ValueError(f"kind '{found['kind']}'")
        columns = {c: np.array(found[c], dtype=np.float64) for c in ("analytical_us", "learned_us", "ranking_us")}
        made = HeldOut(str(found["key"]), str(found["split"]), int(found["folds"]), **columns)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{name} cannot be read ({error}); name a file that `tilesight replay --predictions` wrote, or a new one"
        ) from error
    if made.key != key:
        raise InputError(
            f"{name} are of other rows, another split or seed, or another version of the models (key {made.key}, needed {key}); "
            "name a new file, and they are made again"
        )
    return made


def _plain(values: NDArray[np.float64]) -> list[float | None]:
    return [float(f"{v:.{DIGITS}g}") if v == v else None for v in values]
