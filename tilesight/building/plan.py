"""How the kernels of one function are launched, read off the host part of its lowered IR.

TileLang's host program checks its arguments, makes the TMA descriptors and launches the kernels, all as calls of packed
functions with constant arguments (shapes are static). The plan keeps the last two as plain values, from which a small
launcher in C is written; the checks are made once, in Python, where the artifact is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..lowering import Lowered


class UnsupportedLaunchError(Exception):
    """The host program does something for which no launcher can be written."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel: `tensor` number `index`, TMA `descriptor` number `index`, or an `integer` of `index`."""

    kind: str  # tensor | descriptor | integer
    index: int
    dtype: str = ""  # of an integer


@dataclass(frozen=True, slots=True)
class PixelBox:
    """What an im2col descriptor has in place of a box, in the terms of cuTensorMapEncodeIm2col: where the filter's window
    may start along each axis of the image, and how many channels of how many pixels are copied."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A TMA descriptor, in the terms of cuTensorMapEncodeTiled. Strides are in bytes, innermost left out."""

    tensor: int
    dtype: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...] | PixelBox
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    l2_promotion: int
    oob_fill: int


@dataclass(frozen=True, slots=True)
class Launch:
    function: str
    arguments: tuple[Argument, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] | None = None
    shared_bytes: int = 0  # dynamic
    programmatic: bool = False  # may start before its predecessor has ended
    cooperative: bool = False


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    tensors: int  # arguments of the function, inputs then outputs
    descriptors: tuple[TensorMap, ...]
    launches: tuple[Launch, ...]


_TILED, _IM2COL = "__tvm_tensormap_create_tiled", "__tvm_tensormap_create_im2col"
_IGNORED = ("__tvm_set_device",)  # the caller has made its device current
_FLAGS = {"tirx.use_programtic_dependent_launch": "programmatic", "tirx.use_cooperative_launch": "cooperative"}  # TVM's spelling
_AXES = {f"{level}.{axis}": (name, "xyz".index(axis)) for level, name in (("blockIdx", "grid"), ("threadIdx", "block")) for axis in "xyz"}
_AXES |= {f"tir.cluster_dim_{axis}": ("cluster", "xyz".index(axis)) for axis in "xyz"}


def read_plan(lowered: Lowered) -> LaunchPlan:
    """The plan of a lowered function. Raises `UnsupportedLaunchError`."""
    traced = lowered.traced
    pointers = []
    for parameter in traced.params:
        if parameter not in traced.buffer_map:
            raise UnsupportedLaunchError(f"parameter '{parameter.name}' is a scalar; kernels take tensors of static shape only")
        pointers.append(traced.buffer_map[parameter].data)
    kernels = {str(symbol.name_hint): function for symbol, function in lowered.device.functions.items()}
    (host,) = lowered.host.functions.values()
    if "l2_persistent_map" in host.attrs:
        raise UnsupportedLaunchError("it asks for persistence in L2, which the launcher cannot set")
    descriptors: list[TensorMap] = []
    described: list[Any] = []  # the variables that hold them
    launches = []
    for name, values in _calls(host.body, set(kernels)):
        if name in (_TILED, _IM2COL):
            described.append(values[0])
            descriptors.append(_descriptor(values, pointers, im2col=name == _IM2COL))
        elif name in kernels:
            launches.append(_launch(name, kernels[name], values, pointers, described))
        elif name not in _IGNORED:
            raise UnsupportedLaunchError(f"its host program calls '{name}', which the launcher does not know")
    missing = sorted(set(kernels) - {launch.function for launch in launches})
    if missing:
        raise UnsupportedLaunchError(f"no launch was found for {', '.join(missing)}")
    return LaunchPlan(len(pointers), tuple(descriptors), tuple(launches))


def _calls(body: Any, kernels: set[str]) -> Iterator[tuple[str, list[Any]]]:
    """(callee, arguments) of the packed calls and the direct kernel calls (C backend) of a host program, in order."""
    from tvm import ir, tirx

    found: list[tuple[str, list[Any]]] = []

    def visit(node: Any) -> None:
        if not isinstance(node, tirx.Call):
            return
        if isinstance(node.op, ir.GlobalVar):
            found.append((str(node.op.name_hint), list(node.args)))
        elif node.op.name in ("tirx.tvm_call_packed", "tirx.call_extern"):
            callee = str(getattr(node.args[0], "value", node.args[0]))
            if node.op.name == "tirx.tvm_call_packed" or callee in kernels:
                found.append((callee, list(node.args[1:])))

    tirx.stmt_functor.post_order_visit(body, visit)
    return iter(found)


