"""Doubts: where the chosen kernel is not clearly faster than the default config, both are timed in turns, and what is certain
then counts. A new choice takes the place of the default only where that is beyond the noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ..errors import WRONG, Failure
from ..measuring.intervals import median_interval
from ..protocol import Protocol
from ..space import Config
from ..trial import Measurement, TrialRecord
from ..work import Compare, Compared, Executor, OneLane
from .board import Board
from .survey import Pair

CLEAR = 1.05  # a default that took so much longer, measured apart, is slower without a comparison in turns
CONFIDENCE = 0.99
NO_DIFFERENCE = "no different"  # begins what became of a doubt that stays one

Record = Callable[[int, Sequence[TrialRecord]], None]


@dataclass(frozen=True, slots=True)
class Doubt:
    size: int
    chosen: Config
    default: Config


def find_doubts(board: Board, serves: Sequence[Pair], known: Sequence[Doubt]) -> list[Doubt]:
    """Sizes at which it is not clear that the chosen kernel is faster than the default one, the most doubtful first."""
    found: dict[Doubt, float] = {}
    for chosen, size in serves:
        default = board.subject.default(size)
        if default is None or default == chosen or board.is_out(default) or Doubt(size, chosen, default) in known:
            continue
        builds = [board.build_of(config, size) for config in (chosen, default)]
        ours, theirs = board.measured_us(chosen, size), board.measured_us(default, size)
        if ours is None or theirs is None or any(build is None or build.artifact is None for build in builds):
            continue
        if theirs < CLEAR * ours:
            found[Doubt(size, chosen, default)] = theirs / ours
    return sorted(found, key=lambda doubt: found[doubt])


def settle(board: Board, doubts: Sequence[Doubt], executor: Executor, protocol: Protocol, record: Record) -> dict[Doubt, str]:
    """Time both of each doubt in turns, and put what was found on the board. What became of each, in words."""
    pairs = {}
    for doubt in doubts:
        finalists = []
        for config in (doubt.chosen, doubt.default):
            build = board.build_of(config, doubt.size)
            assert build is not None  # both were measured
            finalists.append((board.subject.candidate(doubt.size, config), build))
        pairs[doubt] = Compare(tuple(finalists), protocol)
    by_job = {id(job): doubt for doubt, job in pairs.items()}
    found: dict[Doubt, str] = {}
    for event in executor.stream(OneLane(pairs.values())):
        assert isinstance(event, Compared)
        doubt = by_job[id(event.job)]
        if isinstance(event.found, Failure):
            found[doubt] = f"could not be compared: {event.found.message}"
            continue
        found[doubt] = _taken(board, doubt, event.found.measurements, record)
    return found


def _taken(board: Board, doubt: Doubt, measurements: Sequence[Measurement], record: Record) -> str:
    for config, measurement in zip((doubt.chosen, doubt.default), measurements, strict=True):
        if not measurement.failure or measurement.failure.kind in WRONG:
            record(doubt.size, [board.measured(config, doubt.size, measurement)])
    failed = [m.failure for m in measurements if m.failure]
    if failed:
        return f"could not be compared: {failed[0].message}"
    ours, theirs = (m.samples_us for m in measurements)
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    low, high = median_interval(ratios, CONFIDENCE)
    # on the scale of the default's time: what was taken in one turn saw the same clock
    board.paired[doubt.chosen, doubt.size] = median(theirs) * median(ratios)
    share = 100 * (median(ratios) - 1)
    if high < 1:
        return f"certainly faster than the default, by {-share:.1f} %"
    if low > 1:
        return f"certainly slower than the default, by {share:.1f} %"
    return f"{NO_DIFFERENCE} from the default beyond the noise"
