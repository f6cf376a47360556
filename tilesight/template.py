"""Operators (what is computed) and kernel templates (how, with parameters left open)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from .axes import Axes
from .code_hash import definition_hash, recorded_version
from .errors import InputError, UnknownNameError, WorkloadError
from .profile import Rasterization
from .space import Config, SearchSpace
from .target import Target
from .workload import DTYPE_BYTES, Workload, canonical_dtype, parse_assignments

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class Scale:
    """How a dimension that does not shape a template's code is cut: parameters that tile it, all values these may have."""

    tiles: tuple[str, ...] = ()
    values: tuple[int, ...] = (1,)


class Operator(ABC):
    """A function of tensors: its workloads, inputs, reference, cost floor and vendor implementations."""

    name: ClassVar[str]
    dims: ClassVar[tuple[str, ...]]
    attrs: ClassVar[Mapping[str, bool | int]] = {}  # with their defaults
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float16")  # the first is the default
    axes: ClassVar[Axes] = {}  # of inputs, then outputs, in the order of the kernel's arguments: what a dispatcher needs
    tensor_dtypes: ClassVar[Mapping[str, str]] = {}  # of tensors that do not have the workload's
    named: ClassVar[Mapping[str, Mapping[str, bool | int]]]  # published name -> dims and attrs
    default_names: ClassVar[tuple[str, ...]]  # what a command without --shape takes

    @abstractmethod
    def inputs(self, workload: Workload, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Random inputs by name, in the order of the kernel's arguments; drawn as in real use, never zeros."""

    @abstractmethod
    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        """Shape of each output by name, in the order of the kernel's arguments (after the inputs)."""

    @abstractmethod
    def reference(self, workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The right outputs, in float32 or better, on the inputs' device."""

    @abstractmethod
    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """Vendor implementations by name (`cuBLAS`), each a call on these inputs, to be timed beside ours."""

    @abstractmethod
    def flops(self, workload: Workload) -> int:
        """Floating-point operations that any implementation must do (multiply and add count two)."""

    @abstractmethod
    def min_bytes(self, workload: Workload) -> int:
        """Bytes that must cross device memory: each input read once, each output written once."""

    @abstractmethod
    def max_relative_error(self, workload: Workload) -> float:
        """Largest accepted ||out - ref|| / ||ref||."""

    @property
    def identity(self) -> str:
        """What tells it from other operators in a process that measures."""
        return self.name

    def own_check(self, workload: Workload, outputs: Tensors, reference: Tensors) -> tuple[float | None, str] | None:
        """A check that takes the place of the one by `max_relative_error`: the relative error (None: nothing was compared, and
        a time says nothing of the result) and what is wrong ("": nothing is). None: there is no such check."""
        return None

    def preset(self, workload: Workload, outputs: Tensors) -> bool:
        """Write what a kernel must find in `outputs` before it runs; whether there is anything: kernels that also read what
        they write do not compute the same again without it."""
        return False

    def element_bytes(self, workload: Workload) -> int:
        return DTYPE_BYTES[workload.dtype]

    def workload(self, shape: str, dtype: str | None = None) -> Workload:
        """The workload that `shape` means: a published name (`M0`) or `k=v,...` with all dimensions.

        Raises `UnknownNameError` for a wrong name, `WorkloadError` for a wrong value.
        """
        label = None
        if "=" in shape:
            raw: dict[str, bool | int] = {k: self._read(k, v) for k, v in parse_assignments(shape, "shape").items()}
        else:
            by_folded = {name.lower(): name for name in self.named}
            if shape.lower() not in by_folded:
                example = ",".join(f"{d}=..." for d in self.dims)
                raise UnknownNameError(f"{self.name} shape", shape, self.named, f"Or give its dimensions: --shape {example}")
            label = by_folded[shape.lower()]
            raw = dict(self.named[label])
        missing = [d for d in self.dims if d not in raw]
        if missing:
            raise WorkloadError(f"{self.name}: shape '{shape}' lacks {', '.join(missing)}; it needs {', '.join(self.dims)}")
        workload = Workload(
            operator=self.name,
            dims={d: int(raw[d]) for d in self.dims},
            dtype=canonical_dtype(dtype or self.dtypes[0], self.dtypes, self.name),
            attrs={a: raw.get(a, default) for a, default in self.attrs.items()},
            name=label,
        )
        self.validate(workload)
        return workload

    def default_workloads(self, dtype: str | None = None) -> list[Workload]:
        return [self.workload(name, dtype) for name in self.default_names]

    def validate(self, workload: Workload) -> None:
        """Raise `WorkloadError` where dimensions that are legal one by one make no problem together."""

    def _read(self, name: str, text: str) -> bool | int:
        if name not in (*self.dims, *self.attrs):
            raise UnknownNameError(f"{self.name} dimension", name, (*self.dims, *self.attrs))
        if isinstance(self.attrs.get(name), bool):
            if text.lower() not in ("true", "false"):
                raise WorkloadError(f"{self.name}: {name}={text} must be true or false")
            return text.lower() == "true"
        try:
            return int(text)
        except ValueError:
            raise WorkloadError(f"{self.name}: {name}={text} must be a whole number, e.g. {name}=4096") from None


class KernelTemplate(ABC):
    """One way to compute an operator on a kind of target, with parameters left open."""

    operator: ClassVar[Operator]
    name: ClassVar[str]  # unique among templates
    target_kinds: ClassVar[tuple[str, ...]]  # of "cuda", "hip", "cpu"
    dtypes: ClassVar[tuple[str, ...]]
    compile_flags: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # extra flags of the device compiler, by kind of target
    # dimensions that only trip counts, the grid and extents follow: profiles are kept over their values. Empty: none is
    scales: ClassVar[Mapping[str, Scale]] = {}
    # dimensions that a kernel can take at run time, and why it cannot take the others
    openable: ClassVar[tuple[str, ...]] = ()
    closed: ClassVar[Mapping[str, str]] = {}
    # False where it adds in changing order by design, as atomics do: then outputs may differ in their last bits from run to run
    deterministic: ClassVar[bool] = True

    @abstractmethod
    def space(self, workload: Workload, target: Target) -> SearchSpace: ...

    @abstractmethod
    def build(self, workload: Workload, config: Config) -> Any:
        """The TileLang PrimFunc of this config. Imports tilelang; may raise whatever TileLang raises.

        It takes nothing from the module of its search space: what is measured holds while `version` stays the same.
        """

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """A config that a careful engineer would start from, if the space has it: the search's first guess."""
        return None

    def reordered(self, config: Config) -> tuple[Config, Rasterization] | None:
        """Where `config` merely reorders the blocks of another config: that config, whose lowering it shares, and its own
        order. None where it does not."""
        return None

    def check_open(self, dims: str | Sequence[str]) -> tuple[str, ...]:
        """These dimensions in the operator's order, so that one kernel has one name. Raises `InputError` that says why, where
        a kernel of this template cannot take them at run time."""
        dims = (dims,) if isinstance(dims, str) else tuple(dims)
        ways_out = f"take {' or '.join(self.openable)}" if self.openable else "none of its dimensions can be open"
        for position, dim in enumerate(dims):
            if dim not in self.operator.dims:
                raise UnknownNameError(f"{self.operator.name} dimension", dim, self.operator.dims)
            if dim in dims[:position]:
                raise InputError(f"{self.operator.name}: open dimension {dim} is given twice")
            if dim not in self.openable:
                reason = self.closed.get(dim, "its template is not written for that")
                raise InputError(f"{self.operator.name}: {dim} cannot be open in {self.name}: {reason}; {ways_out}")
        return tuple(dim for dim in self.operator.dims if dim in dims)

    @cached_property
    def version(self) -> str:
        """Version of the template's code and of all that it uses in its own package, its operator included: 12 hex digits.

        A new published shape of the operator is not new code. See `code_hash.definition_hash`.
        """
        return recorded_version(definition_hash(type(self), ignored=("named", "default_names")))
