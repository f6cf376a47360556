"""Which traced loop is which predicted one, and how far apart their steady iterations are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..records.timeline import Timeline, TimelinePart, View
from .iterations import LoopTime, loop_times
from .values import KernelTrace

MOST_APART = 1.5  # iterations of a block, predicted and traced, of what may be one loop
PRODUCER = "producer"


@dataclass(frozen=True, slots=True)
class LoopComparison:
    """A predicted iteration and what was traced of it.

    Attributes:
        kernel: The number of the kernel, from 0 on.
        part: The predicted part of the timeline.
        traced: The loop as traced.
    """

    kernel: int
    part: TimelinePart
    traced: LoopTime

    @property
    def name(self) -> str:
        """The name of the predicted loop."""
        return self.part.title.partition(": ")[2]

    @property
    def error(self) -> float:
        """The predicted iteration over the traced one, less one."""
        return self.part.us / self.traced.steady_us - 1 if self.traced.steady_us > 0 else math.inf


def kernel_name(number: int, count: int) -> str:
    """How the parts of a predicted timeline name a kernel of a function."""
    return f"kernel {number + 1}" if count > 1 else "kernel"


def compare_loops(timeline: Timeline, kernels: Sequence[KernelTrace]) -> tuple[LoopComparison, ...]:
    """The predicted loops that were traced, in the order of the timeline.

    A loop is known by its number of iterations in a block; of loops with equal numbers the order counts.
    Loops of a producer are part of the predicted loops that they feed.
    """
    found = []
    for number, trace in enumerate(kernels):
        name = kernel_name(number, len(kernels))
        parts = [p for p in timeline.of(View.ITERATION) if p.trips and p.title.startswith(f"{name}: ")]
        left = _one_for_each_loop(loop_times(trace))
        for part in parts:
            fitting = [timed for timed in left if _apart(part, timed) <= MOST_APART]
            if fitting:
                chosen = min(fitting, key=lambda timed: _apart(part, timed))
                left.remove(chosen)
                found.append(LoopComparison(number, part, chosen))
    return tuple(found)


def _one_for_each_loop(times: Sequence[LoopTime]) -> list[LoopTime]:
    """Each loop by its first role that is no producer, in the order of the text."""
    chosen: dict[int, LoopTime] = {}
    for timed in times:
        if not timed.role.startswith(PRODUCER):
            chosen.setdefault(timed.loop, timed)
    return [chosen[loop] for loop in sorted(chosen)]


def _apart(part: TimelinePart, timed: LoopTime) -> float:
    return max(part.trips / timed.iterations, timed.iterations / part.trips)
