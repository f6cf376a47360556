"""Decides which finalist wins, from samples that were taken in turns.

Samples of one turn share clock and temperature. Finalists are therefore compared turn by turn, by the
confidence interval of the median ratio to the fastest finalist. Among finalists whose difference may be
negligible, the simpler or more robust wins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ..problem.space import Config
from ..records.intervals import is_noise, median_interval
from ..records.session import Decision

CONFIDENCE = 0.99  # of each comparison; up to seven finalists are compared with the fastest, several times
# A finalist slower by at most this share is tied with the fastest. A winner's time varies by up to 1 %
# between sessions; half of that is due to clocks.
MARGIN = 0.005
# A simpler finalist wins only if it is at most 2 % slower with confidence and at most 0.25 % slower in the
# median.
MAX_LOSS, MAX_MEDIAN_LOSS = 0.02, 0.0025
SETTLED_LOSS = 0.01  # a finalist slower by at most this share with confidence needs no more samples
# Share of the median; smaller differences in scatter are chance. Over 6,528 kernels measured on an H200
# (experiments/datasets) the scatter is 0.7 % for half of them and 6.7 % for one in a hundred; below 15 us 4 %
# is usual.
VARIATION_STEP = 0.05

Samples = Sequence[float]


@dataclass(frozen=True, slots=True)
class Finalist:
    """A measured finalist. `resources` are those that the compiler reports of its build."""

    config: Config
    samples_us: Samples
    resources: Mapping[str, int]

    @property
    def variation(self) -> int:
        """Scatter between consecutive samples, in steps of `VARIATION_STEP`; slow drifts do not count."""
        if len(self.samples_us) < 2:
            return 0
        steps = [abs(later - earlier) for earlier, later in itertools.pairwise(self.samples_us)]
        return int(median(steps) / median(self.samples_us) / VARIATION_STEP)

    def qualities(self) -> dict[str, int]:
        """The criteria among tied finalists, most important first; less is better."""
        return {
            "spills": self.resources.get("spill_bytes", 0),
            "variation": self.variation,
            "shared memory": self.resources.get("smem_bytes", 0),
            "registers": self.resources.get("registers", 0),
            "threads": _number(self.config, "threads"),
            "stages": _number(self.config, "num_stages") or _number(self.config, "stages"),
        }


def decide(finalists: Sequence[Finalist]) -> Decision:
    """Choose the winner.

    Args:
        finalists: At least one. All have equally many samples; those with the same index are from the same
            turn.
    """
    fastest = min(finalists, key=lambda f: (median(f.samples_us), f.config.key))
    tied, eligible, doubt = [], [fastest], MARGIN
    for other in finalists:
        if other is fastest:
            continue
        low, high = slower_by(other.samples_us, fastest.samples_us)
        if low <= MARGIN:
            tied.append(other)
            doubt = max(doubt, (high - low) / 2)
            if high <= MAX_LOSS and _ratio(other, fastest) <= 1 + MAX_MEDIAN_LOSS:
                eligible.append(other)
    if is_noise(doubt):
        eligible = [fastest]
    winner = min(eligible, key=lambda f: (*f.qualities().values(), f.config.key))
    indistinguishable = tuple(f.config for f in (fastest, *tied) if f is not winner)
    return Decision(winner.config, indistinguishable, _reason(finalists, fastest, winner, len(tied), doubt))


def settled(samples: Sequence[Samples]) -> bool:
    """Whether more samples would hardly change which finalists are tied with the fastest."""
    fastest = min(samples, key=median)
    for other in samples:
        low, high = slower_by(other, fastest)
        if other is not fastest and low <= MARGIN and high > SETTLED_LOSS:
            return False
    return True


def slower_by(samples: Samples, fastest: Samples) -> tuple[float, float]:
    """By which share a kernel is slower than another one: the interval of the median difference of a turn.

    It has the confidence `CONFIDENCE`; below 0 the kernel is faster.
    """
    return median_interval([own / best - 1 for own, best in zip(samples, fastest, strict=True)], CONFIDENCE)


def _reason(
    finalists: Sequence[Finalist],
    fastest: Finalist,
    winner: Finalist,
    tied: int,
    doubt: float,
) -> str:
    """Why `winner` won. `doubt`: half of the widest interval of a difference to the fastest."""
    if len(finalists) == 1:
        return "the only finalist"
    if not tied:
        rest = [slower_by(f.samples_us, fastest.samples_us)[0] for f in finalists if f is not fastest]
        return f"the fastest: every other one is certainly slower, by at least {100 * min(rest):.1f} %"
    if is_noise(doubt):
        return f"the fastest in the median; {tied + 1} finalists are too noisy to tell apart (± {doubt:.0%})"
    interval = f"± {100 * doubt:.1f} %" if math.isfinite(doubt) else "too few samples for an interval"
    shown = f"{tied + 1} finalists cannot be told apart ({interval})"
    if winner is fastest:
        return f"{shown}; the fastest is taken, since none of the others is simpler"
    mine, theirs = winner.qualities(), fastest.qualities()
    quality = next((name for name in mine if mine[name] != theirs[name]), None)
    if quality is None:
        return f"{shown}; it is as simple as the fastest, and the first by name"
    times = f"at {_ratio(winner, fastest):.4f} of the fastest's time"
    return f"{shown}; preferred for less {quality} ({mine[quality]} against {theirs[quality]}), {times}"


def _ratio(one: Finalist, other: Finalist) -> float:
    """Median ratio of their times over the turns."""
    return median(a / b for a, b in zip(one.samples_us, other.samples_us, strict=True))


def _number(config: Config, name: str) -> int:
    value = config.get(name, 0)
    return int(value) if isinstance(value, int) else 0
