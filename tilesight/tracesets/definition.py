"""Definitions of operators as FlashInfer-Bench has them, read from JSON and written as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class DefinitionError(ValueError):
    """A definition or a workload is wrong, or no operator of TileSight computes it. The text says why."""


@dataclass(frozen=True, slots=True)
class TraceTensor:
    """A tensor of a definition. `axes`: names of its axes; None for a number."""

    axes: tuple[str, ...] | None
    dtype: str


@dataclass(frozen=True)
class TraceDefinition:
    """What a kernel computes.

    Attributes:
        name: unique in a data set; engines find a kernel by it.
        op_type: the class of operators, e.g. gemm.
        axes: size of each constant axis; None for those that a call states.
        inputs, outputs: in the order of a kernel's arguments.
        reference: Python code with a function `run` of the inputs that returns the outputs.
    """

    name: str
    op_type: str
    axes: Mapping[str, int | None]
    inputs: Mapping[str, TraceTensor]
    outputs: Mapping[str, TraceTensor]
    reference: str = ""
    description: str = ""

    def fields(self) -> dict[str, Any]:
        """The definition as fields of JSON."""

        def tensors(given: Mapping[str, TraceTensor]) -> dict[str, Any]:
            return {
                name: {"shape": None if t.axes is None else list(t.axes), "dtype": t.dtype}
                for name, t in given.items()
            }

        axes = {
            name: {"type": "var"} if size is None else {"type": "const", "value": size}
            for name, size in self.axes.items()
        }
        return {
            "name": self.name,
            "description": self.description,
            "op_type": self.op_type,
            "axes": axes,
            "inputs": tensors(self.inputs),
            "outputs": tensors(self.outputs),
            "reference": self.reference,
        }

    def constant(self, axis: str) -> int:
        """The size of a constant axis. Raises `DefinitionError` if a call states it, or there is none."""
        size = self.axes.get(axis)
        if size is None:
            raise DefinitionError(f"axis {axis} must be a constant")
        return size

    def has(self, inputs: Mapping[str, tuple[str, ...]], outputs: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether it has exactly these tensors, with these axes; numbers are ignored."""

        def axes(given: Mapping[str, TraceTensor]) -> dict[str, tuple[str, ...]]:
            return {name: t.axes for name, t in given.items() if t.axes is not None}

        return axes(self.inputs) == dict(inputs) and axes(self.outputs) == dict(outputs)


def read_definition(fields: Any) -> TraceDefinition:
    """The definition of JSON fields. Raises `DefinitionError` if they are none."""
    try:
        return TraceDefinition(
            str(fields["name"]),
            str(fields["op_type"]),
            {name: _size(axis) for name, axis in fields["axes"].items()},
            {name: _tensor(tensor) for name, tensor in fields["inputs"].items()},
            {name: _tensor(tensor) for name, tensor in fields["outputs"].items()},
            str(fields.get("reference", "")),
            str(fields.get("description") or ""),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DefinitionError(f"it is no definition: {type(error).__name__}: {error}") from None


def _size(axis: Any) -> int | None:
    if axis["type"] == "var":
        return None
    if axis["type"] != "const" or isinstance(axis["value"], bool) or not isinstance(axis["value"], int):
        raise ValueError(f"axis {axis} is neither var nor a const with a whole number")
    return axis["value"]


def _tensor(tensor: Any) -> TraceTensor:
    # a number has the shape null; early files have []
    axes = tuple(str(axis) for axis in tensor["shape"]) if tensor["shape"] else None
    return TraceTensor(axes, str(tensor["dtype"]))
