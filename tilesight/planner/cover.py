"""Which few kernels cover a range of sizes at the least loss: k-medians on the matrix of their times.

The loss of a kernel at a size is how much longer it takes than the best known kernel, as a share. The cost of
a choice is the weighted mean of loss + SQUARED_LOSS_WEIGHT * loss^2, so that one large loss counts more than
several small ones, and a penalty where a kernel is slower than the default config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SQUARED_LOSS_WEIGHT = 6.0  # a loss of a sixth counts twice
SLOWER_THAN_DEFAULT_WEIGHT = 4.0  # times the share by which a kernel is slower than the default config
UNUSABLE = 100.0  # the loss at a size that no chosen kernel serves
MOST_SWAPS = 200

Times = NDArray[np.float64]  # a row per config, a column per size; inf if the config does not work there


@dataclass(frozen=True)
class Cover:
    """`chosen`: rows, most useful first. `serves`: for each column the index in `chosen` of the fastest."""

    chosen: tuple[int, ...]
    serves: tuple[int, ...]
    cost: float


def choose_kernels(
    times: Times,
    weights: Sequence[float],
    count: int,
    defaults: Sequence[int | None],
    keep: Sequence[int] = (),
) -> Cover:
    """Choose rows greedily, then swap rows until no swap helps.

    Args:
        times: microseconds.
        weights: of the columns.
        count: of rows, at most; rows that lower nothing are left out.
        defaults: the row of the default config at each column, None if it has none.
        keep: rows that must be chosen.
    """
    cost = costs(times, np.asarray(weights, dtype=np.float64), defaults)
    chosen = _swapped(cost, greedily(cost, count, list(dict.fromkeys(keep))[:count]), frozenset(keep))
    # the table needs no kernel whose sizes others serve as well
    for row in reversed(chosen[:]):
        rest = [other for other in chosen if other != row]
        if (
            rest
            and row not in keep
            and cost[rest].min(axis=0).sum() <= cost[chosen].min(axis=0).sum() * (1 + 1e-9)
        ):
            chosen = rest
    ordered = _most_useful_first(cost, chosen)
    return Cover(
        tuple(ordered),
        tuple(int(index) for index in times[ordered].argmin(axis=0)),
        float(cost[ordered].min(axis=0).sum()),
    )


def greedily(cost: Times, count: int, chosen: Sequence[int] = (), served: Times | None = None) -> list[int]:
    """`chosen` and further rows, each the one that lowers the cost of all columns most, until none lowers it.

    Args:
        cost: of each row at each column.
        count: of rows, at most.
        chosen: rows to begin with.
        served: the cost of each column without any row. Without it and `chosen` at least one row is taken.
    """
    found = list(chosen)
    now = np.full(cost.shape[1], np.inf) if served is None else served
    if found:
        now = np.minimum(now, cost[found].min(axis=0))
    while len(found) < min(count, len(cost)):
        totals = np.minimum(cost, now).sum(axis=1)
        totals[found] = np.inf
        best = int(totals.argmin())
        if (found or served is not None) and totals[best] >= now.sum() * (1 - 1e-9):
            break
        found.append(best)
        now = np.minimum(now, cost[best])
    return found


def losses(times: Times) -> Times:
    """How much longer each row takes than the best of each column, as a share; inf if it does not work."""
    best = times.min(axis=0)
    return np.where(np.isfinite(times), times / np.where(np.isfinite(best), best, 1.0) - 1, np.inf)


def costs(times: Times, weights: NDArray[np.float64], defaults: Sequence[int | None] = ()) -> Times:
    """The weighted cost of each row at each column: loss, its square, and the penalty below the default."""
    loss = np.minimum(losses(times), UNUSABLE)
    cost = loss + SQUARED_LOSS_WEIGHT * loss**2
    for column, row in enumerate(defaults):
        if row is not None and np.isfinite(times[row, column]):
            slower = np.minimum(times[:, column] / times[row, column] - 1, UNUSABLE)
            cost[:, column] += SLOWER_THAN_DEFAULT_WEIGHT * np.maximum(slower, 0.0)
    return cost * weights[None, :]


def _swapped(cost: Times, chosen: list[int], keep: frozenset[int]) -> list[int]:
    """Exchange a chosen row for another, the best exchange first, until no exchange lowers the cost."""
    now = cost[chosen].min(axis=0).sum()
    for _ in range(MOST_SWAPS):
        best, exchange = now * (1 - 1e-9), None
        for index, row in enumerate(chosen):
            if row in keep:
                continue
            rest = [other for other in chosen if other != row]
            served = cost[rest].min(axis=0) if rest else np.full(cost.shape[1], np.inf)
            totals = np.minimum(cost, served).sum(axis=1)
            totals[chosen] = np.inf
            candidate = int(totals.argmin())
            if totals[candidate] < best:
                best, exchange = float(totals[candidate]), (index, candidate)
        if exchange is None:
            return chosen
        chosen[exchange[0]] = exchange[1]
        now = best
    return chosen


def _most_useful_first(cost: Times, chosen: Sequence[int]) -> list[int]:
    """The chosen rows; each lowers the cost most, given the rows before it."""
    ordered: list[int] = []
    served = np.full(cost.shape[1], np.inf)
    left = list(chosen)
    while left:
        row = min(left, key=lambda r: float(np.minimum(cost[r], served).sum()))
        ordered.append(row)
        served = np.minimum(served, cost[row])
        left.remove(row)
    return ordered
