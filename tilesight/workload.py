"""What is asked for: an operator, its dimensions, dtypes and attributes, under one canonical key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .errors import InputError, WorkloadError

MAX_DIMENSION = 2**31 - 2**16  # TileLang counts in 32-bit integers, and rounds up to whole tiles

DTYPE_ALIASES: Mapping[str, str] = MappingProxyType(
    {"fp16": "float16", "half": "float16", "f16": "float16", "bf16": "bfloat16", "fp32": "float32", "f32": "float32", "float": "float32"}
)
DTYPE_BYTES: Mapping[str, int] = MappingProxyType({"float16": 2, "bfloat16": 2, "float32": 4})


@dataclass(frozen=True, slots=True)
class Workload:
    """One problem to solve fast.

    `dims` are positive whole numbers in elements, `attrs` are booleans or whole numbers (`causal`).
    `dtype` is the element type of the output and, unless its operator says otherwise (packed weights, float32 scales), of
    the inputs; accumulation is float32.
    `name` is the published name (`M0`) where it has one; it is a label and not part of the identity.
    """

    operator: str
    dims: Mapping[str, int]
    dtype: str
    attrs: Mapping[str, bool | int] = field(default_factory=dict)
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
        """For people: the published name where there is one, and the dimensions."""
        shape = " ".join(f"{k}={v}" for k, v in [*self.dims.items(), *self.attrs.items()])
        return f"{self.operator} {self.name + ': ' if self.name else ''}{shape} {self.dtype}"


def check_dimension(operator: str, dim: str, value: object) -> None:
    """Raise `WorkloadError` unless `value` is a whole number in 1 .. MAX_DIMENSION."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WorkloadError(f"{operator}: {dim}={value!r} must be a whole number, e.g. {dim}=4096")
    if not 1 <= value <= MAX_DIMENSION:
        raise WorkloadError(f"{operator}: {dim}={value} must lie in 1 .. {MAX_DIMENSION}")


def canonical_dtype(name: str, allowed: tuple[str, ...], subject: str) -> str:
    """The canonical spelling of `name` (`bf16` -> `bfloat16`); `WorkloadError` where `subject` has it not among `allowed`."""
    dtype = DTYPE_ALIASES.get(name.lower(), name.lower())
    if dtype not in allowed:
        raise WorkloadError(f"{subject}: dtype '{name}' is not supported; use one of: {', '.join(allowed)}")
    return dtype


def parse_assignments(text: str, what: str) -> dict[str, str]:
    """Read `k=v,k=v`. Raises `InputError` that quotes the part which is not of that form."""
    pairs: dict[str, str] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*([^=,]+?)\s*", part)
        if not match:
            raise InputError(f"{what} '{text}': '{part.strip()}' is not of the form name=value")
        if match[1] in pairs:
            raise InputError(f"{what} '{text}': {match[1]} is given twice")
        pairs[match[1]] = match[2]
    return pairs
