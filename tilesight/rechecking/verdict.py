"""What a comparison says of a recorded winner: whether it still is one, and what takes its place if not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

from ..errors import Failure
from ..problem.space import Config
from ..records.session import Comparison
from ..records.trial import Measurement
from ..reports.numbers import number, percent
from ..runner.decide import CONFIDENCE, slower_by
from ..tuner.comparisons import prefer_present

NAME = "the recorded winner"


class RecheckOutcome(StrEnum):
    """What became of a recorded winner.

    held        no other kernel is faster beyond the noise
    fell        another one is
    not built   it no longer builds
    refused     its config is no longer in the search space
    wrong       its results are wrong
    failed      it no longer runs
    undecided   the times were too noisy, or nothing was compared: the next recheck takes it again
    left        there was no time for it
    due         nothing was done (`--dry-run`)
    """

    HELD = "held"
    FELL = "fell"
    NOT_BUILT = "not built"
    REFUSED = "refused"
    WRONG = "wrong"
    FAILED = "failed"
    UNDECIDED = "undecided"
    LEFT = "left"
    DUE = "due"

    @property
    def is_decided(self) -> bool:
        """Whether the present context has a winner now, or certainly not this one."""
        return self not in (RecheckOutcome.UNDECIDED, RecheckOutcome.LEFT, RecheckOutcome.DUE)


@dataclass(frozen=True, slots=True)
class RecheckVerdict:
    """The outcome for one recorded winner.

    Attributes:
        reason: one sentence for people.
        winner: the config that dispatchers use from now on; None if none was found.
        now_us: time of the recorded winner in these turns; None if it has none.
        best_us: time of `winner` in the same turns.
        ratio: median over the turns of the recorded winner's time over that of `winner`, if they differ.
        slower_by: the interval of that ratio, less one.
    """

    outcome: RecheckOutcome
    reason: str
    winner: Config | None = None
    now_us: float | None = None
    best_us: float | None = None
    ratio: float | None = None
    slower_by: tuple[float, float] | None = None


def judge(
    recorded: Config,
    fault: tuple[RecheckOutcome, str] | None,
    found: Comparison,
    times: Mapping[Config, Measurement],
) -> tuple[RecheckVerdict, Comparison]:
    """The verdict on a recorded winner, and the comparison with the decision that follows from it.

    Args:
        recorded: The config of the recorded winner.
        fault: Why it was not among the compared kernels; None if it was.
        found: The comparison.
        times: Its measurements, by config.
    """
    decision = prefer_present(found.decision, recorded, NAME)
    mine = times.get(recorded)
    if fault is None and mine is not None and mine.failure is not None and not mine.is_collateral:
        outcome = RecheckOutcome.WRONG if mine.is_wrong else RecheckOutcome.FAILED
        fault = outcome, _text(mine.failure)
    if decision is None:
        if fault is None:
            fault = RecheckOutcome.UNDECIDED, "no kernel came through the comparison"
        outcome, why = fault
        return RecheckVerdict(outcome, f"{why}; no other kernel takes its place"), replace(
            found, decision=None
        )
    best = times[decision.winner]
    noisy = [m.spread for m in (mine, best) if m is not None and m.failure is None and m.is_noisy]
    if noisy:
        reason = f"too noisy to tell (± {max(noisy):.0%}); recheck when the machine is idle"
        return RecheckVerdict(RecheckOutcome.UNDECIDED, reason), replace(found, decision=None)
    chosen, kept = decision.winner, replace(found, decision=decision)
    if fault is not None:
        outcome, why = fault
        reason = f"{why}; the fastest of the others takes its place with {number(best.latency_us)} us"
        return RecheckVerdict(outcome, reason, chosen, None, best.latency_us), kept
    if mine is None or mine.failure is not None:
        reason = "it was not timed, because another kernel disturbed the device"
        return RecheckVerdict(RecheckOutcome.UNDECIDED, reason), replace(found, decision=None)
    if chosen == recorded:
        why = "alone: no other config could be compared" if len(times) == 1 else decision.reason
        return RecheckVerdict(RecheckOutcome.HELD, why, recorded, mine.latency_us, mine.latency_us), kept
    interval = slower_by(mine.samples_us, best.samples_us)
    ratio = median(own / other for own, other in zip(mine.samples_us, best.samples_us, strict=True))
    reason = (
        f"another one takes {number(best.latency_us)} us where it takes {number(mine.latency_us)} in the "
        f"same turns: it is slower by {percent(ratio - 1)}{_interval(interval)}"
    )
    return RecheckVerdict(
        RecheckOutcome.FELL, reason, chosen, mine.latency_us, best.latency_us, ratio, interval
    ), kept


def _interval(interval: tuple[float, float]) -> str:
    if not all(map(math.isfinite, interval)):
        return ""
    low, high = interval
    return f" ({percent(low)} to {percent(high)} with {CONFIDENCE:.0%} confidence)"


def _text(failure: Failure) -> str:
    return f"{failure.kind}: {failure.message}"
