"""Samples blocks, threads and iterations of a statement, and evaluates expressions over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .expressions import FILLED, ArbitraryData, Bindings, UnevaluableError, evaluate, variables
from .joined_loads import Functions
from .launch_geometry import AXES, LaunchGeometry

PATTERN_SCENARIOS = 8  # samples for address patterns, which repeat over blocks and iterations
CONDITION_SCENARIOS = 128  # samples for conditions, which hold in a share of the cases
MOST_CASES = 1 << 18  # combinations of blocks and iterations that are evaluated exactly


@dataclass(frozen=True)
class Loop:
    """A loop around a statement; `variable` is the identity of its loop variable."""

    variable: int
    extent: float
    unrolled: bool  # by the source, or by the compiler if the extent is small and constant
    start: int = 0
    together: int = 1  # iterations of a phase's loop whose plain loads are in flight together
    rewrites: bool = False  # its iterations load from shared memory and store to it
    limit: Any = None  # `extent` as an expression, which may depend on the block; None if it is not known
    longest: float = 0.0  # the largest extent of any block and iteration around it, if they differ
    stores: frozenset[int] = frozenset()  # buffers that its iterations store to, or hand to calls
    functions: Functions = Functions.SHORT  # that its iterations call
    copies: int = 1  # iterations that follow each other in the machine code, if it is unrolled in part

    @property
    def most(self) -> int:
        """Whole iterations where there are the most, at least one."""
        return max(1, math.ceil(max(self.extent, self.longest)))


@dataclass(frozen=True)
class Cases:
    """All blocks, by row, and iterations of loops, by column, on which some conditions depend.

    Attributes:
        bindings: the values of the variables of these blocks and loops.
        come: where all conditions but the last one hold.
        held: where all conditions hold.
        axes: those of the blocks.
    """

    bindings: Mapping[int, NDArray[Any]]
    come: NDArray[np.bool_]
    held: NDArray[np.bool_]
    axes: frozenset[str]


@dataclass(frozen=True)
class Scenarios:
    """Sampled blocks, warps and iterations of a statement: few for address patterns, many for conditions.

    Methods named `over_...` evaluate an expression over all blocks, threads or iterations, with one value for
    every other variable.
    """

    launch: LaunchGeometry
    first_thread: int
    threads: int
    warp_lanes: int = 32  # existing lanes of a warp: fewer if the block is smaller than a warp
    phase_loop: Loop | None = None
    phase_loops: tuple[Loop, ...] = ()  # the phase's loop and the phase loops around it, outermost first
    reach: Any = (
        None  # mask over the chance scenarios: where all conditions so far hold; None without conditions
    )
    roots: Mapping[int, frozenset[int]] = field(
        default_factory=dict
    )  # by bound variable: the variables that it derives from
    pattern: Bindings = field(default_factory=dict)  # PATTERN_SCENARIOS samples of each variable
    chance: Bindings = field(default_factory=dict)  # CONDITION_SCENARIOS samples of each variable
    bound: tuple[
        tuple[int, Any], ...
    ] = ()  # (variable, expression) in order; the expression is None if it depends on data
    given: tuple[Any, ...] = ()  # conditions so far that the trips of the phase take into account
    # by buffer of data: the launch and phase variables that its contents derive from (`Memory.contents`)
    contents: Mapping[int, frozenset[int]] = field(default_factory=dict)
    derived: Mapping[int, Any] = field(default_factory=dict)  # expressions of variables with data as a value
    arbitrary_data: bool = False  # addresses are evaluated with arbitrary values of loaded data

    def depends_on(self, expression: Any) -> frozenset[int]:
        """Identities of the launch and loop variables, and of the buffers, that `expression` derives from."""
        found: set[int] = set()
        for variable in variables(expression):
            found |= self.roots_of(variable)
        return frozenset(found)

    def roots_of(self, variable: int) -> frozenset[int]:
        """The launch and loop variables that a variable or a buffer derives from."""
        filled = self.pattern.get(FILLED, {}).get(variable)
        if filled is not None:
            return frozenset(filled.roots())
        return self.roots.get(variable, frozenset({variable})) | self.contents.get(variable, frozenset())

    def is_chosen_by_data(self, expression: Any) -> bool:
        """Whether `expression` derives from the contents of a buffer, and not from counters alone."""
        return any(variable in self.contents for variable in self.depends_on(expression))

    def with_arbitrary_data(self) -> Self:
        """The same scenarios, in which addresses that depend on loaded data can be evaluated."""
        return replace(self, arbitrary_data=True)

    def _evaluate(self, expression: Any, bindings: Bindings) -> Any:
        if self.arbitrary_data:
            bindings = ArbitraryData(bindings, self.derived, self.roots, self.contents)
        return evaluate(expression, bindings)

    def block_axes(self, expression: Any) -> frozenset[str]:
        """The block axes (x, y, z) that `expression` derives from."""
        found = self.depends_on(expression)
        return frozenset(axis for axis, (variable, _) in self.launch.block.items() if variable in found)

    def moves_with_phase(self, expression: Any) -> bool:
        """Whether `expression` changes with the iterations of the phase's loop."""
        return self.phase_loop is not None and self.phase_loop.variable in self.depends_on(expression)

    def addresses(self, expression: Any) -> NDArray[Any]:
        """`expression` over the pattern scenarios, shape (scenarios, lanes). Raises `UnevaluableError`."""
        value = np.asarray(self._evaluate(expression, self.pattern))
        addresses: NDArray[Any] = np.broadcast_to(value, self._shape(PATTERN_SCENARIOS)).astype(np.int64)
        return addresses

    def over_chance(self, expression: Any) -> Any:
        """`expression` over the chance scenarios in which all conditions so far hold.

        Raises `UnevaluableError`.
        """
        value = np.asarray(evaluate(expression, self.chance))
        return (
            value[self.reach.any(axis=1)]
            if self.reach is not None and value.ndim == 2 and len(value) > 1
            else value
        )

    def over_blocks(self, expression: Any, axes: list[str]) -> NDArray[Any]:
        """`expression` for every block along `axes`, the first axis fastest. Raises `UnevaluableError`."""
        return self.over_turns(expression, axes, ())[:, 0]

    def turns_before(self, expression: Any) -> list[Loop]:
        """The phase's loops that `expression` depends on, if their iterations can be evaluated one by one."""
        roots = self.depends_on(expression)
        loops = [loop for loop in self.phase_loops if loop.variable in roots]
        return loops if all(loop.limit is not None for loop in loops) else []

    def over_turns(self, expression: Any, axes: list[str], loops: Sequence[Loop]) -> NDArray[Any]:
        """`expression` for every block along `axes` and in all iterations of `loops`.

        Returns:
            An array (blocks, iterations), the first axis and the first loop fastest; not a number where a
            loop of the block ends before that iteration.

        Raises:
            UnevaluableError: it cannot be evaluated.
        """
        bindings, blocks, turns = self._every_case(axes, loops, [loop.most for loop in loops])
        self._rebind(bindings)
        shape = (blocks, turns)
        values = np.broadcast_to(np.asarray(evaluate(expression, bindings), dtype=float), shape)
        if not loops:
            return values
        ended = [
            np.broadcast_to(np.asarray(bindings[loop.variable] - loop.start), shape)
            >= np.asarray(evaluate(loop.limit, bindings))
            for loop in loops
        ]
        return np.where(np.logical_or.reduce(ended), np.nan, values)

    def cases(self, axes: Sequence[str], extents: Sequence[int]) -> int:
        """Number of combinations of the blocks along `axes` and as many iterations of each loop."""
        return math.prod(self.launch.block[a][1] for a in axes) * math.prod(extents)

    def _every_case(
        self, axes: Sequence[str], loops: Sequence[Loop], extents: Sequence[int]
    ) -> tuple[dict[int, Any], int, int]:
        """Bindings of all blocks along `axes`, by row, and of `extents` iterations of `loops`, by column.

        Returns them and the numbers of rows and columns.
        """
        bindings = self._one_scenario()
        blocks = math.prod(self.launch.block[a][1] for a in axes)
        number, stride = np.arange(blocks)[:, None], 1
        for axis in axes:
            variable, extent = self.launch.block[axis]
            bindings[variable] = number // stride % extent
            stride *= extent
        number, stride = np.arange(math.prod(extents))[None, :], 1
        for loop, extent in zip(loops, extents, strict=True):
            bindings[loop.variable] = loop.start + number // stride % extent
            stride *= extent
        return bindings, blocks, math.prod(extents)

    def over_cases(self, condition: Any) -> tuple[NDArray[Any], NDArray[Any], frozenset[str]] | None:
        """Iterations of the phase's loops in which `condition` holds, block by block.

        Only iterations in which the conditions in `given` hold are counted.

        Returns:
            (how many there are for each block of the axes that the condition depends on, out of how many,
            these axes). None if the condition depends on more than blocks and phase loops, or if there are
            too many cases.
        """
        cases = self._cases_of(condition, self.phase_loops)
        return None if cases is None else (cases.held.sum(axis=1), cases.come.sum(axis=1), cases.axes)

    def _cases_of(self, condition: Any, loops: Sequence[Loop]) -> Cases | None:
        """The cases of `condition` and of the conditions in `given`.

        None if one depends on more than blocks and `loops`, or if there are too many cases.
        """
        every = [*self.given, condition]
        roots = frozenset().union(*(self.depends_on(c) for c in every))
        axes = [axis for axis in AXES if axis in self.launch.block and self.launch.block[axis][0] in roots]
        loops = [loop for loop in loops if loop.variable in roots]
        if len(axes) + len(loops) != len(roots):
            return None
        extents = [loop.most for loop in loops]
        if self.cases(axes, extents) > MOST_CASES:
            return None
        bindings, blocks, cases = self._every_case(axes, loops, extents)
        shape = (blocks, cases)
        own = {variable: np.broadcast_to(bindings[variable], shape) for variable in roots}
        try:
            self._rebind(bindings)
            *before, last = (
                np.broadcast_to(np.asarray(evaluate(c, bindings), dtype=bool), shape) for c in every
            )
        except UnevaluableError:
            return None
        come = np.logical_and.reduce(before) if before else np.ones(shape, dtype=bool)
        return Cases(own, come, come & last, frozenset(axes))

    def over_block(self, expression: Any) -> NDArray[Any]:
        """`expression` for every thread of the scope, in one block and one iteration.

        Raises `UnevaluableError`.
        """
        bindings = self._one_scenario()
        bindings |= self.launch.thread_bindings(self.first_thread + np.arange(self.threads))
        self._rebind(bindings)
        values: NDArray[Any] = np.broadcast_to(
            np.asarray(self._evaluate(expression, bindings)), (self.threads,)
        ).astype(np.int64)
        return values

    def over_phase(self, expression: Any, iterations: int = 64) -> NDArray[Any]:
        """`expression` of one thread in the first iterations of the phase's loop.

        Raises `UnevaluableError`.
        """
        bindings = self._one_scenario()
        if self.phase_loop is not None:
            bindings[self.phase_loop.variable] = np.arange(
                min(iterations, max(1, int(self.phase_loop.extent)))
            )
        self._rebind(bindings)
        return np.atleast_1d(np.asarray(self._evaluate(expression, bindings)))

    def at(self, expression: Any, chosen: Bindings) -> Any:
        """`expression` of one thread and iteration, with the values of the variables in `chosen`.

        Raises `UnevaluableError`.
        """
        bindings = {**self._one_scenario(), **chosen}
        self._rebind(bindings)
        return self._evaluate(expression, bindings)

    def shifted(self, loop: Loop, step: NDArray[Any]) -> Self:
        """The same scenarios with other values of one loop variable."""
        return replace(self, pattern={**self.pattern, loop.variable: step})

    def _shape(self, scenarios: int) -> tuple[int, int]:
        return scenarios, self.warp_lanes

    def _one_scenario(self) -> dict[int, Any]:
        """One value for each variable. Callers replace those that vary, then call `_rebind`."""
        return {
            v: (value.flat[0] if isinstance(value, np.ndarray) else value)
            for v, value in self.pattern.items()
        }

    def _rebind(self, bindings: dict[int, Any]) -> None:
        """Give the bound variables their values. Some are known in part of the samples only."""
        for variable, value in self.bound:
            known = None
            if value is not None:
                with suppress(UnevaluableError):
                    known = evaluate(value, bindings)
            if known is None:
                bindings.pop(variable, None)
            else:
                bindings[variable] = known
