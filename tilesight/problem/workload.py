"""Workloads: an operator with its dimensions, dtype and attributes, under one canonical key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ..errors import WorkloadError
from .config import Value

MAX_DIMENSION = 2**31 - 2**16  # TileLang counts in 32-bit integers, and rounds up to whole tiles


@dataclass(frozen=True, slots=True)
class Workload:
    """One problem that a kernel solves.

    Attributes:
        operator: name of the operator.
        dims: sizes by name, positive whole numbers in elements.
        dtype: element type of the output and of the inputs, except for those in `Operator.tensor_dtypes`
            (packed weights, float32 scales). Kernels accumulate in float32.
        attrs: booleans, numbers or texts by name (`causal`, `layout`).
        name: the published name (`M0`), if there is one: a label, and no part of the identity.
    """

    operator: str
    dims: Mapping[str, int]
    dtype: str
    attrs: Mapping[str, Value] = field(default_factory=dict)
    name: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for dim, value in self.dims.items():
            check_dimension(self.operator, dim, value)
        object.__setattr__(self, "dims", MappingProxyType(dict(self.dims)))
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[object, ...]:
        return Workload, (self.operator, dict(self.dims), self.dtype, dict(self.attrs), self.name)

    @property
    def key(self) -> str:
        """Canonical identity, e.g. `matmul(m=4096,n=1024,k=8192;dtype=bfloat16)`."""
        parts = [f"{k}={v}" for k, v in self.dims.items()]
        attrs = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in sorted(self.attrs.items())]
        return f"{self.operator}({','.join(parts)};{','.join([*attrs, f'dtype={self.dtype}'])})"

    @property
    def label(self) -> str:
        """Text for people: the published name if there is one, dimensions, attributes and dtype."""
        shape = " ".join(f"{k}={v}" for k, v in [*self.dims.items(), *self.attrs.items()])
        return f"{self.operator} {self.name + ': ' if self.name else ''}{shape} {self.dtype}"


def check_dimension(operator: str, dim: str, value: object) -> None:
    """Raise `WorkloadError` unless `value` is a whole number from 1 to `MAX_DIMENSION`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WorkloadError(f"{operator}: {dim}={value!r} must be a whole number, e.g. {dim}=4096")
    if not 1 <= value <= MAX_DIMENSION:
        raise WorkloadError(f"{operator}: {dim}={value} must lie in 1 .. {MAX_DIMENSION}")
