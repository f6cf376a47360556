"""From the time of one block to the time of a grid: waves, tails, and blocks of different length."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

# larger grids repeat themselves: beyond this many blocks of different length, every k-th is scheduled and the result scaled
MOST_BLOCKS = 20_000


def uniform_makespan(blocks: int, cores: int, resident: int, time_of: Callable[[float], float]) -> float:
    """Blocks of equal length. `time_of(r)` is the time in which a core finishes r resident blocks that run together.

    Full waves run with all resident places taken; the last one with as many as are left, spread over the cores.
    """
    together = cores * resident
    full, left = divmod(blocks, together)
    total = full * time_of(resident) if full else 0.0
    if left:
        # the tail starts when its first place is free; its blocks share cores as evenly as they can
        total += time_of(math.ceil(left / cores))
    return total


def list_makespan(durations: Sequence[float], places: int) -> float:
    """Blocks of different length, started in order as places become free (what the hardware's scheduler does)."""
    step = max(1, math.ceil(len(durations) / MOST_BLOCKS))
    chosen = durations[::step]
    free = [0.0] * max(1, min(places // step or 1, len(chosen)))
    heapq.heapify(free)
    for duration in chosen:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)
