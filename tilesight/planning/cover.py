"""Which few kernels cover a range of sizes at the least loss: k-medians on the matrix of their times.

The loss of a size is how much longer its kernel takes than the best known one, as a share. What is minimised is the weighted
mean of loss + SQUARE * loss^2, so that one large loss counts more than several small ones, with a penalty where a kernel is
slower than the one that the template starts from by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SQUARE = 6.0  # a loss of a sixth counts twice
BELOW_DEFAULT = 4.0  # for each share by which a kernel is slower than the default one
UNUSABLE = 100.0  # the loss of a size that no chosen kernel serves
MOST_SWAPS = 200

Times = NDArray[np.float64]  # a row a config, a column a size; inf where the config does not serve it


@dataclass(frozen=True)
class Cover:
    """`chosen` are rows of the matrix, in the order in which they were found worth most; `serves` has for each column the one
    of them that takes least time there, as a place in `chosen`."""

    chosen: tuple[int, ...]
    serves: tuple[int, ...]
    cost: float


def choose_kernels(times: Times, weights: Sequence[float], count: int, defaults: Sequence[int | None], keep: Sequence[int] = ()) -> Cover:
    """The best `count` rows (fewer where more bring nothing), found greedily and improved by swaps until none helps.

    `defaults`: the row of the default config at each column, None where it is not known. `keep`: rows that must be chosen.
    """
    cost = costs(times, np.asarray(weights, dtype=np.float64), defaults)
    chosen = _swapped(cost, greedily(cost, count, list(dict.fromkeys(keep))[:count]), frozenset(keep))
    # a kernel whose sizes others serve as well is none the table needs
    for row in reversed(chosen[:]):
        rest = [other for other in chosen if other != row]
        if rest and row not in keep and cost[rest].min(axis=0).sum() <= cost[chosen].min(axis=0).sum() * (1 + 1e-9):
            chosen = rest
    ordered = _by_worth(cost, chosen)
    return Cover(tuple(ordered), tuple(int(place) for place in times[ordered].argmin(axis=0)), float(cost[ordered].min(axis=0).sum()))


def greedily(cost: Times, count: int, chosen: Sequence[int] = (), served: Times | None = None) -> list[int]:
    """`chosen`, and rows of `cost` up to `count` in all, each the one that lowers the sum over the columns most; fewer where more
    bring nothing. `served`: what each column costs without any; where neither it nor `chosen` is given, one row is taken at least."""
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
    """How much longer each row takes than the best of its column, as a share; inf where it does not serve it."""
    best = times.min(axis=0)
    return np.where(np.isfinite(times), times / np.where(np.isfinite(best), best, 1.0) - 1, np.inf)


def costs(times: Times, weights: NDArray[np.float64], defaults: Sequence[int | None] = ()) -> Times:
    """What each row costs in each column: its loss and the square of it, and what it is slower than the default, by weight."""
    loss = np.minimum(losses(times), UNUSABLE)
    cost = loss + SQUARE * loss**2
    for column, row in enumerate(defaults):
        if row is not None and np.isfinite(times[row, column]):
            behind = np.minimum(times[:, column] / times[row, column] - 1, UNUSABLE)
            cost[:, column] += BELOW_DEFAULT * np.maximum(behind, 0.0)
    return cost * weights[None, :]


def _swapped(cost: Times, chosen: list[int], keep: frozenset[int]) -> list[int]:
    """Exchange one chosen row for another as long as that lowers the cost, the best exchange first."""
    now = cost[chosen].min(axis=0).sum()
    for _ in range(MOST_SWAPS):
        best, exchange = now * (1 - 1e-9), None
        for place, row in enumerate(chosen):
            if row in keep:
                continue
            rest = [other for other in chosen if other != row]
            served = cost[rest].min(axis=0) if rest else np.full(cost.shape[1], np.inf)
            totals = np.minimum(cost, served).sum(axis=1)
            totals[chosen] = np.inf
            candidate = int(totals.argmin())
            if totals[candidate] < best:
                best, exchange = float(totals[candidate]), (place, candidate)
        if exchange is None:
            return chosen
        chosen[exchange[0]] = exchange[1]
        now = best
    return chosen


def _by_worth(cost: Times, chosen: Sequence[int]) -> list[int]:
    """The chosen rows, each the one that helps most beside those before it."""
    ordered: list[int] = []
    served = np.full(cost.shape[1], np.inf)
    left = list(chosen)
    while left:
        row = min(left, key=lambda r: float(np.minimum(cost[r], served).sum()))
        ordered.append(row)
        served = np.minimum(served, cost[row])
        left.remove(row)
    return ordered
