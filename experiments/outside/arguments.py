"""Arguments of a kernel from its function and its calls: sizes known at run time, shapes, integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from corpus import Argument


class NotCapturedError(Exception):
    """Why a kernel or a call is left out."""


def sizes_of(prim_func: Any, values: Sequence[Any]) -> dict[str, int]:
    """Values of the variables in a function's shapes and strides, from its arguments."""
    from tvm import tirx

    found: dict[str, int] = {}
    for parameter, value in zip(prim_func.params, values, strict=True):
        buffer = prim_func.buffer_map.get(parameter)
        if buffer is None:
            if value is not None and "int" in str(parameter.dtype):
                found[str(parameter.name)] = int(value)
            continue
        if value is None or not hasattr(value, "shape"):
            continue
        pairs = chain(
            zip(buffer.shape, value.shape, strict=False), zip(buffer.strides, value.stride(), strict=False)
        )
        for extent, actual in pairs:
            if isinstance(extent, tirx.Var):
                found.setdefault(str(extent.name), int(actual))
    return found


def shape_at(shape: Sequence[Any], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape with values for its variables. Raises `NotCapturedError`."""
    from tvm import arith, tirx

    found = []
    for extent in shape:
        if isinstance(extent, tirx.IntImm):
            found.append(int(extent.value))
            continue
        variables = _variables(extent)
        missing = [v.name for v in variables if str(v.name) not in sizes]
        if missing:
            raise NotCapturedError("a size is only known at run time, and no call gives it")
        put = {v: tirx.IntImm(v.dtype, sizes[str(v.name)]) for v in variables}
        found.append(int(arith.Analyzer().simplify(tirx.stmt_functor.substitute(extent, put)).value))
    return tuple(found)


def declared(
    prim_func: Any, sizes: Mapping[str, int], known: Sequence[Argument] = ()
) -> tuple[Argument, ...]:
    """Arguments of the shapes that a function declares. Integers that it reads must be narrow."""
    found = []
    numbers = {argument.name: argument for argument in known if argument.shape is None}
    outputs = set(map(int, (prim_func.attrs or {}).get("tilelang_out_idx", ())))
    for index, parameter in enumerate(prim_func.params):
        buffer = prim_func.buffer_map.get(parameter)
        if buffer is None:
            if str(parameter.name) not in numbers:
                raise NotCapturedError("a number is missing")
            found.append(numbers[str(parameter.name)])
            continue
        dtype, shape = str(buffer.dtype), shape_at(buffer.shape, sizes)
        wide = any(word in dtype for word in ("int16", "int32", "int64", "bool"))
        if wide and index not in outputs and not _writes(prim_func, buffer):
            raise NotCapturedError("integers are not known without a call")
        found.append(Argument(str(parameter.name), dtype, shape))
    return tuple(found)


def fit(prim_func: Any, arguments: Sequence[Argument], sizes: Mapping[str, int]) -> tuple[Argument, ...]:
    """Arguments of a call for another config of its kernel. Tensors without content may change shape."""
    if len(prim_func.params) != len(arguments):
        raise NotCapturedError("another config takes other arguments")
    found = []
    for parameter, argument in zip(prim_func.params, arguments, strict=True):
        buffer = prim_func.buffer_map.get(parameter)
        if buffer is not None:
            shape = shape_at(buffer.shape, sizes)
            if shape != argument.shape:
                if argument.content:
                    raise NotCapturedError("another config takes other integers")
                argument = replace(argument, shape=shape, strides=None)
        found.append(argument)
    return tuple(found)


def torch_dtype(name: str) -> Any:
    """torch's type of a type that TVM names; for types that torch lacks, bytes."""
    import torch

    renamed = name.replace("float8_e4m3", "float8_e4m3fn").replace("fnfn", "fn")
    return getattr(torch, renamed, torch.uint8)


def _variables(expression: Any) -> list[Any]:
    from tvm import tirx

    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.Var):
            found.append(node)

    tirx.stmt_functor.post_order_visit(expression, visit)
    return found


def _writes(prim_func: Any, buffer: Any) -> bool:
    """Whether a function stores to a tensor of its own, as far as stores show it."""
    from tvm import tirx

    seen = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.BufferStore) and node.buffer.data.same_as(buffer.data):
            seen.append(node)

    tirx.stmt_functor.post_order_visit(prim_func.body, visit)
    return bool(seen)
