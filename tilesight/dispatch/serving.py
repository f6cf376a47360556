"""Serving: the call of one kernel for tensors of one signature, with all that can be known beforehand looked up.

A call costs one look-up of the signature, the checks that a signature does not cover, the output's memory and the launch. The
kernel's arguments are packed into a bytes object of the call's own, so that threads share nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import reduce
from operator import attrgetter, or_
from typing import Any

import torch

from ..artifact import LaunchError, LoadedKernel
from .loaded import INVALID_CONTEXT, make_current
from .problem import ALIGNMENT, Problem

Inputs = tuple[torch.Tensor, ...]
Serve = Callable[[Inputs, Any], Any]  # inputs and the outputs' memory (or None) -> output, a tuple where there are several

# What decides which kernel serves a tensor, and whether it may. Subclasses have classes of their own: fake tensors among them.
signature: Callable[[torch.Tensor], tuple[Any, ...]] = attrgetter("__class__", "shape", "dtype", "device")

_data_ptr: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
_is_contiguous: Callable[[torch.Tensor], bool] = torch.Tensor.is_contiguous


class Calls:
    """How often something was called; threads may lose one now and then."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def serve_with(
    kernel: LoadedKernel, problem: Problem, shapes: Sequence[tuple[int, ...]], sizes: Sequence[int], device: torch.device, calls: Calls
) -> Serve:
    """The call of `kernel` on `device` for outputs of `shapes`; `sizes` are those of its open dimensions. Raises `LaunchError`
    where the library takes other arguments."""
    names = problem.inputs
    expected = len(names) + len(shapes), len(sizes)
    if (kernel.arity, kernel.sizes) != expected:
        raise LaunchError(
            f"the library of {problem.operator.name} takes {kernel.arity} tensors and {kernel.sizes} sizes, and should take {expected[0]} "
            f"and {expected[1]}; empty the kernel cache"
        )
    pack = struct.Struct(f"={kernel.arity}Q{len(sizes)}q").pack
    # ctypes takes a bytes object for an address: that of its first byte
    call: Any = kernel.launch
    launched_on: Callable[[], int] = (lambda: 0) if device.type == "cpu" else _stream_of(device)
    dtypes = [getattr(torch, problem.dtype_of(name)) for name in problem.outputs]
    empty = _allocator(device)
    parts = [(tuple(shape), _strides(shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    first_shape, first_strides, first_dtype = parts[0]
    is_single, is_gpu, sizes = len(parts) == 1, device.type != "cpu", tuple(sizes)

    def refused(inputs: Inputs, outputs: Sequence[torch.Tensor]) -> None:
        problem.refuse_layout(dict(zip((*names, *problem.outputs), (*inputs, *outputs), strict=True)))

    def failed(status: int, packed: bytes) -> None:
        if is_gpu and status == INVALID_CONTEXT:
            make_current(device)
            status = call(packed, launched_on())
        if status:
            kernel.check(status)

    def single(inputs: Inputs, out: torch.Tensor | None) -> torch.Tensor:
        calls.count += 1
        if out is None:
            out = empty(first_shape, first_strides, first_dtype)
        elif not (
            isinstance(out, torch.Tensor)
            and out.shape == first_shape
            and out.dtype is first_dtype
            and out.device == device
            and out.is_contiguous()
        ):
            problem.check_output(problem.outputs[0], out, first_shape, device)
        addresses = (*map(_data_ptr, inputs), out.data_ptr())
        if not all(map(_is_contiguous, inputs)) or (is_gpu and reduce(or_, addresses) % ALIGNMENT):
            refused(inputs, (out,))
        packed = pack(*addresses, *sizes)
        status = call(packed, launched_on())
        if status:
            failed(status, packed)
        return out

    def several(inputs: Inputs, out: Sequence[torch.Tensor] | None) -> tuple[torch.Tensor, ...]:
        calls.count += 1
        if out is None:
            out = [empty(*part) for part in parts]
        else:
            for name, tensor, (shape, _, _) in zip(problem.outputs, out, parts, strict=True):
                problem.check_output(name, tensor, shape, device)
        refused(inputs, out)
        packed = pack(*map(_data_ptr, (*inputs, *out)), *sizes)
        status = call(packed, launched_on())
        if status:
            failed(status, packed)
        return tuple(out)

    served: Serve = single if is_single else several
    return served if not is_gpu else _on_its_device(served, device)


def _on_its_device(serve: Serve, device: torch.device) -> Serve:
    """With that device current, as memory and streams need it; mostly it is."""
    current, number = torch._C._cuda_getDevice, device.index

    def on_device(inputs: Inputs, out: Any) -> Any:
        if current() == number:
            return serve(inputs, out)
        with torch.cuda.device(device):
            return serve(inputs, out)

    return on_device


def _stream_of(device: torch.device) -> Callable[[], int]:
    ask, number = torch._C._cuda_getCurrentRawStream, device.index
    return lambda: ask(number)


def _allocator(device: torch.device) -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]:
    """Uninitialised memory on the current device: by the allocation that torch's own compiled code calls, where this torch
    has it, which takes half as long as `torch.empty`."""
    own = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    found = getattr(own, f"_empty_strided_{device.type}", None)
    if found is not None:
        return found  # type: ignore[no-any-return]
    return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))
