"""Curves of replays: the best time so far as a share of the best recorded one, by number of measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from ...costmodel.training.metrics import geometric_mean

MARKS = (1, 2, 4, 8, 16, 32, 64, 128)  # numbers of measurements in the table
GOALS = (0.99, 0.95)


@dataclass(frozen=True)
class Curve:
    """One strategy with one seed on one case.

    Attributes:
        case: position in `Replay.cases`.
        shares: `shares[k - 1]` is the best recorded time over the best of the first k measured, 0 .. 1. While
            every measured config failed, the slowest recorded time counts.
    """

    strategy: str
    seed: int
    case: int
    operator: str
    shares: tuple[float, ...]

    def at(self, measured: int) -> float:
        """The share after `measured` measurements; a search that ended keeps its last one."""
        return self.shares[min(measured, len(self.shares)) - 1]

    def reached(self, share: float) -> int | None:
        """Number of measurements when `share` was reached; None if it was not."""
        return next((count for count, found in enumerate(self.shares, 1) if found >= share), None)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A share (geometric mean over cases, mean over seeds) and its standard deviation over seeds."""

    measured: int
    share: float
    spread: float


@dataclass(frozen=True, slots=True)
class Goal:
    """Number of measurements until `share` of the best time is reached, over cases and seeds.

    A search that did not reach it counts with all its measurements.

    Attributes:
        spread: standard deviation over seeds of the mean over cases.
        reached: share of cases and seeds that reached it.
    """

    share: float
    mean: float
    spread: float
    median: float
    reached: float


@dataclass(frozen=True)
class CurveSummary:
    """Summary of all curves of a strategy."""

    strategy: str
    cases: int
    seeds: int
    points: tuple[CurvePoint, ...]
    goals: tuple[Goal, ...]


def summary(curves: Sequence[Curve], marks: Iterable[int]) -> CurveSummary:
    """Summary of the curves of one strategy, with points at `marks`."""
    by_seed: dict[int, list[Curve]] = {}
    for curve in curves:
        by_seed.setdefault(curve.seed, []).append(curve)
    points = []
    for mark in marks:
        means = [geometric_mean(curve.at(mark) for curve in own) for own in by_seed.values()]
        points.append(CurvePoint(mark, fmean(means), pstdev(means)))
    return CurveSummary(
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
    return Goal(
        share, fmean(means), pstdev(means), median(count for own in counts for count in own), fmean(reached)
    )
