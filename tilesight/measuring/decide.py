"""Which finalist wins, from samples that were taken in turns.

Samples of one turn saw the same clock and temperature, so finalists are compared turn by turn: by the interval of the median
ratio to the fastest one. Where that does not exclude a difference too small to matter, the simpler or more robust one wins.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ..session import Decision
from ..space import Config
from .intervals import median_interval

CONFIDENCE = 0.99  # of each comparison: there are up to seven beside the fastest, looked at several times
# Slower by no more than this is no loss: half of what a winner's time may vary by from session to session (1 %), about
# what clocks alone make of it.
MARGIN = 0.005
# No one who may be slower by more than the first wins for being simpler, however little is known, nor one whose median is
# slower by more than the second: simplicity is worth no time that can be seen.
MOST_LOSS, MOST_SEEN = 0.02, 0.0025
SETTLED = 0.01  # who is certainly not slower by more than this is tied, and more samples would change nothing
# Of the median. Finer differences of the scatter are chance: over 6,498 kernels measured on an H200 (experiments/datasets) it is
# 0.7 % for half of them and 6.7 % for one in a hundred; below 15 us 4 % is usual.
VARIATION_STEP = 0.05

Samples = Sequence[float]


@dataclass(frozen=True, slots=True)
class Finalist:
    """`resources` are those of its build, as far as the compiler gives them."""

    config: Config
    samples_us: Samples
    resources: Mapping[str, int]

    @property
    def variation(self) -> int:
        """How much its samples scatter from one to the next, in coarse steps; a clock that wanders slowly is not its own."""
        if len(self.samples_us) < 2:
            return 0
        steps = [abs(later - earlier) for earlier, later in itertools.pairwise(self.samples_us)]
        return int(median(steps) / median(self.samples_us) / VARIATION_STEP)

    def qualities(self) -> dict[str, int]:
        """What it is preferred for, the most important first; less is better."""
        return {
            "spills": self.resources.get("spill_bytes", 0),
            "variation": self.variation,
            "shared memory": self.resources.get("smem_bytes", 0),
            "registers": self.resources.get("registers", 0),
            "threads": _number(self.config, "threads"),
            "stages": _number(self.config, "num_stages") or _number(self.config, "stages"),
        }


def decide(finalists: Sequence[Finalist]) -> Decision:
    """The winner of at least one finalist; their samples are equally many, those at one place from one turn."""
    fastest = min(finalists, key=lambda f: (median(f.samples_us), f.config.key))
    tied, eligible = [], [fastest]
    for other in finalists:
        if other is fastest:
            continue
        low, high = _slower_by(other.samples_us, fastest.samples_us)
        if low <= MARGIN:
            tied.append(other)
            if high <= MOST_LOSS and _ratio(other, fastest) <= 1 + MOST_SEEN:
                eligible.append(other)
    winner = min(eligible, key=lambda f: (*f.qualities().values(), f.config.key))
    indistinguishable = tuple(f.config for f in (fastest, *tied) if f is not winner)
    return Decision(winner.config, indistinguishable, _reason(finalists, fastest, winner, len(tied)))


def settled(samples: Sequence[Samples]) -> bool:
    """Whether more samples would hardly change who is tied with the fastest."""
    fastest = min(samples, key=median)
    for other in samples:
        low, high = _slower_by(other, fastest)
        if other is not fastest and low <= MARGIN and high > SETTLED:
            return False
    return True


def _slower_by(samples: Samples, fastest: Samples) -> tuple[float, float]:
    """Interval of the median of the relative difference, turn by turn."""
    return median_interval([mine / best - 1 for mine, best in zip(samples, fastest, strict=True)], CONFIDENCE)


def _reason(finalists: Sequence[Finalist], fastest: Finalist, winner: Finalist, tied: int) -> str:
    if len(finalists) == 1:
        return "the only finalist"
    if not tied:
        rest = [_slower_by(f.samples_us, fastest.samples_us)[0] for f in finalists if f is not fastest]
        return f"the fastest: every other one is certainly slower, by at least {100 * min(rest):.1f} %"
    shown = f"{tied + 1} finalists cannot be told apart ({100 * MARGIN:.1f} %)"
    if winner is fastest:
        return f"{shown}; the fastest is taken, since none of the others is simpler"
    mine, theirs = winner.qualities(), fastest.qualities()
    quality = next((name for name in mine if mine[name] != theirs[name]), None)
    if quality is None:
        return f"{shown}; it is as simple as the fastest, and the first by name"
    times = f"at {_ratio(winner, fastest):.4f} of the fastest's time"
    return f"{shown}; preferred for less {quality} ({mine[quality]} against {theirs[quality]}), {times}"


def _ratio(one: Finalist, other: Finalist) -> float:
    """Median over the turns of the ratio of their times."""
    return median(a / b for a, b in zip(one.samples_us, other.samples_us, strict=True))


def _number(config: Config, name: str) -> int:
    value = config.get(name, 0)
    return int(value) if isinstance(value, int) else 0
