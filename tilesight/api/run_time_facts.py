"""What a caller states of a kernel's calls: run-time sizes, example inputs, values, a density, costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, UnknownNameError, WorkloadError
from ..problem.assignments import parse_assignments
from ..problem.run_time_data import RunTimeData, function_name
from ..problem.workload import MAX_DIMENSION

LEAST_NUMBER = -MAX_DIMENSION  # that a caller may state of one that is no size
Dims = str | Mapping[str, int]  # `m=4096,kv_len=8192`, or by name
Calls = str | Mapping[str, float]  # `decode=12,hash=40`, or by name
Inputs = Mapping[str, Any] | Sequence[Any]  # arrays by name, or the arguments of a call in order


@dataclass(frozen=True)
class RunTimeFacts:
    """What a caller states of the calls of a kernel; the arguments of `predict` of the same names."""

    dims: Dims | None = None
    inputs: Inputs | None = None
    density: float | None = None
    calls: Calls | None = None

    def __post_init__(self) -> None:
        density = self.density
        if density is not None and not (isinstance(density, int | float) and 0 <= density <= 1):
            raise InputError(
                f"density={density} must be a number in 0 .. 1: the share of the data-dependent branches "
                "that are taken"
            )

    def costs(self, name: str, called: Sequence[str]) -> dict[str, float]:
        """The stated costs of calls of device functions, by name.

        Args:
            name: Of the kernel, for messages.
            called: Names of the device functions that it calls.

        Raises:
            InputError: A cost is no number from 0 on, or the kernel does not call the function.
        """
        given = parse_assignments(self.calls, "calls") if isinstance(self.calls, str) else self.calls or {}
        costs = {}
        for function, cost in given.items():
            if function not in called:
                raise UnknownNameError(f"device function that {name} calls", function, called)
            try:
                costs[function] = float(cost)
            except ValueError:
                costs[function] = math.nan
            if not 0 <= costs[function] < math.inf:
                raise InputError(
                    f"calls: {function}={cost} must be a number from 0 on: operations per thread"
                )
        return costs


@dataclass(frozen=True)
class CallFacts:
    """The same for one kernel, checked: values of its run-time sizes, and what is known of its data."""

    sizes: Mapping[str, int]
    data: RunTimeData


def facts_of_call(
    name: str, prim_func: Any, needed: Collection[str], variables: Sequence[str], facts: RunTimeFacts
) -> CallFacts:
    """Check what a caller states of a kernel.

    A stride that no input tells is that of a contiguous tensor.

    Args:
        name: Of the kernel, for messages.
        prim_func: The kernel.
        needed: Names of the run-time sizes that its work depends on.
        variables: Names of the kernel's local variables, whose values may be stated as well.
        facts: What the caller states.

    Raises:
        InputError: A size is missing or contradicts an input, an input has another shape or type than the
            kernel declares, or a name is unknown.
    """
    from ..lowering.dynamic import loop_bounds, runtime_sizes, tensor_sizes

    wanted = [str(size.name) for size in runtime_sizes(prim_func)]
    given = parse_assignments(facts.dims, "dims") if isinstance(facts.dims, str) else dict(facts.dims or {})
    for dim in given:
        if dim not in wanted and dim not in variables:
            raise UnknownNameError(f"run-time size or variable of {name}", dim, [*wanted, *variables])
    # a number that is no size, such as an offset, a rank, or a mark of an empty slot, may be 0 or negative
    least = dict.fromkeys(loop_bounds(prim_func), 0) | dict.fromkeys(tensor_sizes(prim_func), 1)
    stated = {dim: _whole(name, dim, value, least.get(dim, LEAST_NUMBER)) for dim, value in given.items()}
    sizes = {dim: value for dim, value in stated.items() if dim in wanted}
    contents: dict[str, NDArray[Any]] = {}
    inputs: dict[str, Any] = {}
    for parameter, value in _by_parameter(name, prim_func, facts.inputs):
        buffer = prim_func.buffer_map.get(parameter)
        if buffer is None:
            if (dim := str(parameter.name)) in wanted:
                _agree(name, sizes, dim, _whole(name, dim, value, least.get(dim, LEAST_NUMBER)))
            continue
        tensor = str(buffer.data.name)
        _read_shape(name, tensor, buffer, tuple(map(int, np.shape(value))), sizes)
        _read_strides(name, buffer, value, sizes)
        if (content := _integers(name, tensor, str(buffer.dtype), value)) is not None:
            contents[tensor] = content
        inputs[tensor] = value
    for buffer in prim_func.buffer_map.values():
        _fill_strides(buffer, sizes)
    missing = [size for size in wanted if size not in sizes and size in needed]
    if missing:
        raise InputError(
            f"{name} takes {', '.join(missing)} at run time; give the sizes to predict for: "
            f"dims='{','.join(f'{size}=4096' for size in missing)}' or example inputs, or --dims on the "
            "command line"
        )
    values = {dim: value for dim, value in stated.items() if dim not in wanted}
    costs = facts.costs(name, called_functions(prim_func)) if facts.calls else {}
    return CallFacts(sizes, RunTimeData(contents, values, facts.density, costs, inputs))


def called_functions(prim_func: Any) -> list[str]:
    """Names of the device functions that a kernel calls by `T.call_extern`."""
    from tvm.tirx.stmt_functor import post_order_visit

    found: dict[str, None] = {}

    def look(node: Any) -> None:
        if getattr(getattr(node, "op", None), "name", "") in ("tirx.call_extern", "tirx.call_pure_extern"):
            found[function_name(str(getattr(node.args[0], "value", node.args[0])))] = None

    post_order_visit(prim_func.body, look)
    return list(found)


def _by_parameter(name: str, prim_func: Any, inputs: Inputs | None) -> Iterator[tuple[Any, Any]]:
    """(parameter, its example) of each input that is given."""
    parameters = list(prim_func.params)
    if inputs is None:
        return
    if not isinstance(inputs, Mapping):
        if len(inputs) > len(parameters):
            raise InputError(
                f"{name} takes {len(parameters)} arguments, but inputs has {len(inputs)}; give them by name"
            )
        yield from ((p, v) for p, v in zip(parameters, inputs, strict=False) if v is not None)
        return
    named = {_name(prim_func, parameter): parameter for parameter in parameters}
    for given, value in inputs.items():
        if given not in named:
            raise UnknownNameError(f"argument of {name}", given, list(named))
        yield named[given], value


def _name(prim_func: Any, parameter: Any) -> str:
    buffer = prim_func.buffer_map.get(parameter)
    return str(parameter.name if buffer is None else buffer.name)


def _read_shape(name: str, tensor: str, buffer: Any, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Compare the shape of an input with that of its parameter, and take over the sizes that it gives."""
    from tvm import tirx

    declared = [
        int(extent.value) if isinstance(extent, tirx.IntImm) else str(extent) for extent in buffer.shape
    ]
    fits = len(shape) == len(declared) and all(
        isinstance(wanted, str) or wanted == actual for wanted, actual in zip(declared, shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"{name}: input {tensor} has the shape ({', '.join(map(str, shape))}), but the kernel takes "
            f"({', '.join(map(str, declared))})"
        )
    for extent, actual in zip(buffer.shape, shape, strict=True):
        if isinstance(extent, tirx.Var):
            _agree(name, sizes, str(extent.name), actual)


def _read_strides(name: str, buffer: Any, value: Any, sizes: dict[str, int]) -> None:
    """Take over the sizes that the strides of an input give."""
    from tvm import tirx

    if not any(isinstance(stride, tirx.Var) for stride in buffer.strides):
        return
    if callable(getattr(value, "stride", None)):  # a tensor of torch counts elements
        strides = value.stride()
    else:
        strides = [step // np.asarray(value).itemsize for step in np.asarray(value).strides]
    for stride, actual in zip(buffer.strides, strides, strict=True):
        if isinstance(stride, tirx.Var):
            _agree(name, sizes, str(stride.name), int(actual))


def _fill_strides(buffer: Any, sizes: dict[str, int]) -> None:
    """Add the strides of a contiguous tensor that no input tells, as far as its shape is known."""
    from tvm import tirx

    step = 1
    for extent, stride in reversed(list(zip(buffer.shape, buffer.strides, strict=False))):
        if isinstance(stride, tirx.Var):
            sizes.setdefault(str(stride.name), step)
        known = (
            sizes.get(str(extent.name)) if isinstance(extent, tirx.Var) else getattr(extent, "value", None)
        )
        if known is None:
            return
        step *= int(known)


def _agree(name: str, sizes: dict[str, int], dim: str, value: int) -> None:
    if sizes.setdefault(dim, value) != value:
        raise InputError(f"{name}: {dim}={sizes[dim]} contradicts {dim}={value} of another input or of dims")


def _integers(name: str, tensor: str, dtype: str, value: Any) -> NDArray[Any] | None:
    """The contents of an integer or bool tensor; None for others."""
    if not dtype.startswith(("int", "uint", "bool")) or dtype.startswith(("int4", "uint4")):
        return None
    host = value.detach().cpu() if hasattr(value, "detach") else value
    found = np.asarray(host)
    if found.dtype.kind not in "iub":
        raise InputError(f"{name}: input {tensor} must be {dtype}, not {found.dtype}")
    return found


def _whole(name: str, dim: str, value: Any, least: int) -> int:
    digits = str(value).removeprefix("-")
    if isinstance(value, bool) or not digits.isdecimal() or not least <= int(value) <= MAX_DIMENSION:
        raise WorkloadError(f"{name}: {dim}={value} must be a whole number in {least} .. {MAX_DIMENSION}")
    return int(value)
