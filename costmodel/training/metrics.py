"""Metrics of predictions on the candidates of a case, as functions of times in microseconds.

A predicted time is infinite if the model refused a candidate that ran. Such a candidate ranks last and has no
error in percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

TOP_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of one model on one case.

    `top...` are best measured time / best measured time among the picks.
    """

    count: int
    spearman: float | None  # None if either side is constant or there are fewer than two candidates
    top1: float
    top8: float
    top5_percent: float
    mape: float | None  # mean |predicted / measured - 1|; None if the model predicts no times
    pick: float | None = None  # predicted over measured time of the first pick


def scores(
    predicted_us: ArrayLike, measured_us: ArrayLike, *, order_us: ArrayLike | None = None, times: bool = True
) -> Scores:
    """Score one model on the candidates of one case.

    Args:
        predicted_us: predicted times.
        measured_us: measured times.
        order_us: the scores by which the model ranks candidates, if they are not `predicted_us`.
        times: False if `predicted_us` orders candidates but is not in microseconds.
    """
    predicted, measured = _checked(predicted_us, measured_us)
    order, _ = _checked(predicted_us if order_us is None else order_us, measured_us)
    first = int(np.argmin(order))
    return Scores(
        count=len(measured),
        spearman=spearman(order, measured),
        top1=top(order, measured, 1),
        top8=top(order, measured, 8),
        top5_percent=top(order, measured, top_count(len(measured))),
        mape=mape(predicted, measured) if times else None,
        pick=float(predicted[first] / measured[first]) if times and np.isfinite(predicted[first]) else None,
    )


def top_count(count: int) -> int:
    """The number of candidates in the best 5 % of `count`, at least one."""
    return max(1, math.ceil(TOP_SHARE * count))


def top(predicted_us: ArrayLike, measured_us: ArrayLike, count: int) -> float:
    """Best measured time over the best among the `count` candidates that are predicted to be fastest, in 0 ..

    1.

    For equal predictions it is the expected value of a random choice.
    """
    predicted, measured = _checked(predicted_us, measured_us)
    order = np.argsort(predicted, kind="stable")
    cut = predicted[order[min(count, len(order)) - 1]]
    sure, tied = measured[predicted < cut], measured[predicted == cut]
    best = float(measured.min())
    draw = min(count, len(order)) - len(sure)
    return _expected_share(best, float(sure.min()) if len(sure) else math.inf, tied, draw)


def random_top(measured_us: ArrayLike, count: int) -> float:
    """The exact expected value of `top` for `count` candidates chosen at random."""
    _, measured = _checked(measured_us, measured_us)
    return _expected_share(float(measured.min()), math.inf, measured, min(count, len(measured)))


def random_scores(measured_us: ArrayLike) -> Scores:
    """The expected scores of a random order."""
    _, measured = _checked(measured_us, measured_us)
    n = len(measured)
    return Scores(
        n, 0.0, random_top(measured, 1), random_top(measured, 8), random_top(measured, top_count(n)), None
    )


def _expected_share(best: float, surely: float, drawn_from: NDArray[np.float64], count: int) -> float:
    """Mean of best / min(surely, fastest of `count` drawn without replacement)."""
    times = np.minimum(np.sort(drawn_from), surely)
    n = len(times)
    total, nothing_faster = 0.0, 1.0
    for i in range(n - count + 1):
        # chance that the i-th fastest is the fastest drawn: it is drawn, and none before it
        chance = nothing_faster * count / (n - i)
        total += chance * best / float(times[i])
        nothing_faster -= chance
    return total


def spearman(predicted_us: ArrayLike, measured_us: ArrayLike) -> float | None:
    """Spearman's rank correlation, with mean ranks for ties; None if undefined."""
    predicted, measured = _checked(predicted_us, measured_us)
    ranks = _ranks(predicted), _ranks(measured)
    if len(measured) < 2 or any(r.std() == 0 for r in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])


def mape(predicted_us: ArrayLike, measured_us: ArrayLike) -> float | None:
    """Mean absolute error as a share of the measured time, over candidates with a finite prediction."""
    predicted, measured = _checked(predicted_us, measured_us)
    finite = np.isfinite(predicted)
    return float(np.mean(np.abs(predicted[finite] / measured[finite] - 1))) if finite.any() else None


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean. Raises `ValueError` if there are no values or one is not above 0."""
    found = np.array(list(values), dtype=np.float64)
    if not len(found) or (found <= 0).any():
        raise ValueError(f"a geometric mean needs values above 0, got {found.tolist()}")
    return float(np.exp(np.log(found).mean()))


def _checked(predicted_us: ArrayLike, measured_us: ArrayLike) -> tuple[NDArray[np.float64], NDArray[Any]]:
    predicted, measured = (
        np.asarray(predicted_us, dtype=np.float64),
        np.asarray(measured_us, dtype=np.float64),
    )
    if predicted.shape != measured.shape or predicted.ndim != 1 or not len(measured):
        raise ValueError(
            "predicted and measured times must be two rows of one length, "
            f"got {predicted.shape} and {measured.shape}"
        )
    if not (np.isfinite(measured) & (measured > 0)).all() or np.isnan(predicted).any():
        raise ValueError("measured times must be finite and above 0, predicted ones must not be NaN")
    return predicted, measured
