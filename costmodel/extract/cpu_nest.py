"""Reads the profile of a CPU kernel: a nest of loops around stores, without threads.

Each store becomes a phase. Its innermost loops with small constant extents are taken for the register tile
that the C compiler unrolls: the work of the phase is that of one tile, and its trips are the executions of
the tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...profile.values import Access, KernelProfile, Phase, Role, Space, Tensor, Trips, Work
from ...target.spec import Target
from .element_types import element_type
from .expressions import (
    ArbitraryData,
    UnevaluableError,
    constant,
    evaluate,
    identity,
    loads,
    variables,
)
from .mathematics import MATH, MATH_NAMES
from .memory import chosen_by_data
from .patterns import contiguous_bytes

# gcc and clang unroll nests of constant loops completely up to about this number of statements
MOST_TILE_ELEMENTS = 512
# gcc peels loops of up to this number of iterations before it vectorises (its max-completely-peel-times), so
# they run as scalar code: 4x16 and 8x8 tiles were measured at 11 GFLOP/s, 4x64 tiles at 92
PEELED_ITERATIONS = 16
UNKNOWN_EXTENT = 8.0
UNKNOWN_OPS = 64.0
ROW_POSITIONS = 4096  # innermost iterations in which the rows that data chooses are looked for


@dataclass(frozen=True)
class _Loop:
    variable: int
    extent: float
    is_constant: bool


@dataclass
class _NestReader:
    tensors: dict[str, Tensor] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    _labels: dict[int, str] = field(default_factory=dict)
    _bindings: dict[int, Any] = field(
        default_factory=dict
    )  # a value for each variable: strides are differences of addresses
    _parameters: dict[int, str] = field(default_factory=dict)  # names by identity
    # by variable or local buffer with data as its value: the variables that this data derives from
    _from_data: dict[int, frozenset[int]] = field(default_factory=dict)
    _derived: dict[int, Any] = field(default_factory=dict)  # expressions of these variables

    def read(self, function: Any) -> None:
        self._parameters = {identity(p): p.name for p in function.params}
        self._statement(function.body, ())

    def _statement(self, node: Any, loops: tuple[_Loop, ...]) -> None:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for part in node.seq:
                self._statement(part, loops)
        elif kind == "AttrStmt":
            self._statement(node.body, loops)
        elif kind == "For":
            self._bindings[identity(node.loop_var)] = 0
            self._statement(node.body, (*loops, self._loop(node)))
        elif kind == "IfThenElse":
            self._statement(node.then_case, loops)
            if node.else_case is not None:
                self._statement(node.else_case, loops)
        elif kind == "Bind":
            self._bindings[identity(node.var)] = 0
            sources = self._data_in(node.value)
            if sources is not None:
                self._from_data[identity(node.var)] = sources
                self._derived[identity(node.var)] = node.value
        elif kind == "BufferStore":
            self._store(node, loops)
        elif kind == "Evaluate":
            self._evaluate(node.value, loops)
        elif kind in ("AllocBuffer", "DeclBuffer"):
            self._declare(node.buffer)
        elif kind == "While":
            self.notes.append(f"a while loop was taken for {UNKNOWN_EXTENT:g} iterations")
            self._statement(node.body, (*loops, _Loop(-1, UNKNOWN_EXTENT, False)))

    def _loop(self, node: Any) -> _Loop:
        extent = constant(node.extent)
        if extent is not None:
            return _Loop(identity(node.loop_var), float(extent), True)
        try:
            return _Loop(
                identity(node.loop_var), max(1.0, float(evaluate(node.extent, self._bindings))), False
            )
        except UnevaluableError as reason:
            self.notes.append(f"a loop's extent depends on {reason}: taken for {UNKNOWN_EXTENT:g} iterations")
            return _Loop(identity(node.loop_var), UNKNOWN_EXTENT, False)

    def _declare(self, buffer: Any) -> None:
        label = self._label(buffer)
        size = element_type(str(buffer.dtype)).bytes * math.prod(constant(e) or 1 for e in buffer.shape)
        if identity(buffer.data) in self._parameters:
            self.tensors[label] = Tensor(
                label, round(size), max(1, round(element_type(str(buffer.dtype)).bytes))
            )

    def _label(self, buffer: Any) -> str:
        return self._labels.setdefault(identity(buffer.data), f"t{len(self._labels)}")

    # --- one store ------------------------------------------------------------------------------------------

    def _store(self, node: Any, loops: tuple[_Loop, ...]) -> None:
        live = tuple(loop for loop in loops if loop.extent > 0)
        tile = _tile_of(live)
        outside = live[: len(live) - len(tile)]
        vector = element_type(str(node.value.dtype)).lanes
        elements = math.prod(loop.extent for loop in tile) * vector
        lanes = vector if vector > 1 else self._vector_lanes(node, tile)
        counts = {"vector_ops": 0.0, "special_ops": 0.0}
        loaded: list[Any] = []
        self._value(node.value, counts, loaded)
        loaded += self._indices((node, *loaded))
        sources = self._data_in(node.value)
        if sources is not None and identity(node.buffer.data) not in self._parameters:
            key = identity(node.buffer.data)
            self._from_data[key] = self._from_data.get(key, frozenset()) | sources
        accesses = [self._access(node.buffer, node.indices[0], vector, live, tile, lanes, write=True)]
        for load in loaded:
            accesses.append(
                self._access(
                    load.buffer,
                    load.indices[0],
                    element_type(str(load.dtype)).lanes,
                    live,
                    tile,
                    lanes,
                    write=False,
                )
            )
        vector_ops, special_ops = counts["vector_ops"] * elements, counts["special_ops"] * elements
        work = Work(accesses=tuple(accesses), vector_ops=vector_ops, special_ops=special_ops)
        self.phases.append(
            Phase(Trips((math.prod(loop.extent for loop in outside),)), work, is_loop=bool(outside))
        )

    def _evaluate(self, value: Any, loops: tuple[_Loop, ...]) -> None:
        """Add a phase for a call that is executed for its effect."""
        name = getattr(getattr(value, "op", None), "name", "")
        if not name or name == "tirx.ret":
            return
        counts = {"vector_ops": 0.0, "special_ops": 0.0}
        self._value(value, counts, [])
        trips = math.prod(loop.extent for loop in loops)
        self.phases.append(
            Phase(
                Trips((trips,)),
                Work(vector_ops=counts["vector_ops"], special_ops=counts["special_ops"]),
                is_loop=trips > 1,
            )
        )

    def _access(
        self,
        buffer: Any,
        index: Any,
        vector: int,
        loops: tuple[_Loop, ...],
        tile: tuple[_Loop, ...],
        lanes: int,
        *,
        write: bool,
    ) -> Access:
        size = element_type(str(buffer.dtype)).bytes
        sources = self._data_in(index) if identity(buffer.data) in self._parameters else None
        used = variables(index) if sources is None else sources
        distinct = math.prod(loop.extent for loop in tile if loop.variable in used) * vector
        contiguous = vector > 1 or self._stride(index, tile) == 1
        width = lanes if contiguous else 1
        levels, inside = [], distinct
        remaining = list(loops[: len(loops) - len(tile)])
        while remaining:
            levels.append((math.prod(loop.extent for loop in remaining), inside * size))
            loop = remaining.pop()
            inside *= loop.extent if loop.variable in used else 1.0
        levels.append((1.0, inside * size))
        row_bytes = 0.0 if sources is None else self._row_bytes(index, vector * size, loops)
        if row_bytes:
            self.notes.append(chosen_by_data(self._parameters[identity(buffer.data)], write=write))
        return Access(
            space=Space.GLOBAL if identity(buffer.data) in self._parameters else Space.LOCAL,
            tensor=self._label(buffer),
            write=write,
            mechanism="st" if write else "ld",
            bytes=distinct * size,
            transactions=distinct / width,
            instructions=distinct / width,
            vector_bytes=round(size * width),
            footprint_bytes=inside * size,
            row_bytes=row_bytes,
            levels=tuple(levels),
        )

    # --- addresses that depend on loaded data ---------------------------------------------------------------

    def _data_in(self, expression: Any) -> frozenset[int] | None:
        """The variables that `expression` and the loaded data in it derive from; None if no data is in it."""
        used = variables(expression)
        data = [self._from_data[v] for v in used if v in self._from_data]
        if not data and not any(identity(load.buffer.data) in self._parameters for load in loads(expression)):
            return None
        return frozenset(used).union(*data)

    def _indices(self, nodes: tuple[Any, ...]) -> list[Any]:
        """The loads of tensors in the addresses of loads and stores, one of each tensor."""
        found = [load for node in nodes for load in loads(node.indices[0])]
        return list(
            {k: load for load in found if (k := identity(load.buffer.data)) in self._parameters}.values()
        )

    def _row_bytes(self, index: Any, width: float, loops: tuple[_Loop, ...]) -> float:
        """Mean number of contiguous bytes that the innermost iterations access at each place."""
        total = math.prod(max(1, math.ceil(loop.extent)) for loop in loops)
        number, stride = np.arange(min(total, ROW_POSITIONS)), 1
        positions = {v: value for v, value in self._bindings.items() if v not in self._from_data}
        for loop in reversed(loops):
            extent = max(1, math.ceil(loop.extent))
            positions[loop.variable] = number // stride % extent
            stride *= extent
        try:
            found = evaluate(index, ArbitraryData(positions, self._derived, {}, self._from_data))
        except UnevaluableError:
            return width
        return contiguous_bytes(np.atleast_1d(found) * (width / _lanes(index)), width)

    def _vector_lanes(self, node: Any, tile: tuple[_Loop, ...]) -> int:
        """Elements that the compiler vectorises: more than 1 if the innermost loop stores contiguously."""
        if tile and tile[-1].extent > PEELED_ITERATIONS and self._stride(node.indices[0], tile) == 1:
            return int(tile[-1].extent)
        return 1

    def _stride(self, index: Any, tile: tuple[_Loop, ...]) -> int:
        """Elements by which `index` changes in one iteration of the innermost loop.

        0 if it does not depend on it.
        """
        if not tile:
            return 0
        try:
            here = evaluate(index, {**self._bindings, tile[-1].variable: 0})
            there = evaluate(index, {**self._bindings, tile[-1].variable: 1})
        except UnevaluableError:
            return 0
        return int(there - here)

    def _value(self, node: Any, counts: dict[str, float], loads: list[Any]) -> None:
        """Add the operations per element of a value to `counts`, and its loads to `loads`."""
        kind = type(node).__name__
        if kind == "BufferLoad":
            loads.append(node)
        elif kind in ("Broadcast", "Cast"):
            self._value(node.value, counts, loads)
        elif kind == "Select":
            counts["vector_ops"] += 1
            for part in (node.true_value, node.false_value):
                self._value(part, counts, loads)
        elif kind == "Call":
            self._call(node, counts, loads)
        elif hasattr(node, "a") and hasattr(node, "b"):
            fused = kind in ("Add", "Sub") and "Mul" in (type(node.a).__name__, type(node.b).__name__)
            if element_type(str(node.dtype)).kind == "float" and not fused:
                counts["vector_ops"] += 1
            self._value(node.a, counts, loads)
            self._value(node.b, counts, loads)

    def _call(self, node: Any, counts: dict[str, float], loads: list[Any]) -> None:
        name = getattr(node.op, "name", str(node.op))
        arguments = list(node.args)
        if name in ("tirx.call_extern", "tirx.call_pure_extern"):
            name = str(arguments.pop(0).value)
        if name == "tirx.if_then_else":
            counts["vector_ops"] += 1
            arguments = arguments[1:]
        elif (function := MATH_NAMES.get(name.rsplit(".", 1)[-1])) is not None:
            counts["special_ops"] += MATH[function].special
            counts["vector_ops"] += MATH[function].vector
        elif name != "tl.infinity":
            self.unknown.add(name)
            counts["vector_ops"] += UNKNOWN_OPS
        for argument in arguments:
            self._value(argument, counts, loads)


def read_nest(function: Any, target: Target) -> KernelProfile:
    """Return the profile of one function of TileLang's C backend.

    Raises `ValueError` if its shapes are not static.
    """
    scalars = [p.name for p in function.params if element_type(str(p.dtype)).kind != "handle"]
    if scalars:
        raise ValueError(
            f"extents depend on {', '.join(scalars)}, known only at run time; "
            "give the kernel static shapes to predict it"
        )
    reader = _NestReader()
    reader.read(function)
    return KernelProfile(
        kind=target.kind,
        arch=target.arch,
        grid=(1, 1, 1),
        block_threads=1,
        cluster=1,
        shared_bytes=0,
        roles=(Role("all", 1, tuple(reader.phases)),),
        tensors=tuple(reader.tensors.values()),
        unknown_calls=tuple(sorted(reader.unknown)),
        notes=tuple(dict.fromkeys(reader.notes)),
    )


def _lanes(index: Any) -> int:
    """Elements of a vector address; 1 for the address of one element."""
    return element_type(str(index.dtype)).lanes


def _tile_of(loops: tuple[_Loop, ...]) -> tuple[_Loop, ...]:
    """The innermost loops that the compiler unrolls completely: those that together are small enough."""
    tile: list[_Loop] = []
    total = 1.0
    for loop in reversed(loops):
        if not loop.is_constant or total * loop.extent > MOST_TILE_ELEMENTS:
            break
        total *= loop.extent
        tile.insert(0, loop)
    return tuple(tile)
