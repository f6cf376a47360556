"""What matches of definitions and operators share: problems of kernels, checks, and the factor of scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from .. import kernels
from ..problem.config import Value
from ..problem.operator import Operator
from .definition import DefinitionError, TraceDefinition


@dataclass(frozen=True, slots=True)
class KernelProblem:
    """What exported kernels compute, as far as a definition needs it.

    `fixed`: dimensions with one size; others are stated by calls.
    """

    operator: Operator
    dtype: str
    attrs: Mapping[str, Value]
    fixed: Mapping[str, int]

    def attribute(self, name: str) -> Value:
        return self.operator.attribute(self.attrs, name)


class TraceMatch(ABC):
    """Definitions of one op_type that one of TileSight's operators computes.

    Attributes:
        op_type: of the definitions.
        operator: the name of TileSight's operator.
        has_random_inputs: whether inputs may be random, so that a workload is its sizes.
        tensors: the operator's name of each tensor of a definition; the first one has the workload's dtype.
    """

    op_type: ClassVar[str]
    operator: ClassVar[str]
    has_random_inputs: ClassVar[bool] = True
    tensors: ClassVar[Mapping[str, str]]

    @abstractmethod
    def definition(self, problem: KernelProblem) -> TraceDefinition:
        """The definition that kernels of a problem compute. Raises `DefinitionError` if there is none."""

    @abstractmethod
    def axes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The variable axes of a workload, for sizes of the operator's dimensions."""

    @abstractmethod
    def run(self, problem: KernelProblem, module: str) -> str:
        """Python code of `run`, which takes inputs and outputs and calls the module of an export."""

    @abstractmethod
    def shape(
        self, definition: TraceDefinition, axes: Mapping[str, int], scalars: Mapping[str, float]
    ) -> dict[str, Value]:
        """Dimensions and attributes of a workload. Raises `DefinitionError` if the operator does not fit.

        Args:
            definition: of the workload.
            axes: the sizes that the workload states.
            scalars: its numbers.
        """

    def dtype(self, definition: TraceDefinition) -> str:
        """The dtype of the workloads of a definition that has the tensors."""
        return definition.inputs[next(iter(self.tensors))].dtype

    def check_dtypes(self, definition: TraceDefinition, shape: Mapping[str, Value]) -> None:
        """Raise `DefinitionError` unless the operator's tensors have the dtypes of the definition's."""
        operator, dtype = kernels.operator(self.operator), self.dtype(definition)
        others = operator.tensor_dtypes(dtype, operator.kept_attributes(shape))
        for name, tensor in (*definition.inputs.items(), *definition.outputs.items()):
            if tensor.axes is None:
                continue
            wanted = others.get(self.tensors[name], dtype)
            if tensor.dtype != wanted:
                raise DefinitionError(
                    f"its {name} is {tensor.dtype}, and that of {self.operator} {dtype} is {wanted}"
                )


def constants(problem: KernelProblem, *names: str) -> list[int]:
    """The sizes of dimensions that a definition has as constants.

    Raises `DefinitionError` if calls state one of them.
    """
    free = [name for name in names if name not in problem.fixed]
    if free:
        raise DefinitionError(f"{' and '.join(free)} must be fixed: its definition has constants there")
    return [problem.fixed[name] for name in names]


def require(problem: KernelProblem, wanted: Mapping[str, Value]) -> None:
    """Raise `DefinitionError` unless the kernels' attributes have these values."""
    for name, value in wanted.items():
        found = problem.attribute(name)
        if found != value:
            raise DefinitionError(
                f"its definition needs {_text(name, value)}, and these kernels have {_text(name, found)}"
            )


def _text(name: str, value: Value) -> str:
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def size_of(sizes: Mapping[str, int], axis: str) -> int:
    """The size of an axis. Raises `DefinitionError` if it has none."""
    size = sizes.get(axis)
    if size is None:
        raise DefinitionError(f"axis {axis} has no size")
    return size


def stated_scale(scalars: Mapping[str, float], width: int, usual: float | None = None) -> float:
    """The attribute `scale` for the factor of scores that a workload states.

    Args:
        scalars: the workload's numbers.
        width: columns of a key: 0 stands for one over its root.
        usual: the factor of a workload that states none; None: one over the root of `width`.

    Raises:
        DefinitionError: the factor is not above 0.
    """
    default = width**-0.5
    scale = scalars.get("sm_scale", usual or default)
    if not 0 < scale < math.inf:
        raise DefinitionError(f"sm_scale={scale} must be a number above 0")
    if is_near(scale, default):
        return 0.0
    return usual if usual is not None and is_near(scale, usual) else scale


def is_near(scale: float, other: float) -> bool:
    """Whether two factors are the same but for rounding to float32."""
    return abs(scale - other) <= 1e-5 * other


def scale_check(scale: float) -> str:
    """Lines of `run` that refuse another factor of scores."""
    return (
        f"    if abs(float(sm_scale) - {scale!r}) > 1e-5 * {scale!r}:\n"
        f'        raise ValueError(f"sm_scale={{float(sm_scale)}}: these kernels have {scale!r}")\n'
    )
