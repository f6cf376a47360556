"""Numbers the tiles that blocks access, in a compact form, so that blocks with equal numbers share a tile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...profile.values import LAUNCH_AXIS
from .expressions import UnevaluableError
from .launch_geometry import AXES
from .scope import Scope

Digit = tuple[str, int, int]  # axis, divisor, modulus
MOST_IDS = 4096  # tile ids in a list; later launch positions are assumed to repeat the pattern
MOST_POSITIONS = 1 << 17  # positions along one axis that are evaluated
CHECKED = 2048  # launch positions at which digits are compared with the addresses
_MIXER = 6364136223846793005  # odd, so multiplication modulo 2^64 loses nothing


@dataclass(frozen=True)
class Numbering:
    """The tile of each block, as in the fields `tile_digits`, `tile_ids` and `turns` of `Access`.

    If digits and ids are empty, the tiles are the product of the block axes of the access.
    """

    digits: tuple[Digit, ...] = ()
    ids: tuple[int, ...] = ()
    turns: int = 1


PLAIN = Numbering()


def number_tiles(scope: Scope, expressions: list[Any]) -> Numbering:
    """Number the tiles that blocks access.

    Args:
        scope: the blocks and iterations that execute the access.
        expressions: the index of the access, or the coordinates of a copy.
    """
    roots = frozenset().union(*(scope.depends_on(e) for e in expressions))
    axes = [axis for axis in AXES if axis in scope.launch.block and scope.launch.block[axis][0] in roots]
    turning = _turning(scope, roots)
    if not axes:
        return PLAIN
    try:
        if turning is None:
            return _by_axes(scope, expressions, axes)
        return _by_position(scope, expressions, *turning)
    except UnevaluableError:
        return PLAIN


def _turning(scope: Scope, roots: frozenset[int]) -> tuple[int, int] | None:
    """(variable, iterations) of the outer loop in which a block goes from tile to tile.

    None if there is no such loop.
    """
    if len(scope.phase_loops) < 2:
        return None
    loop = scope.phase_loops[0]
    turns = max(1, math.ceil(loop.extent))
    blocks = math.prod(scope.launch.grid)
    return (
        (loop.variable, turns)
        if loop.variable in roots and turns > 1 and turns * blocks <= MOST_POSITIONS
        else None
    )


def _by_axes(scope: Scope, expressions: list[Any], axes: list[str]) -> Numbering:
    extents = {axis: scope.launch.block[axis][1] for axis in axes}
    digits: list[Digit] = []
    for axis in axes:
        if extents[axis] > MOST_POSITIONS:
            found: list[Digit] | None = [(axis, 1, extents[axis])]
        else:
            found = digits_of(_values(scope, expressions, {axis: np.arange(extents[axis])}), axis)
        if found is None:
            return _listed(scope, expressions, axes)
        digits += found
    # the axes may depend on each other, as in (x + y) % n, so the digits are compared with the addresses
    total = math.prod(extents.values())
    chosen = (
        np.unique(np.linspace(0, total - 1, min(total, CHECKED)).astype(np.int64))
        if total > CHECKED
        else np.arange(total)
    )
    if total > CHECKED:
        chosen = np.unique(np.concatenate([chosen, np.arange(CHECKED // 2)]))
    bindings, stride = {}, 1
    for axis in axes:
        bindings[axis] = chosen // stride % extents[axis]
        stride *= extents[axis]
    if not _agree(_code(digits, bindings), _values(scope, expressions, bindings)):
        return _listed(scope, expressions, axes)
    whole = sorted(digits) == sorted((axis, 1, extents[axis]) for axis in axes if extents[axis] > 1)
    return PLAIN if whole else Numbering(digits=tuple(digits) or ((axes[0], 1, 1),))


def _by_position(scope: Scope, expressions: list[Any], variable: int, turns: int) -> Numbering:
    blocks = math.prod(scope.launch.grid)
    position = np.arange(turns * blocks)
    values = _values(scope, expressions, _launched(scope, position), {variable: position // blocks})
    digits = digits_of(values, LAUNCH_AXIS)
    if digits is not None:
        return Numbering(digits=tuple(digits) or ((LAUNCH_AXIS, 1, 1),), turns=turns)
    return Numbering(ids=_numbers(values[:MOST_IDS]), turns=turns)


def _listed(scope: Scope, expressions: list[Any], axes: list[str]) -> Numbering:
    position = np.arange(min(math.prod(scope.launch.grid), MOST_IDS))
    bindings = {axis: values for axis, values in _launched(scope, position).items() if axis in axes}
    return Numbering(ids=_numbers(_values(scope, expressions, bindings)))


def _launched(scope: Scope, position: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Block indices along each axis at launch positions, x fastest."""
    found, stride = {}, 1
    for axis, extent in zip(AXES, scope.launch.grid, strict=True):
        if axis in scope.launch.block:
            found[axis] = position // stride % extent
        stride *= extent
    return found


def _values(
    scope: Scope,
    expressions: list[Any],
    blocks: dict[str, NDArray[Any]],
    loops: dict[int, NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """One number for the address at each of the given block indices. Equal addresses have equal numbers."""
    bindings = {scope.launch.block[axis][0]: values for axis, values in blocks.items()} | (loops or {})
    count = len(next(iter(blocks.values())))
    total = np.zeros(count, dtype=np.int64)
    for expression in expressions:
        total = total * _MIXER + np.broadcast_to(np.asarray(scope.at(expression, bindings)), (count,)).astype(
            np.int64
        )
    return total


def digits_of(values: NDArray[Any], axis: str) -> list[Digit] | None:
    """Digits of the position whose combinations are in one-to-one relation to `values`.

    None if there are none.
    """
    digits: list[Digit] = []
    rest, divisor = values, 1
    while len(rest) > 1 and (rest != rest[0]).any():
        run = int(np.argmax(rest != rest[0]))
        divisor, rest = divisor * run, rest[::run]
        back = np.flatnonzero(rest[1:] == rest[0])
        period = int(back[0]) + 1 if len(back) else len(rest)
        digits.append((axis, divisor, period))
        divisor, rest = divisor * period, rest[::period]
    return digits if _agree(_code(digits, {axis: np.arange(len(values))}), values) else None


def _code(digits: list[Digit], positions: dict[str, NDArray[Any]]) -> NDArray[Any]:
    code = np.zeros(len(next(iter(positions.values()))), dtype=np.int64)
    for axis, divisor, modulus in digits:
        code = code * modulus + positions[axis] // divisor % modulus
    return code


def _agree(code: NDArray[Any], values: NDArray[Any]) -> bool:
    """Whether both arrays divide the positions into the same groups of equal values."""
    _, a = np.unique(code, return_inverse=True)
    _, b = np.unique(values, return_inverse=True)
    pairs = len(np.unique(a.astype(np.int64) * len(values) + b))
    return pairs == int(a.max()) + 1 == int(b.max()) + 1


def _numbers(values: NDArray[Any]) -> tuple[int, ...]:
    """Number the values in order of first appearance."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return tuple(int(i) for i in order[inverse])
