"""Where a statement stands: which blocks, threads and iterations execute it, and how often."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .expressions import Bindings, UnevaluableError, evaluate
from .launch import Launch, sequence
from .scenarios import CONDITION_SCENARIOS, PATTERN_SCENARIOS, Loop, Scenarios


@dataclass(frozen=True)
class Scope(Scenarios):
    """The execution context of a statement.

    `times` is how often each of `threads` threads executes it in one iteration of the phase; `lanes` is the share of
    lanes that a warp executing it has active; `warps` the share of warps that execute it at all.
    """

    times: float = 1.0
    lanes: float = 1.0
    warps: float = 1.0
    elected: bool = False  # one thread of many: a single lane issues
    loops: tuple[Loop, ...] = ()
    condition: Any = None  # a lane mask over the pattern scenarios, None where all lanes are active
    held: Any = None  # which of `threads` pass the conditions on threads alone; None where all do
    conditions: tuple[Any, ...] = ()  # those so far that can be evaluated
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
