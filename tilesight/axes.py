"""Axes: how the shapes of an operator's tensors follow from its dimensions, and how dimensions are read off shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import WorkloadError


@dataclass(frozen=True, slots=True)
class Parts:
    """An axis of ceil(dim / part) elements. `part` is a number or the name of an attribute, where -1 means all of `dim`."""

    dim: str
    part: int | str

    def __str__(self) -> str:
        return f"ceil({self.dim}/{self.part})"


Axis = str | Parts  # the name of a dimension or attribute, or parts of a dimension
Axes = Mapping[str, tuple[Axis, ...]]  # of tensors by name


def extent(axis: Axis, dims: Mapping[str, int], attrs: Mapping[str, bool | int]) -> int:
    """Elements along `axis`. Dimensions may be symbolic integers."""
    if isinstance(axis, str):
        return dims[axis] if axis in dims else int(attrs[axis])
    part = int(attrs[axis.part]) if isinstance(axis.part, str) else axis.part
    return 1 if part == -1 else -(-dims[axis.dim] // part)


def shape(axes: Sequence[Axis], dims: Mapping[str, int], attrs: Mapping[str, bool | int]) -> tuple[int, ...]:
    return tuple(extent(axis, dims, attrs) for axis in axes)


def read_dims(
    subject: str,
    axes: Axes,
    shapes: Mapping[str, Sequence[int]],
    attrs: Mapping[str, bool | int],
    fixed: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """The dimensions that `shapes` (of the tensors that `axes` names) mean. Extents may be symbolic integers.

    `fixed` dimensions are what the shapes must agree with. Raises `WorkloadError` that names `subject`, tensor and axis where
    a rank is wrong or extents contradict each other.
    """
    dims: dict[str, Any] = dict(fixed or {})
    said: dict[str, str] = dict.fromkeys(dims, "as fixed when it was made")
    for name, found in shapes.items():
        if len(found) != len(axes[name]):
            wanted = _form(axes[name])
            raise WorkloadError(f"{subject}: {name} has {len(found)} axes, {_form(found)}, and must have {len(axes[name])}: {wanted}")
        for position, (axis, size) in enumerate(zip(axes[name], found, strict=True)):
            if isinstance(axis, str) and axis not in attrs:
                if axis not in dims:
                    dims[axis], said[axis] = size, f"as {name}.shape[{position}] says"
                elif dims[axis] != size:
                    raise _mismatch(subject, name, position, size, f"{axis}={dims[axis]}, {said[axis]}", axes[name])
    for name, found in shapes.items():
        for position, (axis, size) in enumerate(zip(axes[name], found, strict=True)):
            if isinstance(axis, Parts) or axis in attrs:
                wanted_size = extent(axis, dims, attrs)
                if wanted_size != size:
                    raise _mismatch(subject, name, position, size, f"{axis}={wanted_size}", axes[name])
    return dims


def _form(parts: Sequence[Any]) -> str:
    return f"({', '.join(map(str, parts))})"


def _mismatch(subject: str, name: str, position: int, size: Any, rule: str, axes: Sequence[Axis]) -> WorkloadError:
    return WorkloadError(f"{subject}: {name}.shape[{position}]={size} must be {rule}; {name} is {_form(axes)}")
