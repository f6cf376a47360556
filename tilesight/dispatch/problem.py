"""What one dispatcher is for: an operator with some dimensions fixed, a template for it, and the rest free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .. import axes
from ..candidate import Candidate
from ..errors import InputError, UnknownNameError, WorkloadError
from ..space import Config, SearchSpace
from ..target import Target
from ..template import KernelTemplate, Operator
from ..workload import Workload, check_dimension

if TYPE_CHECKING:
    import torch

Key = tuple[int, ...]  # the free dimensions, in the operator's order

ALIGNMENT = 16  # bytes: of vector loads, and of what a TMA descriptor starts at


@dataclass(frozen=True)
class Problem:
    template: KernelTemplate
    target: Target
    dtype: str
    attrs: Mapping[str, bool | int]
    fixed: Mapping[str, int]
    open: tuple[str, ...] = ()  # dimensions that kernels built for it take at run time

    @property
    def operator(self) -> Operator:
        return self.template.operator

    @cached_property
    def free(self) -> tuple[str, ...]:
        return tuple(dim for dim in self.operator.dims if dim not in self.fixed)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: the last of the operator's tensors."""
        return tuple(name for name in self.operator.axes if name not in self.inputs)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        ones = Workload(self.operator.name, dict.fromkeys(self.operator.dims, 1), self.dtype, self.attrs)
        last = set(self.operator.outputs(ones))
        return tuple(name for name in self.operator.axes if name not in last)

    @property
    def label(self) -> str:
        parts = [f"{name}={value}" for name, value in [*self.fixed.items(), *self.attrs.items()]]
        return f"{self.operator.name} {' '.join([*parts, self.dtype])} for any {', '.join(self.free) or 'call'} on {self.target.name}"

    @property
    def torch_device(self) -> str:
        """Type of the torch devices on which its tensors lie."""
        return "cuda" if self.target.is_gpu else "cpu"

    def key_of(self, dims: Mapping[str, int]) -> Key:
        return tuple(dims[name] for name in self.free)

    def key(self, given: Mapping[str, int]) -> Key:
        """The key of free dimensions by name. Raises `InputError` where one is missing, unknown, fixed or no size."""
        for name, value in given.items():
            if name not in self.operator.dims:
                raise UnknownNameError(f"{self.operator.name} dimension", name, self.free)
            if name in self.fixed:
                raise InputError(f"{self.operator.name}: {name}={self.fixed[name]} is fixed; give {', '.join(self.free) or 'nothing'} only")
            check_dimension(self.operator.name, name, value)
        missing = [name for name in self.free if name not in given]
        if missing:
            raise InputError(f"{self.operator.name}: {', '.join(missing)} is free here and must be given, e.g. {missing[0]}=4096")
        return self.key_of(given)

    def lists(self, workload: Workload) -> str:
        """Its free dimensions as `Dispatcher.prepare` takes them, for messages."""
        return ", ".join(f"{name}=[{workload.dims[name]}]" for name in self.free)

    def workload(self, key: Key) -> Workload:
        """Raises `WorkloadError` where the operator refuses it."""
        dims = {**self.fixed, **dict(zip(self.free, key, strict=True))}
        workload = Workload(self.operator.name, {name: dims[name] for name in self.operator.dims}, self.dtype, self.attrs)
        self.operator.validate(workload)
        return workload

    def space(self, workload: Workload) -> SearchSpace:
        return self.template.space(workload, self.target)

    def candidate(self, workload: Workload, config: Config, open_dims: tuple[str, ...]) -> Candidate:
        return Candidate(workload, self.target, self.template, config, open_dims)

    # ---- tensors

    def dtype_of(self, name: str) -> str:
        return self.operator.tensor_dtypes.get(name, self.dtype)

    def read_dims(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """All dimensions from the inputs' shapes, which may be symbolic. Raises `WorkloadError`."""
        return axes.read_dims(self.operator.name, self.operator.axes, shapes, self.attrs, self.fixed)

    def output_shapes(self, dims: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        return {name: axes.shape(self.operator.axes[name], dims, self.attrs) for name in self.outputs}

    def check_count(self, tensors: Sequence[Any]) -> None:
        inputs = self.inputs
        if len(tensors) != len(inputs):
            raise InputError(f"{self.operator.name}: {len(tensors)} inputs were given; call it with {len(inputs)}: {', '.join(inputs)}")
        for name, tensor in zip(inputs, tensors, strict=True):
            if not hasattr(tensor, "data_ptr"):
                raise InputError(f"{self.operator.name}: {name} is of type {type(tensor).__name__} and must be a torch.Tensor")

    def read(self, tensors: Sequence[torch.Tensor]) -> dict[str, int]:
        """All dimensions from the inputs. Raises `InputError` for a wrong number, dtype, device or rank, and for sizes that
        contradict each other or what is fixed."""
        self.check_count(tensors)
        named = dict(zip(self.inputs, tensors, strict=True))
        for name, tensor in named.items():
            self.check_dtype(name, tensor)
        self._check_device(named)
        return self.read_dims({name: tensor.shape for name, tensor in named.items()})

    def check_dtype(self, name: str, tensor: torch.Tensor) -> None:
        found, wanted = str(tensor.dtype).removeprefix("torch."), self.dtype_of(name)
        if found != wanted:
            is_choice = name not in self.operator.tensor_dtypes and found in self.template.dtypes
            other = f", or make a dispatcher with dtype='{found}'" if is_choice else ""
            raise InputError(f"{self.operator.name}: {name} is {found} and must be {wanted}; convert it: {name}.to(torch.{wanted}){other}")

    def _check_device(self, named: Mapping[str, torch.Tensor]) -> None:
        first = next(iter(named.values())).device
        for name, tensor in named.items():
            if tensor.device.type != self.torch_device:
                raise InputError(
                    f"{self.operator.name}: {name} lies on {tensor.device} and target {self.target.name} runs on "
                    f"{self.torch_device}; move it with {name}.to('{self.torch_device}'), or make a dispatcher for another target"
                )
            if tensor.device != first:
                raise InputError(
                    f"{self.operator.name}: {name} lies on {tensor.device} and {next(iter(named))} on {first}; move one of them"
                )

    def refuse_layout(self, named: Mapping[str, torch.Tensor]) -> None:
        """Raise `InputError` for the first tensor whose memory no kernel can take."""
        for name, tensor in named.items():
            if not tensor.is_contiguous():
                raise InputError(
                    f"{self.operator.name}: {name} has strides {tuple(tensor.stride())} and must be contiguous; give {name}.contiguous()"
                )
            if self.target.is_gpu and tensor.data_ptr() % ALIGNMENT:
                raise InputError(
                    f"{self.operator.name}: {name} starts {tensor.data_ptr() % ALIGNMENT} bytes off a multiple of {ALIGNMENT}, where "
                    f"kernels read whole vectors; give {name}.clone()"
                )

    def check_output(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...], device: torch.device) -> None:
        """Raise `InputError` unless `tensor` can take that output."""
        if not hasattr(tensor, "data_ptr"):
            raise InputError(f"{self.operator.name}: out={type(tensor).__name__} must be a torch.Tensor of shape {shape}")
        self.check_dtype(name, tensor)
        if tuple(tensor.shape) != shape:
            raise InputError(f"{self.operator.name}: out has shape {tuple(tensor.shape)} and must have {name}'s: {shape}")
        if not tensor.is_contiguous():
            raise InputError(
                f"{self.operator.name}: out has strides {tuple(tensor.stride())} and must be contiguous; make it with torch.empty"
            )
        if tensor.device != device:
            raise InputError(f"{self.operator.name}: out lies on {tensor.device} and the inputs on {device}; make it there")


def problem_of(
    template: KernelTemplate,
    target: Target,
    dtype: str,
    attrs: Mapping[str, bool | int],
    fixed: Mapping[str, int],
    open_dims: str | Sequence[str],
) -> Problem:
    """Raises `InputError` where a dimension, attribute or open dimension is none, and where no tensor says a free one."""
    operator = template.operator
    if not operator.axes:
        raise InputError(f"{operator.name} does not say how its tensors follow from its dimensions, which dispatch needs: give it `axes`")
    for name, value in fixed.items():
        if name not in operator.dims:
            raise UnknownNameError(f"{operator.name} dimension", name, operator.dims)
        check_dimension(operator.name, name, value)
    chosen = dict(operator.attrs)
    for name, value in attrs.items():
        if name not in operator.attrs:
            raise UnknownNameError(f"{operator.name} attribute", name, operator.attrs)
        if isinstance(value, bool) != isinstance(operator.attrs[name], bool) or not isinstance(value, int):
            example = operator.attrs[name]
            raise WorkloadError(f"{operator.name}: {name}={value!r} must be like {name}={example}")
        chosen[name] = value
    if open_dims:
        open_dims = template.check_open(open_dims)
        closed = [dim for dim in open_dims if dim in fixed]
        if closed:
            dim = closed[0]
            raise InputError(f"{operator.name}: {dim}={fixed[dim]} is fixed and cannot be dynamic too; leave out one of the two")
    found = Problem(template, target, dtype, chosen, dict(fixed), tuple(open_dims))
    said = {axis for name in found.inputs for axis in operator.axes[name]}
    unsaid = [dim for dim in found.free if dim not in said]
    if unsaid:
        raise InputError(f"{operator.name}: no tensor's shape says {unsaid[0]}; fix it: {unsaid[0]}=...")
    return found
