"""The problem of one dispatcher: an operator, its template, and which dimensions are fixed or free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..builder.loaded_kernel import memory_fault
from ..errors import InputError, UnknownNameError
from ..problem import axes
from ..problem.candidate import Candidate
from ..problem.operator import Operator
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate
from ..problem.workload import Workload, check_dimension
from ..target.spec import Target

if TYPE_CHECKING:
    import torch

ShapeKey = tuple[int, ...]  # sizes of the free dimensions, in the operator's order

ALIGNMENT = 16  # bytes; vector loads and TMA descriptors need it


@dataclass(frozen=True)
class DispatchProblem:
    """An operator, a template, a target, and the dimensions that are fixed.

    `dynamic` are the dimensions that new kernels take at run time.
    """

    template: KernelTemplate
    target: Target
    dtype: str
    attrs: Mapping[str, Value]
    fixed: Mapping[str, int]
    dynamic: tuple[str, ...] = ()

    @property
    def operator(self) -> Operator:
        return self.template.operator

    @cached_property
    def free(self) -> tuple[str, ...]:
        return tuple(dim for dim in self.operator.dims if dim not in self.fixed)

    @cached_property
    def axes(self) -> axes.Axes:
        """Axes of the inputs, then of the outputs."""
        return self.operator.tensor_axes(self.attrs)

    @cached_property
    def dtypes(self) -> Mapping[str, str]:
        """Dtypes of the tensors whose dtype is not `dtype`."""
        return self.operator.tensor_dtypes(self.dtype, self.attrs)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the output tensors."""
        return tuple(name for name in self.axes if name not in self.inputs)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input tensors, in the order of a call's arguments."""
        ones = Workload(self.operator.name, dict.fromkeys(self.operator.dims, 1), self.dtype, self.attrs)
        outputs = set(self.operator.outputs(ones))
        return tuple(name for name in self.axes if name not in outputs)

    @property
    def label(self) -> str:
        """One line for people."""
        parts = [f"{name}={value}" for name, value in [*self.fixed.items(), *self.attrs.items()]]
        what, free = " ".join([self.operator.name, *parts, self.dtype]), ", ".join(self.free) or "call"
        return f"{what} for any {free} on {self.target.name}"

    @property
    def torch_device(self) -> str:
        """Type of the torch devices of the target: `cuda` or `cpu`."""
        return "cuda" if self.target.is_gpu else "cpu"

    def key_of(self, dims: Mapping[str, int]) -> ShapeKey:
        """The key for dimensions that are known to be right."""
        return tuple(dims[name] for name in self.free)

    def key(self, given: Mapping[str, int]) -> ShapeKey:
        """The key for free dimensions by name.

        Raises `InputError` if one is missing, unknown, fixed or not a size.
        """
        for name, value in given.items():
            if name not in self.operator.dims:
                raise UnknownNameError(f"{self.operator.name} dimension", name, self.free)
            if name in self.fixed:
                free = ", ".join(self.free) or "nothing"
                raise InputError(
                    f"{self.operator.name}: {name}={self.fixed[name]} is fixed; give {free} only"
                )
            check_dimension(self.operator.name, name, value)
        missing = [name for name in self.free if name not in given]
        if missing:
            names = ", ".join(missing)
            raise InputError(
                f"{self.operator.name}: {names} is free here and must be given, e.g. {missing[0]}=4096"
            )
        return self.key_of(given)

    def prepare_arguments(self, workload: Workload) -> str:
        """The arguments of `Dispatcher.prepare` for a workload, for messages."""
        return ", ".join(f"{name}=[{workload.dims[name]}]" for name in self.free)

    def workload(self, key: ShapeKey) -> Workload:
        """The workload of a shape. Raises `WorkloadError` if the operator refuses it."""
        dims = {**self.fixed, **dict(zip(self.free, key, strict=True))}
        ordered = {name: dims[name] for name in self.operator.dims}
        workload = Workload(self.operator.name, ordered, self.dtype, self.attrs)
        self.operator.validate(workload)
        return workload

    def space(self, workload: Workload) -> SearchSpace:
        return self.template.space(workload, self.target)

    def candidate(self, workload: Workload, config: Config, dynamic_dims: tuple[str, ...]) -> Candidate:
        return Candidate(workload, self.target, self.template, config, dynamic_dims)

    # ---- tensors

    def dtype_of(self, name: str) -> str:
        return self.dtypes.get(name, self.dtype)

    def read_dims(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """All dimensions, read from the inputs' shapes, which may be symbolic. Raises `WorkloadError`."""
        return axes.read_dims(self.operator.name, self.axes, shapes, self.attrs, self.fixed)

    def output_shapes(self, dims: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        return {name: axes.shape(self.axes[name], dims, self.attrs) for name in self.outputs}

    def check_count(self, tensors: Sequence[Any]) -> None:
        """Raise `InputError` unless there is one tensor for each input."""
        operator, inputs = self.operator.name, self.inputs
        if len(tensors) != len(inputs):
            expected = f"{len(inputs)}: {', '.join(inputs)}"
            raise InputError(f"{operator}: {len(tensors)} inputs were given; call it with {expected}")
        for name, tensor in zip(inputs, tensors, strict=True):
            if not hasattr(tensor, "data_ptr"):
                found = type(tensor).__name__
                raise InputError(f"{operator}: {name} is of type {found} and must be a torch.Tensor")

    def read(self, tensors: Sequence[torch.Tensor]) -> dict[str, int]:
        """All dimensions, read from the inputs.

        Raises `InputError` for a wrong number, dtype, device or rank, and for sizes that contradict each
        other or the fixed dimensions.
        """
        self.check_count(tensors)
        named = dict(zip(self.inputs, tensors, strict=True))
        for name, tensor in named.items():
            self.check_dtype(name, tensor)
        self._check_device(named)
        return self.read_dims({name: tensor.shape for name, tensor in named.items()})

    def check_indices(self, tensors: Sequence[torch.Tensor], dims: Mapping[str, int]) -> None:
        """Raise `InputError` for a tensor whose memory cannot be read, then for the first value of an index
        tensor that no kernel may get. Waits for the device.
        """
        named = dict(zip(self.inputs, tensors, strict=True))
        self.check_layout(named)
        fault = self.operator.index_fault(self.workload(self.key_of(dims)), named)
        if fault is not None:
            raise InputError(f"{self.operator.name}: {fault}")

    def check_dtype(self, name: str, tensor: torch.Tensor) -> None:
        """Raise `InputError` unless the tensor has the dtype of that name."""
        found, wanted = str(tensor.dtype).removeprefix("torch."), self.dtype_of(name)
        if found != wanted:
            is_choice = name not in self.dtypes and found in self.template.dtypes
            other = f", or make a dispatcher with dtype='{found}'" if is_choice else ""
            convert = f"convert it: {name}.to(torch.{wanted}){other}"
            raise InputError(f"{self.operator.name}: {name} is {found} and must be {wanted}; {convert}")

    def _check_device(self, named: Mapping[str, torch.Tensor]) -> None:
        first = next(iter(named.values())).device
        for name, tensor in named.items():
            if tensor.device.type != self.torch_device:
                raise InputError(
                    f"{self.operator.name}: {name} lies on {tensor.device} and target {self.target.name} "
                    f"runs on {self.torch_device}; move it with {name}.to('{self.torch_device}'), or make a "
                    "dispatcher for another target"
                )
            if tensor.device != first:
                raise InputError(
                    f"{self.operator.name}: {name} lies on {tensor.device} and {next(iter(named))} on "
                    f"{first}; move one of them"
                )

    def check_gpu(self, device: torch.device, name: str, begins: str = "the tensors lie on") -> None:
        """Raise `InputError` if the GPU called `name` is not a chip of the target. `begins`: words before
        the device in the message."""
        names = self.target.device_names
        if names and name not in names:
            raise InputError(
                f"{self.operator.name}: {begins} {device}, a '{name}', and target "
                f"{self.target.name} is {' or '.join(names)}; make a dispatcher for that device's target"
            )

    def check_layout(self, named: Mapping[str, torch.Tensor]) -> None:
        """Raise `InputError` for the first tensor that is not contiguous, has other values than its memory,
        or has lost its memory, or is not aligned on a GPU.
        """
        for name, tensor in named.items():
            if not tensor.is_contiguous():
                raise InputError(
                    f"{self.operator.name}: {name} has strides {tuple(tensor.stride())} and must be "
                    f"contiguous; give {name}.contiguous()"
                )
            if (fault := memory_fault(tensor)) is not None:
                raise InputError(f"{self.operator.name}: {name} {fault}")
            if self.target.is_gpu and tensor.data_ptr() % ALIGNMENT:
                raise InputError(
                    f"{self.operator.name}: {name} starts {tensor.data_ptr() % ALIGNMENT} bytes off a "
                    f"multiple of {ALIGNMENT}, where kernels read whole vectors; give {name}.clone()"
                )

    def check_overlap(self, named: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]) -> None:
        """Raise `InputError` if the memory of an output overlaps that of an input or of another output."""
        earlier = dict(named)
        for name, out in outputs.items():
            first, end = out.data_ptr(), out.data_ptr() + out.nbytes
            for other, tensor in earlier.items():
                if tensor.data_ptr() < end and first < tensor.data_ptr() + tensor.nbytes:
                    raise InputError(
                        f"{self.operator.name}: out ({name}) shares memory with {other}, which the kernel "
                        "reads or writes meanwhile; give memory of its own, made with torch.empty"
                    )
            earlier[name] = out

    def check_output(
        self, name: str, tensor: torch.Tensor, shape: tuple[int, ...], device: torch.device
    ) -> None:
        """Raise `InputError` unless `tensor` is fit memory for the output of that name."""
        operator = self.operator.name
        if not hasattr(tensor, "data_ptr"):
            raise InputError(
                f"{operator}: out={type(tensor).__name__} must be a torch.Tensor of shape {shape}"
            )
        self.check_dtype(name, tensor)
        if tuple(tensor.shape) != shape:
            raise InputError(
                f"{operator}: out has shape {tuple(tensor.shape)} and must have {name}'s: {shape}"
            )
        if not tensor.is_contiguous():
            strides = tuple(tensor.stride())
            raise InputError(
                f"{operator}: out has strides {strides} and must be contiguous; make it with torch.empty"
            )
        if tensor.device != device:
            raise InputError(
                f"{operator}: out lies on {tensor.device} and the inputs on {device}; make it there"
            )
        if (fault := memory_fault(tensor)) is not None:
            raise InputError(f"{operator}: out {fault}")


def make_problem(
    template: KernelTemplate,
    target: Target,
    dtype: str,
    attrs: Mapping[str, Value],
    fixed: Mapping[str, int],
    dynamic_dims: str | Sequence[str],
) -> DispatchProblem:
    """The problem of these arguments.

    Raises `InputError` for an unknown dimension or attribute, and if a free dimension is not in the shape of
    any input.
    """
    operator = template.operator
    for name, value in fixed.items():
        if name not in operator.dims:
            raise UnknownNameError(f"{operator.name} dimension", name, operator.dims)
        check_dimension(operator.name, name, value)
    for name, attribute in attrs.items():
        operator.check_attribute(name, attribute)
    chosen = operator.kept_attributes(attrs)
    if not operator.tensor_axes(chosen):
        raise InputError(
            f"{operator.name} has no `axes`, which map dimensions to tensor shapes; dispatch needs them"
        )
    if dynamic_dims:
        dynamic_dims = template.check_dynamic(dynamic_dims)
        both = next((dim for dim in dynamic_dims if dim in fixed), None)
        if both is not None:
            raise InputError(
                f"{operator.name}: {both}={fixed[both]} is fixed and cannot be dynamic too; "
                "leave out one of the two"
            )
    found = DispatchProblem(template, target, dtype, chosen, dict(fixed), tuple(dynamic_dims))
    readable = {getattr(axis, "dim", axis) for name in found.inputs for axis in found.axes[name]}
    hidden = next((dim for dim in found.free if dim not in readable), None)
    if hidden is not None:
        raise InputError(f"{operator.name}: {hidden} is not in the shape of any input; fix it: {hidden}=...")
    return found
