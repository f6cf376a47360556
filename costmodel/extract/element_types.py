"""Parses the names of element types in the IR."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class ElementType(NamedTuple):
    """A scalar or vector type."""

    kind: str  # float | int | bool | handle
    bits: int  # of one element
    lanes: int

    @property
    def bytes(self) -> float:
        return self.bits / 8


@lru_cache(maxsize=256)
def element_type(name: str) -> ElementType:
    """Parse a type name: `bfloat16x4` is a float of 16 bits with 4 lanes.

    Unknown types count as 32-bit integers.
    """
    match = re.fullmatch(r"([a-z_]+?)(\d+)?(?:_[a-z0-9]+?)?(?:x(\d+))?", name)
    if not match:
        return ElementType("int", 32, 1)
    word, bits, lanes = match[1], match[2], int(match[3] or 1)
    if word in ("float", "bfloat", "tfloat"):
        return ElementType("float", int(bits or 32), lanes)
    if word in ("int", "uint"):
        return ElementType("int", int(bits or 32), lanes)
    if word == "bool":
        return ElementType("bool", 8, lanes)
    if word == "handle":
        return ElementType("handle", 64, lanes)
    return ElementType("int", int(bits or 32), lanes)


# types by their names in matrix instructions
MATRIX_TYPES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32", "f16": "float16",
    "f32": "float32", "e4m3": "float8", "e5m2": "float8", "float8_e4m3": "float8", "float8_e5m2": "float8",
    "int8": "int8", "uint8": "int8", "bfloat16": "bfloat16", "float16": "float16", "float32": "float32",
}  # fmt: skip
