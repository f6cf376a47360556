"""The makespan of a grid from the times of its blocks: waves, tails, and blocks of different length."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

# of larger grids with blocks of different length every k-th block is scheduled, on every k-th place
MOST_BLOCKS = 20_000


def uniform_makespan(blocks: int, cores: int, resident: int, time_of: Callable[[float], float]) -> float:
    """Makespan of blocks of equal length: full waves, then the remaining blocks spread over the cores.

    Args:
        blocks: blocks of the grid.
        cores: cores of the device.
        resident: blocks that a core holds at once.
        time_of: the time of a core for a number of resident blocks that run together.
    """
    full = blocks // (cores * resident)
    total = full * time_of(resident) if full else 0.0
    return total + last_wave(blocks, cores, resident, time_of)[1]


def last_wave(blocks: int, cores: int, resident: int, time_of: Callable[[float], float]) -> tuple[int, float]:
    """The blocks that are left after full waves, and their time; arguments as of `uniform_makespan`."""
    left = blocks % (cores * resident)
    # they share the cores as evenly as possible
    return (left, time_of(math.ceil(left / cores))) if left else (0, 0.0)


def list_makespan(durations: Sequence[float], places: int) -> float:
    """Makespan of blocks of different length that start in order as places become free."""
    chosen, places = _sample(durations, places)
    free = [0.0] * places
    heapq.heapify(free)
    for duration in chosen:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def last_place(durations: Sequence[float], places: int) -> list[tuple[int, float]]:
    """The blocks of the place that is busy longest, in their order: launch position and duration.

    Their durations add up to `list_makespan`.
    """
    chosen, places = _sample(durations, places)
    step = max(1, math.ceil(len(durations) / MOST_BLOCKS))
    free = [(0.0, place) for place in range(places)]
    blocks: list[list[tuple[int, float]]] = [[] for _ in free]
    for position, duration in enumerate(chosen):
        until, place = free[0]
        heapq.heapreplace(free, (until + duration, place))
        blocks[place].append((position * step, duration))
    return blocks[max(free)[1]]


def _sample(durations: Sequence[float], places: int) -> tuple[Sequence[float], int]:
    step = max(1, math.ceil(len(durations) / MOST_BLOCKS))
    chosen = durations[::step]
    return chosen, max(1, min(places // step or 1, len(chosen)))
