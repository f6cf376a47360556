"""Where a statement stands: which blocks, threads and iterations execute it, and how often."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .expressions import Bindings, UnevaluableError, evaluate, variables
from .launch import AXES, Launch, sequence

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
    phase_loops: tuple[Loop, ...] = ()  # that one and those around it, outside in
    reach: Any = None  # where the conditions so far hold, over the chance scenarios; None where there was none
    condition: Any = None  # a lane mask over the pattern scenarios, None where all lanes are active
    roots: Mapping[int, frozenset[int]] = field(default_factory=dict)  # bound variable -> what it derives from
    pattern: Bindings = field(default_factory=dict)
    chance: Bindings = field(default_factory=dict)
    bound: tuple[tuple[int, Any], ...] = ()  # variables bound to expressions, in order; to None where data decides
    held: Any = None  # which of `threads` pass the conditions on threads alone; None where all do
    conditions: tuple[Any, ...] = ()  # those so far that can be evaluated
    given: tuple[Any, ...] = ()  # those of them that the phase's trips count, not `warps`
    reached_by: frozenset[int] = frozenset()  # what all conditions so far derive from, data apart
    drawn: int = 0  # variables sampled so far: each takes a sequence of its own

    @staticmethod
    def of_threads(launch: Launch, first_thread: int, threads: int) -> Scope:
        """Whole-block context for a range of threads."""
        pattern: dict[int, Any] = {}
        chance: dict[int, Any] = {}
        drawn = 1  # the first sequence is that of the warps
        for variable, extent in launch.block.values():
            pattern[variable] = sequence(PATTERN_SCENARIOS, drawn, extent)[:, None]
            chance[variable] = sequence(CONDITION_SCENARIOS, drawn, extent)[:, None]
            drawn += 1
        lanes = min(launch.warp_threads, threads)
        return Scope(launch, first_thread, threads, warp_lanes=lanes, pattern=pattern, chance=chance, drawn=drawn)._resampled()

    @property
    def executions(self) -> float:
        """Lane executions over all threads of the block, in one iteration of the phase."""
        return self.warp_executions * (1 if self.elected else self.lanes * min(self.launch.warp_threads, self.threads))

    @property
    def warp_executions(self) -> float:
        """Warp instructions over all threads of the block, in one iteration of the phase."""
        issuing = self.threads if self.elected else max(1.0, self.threads / self.launch.warp_threads)
        return issuing * self.times * self.warps

    def with_loop(self, variable: int, start: int, extent: float, unrolled: bool, *, as_phase: bool = False) -> Scope:
        """Inside a loop: `as_phase` where the phase counts its trips, else they multiply `times`."""
        whole = max(1, math.ceil(extent))
        loop = Loop(variable, extent, unrolled, start)
        return replace(
            self,
            times=self.times if as_phase else self.times * extent,
            loops=self.loops if as_phase else (*self.loops, loop),
            phase_loop=loop if as_phase else self.phase_loop,
            phase_loops=(*self.phase_loops, loop) if as_phase else self.phase_loops,
            pattern={**self.pattern, variable: start + sequence(PATTERN_SCENARIOS, self.drawn, whole)[:, None]},
            chance={**self.chance, variable: start + sequence(CONDITION_SCENARIOS, self.drawn, whole)[:, None]},
            drawn=self.drawn + 1,
        )

    def with_binding(self, variable: int, value: Any) -> Scope:
        """After `variable = value`; of a value that depends on data it is kept what else it derives from."""
        roots = {**self.roots, variable: self.depends_on(value) | self.reached_by}
        try:
            pattern, chance = evaluate(value, self.pattern), evaluate(value, self.chance)
        except UnevaluableError:
            return self._without(variable, roots)
        return replace(
            self,
            pattern={**self.pattern, variable: pattern},
            chance={**self.chance, variable: chance},
            roots=roots,
            bound=(*self.bound, (variable, value)),
        )

    def with_unknown(self, variable: int, *sources: Any) -> Scope:
        """A variable whose value is not known, only that it derives from what it did before and from `sources`."""
        known = self.roots.get(variable, frozenset()).union(*(self.depends_on(source) for source in sources))
        return self._without(variable, {**self.roots, variable: known})

    def after(self, inner: Scope, scalars: set[int]) -> Scope:
        """After a loop or a branch in which statements stood that `inner` came out of: which of them stored last to
        one of the local `scalars` is not known, only what the value derives from."""
        scope = self
        for variable in dict.fromkeys(v for v, _ in inner.bound[len(self.bound) :] if v in scalars):
            known = scope.roots.get(variable, frozenset()) | inner.roots.get(variable, frozenset())
            scope = scope._without(variable, {**scope.roots, variable: known | inner.reached_by})
        return scope

    def _without(self, variable: int, roots: Mapping[int, frozenset[int]]) -> Scope:
        return replace(
            self,
            pattern={v: value for v, value in self.pattern.items() if v != variable},
            chance={v: value for v, value in self.chance.items() if v != variable},
            roots=roots,
            bound=(*self.bound, (variable, None)),
        )

    def with_condition(self, condition: Any) -> Scope | None:
        """Where `condition` holds; None where it never does. One that depends on data counts as always true.

        The threads that pass a condition on threads alone are counted one by one; any other is judged by samples.
        """
        roots = self.depends_on(condition)
        reached = replace(self, reached_by=self.reached_by | roots)
        try:
            if roots and roots <= self.launch.thread_variables and not self.elected:
                return reached._among_threads(condition)
            held = np.broadcast_to(np.asarray(evaluate(condition, self.chance), dtype=bool), self._shape(CONDITION_SCENARIOS))
            mask = np.broadcast_to(np.asarray(evaluate(condition, self.pattern), dtype=bool), self._shape(PATTERN_SCENARIOS))
        except UnevaluableError:
            return reached
        # conditions within one another are not independent: count among the scenarios that come here at all
        before = CONDITION_SCENARIOS if self.reach is None else int(self.reach.any(axis=1).sum())
        held = held if self.reach is None else held & self.reach
        if not held.any():
            return None
        running = held.any(axis=1)
        combined = mask if self.condition is None else mask & self.condition
        return replace(
            reached,
            warps=self.warps * float(running.sum()) / before,
            lanes=float(held[running].mean()),
            reach=held,
            # a condition so rare that no pattern scenario meets it says nothing about addresses
            condition=None if combined.all() or not combined.any() else combined,
            conditions=(*self.conditions, condition),
        )

    def knows(self, condition: Any) -> bool:
        """Whether `condition`, under which this scope stands, could be evaluated."""
        return any(condition is known for known in self.conditions)

    def with_given(self, condition: Any) -> Scope | None:
        """Where `condition` holds, of which the phase's trips take account; None where no sample meets it."""
        inside = self.with_condition(condition)
        if inside is None:
            return None
        return replace(inside, warps=self.warps, lanes=self.lanes, condition=self.condition, given=(*self.given, condition))

    def _among_threads(self, condition: Any) -> Scope | None:
        """Where a condition on threads alone holds. Raises `UnevaluableError`."""
        held = self.over_block(condition).astype(bool)
        held = held if self.held is None else held & self.held
        if not held.any():
            return None
        narrowed = replace(self, held=held, conditions=(*self.conditions, condition))
        (warps, lanes), (warps_before, lanes_before) = narrowed._running_share(), self._running_share()
        narrowed = replace(narrowed, warps=self.warps * warps / warps_before, lanes=self.lanes * lanes / lanes_before)
        return narrowed._resampled()

    def with_threads(self, first_thread: int, threads: int) -> Scope:
        """The same place as whole warps of the scope see it that run a program of their own from here."""
        warps, lanes = self._running_share()
        return replace(
            self, first_thread=first_thread, threads=threads, held=None, warps=self.warps / warps, lanes=self.lanes / lanes
        )._resampled()

    def _running_share(self) -> tuple[float, float]:
        """Share of the scope's warps that `held` lets through, and of their lanes."""
        if self.held is None:
            return 1.0, 1.0
        warps = [self.held[i : i + self.launch.warp_threads] for i in range(0, len(self.held), self.launch.warp_threads)]
        running = [warp for warp in warps if warp.any()]
        return len(running) / len(warps), float(np.concatenate(running).mean())

    def _resampled(self) -> Scope:
        """The scenarios with their threads drawn anew, from the warps that `held` lets through."""
        warp_threads = self.launch.warp_threads
        running = [w for w in range(max(1, -(-self.threads // warp_threads))) if self._runs(w)]
        lanes = np.arange(self.warp_lanes)[None, :]
        drawn: list[dict[int, Any]] = []
        for bindings, count in ((self.pattern, PATTERN_SCENARIOS), (self.chance, CONDITION_SCENARIOS)):
            warp = np.asarray(running)[sequence(count, 0, len(running))][:, None]
            drawn.append({**bindings, **self.launch.thread_bindings(self.first_thread + warp * warp_threads + lanes)})
            self._rebind(drawn[-1])
        pattern, chance = drawn
        reach = self._together(chance, CONDITION_SCENARIOS)
        mask = self._together(pattern, PATTERN_SCENARIOS)
        met = mask is not None and mask.any() and not mask.all()
        return replace(self, pattern=pattern, chance=chance, reach=reach, condition=mask if met else None)

    def _runs(self, warp: int) -> bool:
        return self.held is None or bool(self.held[warp * self.launch.warp_threads : (warp + 1) * self.launch.warp_threads].any())

    def _together(self, bindings: Bindings, scenarios: int) -> Any:
        """Where all conditions so far hold; None where there was none."""
        every = None
        for condition in self.conditions:
            try:
                held = np.broadcast_to(np.asarray(evaluate(condition, bindings), dtype=bool), self._shape(scenarios))
            except UnevaluableError:
                continue  # on a local scalar that was stored to since
            every = held if every is None else every & held
        return every

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

    def _one_scenario(self) -> dict[int, Any]:
        """One value for each variable, to be overridden for those that vary; then `_rebind`."""
        return {v: (value.flat[0] if isinstance(value, np.ndarray) else value) for v, value in self.pattern.items()}

    def _rebind(self, bindings: dict[int, Any]) -> None:
        for variable, value in self.bound:
            if value is None:
                bindings.pop(variable, None)
            else:
                bindings[variable] = evaluate(value, bindings)

    def shifted(self, loop: Loop, step: NDArray[Any]) -> Scope:
        """The same scenarios with one loop variable set otherwise."""
        return replace(self, pattern={**self.pattern, loop.variable: step})

    def _shape(self, scenarios: int) -> tuple[int, int]:
        return scenarios, self.warp_lanes