def _integer(value: Any, where: str) -> int:
    from tvm import tirx

    if not isinstance(value, tirx.IntImm):
        raise UnsupportedLaunchError(f"{where} is '{value}' and no constant; kernels take tensors of static shape only")
    return int(value.value)


def _position(value: Any, variables: list[Any]) -> int | None:
    return next((i for i, variable in enumerate(variables) if value.same_as(variable)), None)


def _descriptor(values: list[Any], pointers: list[Any], *, im2col: bool) -> TensorMap:
    """Arguments: variable, dtype, rank, address, then `rank` each of dims and strides, the box, four modes. A box is `rank`
    each of sizes and element strides; for im2col `rank` element strides, `rank - 2` each of lower and upper, pixels, channels."""
    where = f"TMA descriptor '{values[0]}'"
    dtype, rank = (_integer(v, where) for v in values[1:3])
    tensor = _position(values[3], pointers)
    if tensor is None:
        raise UnsupportedLaunchError(f"{where} is of '{values[3]}', which is no argument of the function")
    rest = [_integer(v, where) for v in values[4:]]
    axes = rank - 2
    expected = 3 * rank + 2 * axes + 6 if im2col else 4 * rank + 4
    if len(rest) != expected:
        raise UnsupportedLaunchError(f"{where} has {len(rest)} parts, expected {expected} for rank {rank}")
    dims, strides, third, more = tuple(rest[:rank]), tuple(rest[rank + 1 : 2 * rank]), tuple(rest[2 * rank : 3 * rank]), rest[3 * rank : -4]
    if not im2col:
        return TensorMap(tensor, dtype, dims, strides, third, tuple(more), *rest[-4:])
    pixels, channels = more[-2:]
    box = PixelBox(tuple(more[:axes]), tuple(more[axes : 2 * axes]), channels, pixels)
    return TensorMap(tensor, dtype, dims, strides, box, third, *rest[-4:])


def _launch(name: str, kernel: Any, values: list[Any], pointers: list[Any], described: list[Any]) -> Launch:
    count = len(kernel.params)
    arguments = []
    for value, parameter in zip(values[:count], kernel.params, strict=True):
        where = f"argument '{parameter.name}' of {name}"
        if (tensor := _position(value, pointers)) is not None:
            arguments.append(Argument("tensor", tensor))
        elif (descriptor := _position(value, described)) is not None:
            arguments.append(Argument("descriptor", descriptor))
        else:
            arguments.append(Argument("integer", _integer(value, where), str(parameter.dtype)))
    tags = [str(tag) for tag in kernel.attrs.get("tirx.kernel_launch_params", ())]
    sized = [tag for tag in tags if tag not in _FLAGS]
    sizes = [_integer(v, f"launch of {name}") for v in values[count:]]
    if len(sized) != len(sizes):
        raise UnsupportedLaunchError(f"launch of {name} has {len(sizes)} sizes for {', '.join(sized) or 'none'}")
    extents = {"grid": [1, 1, 1], "block": [1, 1, 1], "cluster": [1, 1, 1]}
    shared_bytes = 0
    for tag, size in zip(sized, sizes, strict=True):
        if tag == "tirx.use_dyn_shared_memory":
            shared_bytes = size
        elif tag in _AXES:
            group, axis = _AXES[tag]
            extents[group][axis] = size
        else:
            raise UnsupportedLaunchError(f"launch of {name} has a parameter '{tag}', which the launcher does not know")
    grid, block, cluster = ((x, y, z) for x, y, z in extents.values())
    flags = {field: tag in tags for tag, field in _FLAGS.items()}
    return Launch(
        name, tuple(arguments), grid, block, cluster if any(t.startswith("tir.cluster") for t in tags) else None, shared_bytes, **flags
    )
