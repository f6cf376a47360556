"""Kernel templates: one way to compute an operator, with parameters that are tuned."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from ..code_hash import definition_hash, recorded_version
from ..errors import InputError, UnknownNameError
from ..target.spec import Target, node_names, target_names
from .operator import Operator
from .rasterization import Rasterization
from .space import Config, SearchSpace
from .workload import Workload


@dataclass(frozen=True, slots=True)
class Scale:
    """The tiling of a dimension that changes trip counts, the grid and extents, but not the code.

    `tiles` are the parameters that tile the dimension; `values` are all tile sizes that these may have.
    `divided_by`: the parameter that divides the number of tiles, rounded up: among the blocks of a cluster,
    or among parts of the dimension.
    """

    tiles: tuple[str, ...] = ()
    values: tuple[int, ...] = (1,)
    divided_by: str = ""


@dataclass(frozen=True, slots=True)
class RunTimeNumber:
    """A number that a built kernel takes when it is called, with the value at which it is measured."""

    name: str
    dtype: str
    value: int | float

    @property
    def slot(self) -> int:
        """The value as a library takes it: its bytes at the beginning of a word as wide as a pointer."""
        return number_slot(self.dtype, self.value)


# the rank of the device that runs a kernel; models and lowering take that of rank 0
RANK = RunTimeNumber("rank", "int32", 0)
# which launches of a function are done, as bits from the lowest; all of them in a call of its own
LAUNCHES = RunTimeNumber("launches", "int32", -1)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of the vendor's library that belongs to a kernel's call.

    Attributes:
        name: `all_reduce`, `all_gather`, `reduce_scatter` or `all_to_all`.
        source: the tensor of each rank that it reads: an input, an output or scratch of the kernel.
        result: the tensor of each rank that it writes; of an all-reduce it may be `source`.
        when: `before` the kernel or `after` it, or `between` its launches: it then takes `LAUNCHES`.
        size_bytes: of the whole tensor, as `predict_collective` takes it.
        launches: the launches that come first, if it is `between`.
        others: further collectives of the call, which follow it where they stand at the same place.
    """

    name: str
    source: str
    result: str
    when: str
    size_bytes: int
    launches: int = 0
    others: tuple[Collective, ...] = ()

    def at(self, *places: str) -> list[Collective]:
        """Those of it and its `others` that stand at one of these places (`when`), in order."""
        return [one for one in (self, *self.others) if one.when in places]

    def steps(self) -> list[int | Collective]:
        """What a call is, in order: launches of the kernel, as a value of `LAUNCHES`, and collectives."""
        found: list[int | Collective] = [*self.at("before")]
        left = -1
        for one in self.at("between"):
            first = left & ((1 << one.launches) - 1)
            left &= ~first
            found += [first, one]
        return [*found, left, *self.at("after")]


# element types of numbers among a kernel's arguments, with their formats in `struct`
NUMBER_FORMATS: Mapping[str, str] = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I",
    "int64": "q", "uint64": "Q", "float32": "f", "float64": "d",
}  # fmt: skip


def number_slot(dtype: str, value: float) -> int:
    """A number as a library takes it; see `RunTimeNumber.slot`. Raises `struct.error` if it does not fit."""
    given = float(value) if dtype.startswith("float") else value
    return int.from_bytes(struct.pack(f"<{NUMBER_FORMATS[dtype]}", given).ljust(8, b"\0"), "little")


# what the code of kernels does not depend on: published shapes, vendors' implementations, what plans explore
NOT_CODE = ("named", "default_names", "vendor", "static_parameters", "index_fault", "kind_reasons")


