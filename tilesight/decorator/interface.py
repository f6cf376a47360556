"""The tensors that a traced kernel takes: which ones it reads, writes and returns."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from ..problem.template import NUMBER_FORMATS, RunTimeNumber


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """One argument that is a tensor. `shape` in elements; `dtype` is torch's name, `kind` TileLang's.

    `axes`: for each axis the name of its size if that is known at run time only, else "". `shape` has the
    size at which the kernel is measured. `place`: among the kernel's arguments.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    is_read: bool
    is_written: bool
    is_result: bool  # allocated and returned by the call (`out_idx`); the caller gives the others
    axes: tuple[str, ...] = ()
    place: int = 0

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def is_open(self) -> bool:
        """Whether a size is known at run time only."""
        return any(self.axes)

    @property
    def label(self) -> str:
        """Its type, with the names of sizes that are known at run time only."""
        axes = self.axes or ("",) * len(self.shape)
        extents = [name or str(size) for name, size in zip(axes, self.shape, strict=True)]
        return f"{self.dtype}[{', '.join(extents)}]"


@dataclass(frozen=True, slots=True)
class Interface:
    """The arguments of one kernel, in its own order.

    `sizes` are known at run time only, with the values at which the kernel is measured; so are `numbers`,
    whose places among the arguments are `number_places`.
    """

    tensors: tuple[TensorArgument, ...]
    accumulates: bool  # with atomics: in an order that differs from run to run
    sizes: tuple[tuple[str, int], ...] = ()
    numbers: tuple[RunTimeNumber, ...] = ()
    number_places: tuple[int, ...] = ()

    @property
    def inputs(self) -> tuple[TensorArgument, ...]:
        return tuple(t for t in self.tensors if not (t.is_written or t.is_result))

    @property
    def outputs(self) -> tuple[TensorArgument, ...]:
        return tuple(t for t in self.tensors if t.is_written or t.is_result)

    @property
    def given(self) -> tuple[TensorArgument, ...]:
        """The tensors that a caller gives, in order."""
        return tuple(t for t in self.tensors if not t.is_result)

    @property
    def given_arguments(self) -> tuple[TensorArgument | RunTimeNumber, ...]:
        """What a caller gives, tensors and numbers, in order."""
        placed: list[tuple[int, TensorArgument | RunTimeNumber]] = [(t.place, t) for t in self.given]
        placed += zip(self.number_places, self.numbers, strict=True)
        return tuple(argument for _, argument in sorted(placed, key=lambda pair: pair[0]))

    @property
    def results(self) -> tuple[TensorArgument, ...]:
        """The tensors to check: those that are returned, else all that are written."""
        return tuple(t for t in self.tensors if t.is_result) or self.outputs

    @property
    def presets(self) -> tuple[TensorArgument, ...]:
        """The caller's tensors that the kernel updates: it may read them before it writes them."""
        return tuple(t for t in self.outputs if t.is_read and not t.is_result)

    def difference(self, other: Interface) -> str:
        """The first difference, in words; "" if the same call fits both."""
        if len(self.tensors) != len(other.tensors):
            return f"it takes {len(other.tensors)} tensors, not {len(self.tensors)}"
        for ours, theirs in zip(self.tensors, other.tensors, strict=True):
            if (ours.label, ours.is_result) != (theirs.label, theirs.is_result):
                return f"its '{theirs.name}' is {theirs.label}, not {ours.label}"
        if (self.numbers, self.number_places) != (other.numbers, other.number_places):
            return "it takes other numbers"
        return ""


