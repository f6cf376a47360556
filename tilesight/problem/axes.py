"""Axes: the shapes of an operator's tensors from its dimensions, and the dimensions from the shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import WorkloadError
from .config import Value


@dataclass(frozen=True, slots=True)
class Parts:
    """An axis of ceil(dim / part) elements.

    `part` is a number, or the name of an attribute (-1: all of `dim`) or of another dimension.
    """

    dim: str
    part: int | str

    def size(self, attrs: Mapping[str, Value]) -> int:
        """Elements of a part."""
        return int(attrs[self.part]) if isinstance(self.part, str) else self.part

    def __str__(self) -> str:
        return f"ceil({self.dim}/{self.part})"


@dataclass(frozen=True, slots=True)
class Plus:
    """An axis of `dim` + `more` elements, such as the cumulative lengths of a batch (`more`=1)."""

    dim: str
    more: int

    def __str__(self) -> str:
        return f"{self.dim}+{self.more}"


@dataclass(frozen=True, slots=True)
class Windows:
    """An axis with an element for each window that slides along `dim`.

    The attributes `kernel`, `stride`, `padding` and `dilation` are those of a convolution.
    """

    dim: str

    def __str__(self) -> str:
        return f"windows({self.dim})"


def window(attrs: Mapping[str, Value]) -> tuple[int, int, int, int]:
    """The attributes of a convolution: kernel, stride, padding and dilation."""
    kernel, stride, padding, dilation = (
        int(attrs[name]) for name in ("kernel", "stride", "padding", "dilation")
    )
    return kernel, stride, padding, dilation


# the name of a dimension or attribute, an expression of one, or a fixed extent
Axis = str | Parts | Plus | Windows | int
Axes = Mapping[str, tuple[Axis, ...]]  # axes of each tensor, by its name


def extent(axis: Axis, dims: Mapping[str, int], attrs: Mapping[str, Value]) -> int:
    """Number of elements along `axis`. Dimensions may be symbolic integers."""
    if isinstance(axis, int):
        return axis
    if isinstance(axis, Plus):
        return dims[axis.dim] + axis.more
    if isinstance(axis, str):
        return dims[axis] if axis in dims else int(attrs[axis])
    if isinstance(axis, Windows):
        kernel, stride, padding, dilation = window(attrs)
        return (dims[axis.dim] + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    part = axis.size({**attrs, **dims})
    return 1 if part == -1 else -(-dims[axis.dim] // part)


def shape(axes: Sequence[Axis], dims: Mapping[str, int], attrs: Mapping[str, Value]) -> tuple[int, ...]:
    """Shape of a tensor with these axes."""
    return tuple(extent(axis, dims, attrs) for axis in axes)


def read_dims(
    subject: str,
    axes: Axes,
    shapes: Mapping[str, Sequence[int]],
    attrs: Mapping[str, Value],
    fixed: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """The dimensions of an operator, read from the shapes of its tensors.

    A dimension that stands nowhere but in `Parts`, such as the room of a table of pages, has whole parts.

    Args:
        subject: the kernel or operator, for messages.
        axes: axes of the tensors by name.
        shapes: shapes of some of these tensors; extents may be symbolic integers.
        attrs: attributes by name.
        fixed: dimensions that the shapes must agree with.

    Returns:
        Dimensions by name, with those of `fixed`.

    Raises:
        WorkloadError: a rank is wrong, or extents contradict each other; names the tensor and its axis.
    """
    dims: dict[str, Any] = dict(fixed or {})
    origin: dict[str, str] = dict.fromkeys(dims, "as fixed when it was made")
    for name, found in shapes.items():
        if len(found) != len(axes[name]):
            expected = f"must have {len(axes[name])}: {_form(axes[name])}"
            raise WorkloadError(f"{subject}: {name} has {len(found)} axes, {_form(found)}, and {expected}")
        for position, (axis, size) in enumerate(zip(axes[name], found, strict=True)):
            dim, more = (axis.dim, axis.more) if isinstance(axis, Plus) else (axis, 0)
            if isinstance(dim, str) and dim not in attrs:
                if dim not in dims:
                    dims[dim], origin[dim] = size - more, f"from {name}.shape[{position}]"
                elif dims[dim] + more != size:
                    rule = f"{axis}={dims[dim] + more}, {origin[dim]}"
                    raise _mismatch(subject, name, position, size, rule, axes[name])
    for name, found in shapes.items():
        for position, (axis, size) in enumerate(zip(axes[name], found, strict=True)):
            if isinstance(axis, Parts) and axis.dim not in dims:
                part = axis.size({**attrs, **dims})
                dims[axis.dim], origin[axis.dim] = size * part, f"from {name}.shape[{position}]"
            if isinstance(axis, Parts | Windows | int) or axis in attrs:
                expected_size = extent(axis, dims, attrs)
                if expected_size != size:
                    rule = str(axis) if isinstance(axis, int) else f"{axis}={expected_size}"
                    raise _mismatch(subject, name, position, size, rule, axes[name])
    return dims


def _form(parts: Sequence[Any]) -> str:
    return f"({', '.join(map(str, parts))})"


def _mismatch(
    subject: str, name: str, position: int, size: Any, rule: str, axes: Sequence[Axis]
) -> WorkloadError:
    return WorkloadError(
        f"{subject}: {name}.shape[{position}]={size} must be {rule}; {name} is {_form(axes)}"
    )
