"""Computes the functions that a kernel calls, for all threads of some blocks at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .counting import text
from .exchange_calls import REDUCTION
from .expressions import EXTERN, UnevaluableError, call_name, function_of, is_choice

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "log", "log2", "log10", "log1p", "sqrt", "cbrt")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "hypot")},
    **{name: getattr(np, name) for name in ("fabs", "floor", "ceil", "trunc", "isnan", "isinf", "isfinite")},
    **{name: getattr(np, name) for name in ("fmod", "copysign", "fmin", "fmax")},
    **{"abs": np.abs, "nearbyint": np.rint, "rint": np.rint, "pow": np.power},
    **{"atan": np.arctan, "atan2": np.arctan2, "asin": np.arcsin, "acos": np.arccos},
    "round": lambda x: np.trunc(x + np.copysign(0.5, x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcp": lambda x: 1 / x,
    "exp10": lambda x: 10.0**x,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "fma": lambda a, b, c: a * b + c,
    "fdividef": lambda a, b: a / b,
}
_EVALUATED = (  # by `evaluate` itself
    *("if_then_else", "likely", "shift_left", "shift_right"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
)
# functions of the values of several threads: the operation, and what stands for a thread that does not call
_BLOCK_VOTES = {
    "syncthreads_count": (np.sum, 0),
    "syncthreads_or": (np.any, 0),
    "syncthreads_and": (np.all, 1),
}
_WARP_FUNCTIONS = {
    **{"any_sync": (np.any, 0), "all_sync": (np.all, 1)},
    **{
        "warp_reduce_sum": (np.sum, 0),
        "warp_reduce_max": (np.max, None),
        "warp_reduce_min": (np.min, None),
    },
}
# functions that give a thread the value of another one of its warp
_EXCHANGES = tuple(
    f"{name}{kind}{suffix}"
    for name, suffix in (("shfl", "_sync"), ("tvm_warp_shuffle", ""))
    for kind in ("", "_up", "_down", "_xor")
)
_CONSTANTS = {"infinity": np.inf}
_POINTERS = ("tvm_access_ptr", "type_annotation", "address_of")  # to workspaces: nothing is evaluated
_LANES = ("get_lane_idx", "get_warp_idx")
_BITS = {"float16": 16, "int16": 16, "uint16": 16, "float32": 32, "int32": 32, "uint32": 32}
_REDUCTIONS = {"tl::SumOp": np.sum, "tl::MaxOp": np.max, "tl::MinOp": np.min}
_KNOWN = frozenset(
    (*_FUNCTIONS, *_EVALUATED, *_BLOCK_VOTES, *_WARP_FUNCTIONS, *_LANES, *_EXCHANGES, *_CONSTANTS, *_POINTERS)
)


def is_computed(call: Any) -> bool:
    """Whether `called`, or `evaluate` itself, knows a call."""
    name = function_of(call)
    if name in _KNOWN or name.removesuffix("f") in _FUNCTIONS:
        return True
    return is_choice(call) or bool(_reduction(call)) or (name == "reinterpret" and _width(call) is not None)


def called(call: Any, value_of: Callable[[Any], Any], running: NDArray[np.bool_], warp_threads: int) -> Any:
    """The value of a call.

    Args:
        call: the expression.
        value_of: evaluates an argument.
        running: mask of the threads that call, by (block, thread). The others have no say.
        warp_threads: threads of a warp.

    Raises:
        UnevaluableError: the function is not known.
    """
    name = function_of(call)
    function = _FUNCTIONS.get(name) or _FUNCTIONS.get(name.removesuffix("f"))
    if function is not None:
        return function(*map(value_of, _arguments(call)))
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name == "reinterpret":
        return _reinterpreted(call, value_of(call.args[0]))
    threads = running.shape[1]
    if name in _EXCHANGES:
        _mask, value, lane, *width = map(value_of, _arguments(call)[:4])
        group = int(np.max(width[0])) if width else warp_threads
        return _exchanged(name, np.broadcast_to(value, running.shape), lane, group)
    if name in _LANES:
        number = np.arange(threads)[None, :]
        return number % warp_threads if name == "get_lane_idx" else number // warp_threads
    if reduction := _reduction(call):
        kind, size, step = reduction.group(1), int(reduction.group(2)), int(reduction.group(3))
        values = np.broadcast_to(value_of(_arguments(call)[0]), running.shape)
        return _over_groups(_REDUCTIONS[kind], values, size, step)
    if name not in _BLOCK_VOTES and name not in _WARP_FUNCTIONS:
        raise UnevaluableError(name)
    of_block = name in _BLOCK_VOTES
    operation, nothing = _BLOCK_VOTES[name] if of_block else _WARP_FUNCTIONS[name]
    said = np.broadcast_to(np.asarray(value_of(call.args[-1])), running.shape)
    if not name.startswith("warp_reduce"):
        said = said != 0
    size = threads if of_block else warp_threads
    values = said if nothing is None else np.where(running, said, nothing)
    return _over_groups(operation, values, size, 1)


def _width(call: Any) -> int | None:
    """Bits of a number whose bits are read as another type; None of types that NumPy has not."""
    widths = {_BITS.get(str(part.dtype)) for part in (call, call.args[0])}
    return widths.pop() if len(widths) == 1 else None


def _reinterpreted(call: Any, value: Any) -> NDArray[Any]:
    return np.asarray(value).astype(str(call.args[0].dtype)).view(str(call.dtype))


def _exchanged(name: str, values: NDArray[Any], given: Any, group: int) -> NDArray[Any]:
    """What each thread gets from the lane of its group that `given` says; from itself beyond the ends."""
    own = np.arange(values.shape[1])[None, :]
    lane = own % group
    if "_xor" in name:
        source = lane ^ np.asarray(given)
    elif "_up" in name or "_down" in name:
        source = lane + np.asarray(given) * (1 if "_down" in name else -1)
    else:
        source = np.asarray(given)
    place = own - lane + np.where((source >= 0) & (source < group), source, lane)
    place = np.broadcast_to(np.minimum(place, values.shape[1] - 1), values.shape)
    return np.take_along_axis(values, place, axis=1)


def _arguments(call: Any) -> list[Any]:
    return list(call.args)[1 if call_name(call) in EXTERN else 0 :]


def _over_groups(operation: Any, values: NDArray[Any], size: int, step: int) -> NDArray[Any]:
    """An operation over groups of `size` threads, of which those `step` apart belong together.

    Raises:
        UnevaluableError: the threads of a block are no whole groups.
    """
    blocks, threads = values.shape
    if threads % size or size % step:
        raise UnevaluableError(f"groups of {size} among {threads} threads")
    groups = values.reshape(blocks, threads // size, size // step, step)
    found = np.broadcast_to(operation(groups, axis=2, keepdims=True), groups.shape)
    return found.reshape(blocks, threads)


def _reduction(call: Any) -> re.Match[str] | None:
    """The reduction over threads that a call is; None for any other call."""
    found = REDUCTION.match(text(call.args[0])) if call_name(call) in EXTERN else None
    return found if found and found[1] in _REDUCTIONS else None
