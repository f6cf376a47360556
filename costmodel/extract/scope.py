"""The execution context of a statement: the blocks, threads and iterations that execute it, and how often."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .expressions import FILLED, Bindings, FilledContents, UnevaluableError, evaluate, variables
from .joined_loads import Functions
from .launch_geometry import LaunchGeometry, sequence
from .scenarios import CONDITION_SCENARIOS, PATTERN_SCENARIOS, Loop, Scenarios
from .tables import Table

FEW_SAMPLES = 8  # of the samples of conditions: a share of fewer is off by a third
FEWEST_DRAWS, MOST_DRAWS = 16, 256  # of arbitrary numbers for which expressions are compared
WIDEST_DRAW = 16  # bits of such a number; small ones are as frequent as large ones
MOST_ACCESSES = 1 << 14  # of the threads of a block in its inner loops that are evaluated one by one


@dataclass(frozen=True)
class Scope(Scenarios):
    """The execution context of a statement.

    Each of `threads` threads executes the statement `times` times in one iteration of the phase. `warps` is
    the share of the warps that execute it at all, and `lanes` the share of active lanes in those warps.
    """

    times: float = 1.0
    lanes: float = 1.0
    warps: float = 1.0
    elected: bool = False  # a single elected lane executes the statement
    chosen: float = 1.0  # share of the lanes for which selections between two values take this one
    loops: tuple[Loop, ...] = ()
    around: int = 0  # number of the first `loops` that are around the loop of the phase, which stays a loop
    condition: Any = None  # lane mask over the pattern scenarios; None if all lanes are active
    held: Any = None  # mask of the `threads` that pass the conditions on thread indices; None if all do
    conditions: tuple[Any, ...] = ()  # conditions so far that can be evaluated
    reached_by: frozenset[int] = frozenset()  # variables that the conditions so far derive from
    drawn: int = 0  # number of sampled variables: each has its own sequence
    apart: int = 0  # identity of the innermost branch, or selection that becomes one; 0: none
    kept: float = 1.0  # share of the iterations of the statement that compute something used

    @staticmethod
    def of_threads(
        launch: LaunchGeometry,
        first_thread: int,
        threads: int,
        contents: Mapping[int, frozenset[int]] | None = None,
        tables: Mapping[int, Table] | None = None,
        filled: Mapping[int, FilledContents] | None = None,
    ) -> Scope:
        """The context of a statement that all threads of a range execute once.

        `contents` are those of the buffers so far, and may grow while the program is read. `tables` are
        tensors with known contents, and `filled` buffers that the program fills with known values; it may
        grow as well.
        """
        pattern: dict[int, Any] = {**(tables or {}), FILLED: {} if filled is None else filled}
        chance: dict[int, Any] = dict(pattern)
        drawn = 1  # sequence 0 samples the warps
        for bindings, count in ((pattern, PATTERN_SCENARIOS), (chance, CONDITION_SCENARIOS)):
            indices = launch.block_indices(count, drawn)
            bindings.update({variable: values[:, None] for variable, values in indices.items()})
        drawn += len(launch.block)
        lanes = min(launch.warp_threads, threads)
        return Scope(
            launch,
            first_thread,
            threads,
            warp_lanes=lanes,
            pattern=pattern,
            chance=chance,
            drawn=drawn,
            contents={} if contents is None else contents,
            roots={table: frozenset() for table in tables or {}},
        )._resampled()

    def over_statement(self, expression: Any) -> tuple[NDArray[Any], float]:
        """`expression` for every thread and iteration of the inner loops, in one iteration of the phase.

        Returns:
            (the values; the share of the iterations that they cover: the innermost ones if there are many).

        Raises:
            UnevaluableError: it cannot be evaluated.
        """
        turns = math.prod(_turns(loop) for loop in self.loops)
        covered = max(1, min(turns, MOST_ACCESSES // self.threads))
        number = np.arange(self.threads * covered)
        bindings = self._one_scenario() | _iterations(self.loops, number // self.threads)
        bindings |= self.launch.thread_bindings(self.first_thread + number % self.threads)
        self._rebind(bindings)
        values = np.broadcast_to(np.asarray(self._evaluate(expression, bindings)), number.shape)
        return values.astype(np.int64), covered / turns

    def reads_tables(self, expression: Any) -> bool:
        """Whether `expression` derives from integers that the caller gave or that the kernel computes."""
        bound, pending = dict(self.bound), [expression]
        filled = self.pattern.get(FILLED, {})
        seen: set[int] = set()
        while pending:
            for variable in variables(pending.pop()) - seen:
                seen.add(variable)
                if variable in filled or isinstance(self.pattern.get(variable), Table):
                    return True
                if bound.get(variable) is not None:
                    pending.append(bound[variable])
        return False

    def over_loops(self, expression: Any, loops: Sequence[Loop]) -> NDArray[Any]:
        """`expression` for one thread of one block in all iterations of `loops`.

        Raises:
            UnevaluableError: it cannot be evaluated.
        """
        number = np.arange(math.prod(_turns(loop) for loop in loops))
        bindings = self._one_scenario() | _iterations(loops, number)
        self._rebind(bindings)
        return np.broadcast_to(np.asarray(self._evaluate(expression, bindings)), number.shape)

    def over_loops_anywhere(self, expression: Any, loops: Sequence[Loop]) -> NDArray[Any]:
        """`expression` in all iterations of `loops`, for arbitrary threads, blocks and other iterations.

        Two iterations have equal values in all rows only if the expression says so by itself: the compiler
        does not use how many threads or blocks there are.

        Returns:
            An array (rows, iterations).

        Raises:
            UnevaluableError: it cannot be evaluated.
        """
        number = np.arange(math.prod(_turns(loop) for loop in loops))[None, :]
        rows = max(FEWEST_DRAWS, min(MOST_DRAWS, MOST_ACCESSES // number.size))
        own = {loop.variable for loop in loops}
        generator = np.random.default_rng(0)
        read = self.depends_on(expression) - own - set(self.contents)
        drawn = {
            variable: np.exp2(generator.uniform(0, WIDEST_DRAW, (rows, 1))).astype(np.int64) - 1
            for variable in self.pattern  # in an order that does not differ from run to run
            if variable in read
        }
        bindings = self._one_scenario() | drawn | _iterations(loops, number)
        with np.errstate(divide="ignore"):  # an arbitrary number may be a divisor that is never zero
            self._rebind(bindings)
            values = np.asarray(self._evaluate(expression, bindings))
        return np.broadcast_to(values, (rows, number.size))

    @property
    def executions(self) -> float:
        """Lane executions over all threads of the block, in one iteration of the phase."""
        return self.warp_executions * (
            1 if self.elected else self.lanes * min(self.launch.warp_threads, self.threads)
        )

    @property
    def issued_lanes(self) -> float:
        """Lanes of these executions and lanes that conditions leave idle in them.

        A warp takes the same slots of the arithmetic units however many of its lanes are active. The few
        operations of an elected lane are not rounded up.
        """
        if self.elected:
            return self.executions
        return self.warp_executions * self.launch.warp_threads * self.chosen

    @property
    def is_divergent(self) -> bool:
        """Whether this is a branch on threads or data: for the compiler, lanes of a warp may be elsewhere."""
        return self.elected or self.held is not None or bool(self.reached_by)

    @property
    def warp_share(self) -> float:
        """Share of the warps that the conditions on the thread leave."""
        return self._running_share()[0]

    @property
    def warp_executions(self) -> float:
        """Warp instructions over all threads of the block, in one iteration of the phase."""
        issuing = self.threads if self.elected else max(1.0, self.threads / self.launch.warp_threads)
        return issuing * self.times * self.warps

    def with_loop(
        self,
        variable: int,
        start: int,
        extent: float,
        unrolled: bool,
        *,
        as_phase: bool = False,
        together: int = 1,
        rewrites: bool = False,
        limit: Any = None,
        longest: float = 0.0,
        stores: frozenset[int] = frozenset(),
        functions: Functions = Functions.SHORT,
        copies: int = 1,
    ) -> Scope:
        """The scope inside a loop.

        With `as_phase` the trips of the phase count its iterations, of which the plain loads of `together`
        are in flight at once; else they multiply `times`. Samples of conditions are drawn among as
        many iterations as the `longest` extent has.
        """
        loop = Loop(
            *(variable, extent, unrolled, start, together, rewrites, limit, longest, stores, functions),
            copies=copies,
        )
        return replace(
            self,
            times=self.times if as_phase else self.times * extent,
            loops=self.loops if as_phase else (*self.loops, loop),
            around=len(self.loops) if as_phase and not unrolled and loop.most > 1 else self.around,
            phase_loop=loop if as_phase else self.phase_loop,
            phase_loops=(*self.phase_loops, loop) if as_phase else self.phase_loops,
            pattern={
                **self.pattern,
                variable: start + sequence(PATTERN_SCENARIOS, self.drawn, _turns(loop))[:, None],
            },
            chance={
                **self.chance,
                variable: start + sequence(CONDITION_SCENARIOS, self.drawn, loop.most)[:, None],
            },
            drawn=self.drawn + 1,
        )

    def with_binding(self, variable: int, value: Any) -> Scope:
        """The scope after `variable = value`.

        For a value that depends on data, only the variables that it derives from are known.
        """
        roots = {**self.roots, variable: self.depends_on(value) | self.reached_by}
        try:
            pattern, chance = evaluate(value, self.pattern), evaluate(value, self.chance)
        except UnevaluableError:
            return replace(self._without(variable, roots), derived={**self.derived, variable: value})
        return replace(
            self,
            pattern={**self.pattern, variable: pattern},
            chance={**self.chance, variable: chance},
            roots=roots,
            bound=(*self.bound, (variable, value)),
        )

    def with_unknown(self, variable: int, *sources: Any) -> Scope:
        """The scope with an unknown value of `variable`, derived from its earlier roots and `sources`."""
        known = self.roots.get(variable, frozenset()).union(*(self.depends_on(source) for source in sources))
        return self._without(variable, {**self.roots, variable: known})

    def after(self, inner: Scope, scalars: set[int]) -> Scope:
        """The scope after a loop or a branch that ended with the scope `inner`.

        The values of the local `scalars` that it stored to are unknown; only the variables that they derive
        from are kept.
        """
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
            derived={v: value for v, value in self.derived.items() if v != variable},
        )

    def with_condition(self, condition: Any) -> Scope | None:
        """The scope in which `condition` holds; None if it never holds.

        A condition that depends on data counts as true.

        The threads that pass a condition on thread indices are counted exactly; other conditions are sampled.
        """
        roots = self.depends_on(condition)
        reached = replace(self, reached_by=self.reached_by | roots)
        try:
            if roots and roots <= self.launch.thread_variables and not self.elected:
                return reached._among_threads(condition)
            held = np.broadcast_to(
                np.asarray(evaluate(condition, self.chance), dtype=bool), self._shape(CONDITION_SCENARIOS)
            )
            mask = np.broadcast_to(
                np.asarray(evaluate(condition, self.pattern), dtype=bool), self._shape(PATTERN_SCENARIOS)
            )
        except UnevaluableError:
            return reached
        # nested conditions are not independent: count among the scenarios that reach this one
        before = CONDITION_SCENARIOS if self.reach is None else int(self.reach.any(axis=1).sum())
        held = held if self.reach is None else held & self.reach
        if held.any(axis=1).sum() < FEW_SAMPLES:
            exact = self._in_exact_share(reached, condition)
            if exact is not None:
                return exact
        if not held.any():
            return None
        running = held.any(axis=1)
        combined = mask if self.condition is None else mask & self.condition
        return replace(
            reached,
            warps=self.warps * float(running.sum()) / before,
            lanes=float(held[running].mean()),
            reach=held,
            # a condition that no pattern scenario meets is too rare to affect the address pattern
            condition=None if combined.all() or not combined.any() else combined,
            conditions=(*self.conditions, condition),
        )

    def _in_exact_share(self, reached: Scope, condition: Any) -> Scope | None:
        """The scope in which a condition holds that few samples meet, counted over all blocks and iterations.

        The end of a tile, in a loop over the iterations of all tiles of a block, is such a condition. None if
        it depends on threads or on inner loops, if it never holds, or if there are too many cases.
        """
        found = self.over_cases(condition)
        share = float(found[0].sum() / max(1, found[1].sum())) if found is not None else 0.0
        if not share:
            return None
        # the samples stay as they are: too few of them meet the condition to tell addresses apart
        return replace(reached, warps=self.warps * share, given=(*self.given, condition))

    def with_choice(self, condition: Any) -> Scope | None:
        """The scope of a value that is taken where `condition` holds; None if it never holds.

        Another value stands beside it, and the compiler computes together what they have in common.
        """
        inside = self.with_condition(condition)
        return inside and replace(inside, chosen=self.chosen * min(1.0, inside.lanes / self.lanes))

    def is_unknown(self, variable: int) -> bool:
        """Whether the value of `variable` depends on data."""
        return variable not in self.chance

    def in_share_of_warps(self, share: float) -> Scope:
        """The scope that only a share of the warps reaches."""
        return replace(self, warps=self.warps * share)

    def in_share_of_lanes(self, share: float) -> Scope:
        """The scope that only a share of the lanes reaches, in the warps that do."""
        return replace(self, lanes=self.lanes * share)

    def in_share_of_iterations(self, share: float) -> Scope:
        """The scope of a statement that the compiler keeps in a share of the iterations around it."""
        return self if share == 1 else replace(self, times=self.times * share, kept=self.kept * share)

    def is_data(self, expression: Any) -> bool:
        """Whether the value of `expression` depends on data."""
        try:
            evaluate(expression, self.chance)
        except UnevaluableError:
            return True
        return False

    def knows(self, condition: Any) -> bool:
        """Whether `condition`, which holds in this scope, could be evaluated."""
        return any(condition is known for known in (*self.conditions, *self.given))

    def with_given(self, condition: Any) -> Scope | None:
        """The scope in which `condition` holds, if the trips of the phase account for it.

        None if no sample meets it.
        """
        inside = self.with_condition(condition)
        if inside is None:
            return None
        return replace(
            inside,
            warps=self.warps,
            lanes=self.lanes,
            condition=self.condition,
            given=(*self.given, condition),
        )

    def in_iterations(self, condition: Any) -> Scope | None:
        """The scope in the iterations of a loop, those in which `condition` holds, which its trips count.

        Samples of blocks and iterations are drawn again, among those that exist, with as many of each rank in
        a cluster, since the blocks of a cluster have the same iterations. None if there are none.
        """
        cases = self._cases_of(condition, (*self.phase_loops, *self.loops))
        if cases is None:
            return self.with_given(condition)
        rows, columns = np.nonzero(cases.held)
        if not len(rows):
            return None
        drawn = sequence(CONDITION_SCENARIOS, self.drawn, len(rows))
        chosen = {
            variable: values[rows[drawn], columns[drawn]] for variable, values in cases.bindings.items()
        }
        chance = dict(self.chance)
        for variable, values in self.launch.with_all_ranks(chosen).items():
            chance[variable] = values[:, None]
        self._rebind(chance)
        return replace(
            self,
            chance=chance,
            reach=self._together(chance, CONDITION_SCENARIOS),
            given=(*self.given, condition),
            drawn=self.drawn + 1,
        )

    def _among_threads(self, condition: Any) -> Scope | None:
        """The scope in which a condition on thread indices holds. Raises `UnevaluableError`."""
        held = self.over_block(condition).astype(bool)
        held = held if self.held is None else held & self.held
        if not held.any():
            return None
        narrowed = replace(self, held=held, conditions=(*self.conditions, condition))
        (warps, lanes), (warps_before, lanes_before) = narrowed._running_share(), self._running_share()
        narrowed = replace(
            narrowed, warps=self.warps * warps / warps_before, lanes=self.lanes * lanes / lanes_before
        )
        return narrowed._resampled()

    def with_threads(self, first_thread: int, threads: int) -> Scope:
        """The scope of whole warps that run their own program from here on."""
        warps, lanes = self._running_share()
        return replace(
            self,
            first_thread=first_thread,
            threads=threads,
            held=None,
            warps=self.warps / warps,
            lanes=self.lanes / lanes,
        )._resampled()

    def _running_share(self) -> tuple[float, float]:
        """(share of the warps with a thread in `held`, share of the lanes in `held` among those warps)."""
        if self.held is None:
            return 1.0, 1.0
        warps = [
            self.held[i : i + self.launch.warp_threads]
            for i in range(0, len(self.held), self.launch.warp_threads)
        ]
        running = [warp for warp in warps if warp.any()]
        return len(running) / len(warps), float(np.concatenate(running).mean())

    def _resampled(self) -> Scope:
        """The scope with newly sampled threads, from the warps with a thread in `held`."""
        warp_threads = self.launch.warp_threads
        running = [w for w in range(max(1, -(-self.threads // warp_threads))) if self._runs(w)]
        lanes = np.arange(self.warp_lanes)[None, :]
        drawn: list[dict[int, Any]] = []
        for bindings, count in ((self.pattern, PATTERN_SCENARIOS), (self.chance, CONDITION_SCENARIOS)):
            warp = np.asarray(running)[sequence(count, 0, len(running))][:, None]
            drawn.append(
                {**bindings, **self.launch.thread_bindings(self.first_thread + warp * warp_threads + lanes)}
            )
            self._rebind(drawn[-1])
        pattern, chance = drawn
        reach = self._together(chance, CONDITION_SCENARIOS)
        mask = self._together(pattern, PATTERN_SCENARIOS)
        met = mask is not None and mask.any() and not mask.all()
        return replace(self, pattern=pattern, chance=chance, reach=reach, condition=mask if met else None)

    def _runs(self, warp: int) -> bool:
        return self.held is None or bool(
            self.held[warp * self.launch.warp_threads : (warp + 1) * self.launch.warp_threads].any()
        )

    def _together(self, bindings: Bindings, scenarios: int) -> Any:
        """Mask of the scenarios in which all conditions so far hold; None without conditions."""
        every = None
        for condition in self.conditions:
            try:
                held = np.broadcast_to(
                    np.asarray(evaluate(condition, bindings), dtype=bool), self._shape(scenarios)
                )
            except UnevaluableError:
                continue  # it depends on a local scalar that was stored to since
            every = held if every is None else every & held
        return every

    def with_elected(self, group: int) -> Scope:
        """The scope of one elected thread of each `group` of threads, or of the block if `group` is 0."""
        issuing = max(1, self.threads // group) if group else 1
        return replace(self, threads=issuing, elected=True)


def _turns(loop: Loop) -> int:
    """Number of whole iterations of a loop, at least one."""
    return max(1, math.ceil(loop.extent))


def _iterations(loops: Sequence[Loop], number: NDArray[Any]) -> dict[int, Any]:
    """Values of the variables of nested loops, the last one innermost, in the iterations of these numbers."""
    values = {}
    for loop in reversed(loops):
        values[loop.variable] = loop.start + number % _turns(loop)
        number = number // _turns(loop)
    return values
