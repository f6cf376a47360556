"""What a probe found: one figure of a target, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

REPETITIONS = 7
INFORMATIVE = "no prediction reads it"


@dataclass(frozen=True, slots=True)
class Reading:
    """`spread` is (largest - smallest) / median over the repetitions. `nominal`: a rate that the hardware has by design, and
    to which no program quite comes. `samples` are what `value` was taken from, in the order taken; none where it was counted."""

    path: str  # of the figure
    value: float
    spread: float
    method: str
    nominal: bool = False
    samples: tuple[float, ...] = ()


def reading(path: str, values: Sequence[float], method: str) -> Reading:
    middle = median(values)
    return Reading(path, middle, (max(values) - min(values)) / middle if middle else 0.0, method, samples=tuple(values))


def repeat(path: str, method: str, once: Callable[[], float], times: int = REPETITIONS) -> Reading:
    """The median of `times` values, after one that does not count."""
    once()
    return reading(path, [once() for _ in range(times)], method)
