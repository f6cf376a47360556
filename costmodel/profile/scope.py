"""Where a statement stands: which blocks, threads and iterations execute it, and how often."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .expressions import Bindings, UnevaluableError, evaluate, variables

PATTERN_SCENARIOS = 8  # enough for address patterns: they repeat over blocks and iterations
CONDITION_SCENARIOS = 128  # conditions hold in a share of cases: more of them are looked at

AXES = "xyz"


@dataclass(frozen=True)
class Launch:
    """Launch geometry and its variables. `block` and `thread` map x, y, z to (variable identity, extent)."""

    block: Mapping[str, tuple[int, int]]
    thread: Mapping[str, tuple[int, int]]
    warp_threads: int

    @property
    def grid(self) -> tuple[int, int, int]:
        x, y, z = (self.block[axis][1] if axis in self.block else 1 for axis in AXES)
        return x, y, z

    @property
    def threads(self) -> int:
        return math.prod(extent for _, extent in self.thread.values())

    def thread_bindings(self, linear: NDArray[Any]) -> dict[int, NDArray[Any]]:
        """Thread indices along each axis of the threads with these linear numbers."""
        bindings, stride = {}, 1
        for axis in AXES:
            if axis in self.thread:
                variable, extent = self.thread[axis]
                bindings[variable] = linear // stride % extent
                stride *= extent
        return bindings


@dataclass(frozen=True)
class Loop:
    variable: int
    extent: float
    unrolled: bool  # by the source or, where the extent is small and constant, by the compiler


@dataclass(frozen=True)
class Scope:
    """The execution context of a statement.

    `times` is how often each of `threads` threads executes it in one iteration of the phase; `lanes` is the share of
    lanes that a warp executing it has active; `warps` the share of warps that execute it at all.
    """

    launch: Launch
    first_thread: int
    threads: int
    times: float = 1.0
    lanes: float = 1.0
    warps: float = 1.0
    warp_lanes: int = 32  # lanes of a warp that exist: fewer in a block smaller than a warp
    elected: bool = False  # one thread of many: a single lane issues
    loops: tuple[Loop, ...] = ()
    phase_loop: Loop | None = None
    reach: Any = None  # where the conditions so far hold, over the chance scenarios; None where there was none
    condition: Any = None  # a lane mask over the pattern scenarios, None where all lanes are active
    roots: Mapping[int, frozenset[int]] = field(default_factory=dict)  # bound variable -> what it derives from
    pattern: Bindings = field(default_factory=dict)
    chance: Bindings = field(default_factory=dict)
    bound: tuple[tuple[int, Any], ...] = ()  # variables bound to expressions, in order
    drawn: int = 0  # variables sampled so far: each takes a sequence of its own

    @staticmethod
    def of_threads(launch: Launch, first_thread: int, threads: int) -> Scope:
        """Whole-block context for a range of threads."""
        scope = Scope(launch, first_thread, threads, warp_lanes=min(launch.warp_threads, threads))
        warps = max(1, -(-threads // launch.warp_threads))
        lanes = np.arange(min(launch.warp_threads, threads))[None, :]

        def thread_values(scenarios: int) -> dict[int, NDArray[Any]]:
            warp = _sequence(scenarios, 0, warps)[:, None]
            return launch.thread_bindings(first_thread + warp * launch.warp_threads + lanes)

        pattern: dict[int, Any] = dict(thread_values(PATTERN_SCENARIOS))
        chance: dict[int, Any] = dict(thread_values(CONDITION_SCENARIOS))
        drawn = 1
        for variable, extent in launch.block.values():
            pattern[variable] = _sequence(PATTERN_SCENARIOS, drawn, extent)[:, None]
            chance[variable] = _sequence(CONDITION_SCENARIOS, drawn, extent)[:, None]
            drawn += 1
        return replace(scope, pattern=pattern, chance=chance, drawn=drawn)

    @property
    def executions(self) -> float:
        """Lane executions over all threads of the block, in one iteration of the phase."""
        return self.warp_executions * (1 if self.elected else self.lanes * min(self.launch.warp_threads, self.threads))

    @property
    def warp_executions(self) -> float:
        """Warp instructions over all threads of the block, in one iteration of the phase."""
        issuing = self.threads if self.elected else max(1.0, self.threads / self.launch.warp_threads)
        return issuing * self.times * self.warps

    def with_loop(self, variable: int, start: Any, extent: float, unrolled: bool, *, as_phase: bool = False) -> Scope:
        """Inside a loop: `as_phase` where the phase counts its trips, else they multiply `times`."""
        whole = max(1, math.ceil(extent))
        loop = Loop(variable, extent, unrolled)
        return replace(
            self,
            times=self.times if as_phase else self.times * extent,
            loops=self.loops if as_phase else (*self.loops, loop),
            phase_loop=loop if as_phase else self.phase_loop,
            pattern={**self.pattern, variable: start + _sequence(PATTERN_SCENARIOS, self.drawn, whole)[:, None]},
            chance={**self.chance, variable: start + _sequence(CONDITION_SCENARIOS, self.drawn, whole)[:, None]},
            drawn=self.drawn + 1,
        )

    def with_binding(self, variable: int, value: Any) -> Scope:
        """After `variable = value`; a value that depends on data leaves the variable unbound."""
        try:
            pattern, chance = evaluate(value, self.pattern), evaluate(value, self.chance)
        except UnevaluableError:
            return self
        return replace(
            self,
            pattern={**self.pattern, variable: pattern},
            chance={**self.chance, variable: chance},
            roots={**self.roots, variable: self.depends_on(value)},
            bound=(*self.bound, (variable, value)),
        )

    def with_condition(self, condition: Any) -> Scope | None:
        """Where `condition` holds; None where it never does. One that depends on data counts as always true."""
        try:
            held = np.broadcast_to(np.asarray(evaluate(condition, self.chance), dtype=bool), self._shape(CONDITION_SCENARIOS))
            mask = np.broadcast_to(np.asarray(evaluate(condition, self.pattern), dtype=bool), self._shape(PATTERN_SCENARIOS))
        except UnevaluableError:
            return self
        # conditions within one another are not independent: count among the scenarios that come here at all
        before = CONDITION_SCENARIOS if self.reach is None else int(self.reach.any(axis=1).sum())
        held = held if self.reach is None else held & self.reach
        if not held.any():
            return None
        running = held.any(axis=1)
        combined = mask if self.condition is None else mask & self.condition
        return replace(
            self,
            warps=self.warps * float(running.sum()) / before,
            lanes=float(held[running].mean()),
            reach=held,
            # a condition so rare that no pattern scenario meets it says nothing about addresses
            condition=None if combined.all() or not combined.any() else combined,
        )

    def with_elected(self, group: int) -> Scope:
        """One thread out of each `group` (0: one of the block)."""
        issuing = max(1, self.threads // group) if group else 1
        return replace(self, threads=issuing, elected=True)

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
        """`expression` over the many scenarios that conditions are judged by. Raises `UnevaluableError`."""
        return evaluate(expression, self.chance)

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

    def _one_scenario(self) -> dict[int, Any]:
        """One value for each variable, to be overridden for those that vary; then `_rebind`."""
        return {v: (value.flat[0] if isinstance(value, np.ndarray) else value) for v, value in self.pattern.items()}

    def _rebind(self, bindings: dict[int, Any]) -> None:
        for variable, value in self.bound:
            bindings[variable] = evaluate(value, bindings)

    def shifted(self, loop: Loop, step: NDArray[Any]) -> Scope:
        """The same scenarios with one loop variable set otherwise."""
        return replace(self, pattern={**self.pattern, loop.variable: step})

    def _shape(self, scenarios: int) -> tuple[int, int]:
        return scenarios, self.warp_lanes


def _sequence(count: int, dimension: int, extent: int) -> NDArray[Any]:
    """`count` whole numbers in 0 .. extent-1, spread evenly and unrelated to those of other dimensions (Kronecker
    sequence on square roots of primes)."""
    root = math.sqrt(_PRIMES[dimension % len(_PRIMES)])
    fractions = np.modf(np.arange(1, count + 1) * root)[0]
    chosen: NDArray[Any] = np.minimum((fractions * extent).astype(np.int64), extent - 1)
    return chosen


_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
