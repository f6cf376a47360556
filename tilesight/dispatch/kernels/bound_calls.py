"""The call of one kernel for tensors of one signature, prepared as far as the signature allows.

A call costs one look-up of the signature, the checks that a signature does not cover, the allocation of the
output and the launch. Each call packs the kernel's arguments into its own bytes object, so threads share
nothing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch

from ...builder.loaded_kernel import LaunchError, LoadedKernel
from ..problem import ALIGNMENT, DispatchProblem
from .loaded import INVALID_CONTEXT, make_current

Inputs = tuple[torch.Tensor, ...]
BoundCall = Callable[
    [Inputs, Any], Any
]  # inputs, memory for the outputs or None -> output, or a tuple of several

# Determines the kernel of a tensor. The class is a part of it, because no kernel takes fake tensors.
signature: Callable[[torch.Tensor], tuple[Any, ...]] = attrgetter("__class__", "shape", "dtype", "device")

_data_ptr: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr

# A tensor whose storage was freed has its offset for an address. Tensors with memory seldom lie so low; those
# that do take the slower check.
_LOW_ADDRESS = 2**32


class CallCounter:
    """Number of calls of a shape. Concurrent increments may lose some."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def bind_call(
    kernel: LoadedKernel,
    problem: DispatchProblem,
    shapes: Sequence[tuple[int, ...]],
    sizes: Sequence[int],
    device: torch.device,
    calls: CallCounter,
    scratch: Sequence[tuple[tuple[int, ...], str]] = (),
) -> BoundCall:
    """Prepare the call of a loaded kernel.

    Args:
        kernel: the library.
        problem: names and dtypes of the tensors.
        shapes: of the outputs.
        sizes: of the kernel's dynamic dimensions.
        device: where the tensors are.
        calls: is incremented by every call.
        scratch: shape and dtype of each memory that a call needs beside its tensors.

    Raises:
        LaunchError: the library takes other arguments.
    """
    names = problem.inputs
    expected = len(names) + len(shapes) + len(scratch), len(sizes)
    if (kernel.arity, kernel.sizes) != expected:
        raise LaunchError(
            f"the library of {problem.operator.name} takes {kernel.arity} tensors and {kernel.sizes} sizes, "
            f"and should take {expected[0]} and {expected[1]}; empty the kernel cache"
        )
    pack = struct.Struct(f"={kernel.arity}Q{len(sizes)}q").pack
    # ctypes passes the address of the first byte of a bytes object
    call: Any = kernel.launch
    stream: Callable[[], int] = (lambda: 0) if device.type == "cpu" else stream_of(device)
    dtypes = [getattr(torch, problem.dtype_of(name)) for name in problem.outputs]
    empty = allocator(device)
    parts = [(tuple(shape), strides_of(shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    spare = [(tuple(shape), strides_of(shape), getattr(torch, dtype)) for shape, dtype in scratch]
    first_shape, first_strides, first_dtype = parts[0]
    first_bytes = first_dtype.itemsize * math.prod(first_shape)
    is_single, is_gpu, sizes = len(parts) == 1, device.type != "cpu", tuple(sizes)
    input_bytes: tuple[int, ...] = ()  # all inputs of a signature have the same, so the first call counts
    odd = ALIGNMENT - 1 if is_gpu else 0  # the bits of an address that must be 0

    def check_overlap(inputs: Inputs, outputs: Sequence[torch.Tensor]) -> None:
        named_outputs = dict(zip(problem.outputs, outputs, strict=True))
        problem.check_overlap(dict(zip(names, inputs, strict=True)), named_outputs)

    def retry_or_raise(status: int, packed: bytes) -> None:
        if is_gpu and status == INVALID_CONTEXT:
            make_current(device)
            status = call(packed, stream())
        if status:
            kernel.check(status)

    def check_given(inputs: Inputs, addresses: Sequence[int], out: torch.Tensor) -> None:
        nonlocal input_bytes
        if not (
            isinstance(out, torch.Tensor)
            and out.shape == first_shape
            and out.dtype is first_dtype
            and out.device == device
            and out.is_contiguous()
            and not out.is_neg()
        ):
            problem.check_output(problem.outputs[0], out, first_shape, device)
        first = out.data_ptr()
        if first < _LOW_ADDRESS or first & odd:
            problem.check_layout({problem.outputs[0]: out})
        end = first + first_bytes
        input_bytes = input_bytes or tuple(tensor.nbytes for tensor in inputs)
        for i, size in enumerate(input_bytes):
            start = addresses[i]
            if start < end and first < start + size:
                check_overlap(inputs, (out,))

    def single(inputs: Inputs, out: torch.Tensor | None) -> torch.Tensor:
        calls.count += 1
        addresses = []
        for tensor in inputs:  # written out: a loop takes less time than `all` and `map` for each check
            address = tensor.data_ptr()
            if not tensor.is_contiguous() or tensor.is_neg() or address < _LOW_ADDRESS or address & odd:
                problem.check_layout(dict(zip(names, inputs, strict=True)))
            addresses.append(address)
        if out is None:
            out = empty(first_shape, first_strides, first_dtype)
        else:
            check_given(inputs, addresses, out)
        # the memory is free for later work of the stream as soon as the kernel is launched
        held = [empty(*part) for part in spare] if spare else ()
        packed = pack(*addresses, out.data_ptr(), *map(_data_ptr, held), *sizes)
        status = call(packed, stream())
        if status:
            retry_or_raise(status, packed)
        return out

    def several(inputs: Inputs, out: Sequence[torch.Tensor] | None) -> tuple[torch.Tensor, ...]:
        calls.count += 1
        if out is None:
            out = [empty(*part) for part in parts]
        else:
            for name, tensor, (shape, _, _) in zip(problem.outputs, out, parts, strict=True):
                problem.check_output(name, tensor, shape, device)
            check_overlap(inputs, out)
        problem.check_layout(dict(zip((*names, *problem.outputs), (*inputs, *out), strict=True)))
        held = [empty(*part) for part in spare]
        packed = pack(*map(_data_ptr, (*inputs, *out, *held)), *sizes)
        status = call(packed, stream())
        if status:
            retry_or_raise(status, packed)
        return tuple(out)

    bound: BoundCall = single if is_single else several
    return bound if not is_gpu else on_its_device(bound, device)


def on_its_device(bound: BoundCall, device: torch.device) -> BoundCall:
    """The call with its device made current, which allocation and streams need."""
    current, index = torch._C._cuda_getDevice, device.index

    def on_device(inputs: Inputs, out: Any) -> Any:
        if current() == index:
            return bound(inputs, out)
        with torch.cuda.device(device):
            return bound(inputs, out)

    return on_device


def stream_of(device: torch.device) -> Callable[[], int]:
    """A function that returns the current stream of a GPU."""
    current, index = torch._C._cuda_getCurrentRawStream, device.index
    return lambda: current(index)


def allocator(
    device: torch.device,
) -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]:
    """The allocation of an uninitialised tensor on the current device.

    The function that torch's compiled code calls takes half as long as `torch.empty`; not every torch has it.
    """
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    found = getattr(guards, f"_empty_strided_{device.type}", None)
    if found is not None:
        return found  # type: ignore[no-any-return]
    return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))
