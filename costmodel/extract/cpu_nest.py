"""Reads the profile of a CPU kernel: a nest of loops around stores, without threads.

Each store becomes a phase. Its innermost loops with small constant extents are its tile: the work of the
phase is that of one tile, and its trips are the executions of the tile. `cpu_code.py` decides what the C
compiler makes of the loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from ...profile.values import Access, KernelProfile, Phase, Role, Space, Tensor, Trips, Work
from ...target.spec import Target
from .cpu_code import Address, Code, CpuLoop, code_of, executions
from .element_types import element_type
from .expressions import (
    ArbitraryData,
    UnevaluableError,
    call_name,
    constant,
    evaluate,
    identity,
    loads,
    variables,
)
from .mathematics import MATH, MATH_NAMES
from .memory import chosen_by_data
from .patterns import contiguous_bytes

UNKNOWN_EXTENT = 8.0
UNKNOWN_OPS = 64.0
ROW_POSITIONS = 4096  # innermost iterations in which the rows that data chooses are looked for
# gcc unrolls a loop around the innermost one and joins the copies: they load what they share once
JAMMED_ITERATIONS = 2.0
STREAM_ELEMENTS = 8.0  # of one vector on most machines
MOST_SAMPLED_ITERATIONS = 32  # of each loop, to find the mean extent of loops in it


# Calls of the C library, counted in calls of expf: measured with glibc on a Zen 5 core.
LIBRARY_CALLS = {
    **{
        "exp": 1.0,
        "exp2": 0.9,
        "exp10": 1.3,
        "log": 1.1,
        "log2": 1.0,
        "log10": 1.5,
        "log1p": 2.0,
        "pow": 3.0,
    },
    **{"sin": 1.3, "cos": 1.3, "tan": 3.0, "atan": 2.0, "tanh": 4.7, "sigmoid": 1.3, "erf": 2.0},
    **{"sqrt": 0.4, "rsqrt": 0.5},
}


@dataclass
class _Value:
    """What one element of a stored value takes."""

    vector_ops: float = 0.0
    library_calls: float = 0.0
    loads: list[Any] = field(default_factory=list)


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
    _extents: dict[int, float] = field(default_factory=dict)  # of the loops, by their variables
    _parameters: dict[int, str] = field(default_factory=dict)  # names by identity
    # by variable or local buffer with data as its value: the variables that this data derives from
    _from_data: dict[int, frozenset[int]] = field(default_factory=dict)
    _derived: dict[int, Any] = field(default_factory=dict)  # expressions of these variables

    def read(self, function: Any) -> None:
        self._parameters = {identity(p): p.name for p in function.params}
        self._statement(function.body, ())

    def _statement(self, node: Any, loops: tuple[CpuLoop, ...]) -> None:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for part in node.seq:
                self._statement(part, loops)
        elif kind == "AttrStmt":
            self._statement(node.body, loops)
        elif kind == "For":
            loop = self._loop(node)
            self._bindings[loop.variable] = 0
            self._extents[loop.variable] = loop.extent
            self._statement(node.body, (*loops, loop))
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
            self._statement(node.body, (*loops, CpuLoop(-1, UNKNOWN_EXTENT, False)))

    def _loop(self, node: Any) -> CpuLoop:
        extent = constant(node.extent)
        if extent is not None:
            return CpuLoop(identity(node.loop_var), float(extent), True)
        try:
            return CpuLoop(identity(node.loop_var), self._mean_extent(node.extent), False)
        except UnevaluableError as reason:
            self.notes.append(f"a loop's extent depends on {reason}: taken for {UNKNOWN_EXTENT:g} iterations")
            return CpuLoop(identity(node.loop_var), UNKNOWN_EXTENT, False)

    def _mean_extent(self, extent: Any) -> float:
        """The mean of an extent over the loops that it depends on: the last block of a tensor may be a
        partial one."""
        around = [variable for variable in self._extents if variable in variables(extent)]
        counts = [max(1, min(MOST_SAMPLED_ITERATIONS, round(self._extents[variable]))) for variable in around]
        found = []
        for turn in product(*(range(count) for count in counts)):
            places = {
                variable: place * round(self._extents[variable]) // count
                for variable, place, count in zip(around, turn, counts, strict=True)
            }
            found.append(max(0.0, float(evaluate(extent, {**self._bindings, **places}))))
        return sum(found) / len(found)

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

    def _store(self, node: Any, around: tuple[CpuLoop, ...]) -> None:
        loops = tuple(loop for loop in around if loop.extent > 1)
        lanes = element_type(str(node.value.dtype)).lanes
        value = _Value()
        self._value(node.value, value)
        value.loads += self._indices((node, *value.loads))
        self._note_data(node)
        store = self._address(node.buffer, node.indices[0], lanes, loops)
        loads = [
            self._address(load.buffer, load.indices[0], element_type(str(load.dtype)).lanes, loops)
            for load in value.loads
        ]
        code = code_of(
            loops,
            store,
            loads,
            accumulates=any(
                load.buffer.data.same_as(node.buffer.data) and address == store
                for load, address in zip(value.loads, loads, strict=True)
            ),
            operations=value.vector_ops,
            calls_library=value.library_calls > 0,
        )
        tile = loops[len(loops) - code.tile :]
        elements = executions(tile) * lanes
        entries = _loop_entries(loops, tile, code)
        accesses = [self._access(node.buffer, store, loops, code, write=True)]
        accesses += [
            self._access(load.buffer, address, loops, code, write=False)
            for load, address in zip(value.loads, loads, strict=True)
        ]
        work = Work(
            accesses=tuple(accesses),
            vector_ops=value.vector_ops * elements,
            special_ops=value.library_calls * elements,
            chained_ops=elements if code.chained else 0.0,
            loop_entries=entries,
        )
        outside = loops[: len(loops) - len(tile)]
        self.phases.append(Phase(Trips((executions(outside),)), work, is_loop=bool(outside)))

    def _evaluate(self, value: Any, loops: tuple[CpuLoop, ...]) -> None:
        """Add a phase for a call that is executed for its effect."""
        name = call_name(value)
        if not name or name == "tirx.ret":
            return
        found = _Value()
        self._value(value, found)
        trips = executions(loops)
        self.phases.append(
            Phase(
                Trips((trips,)),
                Work(vector_ops=found.vector_ops, special_ops=found.library_calls),
                is_loop=trips > 1,
            )
        )

    def _address(self, buffer: Any, index: Any, vector: int, loops: tuple[CpuLoop, ...]) -> Address:
        size = element_type(str(buffer.dtype)).bytes
        row_bytes, chosen = 0.0, frozenset[int]()
        values: Callable[[dict[int, Any]], dict[int, Any]] = dict
        if identity(buffer.data) in self._parameters and self._data_in(index) is not None:
            row_bytes, chosen = self._row_bytes(index, vector * size, loops), self._behind_data(index)
            values = self._with_data
        strides = tuple(None if x.variable in chosen else self._stride(index, x, values) for x in loops)
        try:
            first = int(evaluate(index, self._bindings))
        except UnevaluableError:
            first = -1
        return Address(strides, size, vector, first, row_bytes)

    def _stride(self, index: Any, loop: CpuLoop, values: Callable[[dict[int, Any]], dict[int, Any]]) -> int:
        """Elements by which `index` changes in one iteration of `loop`; 0 if that is not known.

        `values` makes the bindings of an evaluation from those of the variables.
        """
        if loop.variable not in variables(index):
            return 0
        try:
            here, there = (
                evaluate(index, values({**self._bindings, loop.variable: place})) for place in (0, 1)
            )
        except UnevaluableError:
            return 0
        return int(there - here)

    def _behind_data(self, index: Any) -> frozenset[int]:
        """The variables that the loaded data in `index` depends on."""
        read = loads(index)
        sources = [*variables(index), *(identity(load.buffer.data) for load in read)]
        direct = (variables(load.indices[0]) for load in read)
        return frozenset().union(*direct, *(self._from_data.get(source, ()) for source in sources))

    def _with_data(self, bindings: dict[int, Any]) -> ArbitraryData:
        known = {variable: value for variable, value in bindings.items() if variable not in self._from_data}
        return ArbitraryData(known, self._derived, {}, self._from_data)

    def _access(
        self, buffer: Any, address: Address, loops: tuple[CpuLoop, ...], code: Code, *, write: bool
    ) -> Access:
        first = len(loops) - code.tile
        tile = loops[first:]
        stride = address.strides[code.inner] if code.inner is not None else 0
        width = address.vector if address.vector > 1 else code.lanes if stride == 1 else 1.0
        # what does not change in the innermost loop is loaded before it, or stored after it
        is_invariant = code.inner is not None and stride == 0 and code.inner >= first
        count = executions(tile) / (
            loops[code.inner].extent if is_invariant and code.inner is not None else 1.0
        )
        around = None if code.inner is None else code.inner - 1
        if around is not None and around >= first and address.strides[around] == 0 and stride:
            count /= min(JAMMED_ITERATIONS, loops[around].extent)
        depths = range(first, -1, -1)
        lines = [address.lines(loops[depth:]) for depth in depths]
        levels = tuple(
            (executions(loops[:depth]), size) for depth, (size, _) in zip(depths, lines, strict=True)
        )
        gaps = tuple(gap for _, gap in lines)
        if address.row_bytes:
            self.notes.append(chosen_by_data(self._parameters[identity(buffer.data)], write=write))
        return Access(
            space=Space.GLOBAL if identity(buffer.data) in self._parameters else Space.LOCAL,
            tensor=self._label(buffer),
            write=write,
            mechanism="st" if write else "ld",
            bytes=levels[0][1],
            transactions=count * address.vector,
            instructions=count * address.vector / width,
            vector_bytes=round(address.element_bytes * width),
            footprint_bytes=levels[-1][1],
            row_bytes=address.row_bytes,
            levels=levels,
            gaps=gaps if any(gaps) else (),
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

    def _row_bytes(self, index: Any, width: float, loops: tuple[CpuLoop, ...]) -> float:
        """Mean number of contiguous bytes that the innermost iterations access at each place."""
        total = math.prod(max(1, math.ceil(loop.extent)) for loop in loops)
        number, stride = np.arange(min(total, ROW_POSITIONS)), 1
        positions = dict(self._bindings)
        for loop in reversed(loops):
            extent = max(1, math.ceil(loop.extent))
            positions[loop.variable] = number // stride % extent
            stride *= extent
        try:
            found = evaluate(index, self._with_data(positions))
        except UnevaluableError:
            return width
        return contiguous_bytes(np.atleast_1d(found) * (width / _lanes(index)), width)

    def _note_data(self, store: Any) -> None:
        """Remember the variables that data derives from, which a store puts into a local buffer."""
        sources, key = self._data_in(store.value), identity(store.buffer.data)
        if sources is not None and key not in self._parameters:
            self._from_data[key] = self._from_data.get(key, frozenset()) | sources

    def _value(self, node: Any, found: _Value) -> None:
        """Add the work of an element of a value to `found`."""
        kind = type(node).__name__
        if kind == "BufferLoad":
            found.loads.append(node)
        elif kind in ("Broadcast", "Cast"):
            self._value(node.value, found)
        elif kind == "Select":
            found.vector_ops += 1
            for part in (node.true_value, node.false_value):
                self._value(part, found)
        elif kind == "Call":
            self._call(node, found)
        elif hasattr(node, "a") and hasattr(node, "b"):
            fused = kind in ("Add", "Sub") and "Mul" in (type(node.a).__name__, type(node.b).__name__)
            if element_type(str(node.dtype)).kind == "float" and not fused:
                found.vector_ops += 1
            self._value(node.a, found)
            self._value(node.b, found)

    def _call(self, node: Any, found: _Value) -> None:
        name = getattr(node.op, "name", str(node.op))
        arguments = list(node.args)
        if name in ("tirx.call_extern", "tirx.call_pure_extern"):
            name = str(arguments.pop(0).value)
        if name == "tirx.if_then_else":
            found.vector_ops += 1
            arguments = arguments[1:]
        elif (function := MATH_NAMES.get(name.rsplit(".", 1)[-1])) is not None:
            calls = LIBRARY_CALLS.get(function, 0.0)
            found.library_calls += calls
            found.vector_ops += 0.0 if calls else MATH[function].vector
        elif name != "tl.infinity":
            self.unknown.add(name)
            found.vector_ops += UNKNOWN_OPS
        for argument in arguments:
            self._value(argument, found)


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


def _loop_entries(loops: tuple[CpuLoop, ...], tile: tuple[CpuLoop, ...], code: Code) -> float:
    """How often the innermost loop begins in one execution of a tile.

    Where the loop around an unrolled one became vectors, each of these walks along another stream.
    """
    first = len(loops) - len(tile)
    if code.inner is None or code.inner < first:
        return 0.0
    if code.inner < len(loops) - 1:
        return executions(tile) / STREAM_ELEMENTS
    return executions(tile[: code.inner - first])


def _lanes(index: Any) -> int:
    """Elements of a vector address; 1 for the address of one element."""
    return element_type(str(index.dtype)).lanes
