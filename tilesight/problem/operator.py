"""Operators: functions of tensors, with their workloads, inputs, reference results and cost floor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES, canonical_dtype
from ..errors import UnknownNameError, WorkloadError
from .assignments import parse_assignments
from .axes import Axes
from .config import Value
from .rounding import Rounding, SecondInputs
from .workload import Workload

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from ..target.spec import Target

Tensors = Mapping[str, "torch.Tensor"]


class Operator(ABC):
    """A function of tensors: its workloads, inputs, reference, cost floor and vendor implementations.

    Attributes:
        name: unique among operators.
        dims: names of the dimensions.
        dim_defaults: sizes of the dimensions that a shape may leave out: a number, or the name of the
            dimension whose size they take.
        attrs: attributes with their defaults.
        choices: legal values of the attributes that are texts, and of numbers of which only some are legal.
        later_attrs: attributes that came when measurements had been recorded. A workload has them only where
            they differ from their default, so that keys of the records hold. `attribute` reads them.
        dtypes: dtypes that a workload may have; the first is the default.
        axes: axes of the inputs, then of the outputs, in the order of the kernel's arguments. A dispatcher
            needs them. Where attributes change them, see `tensor_axes`.
        named: dimensions and attributes of the published shapes, by name.
        default_names: published shapes of a command without `--shape`.
        communicates: several devices compute it together: see `GroupOperator`.
    """

    name: str
    communicates: ClassVar[bool] = False
    dims: ClassVar[tuple[str, ...]]
    dim_defaults: ClassVar[Mapping[str, int | str]] = {}
    attrs: ClassVar[Mapping[str, Value]] = {}
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {}
    later_attrs: ClassVar[tuple[str, ...]] = ()
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float16")
    axes: ClassVar[Axes] = {}
    named: ClassVar[Mapping[str, Mapping[str, Value]]]
    default_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def inputs(self, workload: Workload, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Random inputs by name, in the order of the kernel's arguments.

        Their distribution is that of real use: never zeros.
        """

    @abstractmethod
    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        """Shape of each output by name, in the order of the kernel's arguments (after the inputs)."""

    @abstractmethod
    def reference(self, workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The right outputs, in float32 or better, on the inputs' device."""

    @abstractmethod
    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """Vendor implementations by name (`cuBLAS`), as functions that compute on these inputs."""

    @abstractmethod
    def flops(self, workload: Workload) -> int:
        """Floating-point operations that any implementation must do; a multiply-add counts as two."""

    @abstractmethod
    def min_bytes(self, workload: Workload) -> int:
        """Bytes that must cross device memory: each input read once, each output written once."""

    @abstractmethod
    def max_relative_error(self, workload: Workload) -> float:
        """Largest accepted ||out - ref|| / ||ref||."""

    def rounding(self, workload: Workload) -> Rounding | None:
        """How right kernels round, from which the bound of each element's error follows.

        Returns:
            None if that is not known: the bound then follows from `max_relative_error` and the reference.
        """
        return None

    def magnitude(self, workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        """For each element of an output, the root of the sum of its terms' squares, for `rounding`.

        Errors of sums are proportional to it. It is larger than the element where terms cancel.

        Returns:
            Tensors of the outputs' shapes by name. Where an output is left out, the reference's magnitude is
            taken.
        """
        return {}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs | None:
        """Inputs on which a kernel is checked once after those of `inputs`; None for no such check.

        Other values than the first show kernels that keep results of an earlier call; whole numbers with
        exact sums show each wrong term; values of other scales show overflows.
        """
        return SecondInputs(self.inputs(workload, device, seed))

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        """Axes of the inputs, then of the outputs, of a workload with these attributes."""
        return self.axes

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        """Dtypes of the tensors whose dtype is not `dtype`, that of the workload, by name."""
        return {}

    def dtype_of(self, tensor: str, workload: Workload) -> str:
        """The dtype of a tensor of `workload`."""
        return self.tensor_dtypes(workload.dtype, workload.attrs).get(tensor, workload.dtype)

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        """What is wrong with values of index tensors; None if nothing is, or if the operator has none.

        Such a value would let a kernel read or write beyond a tensor. Kernels do not look, since that would
        cost time in each call. A look waits for the device.
        """
        return None

    def contents(self, workload: Workload) -> Mapping[str, NDArray[Any]]:
        """The integer or bool inputs that decide how much work a kernel does: lengths, page tables, masks.

        They are the same for every seed of `inputs`. Loops and branches of a kernel are evaluated on them.
        """
        return {}

    @property
    def stated_dims(self) -> tuple[str, ...]:
        """The dimensions that a shape states; others come from the target."""
        return self.dims

    @property
    def identity(self) -> str:
        """Key of this operator in a measuring process."""
        return self.name

    def own_check(
        self, workload: Workload, outputs: Tensors, reference: Tensors
    ) -> tuple[float | None, str] | None:
        """A check of the results that replaces the one by `max_relative_error`.

        Returns:
            None if there is no such check. Else the relative error and a description of what is wrong: "" if
            the result is right. An error of None means that nothing was compared, so a time proves no result.
        """
        return None

    def preset(self, workload: Workload, outputs: Tensors) -> bool:
        """Write initial values to `outputs`, for kernels that read their outputs.

        Returns:
            Whether anything was written. Without it these kernels compute something else in a second run.
        """
        return False

    def element_bytes(self, workload: Workload) -> int:
        return DTYPE_BYTES[workload.dtype]

    def workload(self, shape: str, dtype: str | None = None) -> Workload:
        """The workload of `shape`: a published name (`M0`), or `k=v,...` with all dimensions.

        Args:
            shape: the shape; attributes that it does not name have their defaults.
            dtype: None for the operator's first dtype.

        Raises:
            UnknownNameError: no shape, dimension or attribute has that name.
            WorkloadError: a value is wrong, or a dimension is missing.
        """
        label = None
        if "=" in shape:
            raw: dict[str, Value] = {
                k: self._read(k, v) for k, v in parse_assignments(shape, "shape").items()
            }
        else:
            by_folded = {name.lower(): name for name in self.named}
            if shape.lower() not in by_folded:
                example = ",".join(f"{d}=..." for d in self.stated_dims)
                raise UnknownNameError(
                    f"{self.name} shape", shape, self.named, f"Or give its dimensions: --shape {example}"
                )
            label = by_folded[shape.lower()]
            raw = dict(self.named[label])
        raw = self.completed(raw)
        missing = [d for d in self.dims if d not in raw]
        if missing:
            needed = ", ".join(d for d in self.stated_dims if d not in self.dim_defaults)
            raise WorkloadError(f"{self.name}: shape '{shape}' lacks {', '.join(missing)}; it needs {needed}")
        workload = Workload(
            operator=self.name,
            dims={d: int(raw[d]) for d in self.dims},
            dtype=canonical_dtype(dtype or self.dtypes[0], self.dtypes, self.name),
            attrs=self.kept_attributes(raw),
            name=label,
        )
        self.validate(workload)
        return workload

    def attribute(self, attrs: Mapping[str, Value], name: str) -> Value:
        """The value of an attribute: of `attrs`, those of a workload, or the default."""
        return attrs.get(name, self.attrs[name])

    def kept_attributes(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """The attributes that a workload has: all of them, without the later ones at their default."""
        return {
            name: float(given.get(name, default)) if isinstance(default, float) else given.get(name, default)
            for name, default in self.attrs.items()
            if name not in self.later_attrs or given.get(name, default) != default
        }

    def completed(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """Dimensions and attributes, with the defaults of those that are not in `given`."""
        found: dict[str, Value] = {**self.attrs, **given}
        for dim, default in self.dim_defaults.items():
            if dim not in found and (not isinstance(default, str) or default in found):
                found[dim] = found[default] if isinstance(default, str) else default
        return found

    def check_attribute(self, name: str, value: object) -> None:
        """Raise `UnknownNameError` for another attribute, `WorkloadError` for a value that is not legal."""
        if name not in self.attrs:
            raise UnknownNameError(f"{self.name} attribute", name, self.attrs)
        default, choices = self.attrs[name], self.choices.get(name, ())
        # a fraction may be a whole number
        legal_types = (int, float) if isinstance(default, float) else (type(default),)
        if type(value) not in legal_types:
            raise WorkloadError(f"{self.name}: {name}={value!r} must be like {name}={default}")
        if choices and value not in choices:
            legal = ", ".join(map(str, choices))
            raise WorkloadError(f"{self.name}: {name}={value} must be one of: {legal}")

    def default_workloads(self, dtype: str | None = None) -> list[Workload]:
        return [self.workload(name, dtype) for name in self.default_names]

    def workload_on(self, target: Target, shape: str, dtype: str | None = None) -> Workload:
        """The workload of `shape` on `target`. Only operators that communicate depend on the target."""
        return self.workload(shape, dtype)

    def default_workloads_on(self, target: Target, dtype: str | None = None) -> list[Workload]:
        """The workloads of a command without a shape, on `target`."""
        return self.default_workloads(dtype)

    def validate(self, workload: Workload) -> None:
        """Raise `WorkloadError` for dimensions that are legal one by one and illegal together."""

    def _read(self, name: str, text: str) -> Value:
        if name not in (*self.dims, *self.attrs):
            raise UnknownNameError(f"{self.name} dimension", name, (*self.dims, *self.attrs))
        value = self._parse(name, text)
        if name in self.attrs:
            self.check_attribute(name, value)
        return value

    def _parse(self, name: str, text: str) -> Value:
        if isinstance(self.attrs.get(name), str):
            return text.lower()
        if isinstance(self.attrs.get(name), bool):
            if text.lower() not in ("true", "false"):
                raise WorkloadError(f"{self.name}: {name}={text} must be true or false")
            return text.lower() == "true"
        if isinstance(self.attrs.get(name), float):
            try:
                return float(text)
            except ValueError:
                raise WorkloadError(f"{self.name}: {name}={text} must be a number, e.g. {name}=0.5") from None
        try:
            return int(text)
        except ValueError:
            raise WorkloadError(
                f"{self.name}: {name}={text} must be a whole number, e.g. {name}=4096"
            ) from None
