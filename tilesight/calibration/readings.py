"""A reading: one measured figure of a target, with its spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

REPETITIONS = 7
INFORMATIVE = "no prediction reads it"


@dataclass(frozen=True, slots=True)
class Reading:
    """One measured figure.

    Attributes:
        path: The figure's path in the target.
        value: In the figure's unit.
        spread: (largest - smallest) / median over the repetitions.
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


def repeat(path: str, method: str, once: Callable[[], float], times: int = REPETITIONS) -> Reading:
    """The median of `times` values of `once`, after one that does not count."""
    once()
    return reading(path, [once() for _ in range(times)], method)
