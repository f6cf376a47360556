"""Curves of replays: the best time so far, as a share of the best recorded one, against the number measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from ..costmodel.metrics import geometric_mean

MARKS = (1, 2, 4, 8, 16, 32, 64, 128)  # of the table
GOALS = (0.99, 0.95)


@dataclass(frozen=True)
class Curve:
    """One strategy with one seed on one case. `shares[k - 1]` is the best recorded time over the best of the first k
    measured, in 0 .. 1; where none of them worked, as if the slowest recorded one had been found."""

    strategy: str
    seed: int
    case: int  # place in `Replay.cases`
    operator: str
    shares: tuple[float, ...]

    def at(self, measured: int) -> float:
        """A search that has ended keeps what it has."""
        return self.shares[min(measured, len(self.shares)) - 1]

    def reached(self, share: float) -> int | None:
        """How many were measured when `share` was reached."""
        return next((count for count, found in enumerate(self.shares, 1) if found >= share), None)


@dataclass(frozen=True, slots=True)
class Point:
    """`share`: geometric mean over cases, mean over seeds; `spread`: standard deviation over seeds."""

    measured: int
    share: float
    spread: float


@dataclass(frozen=True, slots=True)
class Goal:
    """Measurements until `share` of the best, over cases and seeds; where it was not reached, all that were asked for count.

    `spread`: standard deviation over seeds of the mean over cases."""

    share: float
    mean: float
    spread: float
    median: float
    reached: float  # share of cases and seeds


@dataclass(frozen=True)
class Summary:
    strategy: str
    cases: int
    seeds: int
    points: tuple[Point, ...]
    goals: tuple[Goal, ...]


def summary(curves: Sequence[Curve], marks: Iterable[int]) -> Summary:
    """Of the curves of one strategy."""
    by_seed: dict[int, list[Curve]] = {}
    for curve in curves:
        by_seed.setdefault(curve.seed, []).append(curve)
    points = []
    for mark in marks:
        means = [geometric_mean(curve.at(mark) for curve in own) for own in by_seed.values()]
        points.append(Point(mark, fmean(means), pstdev(means)))
    return Summary(
        curves[0].strategy,
        len({curve.case for curve in curves}),
        len(by_seed),
        tuple(points),
        tuple(_goal(list(by_seed.values()), share) for share in GOALS),
    )


def _goal(by_seed: Sequence[Sequence[Curve]], share: float) -> Goal:
    counts = [[curve.reached(share) or len(curve.shares) for curve in own] for own in by_seed]
    means = [fmean(own) for own in counts]
    reached = [curve.reached(share) is not None for own in by_seed for curve in own]
    return Goal(share, fmean(means), pstdev(means), median(count for own in counts for count in own), fmean(reached))
