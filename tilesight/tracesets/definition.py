"""Definitions of operators as FlashInfer-Bench has them, read from JSON and written as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..problem.workload import MAX_DIMENSION

MOST_LETTERS = 200  # of a name


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

    def sizes(self, stated: Mapping[str, int]) -> dict[str, int]:
        """The sizes of axes in a workload that states some.

        Raises `DefinitionError` if it states an axis that is not here, or another size than a constant has.
        """
        for name, size in stated.items():
            if name not in self.axes:
                raise DefinitionError(f"its workload states axis {name}, which it does not have")
            constant = self.axes[name]
            if constant not in (None, size):
                raise DefinitionError(f"its workload states {name}={size}, and it has {name}={constant}")
        return {**{name: size for name, size in self.axes.items() if size is not None}, **stated}

    def has(
        self,
        inputs: Mapping[str, tuple[str, ...]],
        outputs: Mapping[str, tuple[str, ...]],
        numbers: tuple[str, ...] = (),
    ) -> bool:
        """Whether it has exactly these tensors, with these axes, and no inputs that are other `numbers`."""
        if any(t.axes is None and name not in numbers for name, t in self.inputs.items()):
            return False

        def axes(given: Mapping[str, TraceTensor]) -> dict[str, tuple[str, ...]]:
            return {name: t.axes for name, t in given.items() if t.axes is not None}

        return axes(self.inputs) == dict(inputs) and axes(self.outputs) == dict(outputs)


def read_definition(fields: Any) -> TraceDefinition:
    """The definition of JSON fields. Raises `DefinitionError` if they are none."""
    try:
        return TraceDefinition(
            _name(fields["name"]),
            str(fields["op_type"]),
            {name: _size(name, axis) for name, axis in fields["axes"].items()},
            {name: _tensor(tensor) for name, tensor in fields["inputs"].items()},
            {name: _tensor(tensor) for name, tensor in fields["outputs"].items()},
            str(fields.get("reference", "")),
            str(fields.get("description") or ""),
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DefinitionError(f"it is no definition: {type(error).__name__}: {error}") from None


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= MOST_LETTERS:
        raise ValueError(f"its name must be 1 to {MOST_LETTERS} printable characters")
    return name


def _size(name: str, axis: Any) -> int | None:
    if axis["type"] == "var":
        return None
    value = axis["value"] if axis["type"] == "const" else None
    if type(value) is not int or not 1 <= value <= MAX_DIMENSION:
        raise ValueError(f"axis {name} is neither var nor a const in 1 .. {MAX_DIMENSION}")
    return value


def _tensor(tensor: Any) -> TraceTensor:
    # a number has the shape null; early files have []
    axes = tuple(str(axis) for axis in tensor["shape"]) if tensor["shape"] else None
    return TraceTensor(axes, str(tensor["dtype"]))
