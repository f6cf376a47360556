"""Reads TMA descriptors from the host part of a lowered module: boxes of copies and bounds of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .expressions import constant

# CUtensorMapDataType, CUDA driver API
_ELEMENT_BYTES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 4, 11: 4, 12: 4}


@dataclass(frozen=True, slots=True)
class Window:
    """Start positions of the pixels of an im2col copy along each axis, before the copy adds its offsets.

    They run from `lower` to the end of the image plus `upper`, `steps` apart.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor map. Sizes are in elements, from the fastest dimension to the slowest.

    A map with a `window` is an im2col map of an image. Its box has the shape (channels, consecutive pixels).
    """

    tensor: str
    element_bytes: int
    shape: tuple[int, ...]
    box: tuple[int, ...]
    window: Window | None = None

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
    """Return the descriptors of a host module by the name of the kernel parameter that passes them."""
    found: dict[str, Descriptor] = {}
    for function in host.functions.values():
        arguments = (function.attrs or {}).get("tma_descriptor_args")
        for variable, parts in (arguments or {}).items():
            descriptor = _read(list(parts))
            if descriptor is not None:
                found[variable.name] = descriptor
    return found


def _read(parts: list[Any]) -> Descriptor | None:
    # tiled and im2col maps both begin with: name, handle, element type, rank, pointer, shape[rank],
    # strides[rank]
    if len(parts) < 5:
        return None
    kind, rank = constant(parts[2]), constant(parts[3])
    if kind is None or rank is None:
        return None
    numbers = [constant(p) for p in parts[5:]]
    # a dimension that is known only at run time has no bound: 0
    shape = tuple(n if n is not None else 0 for n in numbers[:rank])
    rest = [int(n) for n in numbers[2 * rank :] if n is not None]
    if len(rest) < len(numbers) - 2 * rank:
        return None
    name, tensor, element = str(parts[0].value), parts[4].name, _ELEMENT_BYTES.get(kind, 2)
    if name == "__tvm_tensormap_create_tiled":  # box[rank], element strides[rank], ...
        return Descriptor(tensor, element, shape, tuple(n or 1 for n in rest[:rank]))
    if (
        name == "__tvm_tensormap_create_im2col"
    ):  # element strides[rank], lower[rank - 2], upper[rank - 2], pixels, channels, ...
        axes = rank - 2
        lower, upper = rest[rank : rank + axes], rest[rank + axes : rank + 2 * axes]
        pixels, channels = rest[rank + 2 * axes : rank + 2 * axes + 2]
        return Descriptor(
            tensor,
            element,
            shape,
            (channels, pixels),
            Window(tuple(lower), tuple(upper), tuple(rest[1 : 1 + axes])),
        )
    return None