def read_interface(
    prim_func: Any,
    out_idx: Sequence[int] | int | None,
    subject: str,
    values: Mapping[str, int | float] | None = None,
) -> Interface:
    """The interface of a traced kernel.

    Args:
        prim_func: its IR.
        out_idx: places of the arguments that its call returns.
        subject: its name, for messages.
        values: sizes and numbers that it takes at run time, at which it is measured; see `run_time_values`.

    Raises:
        InputError: it cannot be measured: the value of a size or number is missing, or a size is neither a
            number nor a name.
    """
    from tilelang import language as tl

    results = result_places(prim_func, out_idx, subject)
    uses = _uses(prim_func)
    tensors: list[TensorArgument] = []
    numbers: dict[int, RunTimeNumber] = {}
    for place, parameter in enumerate(prim_func.params):
        if parameter not in prim_func.buffer_map:
            numbers[place] = _number(parameter, subject, values or {})
            continue
        buffer = prim_func.buffer_map[parameter]
        name = str(buffer.name)
        axes = axis_names(buffer, subject)
        shape = tuple(
            _value(axis, f"'{name}' has the shape {_extents(buffer)}", subject, values or {})
            if axis
            else int(extent)
            for axis, extent in zip(axes, buffer.shape, strict=True)
        )
        _check_compact(buffer, subject)
        reads, writes = uses[place]
        dtype = _torch_name(tl, buffer.dtype, subject, name)
        unique = name if name not in [t.name for t in tensors] else f"{name}_{place}"
        tensors.append(
            TensorArgument(
                unique, shape, dtype, str(buffer.dtype), reads, writes, place in results, axes, place
            )
        )
    sizes = {axis: size for t in tensors for axis, size in zip(t.axes, t.shape, strict=True) if axis}
    interface = Interface(
        tuple(tensors),
        "atomic" in str(prim_func.script()),
        tuple(sizes.items()),
        tuple(numbers.values()),
        tuple(numbers),
    )
    if not interface.outputs:
        raise InputError(
            f"{subject}: its kernel writes to none of its arguments; there is nothing to compute"
        )
    return interface


def axis_names(buffer: Any, subject: str) -> tuple[str, ...]:
    """For each axis the name of its size if that is known at run time only, else "".

    Raises:
        InputError: a size is an expression.
    """
    from tvm import tirx

    for extent in buffer.shape:
        if not isinstance(extent, tirx.IntImm | tirx.Var):
            raise InputError(
                f"{subject}: '{buffer.name}' has the shape {_extents(buffer)}, and '{extent}' is neither a "
                "number nor the name of a size; give it a name of its own: T.dynamic(...)"
            )
    return tuple("" if isinstance(extent, tirx.IntImm) else str(extent.name) for extent in buffer.shape)


def result_places(prim_func: Any, out_idx: Sequence[int] | int | None, subject: str) -> tuple[int, ...]:
    """Places of the arguments that the kernel's call returns. Raises `InputError` for a wrong place."""
    own = (prim_func.attrs or {}).get("tilelang_out_idx")
    wanted = list(own) if own is not None else [out_idx] if isinstance(out_idx, int) else list(out_idx or ())
    count = len(prim_func.params)
    for index in wanted:
        if not -count <= int(index) < count:
            raise InputError(
                f"{subject}: out_idx={int(index)} is no argument of its kernel, which has {count}"
            )
    return tuple(sorted({int(index) % count for index in wanted}))


def inputs_first(prim_func: Any, interface: Interface) -> Any:
    """The same function with inputs, outputs and numbers in this order, in which built kernels take them."""
    from tvm import tirx

    order = [t.place for t in (*interface.inputs, *interface.outputs)] + [*interface.number_places]
    if order == list(range(len(order))):
        return prim_func
    parameters = [prim_func.params[place] for place in order]
    return tirx.PrimFunc(
        parameters, prim_func.body, prim_func.ret_type, prim_func.buffer_map, prim_func.attrs
    )


def _number(parameter: Any, subject: str, values: Mapping[str, int | float]) -> RunTimeNumber:
    name, dtype = str(parameter.name), str(parameter.dtype)
    if dtype not in NUMBER_FORMATS:
        raise InputError(
            f"{subject}: argument '{name}' is a {dtype}; autotune takes numbers of "
            f"{', '.join(NUMBER_FORMATS)}. Make it an argument of the Python function, or a tensor"
        )
    value = _value(name, f"argument '{name}' is a number", subject, values)
    made = RunTimeNumber(name, dtype, float(value) if dtype.startswith("float") else int(value))
    try:
        made.slot  # noqa: B018
    except struct.error as error:
        raise InputError(f"{subject}: {name}={value} is no {dtype}: {error}") from None
    return made


