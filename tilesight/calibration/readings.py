"""A reading: one measured figure of a target, with its spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

REPETITIONS = 7
INFORMATIVE = "no prediction reads it"
TAIL = 0.025  # of probability on each side of an interval of a median


@dataclass(frozen=True, slots=True)
class Reading:
    """One measured figure.

    Attributes:
        path: The figure's path in the target.
        value: In the figure's unit.
        spread: (largest - smallest) / median over the repetitions; of a network the interval that holds the
            median, in place of largest and smallest.
        method: How it was measured, for the target's file.
        nominal: A rate by design, which no program quite reaches.
        samples: The samples behind `value`, in order; none if the value was counted.
    """

    path: str
    value: float
    spread: float
    method: str
    nominal: bool = False
    samples: tuple[float, ...] = ()


def reading(path: str, values: Sequence[float], method: str) -> Reading:
    """The median of `values` as a reading."""
    middle = median(values)
    return Reading(
        path, middle, (max(values) - min(values)) / middle if middle else 0.0, method, samples=tuple(values)
    )


def settled_reading(path: str, values: Sequence[float], method: str) -> Reading:
    """The median of `values` as a reading, whose spread is that of the median and not of its outliers."""
    middle = median(values)
    low, high = median_interval(values)
    spread = 0.0 if low == high else (high - low) / abs(middle) if middle else float("inf")
    return Reading(path, middle, spread, method, samples=tuple(values))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Two of `values` that the median of all possible values lies between, with a probability of 95 %.

    Of less than six values these are the smallest and the largest, which hold it less surely.
    """
    ordered, count = sorted(values), len(values)
    place, below = 0, 1 / 2**count  # the chance that at most `place` values are below that median
    while place + 1 < count // 2 and below + comb(count, place + 1) / 2**count <= TAIL:
        place += 1
        below += comb(count, place) / 2**count
    return ordered[place], ordered[count - 1 - place]


def repeat(path: str, method: str, once: Callable[[], float], times: int = REPETITIONS) -> Reading:
    """The median of `times` values of `once`, after one that does not count."""
    once()
    return reading(path, [once() for _ in range(times)], method)
