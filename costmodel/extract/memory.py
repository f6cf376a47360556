"""Finds the tensor or buffer behind each variable, pointer and descriptor of one device function."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...profile.values import Space, Tensor
from .accesses import AccessSite
from .descriptors import Descriptor
from .element_types import element_type
from .expressions import call_name, constant, identity, is_scalar
from .filled_buffers import FilledBuffer
from .scope import Scope
from .tables import Table

REGISTER_BYTES = 4


@dataclass
class Memory:
    """The tensors and buffers of one device function.

    Tensors are labelled in order of appearance, so renaming the variables of a kernel changes nothing.
    """

    descriptors: Mapping[str, Descriptor]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    in_local_memory: frozenset[int] = frozenset()  # local buffers whose elements get no registers
    spilled: frozenset[int] = frozenset()  # those of them whose elements the compiler spills one by one
    summed_at_once: frozenset[int] = (
        frozenset()
    )  # local buffers whose elements are added up as they are computed
    local_bytes: dict[int, float] = field(default_factory=dict)  # bytes per thread, by local buffer
    # bytes per thread of the registers of those whose elements get a register each
    _separate: dict[int, float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of the parameters, by label
    # by buffer: the launch and loop variables that its contents derive from, as far as the program was read
    contents: dict[int, frozenset[int]] = field(default_factory=dict)
    tables: dict[int, Table] = field(default_factory=dict)  # tensors with known contents
    filled: dict[int, FilledBuffer] = field(default_factory=dict)  # buffers with known contents
    _mixed: set[int] = field(default_factory=set)  # buffers with elements whose values are not known
    _stores: Counter[int] = field(default_factory=Counter)  # statements that changed a buffer so far
    _buffers: dict[int, tuple[str, str]] = field(
        default_factory=dict
    )  # (memory scope, label), by data variable
    _labels: dict[int, str] = field(default_factory=dict)
    _buffer_names: dict[str, str] = field(default_factory=dict)  # of what is no parameter, by label
    _constant: set[str] = field(default_factory=set)  # tensors that the kernel only reads

    def declare_parameters(self, function: Any) -> None:
        """Record the parameters of the kernel: tensors in global memory and TMA descriptors of tensors."""
        readonly = {
            int(position) for position in (function.attrs or {}).get("tl.readonly_param_indices") or ()
        }
        for position, parameter in enumerate(function.params):
            if position in readonly:
                self._constant.add(f"t{position}")
            label = self._labels[identity(parameter)] = f"t{position}"
            self.names[label] = parameter.name.removesuffix("_desc")
            descriptor = self.descriptors.get(parameter.name)
            if descriptor is not None:
                self.tensors[label] = Tensor(label, descriptor.tensor_bytes, descriptor.element_bytes)
            elif str(getattr(parameter.type_annotation, "storage_scope", "")) == "global":
                self._buffers[identity(parameter)] = ("global", label)
                if identity(parameter) not in self.tables:
                    self.contents[identity(parameter)] = frozenset()

    def fill_sizes(self, function: Any, sizes: Mapping[str, tuple[int, int]]) -> None:
        """Set the sizes of tensors that the kernel accesses only through pointers, which carry no size.

        Args:
            function: the device function.
            sizes: (bytes of the tensor, bytes of an element) by the name of the parameter in the host part.
        """
        for parameter in function.params:
            scope, label = self._buffers.get(identity(parameter), ("", ""))
            if (
                scope == "global"
                and parameter.name in sizes
                and (label not in self.tensors or not self.tensors[label].bytes)
            ):
                self.tensors[label] = Tensor(label, *sizes[parameter.name])

    def add_view(self, variable: Any, source: Any) -> None:
        """Record that `variable` points into the buffer of `source`.

        It is labelled as a buffer of its own.
        """
        whole = self._buffers.get(identity(source))
        if whole is not None:
            self._buffers[identity(variable)] = (whole[0], self._label(variable, "s"))

    def declare(self, buffer: Any) -> None:
        """Record the memory scope and the size of a buffer."""
        key, memory = identity(buffer.data), str(buffer.scope())
        size = _static_elements(buffer) * element_type(str(buffer.dtype)).bytes
        if memory.startswith("local"):
            self.local_bytes[key] = size
        if (
            not is_scalar(buffer) and key not in self.tables and key not in self.filled
        ):  # a scalar acts as a variable
            self.contents.setdefault(key, frozenset())
        scope, label = self._buffers.setdefault(key, (memory or "global", self._label(buffer.data, "b")))
        if scope == "global" and (label not in self.tensors or size > self.tensors[label].bytes):
            self.tensors[label] = Tensor(
                label, round(size), max(1, round(element_type(str(buffer.dtype)).bytes))
            )

    def register_bytes(self) -> dict[int, float]:
        """Bytes per thread, by local buffer whose elements get registers."""
        sizes, elsewhere = self.local_bytes | self._separate, self.in_local_memory | self.summed_at_once
        return {key: size for key, size in sizes.items() if key not in elsewhere}

    def separate(self, buffer: Any) -> None:
        """Record that each element of a local buffer has a register, also if several fit into one.

        That holds if each is computed in a branch of its own: the compiler packs them after the last branch.
        Source: machine code and ptxas reports of scans over chunks (nvcc 13.0), in bfloat16 and float16.
        """
        if self.is_in_registers(buffer):
            size = REGISTER_BYTES * _static_elements(buffer)
            self._separate[identity(buffer.data)] = max(size, self.local_bytes[identity(buffer.data)])

    def is_global(self, buffer: Any) -> bool:
        """Whether `buffer` lies in device memory."""
        return self._buffers.get(identity(buffer.data), (str(buffer.scope()), ""))[0] == "global"

    def is_in_registers(self, buffer: Any) -> bool:
        """Whether the elements of `buffer` are registers of each thread."""
        key = identity(buffer.data)
        memory = self._buffers.get(key, (str(buffer.scope()), ""))[0]
        return memory.startswith("local") and key not in self.in_local_memory

    def is_constant(self, buffer: Any) -> bool:
        """Whether the kernel only reads `buffer`."""
        return self._buffers.get(identity(buffer.data), ("", ""))[1] in self._constant

    def is_tensor(self, key: int) -> bool:
        """Whether the buffer with this identity lies in device memory."""
        return self._buffers.get(key, ("", ""))[0] == "global"

    def elements(self, key: int) -> float:
        """Elements of a tensor in device memory; 0 if its size is unknown."""
        tensor = self.tensors.get(self._buffers[key][1])
        return tensor.bytes / tensor.element_bytes if tensor is not None else 0.0

    def site(self, buffer: Any, index: Any, vector: int = 1) -> AccessSite | None:
        """The location of `vector` elements at `index` of `buffer`; None if the buffer lies in registers."""
        if identity(buffer.data) not in self._buffers:
            self.declare(buffer)
        memory, label = self._buffers[identity(buffer.data)]
        if identity(buffer.data) in self.in_local_memory:
            each, size = element_type(str(buffer.dtype)).bytes, self.local_bytes[identity(buffer.data)]
            return AccessSite(Space.LOCAL, label, index, each, vector, array_bytes=size)
        space = _space(memory)
        if space is None:
            return None
        repeatable = space is Space.SHARED or label in self._constant
        each = element_type(str(buffer.dtype)).bytes
        size = _static_elements(buffer) * each if space is Space.SHARED else 0.0
        return AccessSite(space, label, index, each, vector, repeatable, size, str(buffer.dtype))

    def pointer_site(self, node: Any) -> AccessSite | None:
        """The location that a pointer argument names.

        None if it does not point to global or shared memory.
        """
        name = call_name(node)
        if name == "tirx.tvm_access_ptr":
            memory, label = self._buffers.get(identity(node.args[1]), ("", ""))
            space = _space(memory)
            # the first argument of the call carries the element type
            return (
                None
                if space is None
                else AccessSite(space, label, node.args[2], element_type(str(node.args[0].dtype)).bytes)
            )
        if name in ("tirx.address_of", "tirx.handle_add_byte_offset"):
            return self.pointer_site(node.args[0])
        if type(node).__name__ == "BufferLoad":
            return self.site(node.buffer, node.indices[0])
        return None

    def note_store(self, data: int) -> None:
        """Record that a statement changes a buffer, or a local scalar."""
        self._stores[data] += 1

    def stores_to(self, data: int) -> int:
        """Statements so far that have changed the buffer of the data variable `data`."""
        return self._stores[data]

    def fill(self, target: Any, sources: frozenset[int], scope: Scope) -> None:
        """Record that the buffer of `target` receives values that derive from the variables `sources`.

        The contents of global memory follow from the position alone. Those of a shared buffer differ from
        block to block and from iteration to iteration of a phase, and those of a local buffer also from
        thread to thread.

        Args:
            target: the data variable of the buffer, or a pointer into it.
            sources: launch and loop variables.
            scope: the statement that fills the buffer.
        """
        variable = target if type(target).__name__ == "Var" else _pointer_variable(target)
        memory = self._buffers.get(identity(variable), ("", ""))[0] if variable is not None else "global"
        if memory == "global":
            return
        kept = scope.launch.block_variables | {loop.variable for loop in scope.phase_loops}
        if memory.startswith("local"):
            kept |= scope.launch.thread_variables
        key = identity(variable)
        self.filled.pop(key, None)
        self._mixed.add(key)
        self.contents[key] = self.contents.get(key, frozenset()) | (sources & kept)

    def fill_known(self, fills: Mapping[int, FilledBuffer], mixed: frozenset[int]) -> None:
        """Record the contents of buffers that a statement filled with known values.

        Args:
            fills: the buffers.
            mixed: buffers that had other values before. Those stay unknown: the statement may fill a part.
        """
        self._mixed -= fills.keys() - mixed
        for buffer in fills.keys() - mixed:
            self.filled[buffer] = fills[buffer]
            self.contents.pop(buffer, None)

    @property
    def mixed(self) -> frozenset[int]:
        """Buffers with elements whose values are not known."""
        return frozenset(self._mixed)

    def pointer_extent(self, node: Any) -> int | None:
        """Number of elements that an access pointer covers; None if unknown."""
        return constant(node.args[3]) if call_name(node) == "tirx.tvm_access_ptr" else None

    def descriptor(self, node: Any) -> Descriptor | None:
        """The TMA descriptor that `node` names, with the label of its tensor; None if it names none."""
        if type(node).__name__ != "Var" or node.name not in self.descriptors:
            return None
        found = self.descriptors[node.name]
        return replace(found, tensor=self._labels.get(identity(node), found.tensor))

    def _label(self, variable: Any, prefix: str) -> str:
        label = self._labels.setdefault(identity(variable), f"{prefix}{len(self._labels)}")
        if label not in self.names:
            self._buffer_names[label] = str(variable.name)
        return label

    @property
    def all_names(self) -> dict[str, str]:
        """The names of parameters and buffers, by label."""
        return {**self._buffer_names, **self.names}

    def name_of(self, key: int) -> str:
        """The name of the tensor or buffer with this identity; "" if it was not met."""
        return self.all_names.get(self._labels.get(key, ""), "")


def chosen_by_data(name: str, *, write: bool) -> str:
    """The note on a tensor whose places are chosen by loaded data."""
    done, again = ("written", "written") if write else ("read", "fetched")
    return (
        f"loaded data chooses which part of {name} is {done}: taken as spread evenly over the whole tensor, "
        f"and {again} again as far as the tensor exceeds the cache"
    )


def parameter_sizes(traced: Any) -> Mapping[str, tuple[int, int]]:
    """(bytes, bytes of an element) of tensor arguments with static shapes, by name of their data variable."""
    found = {}
    for buffer in getattr(traced, "buffer_map", {}).values():
        element = element_type(str(buffer.dtype)).bytes
        if all(constant(extent) is not None for extent in buffer.shape):
            found[str(buffer.data.name)] = (round(_static_elements(buffer) * element), max(1, round(element)))
    return found


def _pointer_variable(node: Any) -> Any | None:
    """The data variable of the buffer that a pointer argument points into; None if it is no pointer."""
    name = call_name(node)
    if name == "tirx.tvm_access_ptr":
        return node.args[1]
    if name in ("tirx.address_of", "tirx.handle_add_byte_offset"):
        return _pointer_variable(node.args[0])
    return node.buffer.data if type(node).__name__ == "BufferLoad" else None


def _space(memory: str) -> Space | None:
    if memory.startswith("shared"):
        return None if "barrier" in memory else Space.SHARED
    return Space.GLOBAL if memory == "global" else None


def _static_elements(buffer: Any) -> float:
    """Elements of a buffer; 0 if its shape has a size that only the host part knows."""
    return float(math.prod(constant(extent) or 0 for extent in buffer.shape))
