"""Numbers the tiles that blocks access, in a compact form, so that blocks with equal numbers share a tile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...profile.values import LAUNCH_AXIS
from .expressions import Computed, UnevaluableError, constant, identity, variables
from .launch_geometry import AXES
from .scenarios import Loop
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
    turning = _turning(scope, expressions, roots)
    if not axes:
        return PLAIN
    try:
        if turning is None:
            return _by_axes(scope, expressions, axes)
        return _by_position(scope, expressions, turning)
    except UnevaluableError:
        return PLAIN


@dataclass(frozen=True)
class _Turning:
    """A loop in which a block goes from tile to tile.

    Attributes:
        loop: the loop.
        turns: tiles of the block that has the most.
        step: iterations of the loop for each of them.
    """

    loop: Loop
    turns: int
    step: int = 1


def _turning(scope: Scope, expressions: list[Any], roots: frozenset[int]) -> _Turning | None:
    """The loop in which a block goes from tile to tile, if the address depends on it; else None.

    It is the outer one of two loops, or a single loop over all iterations of all tiles.
    """
    if not scope.phase_loops or scope.phase_loops[0].variable not in roots:
        return None
    loop = scope.phase_loops[0]
    if len(scope.phase_loops) > 1:
        step, turns = 1, max(1, math.ceil(loop.extent))
    else:
        step = _steps_of_tile(scope, loop, expressions)
        turns = loop.most // step if step else 1
    if turns == 1 or turns * math.prod(scope.launch.grid) > MOST_POSITIONS:
        return None
    return _Turning(loop, turns, step)


def _steps_of_tile(scope: Scope, loop: Loop, expressions: list[Any]) -> int:
    """Iterations of one tile in a loop over the iterations of all tiles of a block; 0 for other loops.

    TileLang makes one pipeline of the two loops of a block that stays. The extent of the loop is then a
    product, whose one factor differs from block to block, and addresses use the quotient of its counter by
    the other factor, and the rest.
    """
    if type(loop.limit).__name__ != "Mul" or not scope.block_axes(loop.limit):
        return 0
    step = constant(loop.limit.b) or constant(loop.limit.a) or 0
    divided = all(_divides(scope, loop.variable, step, e) for e in expressions)
    return step if step > 1 and divided else 0


def _divides(scope: Scope, counter: int, step: int, expression: Any) -> bool:
    """Whether `expression` uses `counter` in quotients and rests by multiples or parts of `step` alone."""
    kind = type(expression).__name__
    if kind == "Var":
        bound = dict(scope.bound).get(identity(expression))
        return identity(expression) != counter and (bound is None or _divides(scope, counter, step, bound))
    if kind in ("FloorDiv", "FloorMod") and _is_counter(expression.a, counter):
        by = constant(expression.b) or 1
        return by > 1 and (by % step == 0 or step % by == 0)
    if isinstance(expression, Computed) or kind not in _PARTS:
        return counter not in variables(expression)
    parts = [part for name in _PARTS[kind] for part in _listed_parts(getattr(expression, name))]
    return all(_divides(scope, counter, step, part) for part in parts)


def _is_counter(expression: Any, counter: int) -> bool:
    inner = expression.value if type(expression).__name__ == "Cast" else expression
    return type(inner).__name__ == "Var" and identity(inner) == counter


def _listed_parts(found: Any) -> list[Any]:
    return [found] if hasattr(found, "dtype") else list(found)


# the parts of an expression, by the name of its class
_PARTS = {
    **dict.fromkeys(("Add", "Sub", "Mul", "FloorDiv", "FloorMod", "Min", "Max", "Div", "Mod"), ("a", "b")),
    **dict.fromkeys(("LT", "LE", "GT", "GE", "EQ", "NE", "And", "Or"), ("a", "b")),
    **dict.fromkeys(("Cast", "Broadcast"), ("value",)),
    "Call": ("args",),
    "BufferLoad": ("indices",),
    "Not": ("a",),
    "Ramp": ("base", "stride"),
    "Select": ("condition", "true_value", "false_value"),
}


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


def _by_position(scope: Scope, expressions: list[Any], turning: _Turning) -> Numbering:
    blocks, turns = math.prod(scope.launch.grid), turning.turns
    position = np.arange(turns * blocks)
    launched, turn = _launched(scope, position), position // blocks
    if turning.step > 1:
        # a block without a further tile has its last one once more, which adds none
        own = _values_of(scope, turning.loop.limit, launched) // turning.step
        turn = np.minimum(turn, np.maximum(0, own - 1))
    values = _values(scope, expressions, launched, {turning.loop.variable: turn * turning.step})
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
    total = np.zeros(len(next(iter(blocks.values()))), dtype=np.int64)
    for expression in expressions:
        total = total * _MIXER + _values_of(scope, expression, blocks, loops)
    return total


def _values_of(
    scope: Scope,
    expression: Any,
    blocks: dict[str, NDArray[Any]],
    loops: dict[int, NDArray[Any]] | None = None,
) -> NDArray[np.int64]:
    """The value of an expression at each of the given block indices."""
    bindings = {scope.launch.block[axis][0]: values for axis, values in blocks.items()} | (loops or {})
    count = len(next(iter(blocks.values())))
    return np.broadcast_to(np.asarray(scope.at(expression, bindings)), (count,)).astype(np.int64)


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
