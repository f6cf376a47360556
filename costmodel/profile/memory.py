"""Buffers, pointers and tensors of one device function: what a variable of the IR points to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...profile import Space, Tensor
from .accesses import Place
from .descriptors import Descriptor
from .dtypes import element_type
from .expressions import constant, identity


@dataclass
class Memory:
    """Names are only kept as labels in order of appearance: renaming a kernel's variables changes nothing."""

    descriptors: Mapping[str, Descriptor]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    local_bytes: dict[int, float] = field(default_factory=dict)  # local buffer -> bytes per thread
    _buffers: dict[int, tuple[str, str]] = field(default_factory=dict)  # data variable -> (memory scope, label)
    _labels: dict[int, str] = field(default_factory=dict)
    _constant: set[str] = field(default_factory=set)  # tensors that the kernel only reads

    def parameters(self, function: Any) -> None:
        """The kernel's parameters: tensors in global memory, and descriptors of such."""
        readonly = {int(position) for position in (function.attrs or {}).get("tl.readonly_param_indices") or ()}
        for position, parameter in enumerate(function.params):
            if position in readonly:
                self._constant.add(f"t{position}")
            label = self._labels[identity(parameter)] = f"t{position}"
            descriptor = self.descriptors.get(parameter.name)
            if descriptor is not None:
                self.tensors[label] = Tensor(label, descriptor.tensor_bytes, descriptor.element_bytes)
            elif str(getattr(parameter.type_annotation, "storage_scope", "")) == "global":
                self._buffers[identity(parameter)] = ("global", label)

    def complete(self, function: Any, sizes: Mapping[str, tuple[int, int]]) -> None:
        """Sizes of parameters that the kernel reaches through access pointers alone, which state none: from `sizes`
        (bytes, bytes of an element) by the parameter's name in the host part."""
        for parameter in function.params:
            scope, label = self._buffers.get(identity(parameter), ("", ""))
            if scope == "global" and parameter.name in sizes and (label not in self.tensors or not self.tensors[label].bytes):
                self.tensors[label] = Tensor(label, *sizes[parameter.name])

    def carve(self, variable: Any, source: Any) -> None:
        """`variable` points into the buffer of `source`: it has an identity of its own."""
        whole = self._buffers.get(identity(source))
        if whole is not None:
            self._buffers[identity(variable)] = (whole[0], self._label(variable, "s"))

    def declare(self, buffer: Any) -> None:
        key, memory = identity(buffer.data), str(buffer.scope())
        size = _static_elements(buffer) * element_type(str(buffer.dtype)).bytes
        if memory.startswith("local"):
            self.local_bytes[key] = size
        scope, label = self._buffers.setdefault(key, (memory or "global", self._label(buffer.data, "b")))
        if scope == "global" and (label not in self.tensors or size > self.tensors[label].bytes):
            self.tensors[label] = Tensor(label, round(size), max(1, round(element_type(str(buffer.dtype)).bytes)))

    def is_global(self, buffer: Any) -> bool:
        return self._buffers.get(identity(buffer.data), (str(buffer.scope()), ""))[0] == "global"

    def place(self, buffer: Any, index: Any, vector: int = 1) -> Place | None:
        """Where `vector` elements at `index` of `buffer` lie; None in registers."""
        if identity(buffer.data) not in self._buffers:
            self.declare(buffer)
        memory, label = self._buffers[identity(buffer.data)]
        space = _space(memory)
        if space is None:
            return None
        repeatable = space is Space.SHARED or label in self._constant
        return Place(space, label, index, element_type(str(buffer.dtype)).bytes, vector, repeatable)

    def pointer(self, node: Any) -> Place | None:
        """The place that a pointer argument names; None where it is no pointer to global or shared memory."""
        name = getattr(getattr(node, "op", None), "name", "")
        if name == "tirx.tvm_access_ptr":
            memory, label = self._buffers.get(identity(node.args[1]), ("", ""))
            space = _space(memory)
            # the element type is carried by a call of its own
            return None if space is None else Place(space, label, node.args[2], element_type(str(node.args[0].dtype)).bytes)
        if name in ("tirx.address_of", "tirx.handle_add_byte_offset"):
            return self.pointer(node.args[0])
        if type(node).__name__ == "BufferLoad":
            return self.place(node.buffer, node.indices[0])
        return None

    def pointer_extent(self, node: Any) -> int | None:
        """Elements that an access pointer covers."""
        return constant(node.args[3]) if getattr(getattr(node, "op", None), "name", "") == "tirx.tvm_access_ptr" else None

    def descriptor(self, node: Any) -> Descriptor | None:
        if type(node).__name__ != "Var" or node.name not in self.descriptors:
            return None
        found = self.descriptors[node.name]
        return replace(found, tensor=self._labels.get(identity(node), found.tensor))

    def _label(self, variable: Any, prefix: str) -> str:
        return self._labels.setdefault(identity(variable), f"{prefix}{len(self._labels)}")


def parameter_sizes(traced: Any) -> Mapping[str, tuple[int, int]]:
    """Bytes, and bytes of an element, of the tensors that a function takes, by the name of their data; those of known shape."""
    found = {}
    for buffer in getattr(traced, "buffer_map", {}).values():
        element = element_type(str(buffer.dtype)).bytes
        if all(constant(extent) is not None for extent in buffer.shape):
            found[str(buffer.data.name)] = (round(_static_elements(buffer) * element), max(1, round(element)))
    return found


def _space(memory: str) -> Space | None:
    if memory.startswith("shared"):
        return None if "barrier" in memory else Space.SHARED
    return Space.GLOBAL if memory == "global" else None


def _static_elements(buffer: Any) -> float:
    total = 1.0
    for extent in buffer.shape:
        total *= constant(extent) or 1
    return total
