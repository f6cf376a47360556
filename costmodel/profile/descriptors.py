"""TMA descriptors: the host part of a lowered module says what one bulk copy moves and where the tensor ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .expressions import constant

# CUtensorMapDataType, CUDA driver API
_ELEMENT_BYTES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 4, 11: 4, 12: 4}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tiled tensor map. Sizes run from the fastest dimension to the slowest, in elements."""

    tensor: str
    element_bytes: int
    shape: tuple[int, ...]
    box: tuple[int, ...]

    @property
    def box_bytes(self) -> int:
        total = self.element_bytes
        for extent in self.box:
            total *= extent
        return total

    @property
    def tensor_bytes(self) -> int:
        total = self.element_bytes
        for extent in self.shape:
            total *= extent
        return total


def read_descriptors(host: Any) -> Mapping[str, Descriptor]:
    """Descriptors by the name of the kernel parameter that carries them."""
    found: dict[str, Descriptor] = {}
    for function in host.functions.values():
        arguments = (function.attrs or {}).get("tma_descriptor_args")
        for variable, parts in (arguments or {}).items():
            descriptor = _read(list(parts))
            if descriptor is not None:
                found[variable.name] = descriptor
    return found


def _read(parts: list[Any]) -> Descriptor | None:
    # create_tiled: name, handle, element type, rank, pointer, shape[rank], strides[rank], box[rank], element strides[rank], ...
    if len(parts) < 5 or str(parts[0].value) != "__tvm_tensormap_create_tiled":
        return None
    kind, rank = constant(parts[2]), constant(parts[3])
    if kind is None or rank is None:
        return None
    sizes = [constant(p) for p in parts[5 : 5 + 3 * rank]]
    shape, box = sizes[:rank], sizes[2 * rank :]
    if any(s is None for s in box):
        return None
    # a dimension that is known only at run time bounds nothing
    whole = tuple(s if s is not None else 0 for s in shape)
    return Descriptor(parts[4].name, _ELEMENT_BYTES.get(kind, 2), whole, tuple(int(b or 1) for b in box))
