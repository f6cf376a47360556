"""Element types: canonical names, aliases of users, and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .errors import WorkloadError

DTYPE_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "fp16": "float16",
        "half": "float16",
        "f16": "float16",
        "bf16": "bfloat16",
        "fp32": "float32",
        "f32": "float32",
        "float": "float32",
        "fp8": "float8_e4m3fn",
        "e4m3": "float8_e4m3fn",
        "float8_e4m3": "float8_e4m3fn",
        "e5m2": "float8_e5m2",
    }
)
DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "float16": 2,
        "bfloat16": 2,
        "float32": 4,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
        "int8": 1,
        "uint8": 1,
        "int32": 4,
        "bool": 1,
    }
)
INT8_TYPES = ("int8", "uint8")  # that matrix units take


def canonical_dtype(name: str, allowed: tuple[str, ...], subject: str) -> str:
    """The canonical name of a dtype (`bf16` -> `bfloat16`).

    Args:
        name: name as a user writes it.
        allowed: canonical names that are legal.
        subject: begins the error message.

    Raises:
        WorkloadError: the dtype is not in `allowed`.
    """
    dtype = DTYPE_ALIASES.get(name.lower(), name.lower())
    if dtype not in allowed:
        raise WorkloadError(f"{subject}: dtype '{name}' is not supported; use one of: {', '.join(allowed)}")
    return dtype
