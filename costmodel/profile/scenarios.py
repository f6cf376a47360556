"""The blocks, threads and iterations that a statement is looked at in, and what expressions are there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .expressions import Bindings, UnevaluableError, evaluate, variables
from .launch import AXES, Launch

PATTERN_SCENARIOS = 8  # enough for address patterns: they repeat over blocks and iterations
CONDITION_SCENARIOS = 128  # conditions hold in a share of cases: more of them are looked at
MOST_CASES = 1 << 18  # of blocks and iterations that are looked at one by one


@dataclass(frozen=True)
class Loop:
    variable: int
    extent: float
    unrolled: bool  # by the source or, where the extent is small and constant, by the compiler
    start: int = 0


@dataclass(frozen=True)
class Scenarios:
    """Samples of blocks, warps and iterations: few for the pattern of addresses, many for the chance of conditions.

    Variables that a sample does not name take one value; what is asked of all blocks, threads or iterations is evaluated
    over all of them.
    """

    launch: Launch
    first_thread: int
    threads: int
    warp_lanes: int = 32  # lanes of a warp that exist: fewer in a block smaller than a warp
    phase_loop: Loop | None = None
    phase_loops: tuple[Loop, ...] = ()  # that one and those around it, outside in
    reach: Any = None  # where the conditions so far hold, over the chance scenarios; None where there was none
    roots: Mapping[int, frozenset[int]] = field(default_factory=dict)  # bound variable -> what it derives from
    pattern: Bindings = field(default_factory=dict)
    chance: Bindings = field(default_factory=dict)
    bound: tuple[tuple[int, Any], ...] = ()  # variables bound to expressions, in order; to None where data decides
    given: tuple[Any, ...] = ()  # conditions so far that the phase's trips count

    def depends_on(self, expression: Any) -> frozenset[int]:
        """Launch and loop variables that `expression` derives from."""
        found: set[int] = set()
        for variable in variables(expression):
            found |= self.roots.get(variable, frozenset({variable}))
        return frozenset(found)

    def block_axes(self, expression: Any) -> frozenset[str]:
        found = self.depends_on(expression)
        return frozenset(axis for axis, (variable, _) in self.launch.block.items() if variable in found)

    def moves_with_phase(self, expression: Any) -> bool:
        return self.phase_loop is not None and self.phase_loop.variable in self.depends_on(expression)

    def addresses(self, expression: Any) -> NDArray[Any]:
        """`expression` over the pattern scenarios, scenarios x lanes. Raises `UnevaluableError`."""
        value = np.asarray(evaluate(expression, self.pattern))
        addresses: NDArray[Any] = np.broadcast_to(value, self._shape(PATTERN_SCENARIOS)).astype(np.int64)
        return addresses

    def over_chance(self, expression: Any) -> Any:
        """`expression` over those of the many scenarios in which the conditions so far hold. Raises `UnevaluableError`."""
        value = np.asarray(evaluate(expression, self.chance))
        return value[self.reach.any(axis=1)] if self.reach is not None and value.ndim == 2 and len(value) > 1 else value

    def over_blocks(self, expression: Any, axes: list[str]) -> NDArray[Any]:
        """`expression` for every block along `axes`, the first of them fastest. Raises `UnevaluableError`."""
        bindings = self._one_scenario()
        total, stride = math.prod(self.launch.block[a][1] for a in axes), 1
        for axis in axes:
            variable, extent = self.launch.block[axis]
            bindings[variable] = np.arange(total) // stride % extent
            stride *= extent
        self._rebind(bindings)
        counts: NDArray[Any] = np.broadcast_to(np.asarray(evaluate(expression, bindings), dtype=float), (total,))
        return counts

    def over_cases(self, condition: Any) -> tuple[NDArray[Any], frozenset[str]] | None:
        """Share of the iterations of the phase's loops in which `condition` holds, given what is `given` already, for each
        block of the axes that it depends on. None where it depends on more than blocks and those loops."""
        every = [*self.given, condition]
        roots = frozenset().union(*(self.depends_on(c) for c in every))
        axes = [axis for axis in AXES if axis in self.launch.block and self.launch.block[axis][0] in roots]
        loops = [loop for loop in self.phase_loops if loop.variable in roots]
        if len(axes) + len(loops) != len(roots):
            return None
        blocks = math.prod(self.launch.block[a][1] for a in axes)
        extents = [max(1, math.ceil(loop.extent)) for loop in loops]
        cases = math.prod(extents)
        if blocks * cases > MOST_CASES:
            return None
        bindings = self._one_scenario()
        number, stride = np.arange(blocks)[:, None], 1
        for axis in axes:
            variable, extent = self.launch.block[axis]
            bindings[variable] = number // stride % extent
            stride *= extent
        number, stride = np.arange(cases)[None, :], 1
        for loop, extent in zip(loops, extents, strict=True):
            bindings[loop.variable] = loop.start + number // stride % extent
            stride *= extent
        try:
            self._rebind(bindings)
            *before, held = (np.broadcast_to(np.asarray(evaluate(c, bindings), dtype=bool), (blocks, cases)) for c in every)
        except UnevaluableError:
            return None
        come = np.logical_and.reduce(before) if before else np.ones((blocks, cases), dtype=bool)
        share = (held & come).sum(axis=1) / np.maximum(1, come.sum(axis=1))
        return share, frozenset(axes)

    def over_block(self, expression: Any) -> NDArray[Any]:
        """`expression` for every thread of this scope, in one block and one iteration. Raises `UnevaluableError`."""
        bindings = self._one_scenario()
        bindings |= self.launch.thread_bindings(self.first_thread + np.arange(self.threads))
        self._rebind(bindings)
        values: NDArray[Any] = np.broadcast_to(np.asarray(evaluate(expression, bindings)), (self.threads,)).astype(np.int64)
        return values

    def over_phase(self, expression: Any, iterations: int = 64) -> NDArray[Any]:
        """`expression` of one thread in the first iterations of the phase's loop. Raises `UnevaluableError`."""
        bindings = self._one_scenario()
        if self.phase_loop is not None:
            bindings[self.phase_loop.variable] = np.arange(min(iterations, max(1, int(self.phase_loop.extent))))
        self._rebind(bindings)
        return np.atleast_1d(np.asarray(evaluate(expression, bindings)))

    def at(self, expression: Any, chosen: Bindings) -> Any:
        """`expression` of one thread and iteration, where the variables in `chosen` have the values given there. Raises
        `UnevaluableError`."""
        bindings = {**self._one_scenario(), **chosen}
        self._rebind(bindings)
        return evaluate(expression, bindings)

    def shifted(self, loop: Loop, step: NDArray[Any]) -> Self:
        """The same scenarios with one loop variable set otherwise."""
        return replace(self, pattern={**self.pattern, loop.variable: step})

    def _shape(self, scenarios: int) -> tuple[int, int]:
        return scenarios, self.warp_lanes

    def _one_scenario(self) -> dict[int, Any]:
        """One value for each variable, to be overridden for those that vary; then `_rebind`."""
        return {v: (value.flat[0] if isinstance(value, np.ndarray) else value) for v, value in self.pattern.items()}

    def _rebind(self, bindings: dict[int, Any]) -> None:
        for variable, value in self.bound:
            if value is None:
                bindings.pop(variable, None)
            else:
                bindings[variable] = evaluate(value, bindings)