def _value(name: str, fact: str, subject: str, values: Mapping[str, int | float]) -> Any:
    if name not in values:
        raise InputError(
            f"{subject}: {fact}, and {name} is known at run time only; give the value at which it is "
            f"measured: autotune(measured_at={{'{name}': ...}}), or tensors in `with "
            "tilelang.autotuner.set_autotune_inputs(...)`"
        )
    return values[name]


def _extents(buffer: Any) -> str:
    return f"[{', '.join(map(str, buffer.shape))}]"


def _check_compact(buffer: Any, subject: str) -> None:
    from tvm import arith

    if not buffer.strides:
        return
    analyzer, expected = arith.Analyzer(), [1]
    for extent in list(buffer.shape)[:0:-1]:
        expected.insert(0, expected[0] * extent)
    if not all(analyzer.can_prove_equal(a, b) for a, b in zip(buffer.strides, expected, strict=True)):
        raise InputError(
            f"{subject}: '{buffer.name}' has strides, and autotune measures contiguous tensors only"
        )


def _torch_name(tl: Any, dtype: Any, subject: str, name: str) -> str:
    try:
        found = tl.dtype(dtype).as_torch()
    except Exception as error:  # TileLang may raise anything
        raise InputError(f"{subject}: '{name}' is {dtype}, which torch has not") from error
    if found.itemsize * 8 != int(dtype.bits) * int(dtype.lanes):
        raise InputError(
            f"{subject}: '{name}' is {dtype}, of which torch holds several in one element; autotune cannot "
            "draw its values"
        )
    return str(found).removeprefix("torch.")


def _uses(prim_func: Any) -> list[tuple[bool, bool]]:
    """(is read, is written) of each argument, by the uses of its memory; both if a use is not clear."""
    from tvm import tirx

    places = {
        place: prim_func.buffer_map[p].data
        for place, p in enumerate(prim_func.params)
        if p in prim_func.buffer_map
    }
    reads, writes, loads, known = (dict.fromkeys(range(len(prim_func.params)), 0) for _ in range(4))

    def place_of(variable: Any) -> int | None:
        return next((place for place, data in places.items() if variable.same_as(data)), None)

    def visit(node: Any) -> None:
        if isinstance(node, tirx.BufferStore) and (place := place_of(node.buffer.data)) is not None:
            writes[place] += 1
        elif isinstance(node, tirx.BufferLoad) and (place := place_of(node.buffer.data)) is not None:
            loads[place] += 1
        elif isinstance(node, tirx.Call):
            call(node, str(getattr(node.op, "name", "")))

    def call(node: Any, name: str) -> None:
        atomic = "atomic" in name
        for position, argument in enumerate(node.args):
            if isinstance(argument, tirx.Var) and (place := place_of(argument)) is not None:
                mask = (
                    _mask(node.args[4])
                    if name == "tirx.tvm_access_ptr" and position == 1 and len(node.args) > 4
                    else 3
                )
                reads[place] += mask & 1
                writes[place] += mask & 2
            elif (
                isinstance(argument, tirx.BufferLoad)
                and (place := place_of(argument.buffer.data)) is not None
            ):
                masked = {"tl.region": 1, "tl.access_ptr": 2}.get(name)
                if masked is None and name not in ("tirx.address_of", "tl.address_of"):
                    continue  # an ordinary value
                mask = _mask(node.args[masked]) if masked is not None and position == 0 else 3
                known[place] += 1  # the load names the beginning of a region
                reads[place] += mask & 1
                writes[place] += mask & 2
            elif atomic and isinstance(argument, tirx.Call):
                for inner in argument.args[:1]:
                    if (
                        isinstance(inner, tirx.BufferLoad)
                        and (place := place_of(inner.buffer.data)) is not None
                        and writes[place]
                    ):
                        reads[place] += 1  # it adds to the old value

    tirx.stmt_functor.post_order_visit(prim_func.body, visit)
    return [(bool(reads[i] or loads[i] > known[i]), bool(writes[i])) for i in range(len(prim_func.params))]


def _mask(value: Any) -> int:
    """Bits of an access: 1 reads, 2 writes."""
    found = int(getattr(value, "value", 3))
    return found if found in (1, 2, 3) else 3
