"""The launch plan of a function: its TMA descriptors and kernel launches, read from the lowered host IR.

TileLang's host program checks its arguments, makes TMA descriptors and launches kernels, all by calls of
packed functions whose arguments are constants or expressions of the dynamic dimensions. The plan has
descriptors and launches as plain values, from which `launcher.py` writes a launcher in C. Arguments are
checked once, in Python, when a loaded kernel is bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..lowering.lower import Lowered, calls_of
from ..problem.template import NUMBER_FORMATS
from .planned_copies import PlannedCopies, UnsupportedCopiesError, planned_copies
from .size_expr import Expression, Size, UnsupportedSizeError, read_size


class UnsupportedLaunchError(Exception):
    """The host program does something that a launcher cannot do."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel: a `tensor` or TMA `descriptor` by its index, an `integer` by its value, or a
    `number` of the caller by its place among the arguments of the call."""

    kind: str  # tensor | descriptor | integer | number
    index: Size  # an expression only for an integer
    dtype: str = ""  # only for an integer or a number


@dataclass(frozen=True, slots=True)
class PixelBox:
    """The box of an im2col descriptor, in the terms of cuTensorMapEncodeIm2col.

    `lower` and `upper` bound the start of the filter's window along each axis of the image; `channels` of
    `pixels` are copied.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A TMA descriptor, in the terms of cuTensorMapEncodeTiled.

    Strides are in bytes, without the innermost.
    """

    tensor: int
    dtype: int
    dims: tuple[Size, ...]
    strides: tuple[Size, ...]
    box: tuple[int, ...] | PixelBox
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    l2_promotion: int
    oob_fill: int


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch of a kernel. A `programmatic` launch may start before its predecessor has ended."""

    function: str
    arguments: tuple[Argument, ...]
    grid: tuple[Size, Size, Size] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] | None = None
    shared_bytes: int = 0  # dynamic
    programmatic: bool = False
    cooperative: bool = False


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All launches of one function.

    Attributes:
        tensors: Number of tensor arguments: inputs, then outputs.
        descriptors: The TMA descriptors.
        launches: In order.
        sizes: Names of the dynamic dimensions, which follow the tensors among the arguments.
        extents: Name and shape of each tensor whose shape depends on dynamic dimensions.
        numbers: Names of the arguments that are numbers, which follow the sizes.
        copies: What copy engines bring to peers beside one of the launches.
    """

    tensors: int
    descriptors: tuple[TensorMap, ...]
    launches: tuple[KernelLaunch, ...]
    sizes: tuple[str, ...] = ()
    extents: tuple[tuple[str, tuple[Size, ...]], ...] = ()
    numbers: tuple[str, ...] = ()
    copies: PlannedCopies | None = None

    def __repr__(self) -> str:
        """Without `copies` where there are none: identities of kernels are made of it."""
        shown = [field.name for field in fields(self) if field.name != "copies" or self.copies is not None]
        return f"LaunchPlan({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


_TILED, _IM2COL = "__tvm_tensormap_create_tiled", "__tvm_tensormap_create_im2col"
_TMA_ALIGNMENT = 16  # bytes
_IGNORED = ("__tvm_set_device",)  # the caller makes the device current
_FLAGS = {
    "tirx.use_programtic_dependent_launch": "programmatic",
    "tirx.use_cooperative_launch": "cooperative",
}  # TVM's spelling
_AXES = {
    f"{level}.{axis}": (name, "xyz".index(axis))
    for level, name in (("blockIdx", "grid"), ("threadIdx", "block"))
    for axis in "xyz"
}
_AXES |= {f"tir.cluster_dim_{axis}": ("cluster", "xyz".index(axis)) for axis in "xyz"}


def read_plan(lowered: Lowered) -> LaunchPlan:
    """The plan of a lowered function. Raises `UnsupportedLaunchError`."""
    traced = lowered.traced
    pointers = [traced.buffer_map[p].data for p in traced.params if p in traced.buffer_map]
    numbers = [p for p in traced.params if p not in traced.buffer_map]
    for number in numbers:
        if str(number.dtype) not in NUMBER_FORMATS:
            raise UnsupportedLaunchError(
                f"argument '{number.name}' is a {number.dtype}; numbers are of {', '.join(NUMBER_FORMATS)}"
            )
    kernels = {str(symbol.name_hint): function for symbol, function in lowered.device.functions.items()}
    (host,) = lowered.host.functions.values()
    if "l2_persistent_map" in host.attrs:
        raise UnsupportedLaunchError("it asks for persistence in L2, which the launcher cannot set")
    descriptors: list[TensorMap] = []
    described: list[Any] = []  # their variables
    launches = []
    sizes = lowered.sizes
    for name, values in calls_of(host.body, set(kernels)):
        if name in (_TILED, _IM2COL):
            described.append(values[0])
            descriptors.append(_descriptor(values, pointers, sizes, im2col=name == _IM2COL))
        elif name in kernels:
            launches.append(_launch(name, kernels[name], values, pointers, described, sizes, numbers))
        elif name not in _IGNORED:
            raise UnsupportedLaunchError(f"its host program calls '{name}', which the launcher does not know")
    missing = sorted(set(kernels) - {launch.function for launch in launches})
    if missing:
        raise UnsupportedLaunchError(f"no launch was found for {', '.join(missing)}")
    return LaunchPlan(
        len(pointers),
        tuple(descriptors),
        tuple(launches),
        tuple(size.name for size in sizes),
        _extents(traced, sizes),
        tuple(str(number.name) for number in numbers),
        _copies(traced, len(launches)),
    )


def _copies(traced: Any, launches: int) -> PlannedCopies | None:
    try:
        return planned_copies(traced, launches)
    except UnsupportedCopiesError as error:
        raise UnsupportedLaunchError(str(error)) from None


def _extents(traced: Any, sizes: Sequence[Any]) -> tuple[tuple[str, tuple[Size, ...]], ...]:
    buffers = [traced.buffer_map[p] for p in traced.params if p in traced.buffer_map]
    shapes = {
        str(b.data.name): tuple(_size(extent, sizes, f"shape of '{b.data.name}'") for extent in b.shape)
        for b in buffers
    }
    return tuple(
        (name, shape)
        for name, shape in shapes.items()
        if any(isinstance(extent, Expression) for extent in shape)
    )


def _integer(value: Any, where: str) -> int:
    from tvm import tirx

    if not isinstance(value, tirx.IntImm):
        raise UnsupportedLaunchError(f"{where} is '{value}' and no constant")
    return int(value.value)


def _size(value: Any, sizes: Sequence[Any], where: str) -> Size:
    try:
        return read_size(value, sizes)
    except UnsupportedSizeError as error:
        raise UnsupportedLaunchError(
            f"{where}: {error}; "
            "only dynamic dimensions may vary, and kernels take tensors of known shape else"
        ) from None


def _position(value: Any, variables: list[Any]) -> int | None:
    return next((i for i, variable in enumerate(variables) if value.same_as(variable)), None)


def _descriptor(values: list[Any], pointers: list[Any], sizes: Sequence[Any], *, im2col: bool) -> TensorMap:
    """A descriptor from the arguments of the call that makes it.

    The arguments are: variable, dtype, rank, address, then `rank` each of dims and strides, the box, four
    modes. A box is
    `rank` each of sizes and element strides; for im2col it is `rank` element strides, `rank - 2` each of
    lower and upper bounds, pixels, channels.
    """
    where = f"TMA descriptor '{values[0]}'"
    dtype, rank = (_integer(v, where) for v in values[1:3])
    tensor = _position(values[3], pointers)
    if tensor is None:
        raise UnsupportedLaunchError(f"{where} is of '{values[3]}', which is no argument of the function")
    axes = rank - 2
    expected = 3 * rank + 2 * axes + 6 if im2col else 4 * rank + 4
    if len(values) - 4 != expected:
        raise UnsupportedLaunchError(
            f"{where} has {len(values) - 4} parts, expected {expected} for rank {rank}"
        )
    dims = tuple(_size(v, sizes, where) for v in values[4 : 4 + rank])
    strides = tuple(
        _stride(v, sizes, where) for v in values[5 + rank : 4 + 2 * rank]
    )  # without the innermost, which is fixed
    rest = [_integer(v, where) for v in values[4 + 2 * rank :]]
    third, more = tuple(rest[:rank]), rest[rank:-4]
    if not im2col:
        return TensorMap(tensor, dtype, dims, strides, third, tuple(more), *rest[-4:])
    pixels, channels = more[-2:]
    box = PixelBox(tuple(more[:axes]), tuple(more[axes : 2 * axes]), channels, pixels)
    return TensorMap(tensor, dtype, dims, strides, box, third, *rest[-4:])


def _stride(value: Any, sizes: Sequence[Any], where: str) -> Size:
    """A stride in bytes. TMA requires multiples of 16; TileLang does not check dynamic strides."""
    from tvm import arith, tirx

    found = _size(value, sizes, where)
    if isinstance(found, Expression) and not arith.Analyzer().can_prove_equal(
        tirx.floormod(value, _TMA_ALIGNMENT), 0
    ):
        raise UnsupportedLaunchError(
            f"{where} has a stride of '{value}' bytes, which need not be whole {_TMA_ALIGNMENT}s: "
            "give that dimension a fixed size"
        )
    return found


def _launch(
    name: str,
    kernel: Any,
    values: list[Any],
    pointers: list[Any],
    described: list[Any],
    sizes: Sequence[Any],
    numbers: list[Any],
) -> KernelLaunch:
    count = len(kernel.params)
    arguments = []
    for value, parameter in zip(values[:count], kernel.params, strict=True):
        where = f"argument '{parameter.name}' of {name}"
        if (tensor := _position(value, pointers)) is not None:
            arguments.append(Argument("tensor", tensor))
        elif (descriptor := _position(value, described)) is not None:
            arguments.append(Argument("descriptor", descriptor))
        elif (number := _position(value, numbers)) is not None:
            place = len(pointers) + len(sizes) + number
            arguments.append(Argument("number", place, str(numbers[number].dtype)))
        else:
            arguments.append(Argument("integer", _size(value, sizes, where), str(parameter.dtype)))
    tags = [str(tag) for tag in kernel.attrs.get("tirx.kernel_launch_params", ())]
    sized = [tag for tag in tags if tag not in _FLAGS]
    given = values[count:]
    if len(sized) != len(given):
        raise UnsupportedLaunchError(
            f"launch of {name} has {len(given)} sizes for {', '.join(sized) or 'none'}"
        )
    grid: list[Size] = [1, 1, 1]
    fixed = {"block": [1, 1, 1], "cluster": [1, 1, 1]}
    shared_bytes = 0
    for tag, value in zip(sized, given, strict=True):
        where = f"launch of {name}, {tag},"
        if tag == "tirx.use_dyn_shared_memory":
            shared_bytes = _integer(value, where)
        elif tag in _AXES:
            group, axis = _AXES[tag]
            if group == "grid":
                grid[axis] = _size(value, sizes, where)
            else:
                fixed[group][axis] = _integer(value, where)
        else:
            raise UnsupportedLaunchError(
                f"launch of {name} has a parameter '{tag}', which the launcher does not know"
            )
    block, cluster = ((x, y, z) for x, y, z in fixed.values())
    flags = {field: tag in tags for tag, field in _FLAGS.items()}
    clustered = cluster if any(t.startswith("tir.cluster") for t in tags) else None
    return KernelLaunch(
        name, tuple(arguments), (grid[0], grid[1], grid[2]), block, clustered, shared_bytes, **flags
    )
