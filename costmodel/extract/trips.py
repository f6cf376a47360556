"""Counts how often a phase runs, block by block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...profile.values import Trips
from .expressions import constant
from .launch_geometry import AXES
from .scenarios import MOST_CASES
from .scope import Scope


def of_extent(extent: Any, scope: Scope) -> tuple[Trips, float]:
    """Iterations of a loop.

    Returns:
        (The iterations for each block of the axes that its extent depends on, x fastest: their mean where
        they differ between the iterations of the loops around it. The largest number of iterations, 0 if all
        are the same.)

    Raises:
        UnevaluableError: it cannot be evaluated.
    """
    number = constant(extent)
    if number is not None:
        return Trips((float(max(0, number)),)), 0.0
    loops = scope.turns_before(extent)
    ordered = _ordered(scope.block_axes(extent).union(*(scope.block_axes(loop.limit) for loop in loops)))
    if scope.cases(ordered, [loop.most for loop in loops]) > MOST_CASES:
        loops, ordered = [], _ordered(scope.block_axes(extent))
    if not ordered and not loops:
        drawn = np.maximum(0.0, scope.over_chance(extent))
        return Trips((float(np.mean(drawn)),)), _longest(drawn)
    counts = np.maximum(0.0, scope.over_turns(extent, ordered, loops))
    counts[np.isnan(counts).all(axis=1)] = 0.0  # blocks that do not come here
    return Trips(tuple(np.nanmean(counts, axis=1).tolist()), frozenset(ordered)), _longest(counts)


def _longest(counts: NDArray[Any]) -> float:
    """The largest number of iterations, 0 if all are the same."""
    most = float(np.nanmax(counts))
    return most if np.nanmin(counts) < most else 0.0


def _ordered(axes: Iterable[str]) -> list[str]:
    found = set(axes)
    return [axis for axis in AXES if axis in found]


def of_condition(condition: Any, scope: Scope) -> Trips | None:
    """Share of the executions in which `condition` is true, block by block.

    None if it is not known exactly.
    """
    found = scope.over_cases(condition)
    if found is None:
        return None
    held, come, axes = found
    return Trips(tuple((held / np.maximum(1, come)).tolist()), axes)


def of_unknown_condition(condition: Any, scope: Scope, density: float | None) -> Trips:
    """Share of the executions in which one of two branches is entered whose condition depends on data.

    The shares of both branches add up to one. Parts of the condition that are known have their share, others
    `density`, or half of the executions. `density` is the share of the condition itself, also of a negation.
    """
    known = of_condition(condition, scope)
    if known is not None:
        return known
    kind = type(condition).__name__
    if kind == "Not":
        other = of_unknown_condition(condition.a, scope, None if density is None else 1 - density)
        return Trips(tuple(1 - share for share in other.per_block), other.axes)
    if kind in ("Or", "And"):
        parts = [of_unknown_condition(part, scope, density) for part in (condition.a, condition.b)]
        if not (parts[0].axes and parts[1].axes):
            axes, shares = parts[0].axes | parts[1].axes, [part.per_block for part in parts]
            pairs = [(a, b) for a in shares[0] for b in shares[1]]
            return Trips(tuple(a * b if kind == "And" else 1 - (1 - a) * (1 - b) for a, b in pairs), axes)
    return Trips((0.5 if density is None else density,))


def product(one: Trips, other: Trips, grid: tuple[int, int, int]) -> Trips:
    """Trips of a loop `other` inside a loop `one`."""
    if not other.axes:
        return Trips(tuple(t * other.per_block[0] for t in one.per_block), one.axes)
    if not one.axes:
        return Trips(tuple(t * one.per_block[0] for t in other.per_block), other.axes)
    union = one.axes | other.axes
    spread = _spread(one, union, grid) * _spread(other, union, grid)
    return Trips(tuple(float(t) for t in spread.ravel()), union)


def _spread(trips: Trips, axes: Iterable[str], grid: tuple[int, int, int]) -> NDArray[Any]:
    """`trips` over all blocks of `axes`, as an array with the dimensions z, y, x."""
    sizes = dict(zip(AXES, grid, strict=True))
    own = np.asarray(trips.per_block).reshape([sizes[a] if a in trips.axes else 1 for a in reversed(AXES)])
    return np.broadcast_to(own, [sizes[a] if a in axes else 1 for a in reversed(AXES)])