class KernelTemplate(ABC):
    """One way to compute an operator on some kinds of target.

    Attributes:
        operator: what it computes.
        name: unique among all templates.
        target_kinds: kinds of target ("cuda", "hip", "cpu") that it runs on.
        kind_reasons: why it does not run on other kinds, where there is more to say than that it is not
            written for them.
        dtypes: dtypes of a workload that it takes.
        scales: dimensions that change only trip counts, the grid and extents, with their tiling. Cached
            profiles hold for all sizes of these dimensions. Empty if no dimension is like that.
        dynamic_dims: dimensions that a kernel can take at run time.
        static_reasons: why a kernel cannot take the other dimensions at run time, by dimension.
        static_parameters: parameters whose values other than the default make kernels that take too long to
            lower if a dimension is dynamic. Plans do not explore these; whoever names such a config gets it.
        numbers: arguments of its kernels that are numbers, in order; they follow the tensors and sizes.
        deterministic: False if the kernel adds in changing order by design (atomics), so that the last bits
            of its outputs may differ from run to run.
    """

    operator: Operator
    name: str
    target_kinds: ClassVar[tuple[str, ...]]
    kind_reasons: ClassVar[Mapping[str, str]] = {}
    dtypes: ClassVar[tuple[str, ...]]
    scales: ClassVar[Mapping[str, Scale]] = {}
    dynamic_dims: ClassVar[tuple[str, ...]] = ()
    static_reasons: ClassVar[Mapping[str, str]] = {}
    static_parameters: ClassVar[tuple[str, ...]] = ()
    numbers: tuple[RunTimeNumber, ...] = ()
    deterministic: bool = True

    @property
    def compile_flags(self) -> Mapping[str, tuple[str, ...]]:
        """Extra flags of the device compiler, by kind of target."""
        return {}

    @abstractmethod
    def space(self, workload: Workload, target: Target) -> SearchSpace:
        """The search space of `workload` on `target`."""

    @abstractmethod
    def build(self, workload: Workload, config: Config) -> Any:
        """The TileLang PrimFunc of this config. Imports tilelang; may raise any error of TileLang.

        The code must not use anything of the search space's module, since `version` does not cover that
        module.
        """

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of the memory that a call needs beside its tensors, such as partial sums, by name.

        The kernel's function takes these tensors after the outputs, in this order. Each call has its own;
        what they hold before the call is undefined.
        """
        return {}

    def shared_scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """As `scratch`, for memory of each rank that the kernels of all ranks reach: flags, staging.

        Only of operators that communicate. Each tensor `s` stands in the kernel's function as `s_0`, `s_1`,
        ..., after the outputs and before `scratch`. It is zeroed once, when it is allocated. Integers then
        belong to the kernels, which keep counters of calls in them; what other tensors hold before a call is
        undefined. One set serves one sequence of calls, the same on all ranks.
        """
        return {}

    def collective(self, workload: Workload, config: Config) -> Collective | None:
        """The collective of the vendor's library that is part of a call, with its `others`."""
        return None

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """A well-tried config that the search measures first, or None."""
        return None

    def for_config(self, config: Config) -> KernelTemplate:
        """The template to send to a worker process together with `config`."""
        return self

    def reordered(self, config: Config) -> tuple[Config, Rasterization] | None:
        """The config with the same code in another block order, if there is one.

        Returns:
            A config that differs from `config` in the block order alone, whose lowering is shared, and the
            block order of `config`; else None.
        """
        return None

    def arguments(self, config: Config) -> dict[str, Any]:
        """The values of `config` as a user writes them in Python."""
        return dict(config)

    def usage(self, workload: Workload, target: Target, config: Config, dynamic: Sequence[str] = ()) -> str:
        """A line of Python that makes the kernel of `config`; "" if there is none for this operator.

        Sizes that the kernel takes at run time (`dynamic`) are left out.
        """
        if not self.operator.axes:  # no dispatcher takes it
            return ""
        name = self.operator.name
        # a shipped target by its name, one of the user by the file that `tilesight calibrate` names after it
        where = target.name if target.name in (*target_names(), *node_names()) else f"{target.name}.toml"
        stated = self.operator.stated_dims
        dims = {d: size for d, size in workload.dims.items() if d in stated and d not in dynamic}
        sizes = {**dims, **workload.attrs}
        given = [f'"{name}"', f'target="{where}"', f'dtype="{workload.dtype}"']
        given += [f"{size}={value!r}" for size, value in sizes.items()]
        given += [f"dynamic={tuple(dynamic)}"] if dynamic else []
        given += ["group=torch.distributed.group.WORLD"] if self.operator.communicates else []
        return f"{name} = tilesight.dispatcher({', '.join(given)}, config={self.arguments(config)})"

    def check_dynamic(self, dims: str | Sequence[str]) -> tuple[str, ...]:
        """`dims` in the operator's order, so that one kernel has one name.

        Raises:
            UnknownNameError: the operator has no such dimension.
            InputError: a dimension is named twice, or a kernel of this template cannot take it at run time.
        """
        dims = (dims,) if isinstance(dims, str) else tuple(dims)
        options = " or ".join(self.dynamic_dims)
        way_out = f"take {options}" if options else "none of its dimensions can be dynamic"
        for position, dim in enumerate(dims):
            if dim not in self.operator.dims:
                raise UnknownNameError(f"{self.operator.name} dimension", dim, self.operator.dims)
            if dim in dims[:position]:
                raise InputError(f"{self.operator.name}: dynamic dimension {dim} is given twice")
            if dim not in self.dynamic_dims:
                reason = self.static_reasons.get(dim, "its template is not written for that")
                raise InputError(
                    f"{self.operator.name}: {dim} cannot be dynamic in {self.name}: {reason}; {way_out}"
                )
        return tuple(dim for dim in self.operator.dims if dim in dims)

    @cached_property
    def version(self) -> str:
        """Hash (12 hex digits) of the template's code and of all that it uses in its own package.

        Includes the operator, except for `NOT_CODE`. See `code_hash.definition_hash`.
        """
        return recorded_version(definition_hash(type(self), ignored=NOT_CODE))
