"""The interface of an export: the tensors of a call with their shapes, and the scratch memory of kernels."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..dispatch.problem import DispatchProblem
from ..dispatch.select.choice import Choice
from ..dtypes import DTYPE_BYTES
from ..errors import InputError, TileSightError
from ..lowering.dynamic import DynamicWorkload
from ..problem.axes import Parts, Plus
from .formula import Formula, Size, product, size, value_at
from .kernel_set import KernelSet

# words that no field may have in C, C++, Rust or Python, and names of the interface's own fields
RESERVED = frozenset(
    {
        *(
            "alignas",
            "alignof",
            "and",
            "asm",
            "auto",
            "bool",
            "break",
            "case",
            "catch",
            "char",
            "class",
            "const",
        ),
        *("constexpr", "continue", "decltype", "default", "delete", "do", "double", "dyn", "else", "enum"),
        *(
            "explicit",
            "export",
            "extern",
            "false",
            "final",
            "float",
            "fn",
            "for",
            "friend",
            "goto",
            "if",
            "impl",
        ),
        *(
            "in",
            "inline",
            "int",
            "let",
            "long",
            "loop",
            "match",
            "mod",
            "move",
            "mut",
            "mutable",
            "namespace",
        ),
        *("new", "not", "operator", "or", "override", "private", "protected", "pub", "ref", "register"),
        *("restrict", "return", "self", "short", "signed", "sizeof", "static", "struct", "super", "switch"),
        *(
            "template",
            "this",
            "throw",
            "trait",
            "true",
            "try",
            "type",
            "typedef",
            "typeid",
            "typename",
            "union",
        ),
        *("unsafe", "unsigned", "use", "using", "virtual", "void", "volatile", "where", "while", "xor"),
        *(
            "args",
            "arguments",
            "bound",
            "call",
            "count",
            "device",
            "empty",
            "files",
            "index",
            "kernel",
            "launch",
        ),
        *("needed", "out", "pack", "packed", "places", "prepares", "select", "stream", "torch", "workspace"),
        *(
            "address",
            "init",
            "bind",
            "overlap",
            "refuse",
            "workspace_bytes",
            "first",
            "last",
            "low",
            "half",
            "number",
            "Tensor",
        ),
        *keyword.kwlist,
    }
)

_At = Callable[[Mapping[str, int]], tuple[int, ...]]  # the shape that the code gives for numbers


@dataclass(frozen=True, slots=True)
class TensorField:
    """A tensor of a call.

    Attributes:
        name: of the operator.
        field: in the exported sources.
    """

    name: str
    field: str
    dtype: str
    shape: tuple[Size, ...]
    is_output: bool

    @property
    def size_bytes(self) -> Size:
        return product([*self.shape, DTYPE_BYTES[self.dtype]])


@dataclass(frozen=True, slots=True)
class SizeSource:
    """Where a size is read from: axis `axis` of a tensor, divided into `part`s, with `more` elements."""

    size: str
    field: str
    axis: int
    part: int = 1
    more: int = 0


@dataclass(frozen=True)
class CallInterface:
    """The tensors and sizes of a call.

    Attributes:
        tensors: inputs, then outputs, as kernels take them.
        sizes: the sizes that a call states.
        sources: where each of them is read from, for languages with tensors.
        scratch: of each kernel, the bytes of each tensor of scratch memory.
        dynamic: of each kernel, the dimensions that it takes: a formula or a number.
    """

    tensors: tuple[TensorField, ...]
    sizes: tuple[str, ...]
    sources: tuple[SizeSource, ...]
    scratch: tuple[tuple[Size, ...], ...]
    dynamic: tuple[tuple[Size, ...], ...]

    @property
    def inputs(self) -> tuple[TensorField, ...]:
        return tuple(tensor for tensor in self.tensors if not tensor.is_output)

    @property
    def outputs(self) -> tuple[TensorField, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.is_output)

    @property
    def has_scratch(self) -> bool:
        return any(self.scratch)


def read_interface(kernels: KernelSet) -> CallInterface:
    """The interface of these kernels.

    Raises `InputError` if shapes are no formulas of the sizes that a call states.
    """
    problem, sizes = kernels.problem, tuple(one.name for one in kernels.sizes)
    named = {name: size(name) for name in sizes}
    dims: dict[str, Size] = {d: named.get(d, problem.fixed.get(d, 0)) for d in problem.operator.dims}
    fields: dict[str, str] = {}
    for name in (*problem.inputs, *problem.outputs):
        taken = {*sizes, *fields.values(), *RESERVED}
        fields[name] = name if name not in taken else f"{name}_"
    tensors = tuple(
        TensorField(name, fields[name], problem.dtype_of(name), shape, name in problem.outputs)
        for name, shape in _shapes(problem, dims).items()
    )
    for tensor in tensors:
        _check(tensor.name, tensor.shape, kernels, _shape_at(problem, tensor.name))
    return CallInterface(
        tensors,
        sizes,
        tuple(_source(problem, name, fields) for name in sizes),
        tuple(_scratch(kernels, choice, named) for choice in kernels.kernels),
        tuple(tuple(dims[dim] for dim in choice.dynamic) for choice in kernels.kernels),
    )


def _shapes(problem: DispatchProblem, dims: Mapping[str, Size]) -> dict[str, tuple[Size, ...]]:
    from ..problem.axes import shape

    try:
        return {
            name: shape(problem.axes[name], dims, problem.attrs)  # type: ignore[arg-type]
            for name in (*problem.inputs, *problem.outputs)
        }
    except TypeError as error:
        raise InputError(
            f"{problem.operator.name}: the shapes of its tensors are no formulas of the sizes of a call: "
            f"{error}; export a kernel of one shape"
        ) from None


def _shape_at(problem: DispatchProblem, name: str) -> _At:
    def at(sizes: Mapping[str, int]) -> tuple[int, ...]:
        found = _shapes(problem, {**problem.fixed, **sizes})[name]
        return tuple(value_at(extent, {}) for extent in found)

    return at


def _scratch(kernels: KernelSet, choice: Choice, named: Mapping[str, Formula]) -> tuple[Size, ...]:
    """Bytes of each scratch tensor of a kernel. Raises `InputError` if they are no formulas."""
    problem, workload = kernels.problem, choice.workload
    sizes = {name: named[name] for name in choice.dynamic if name in named}

    def shapes(given: Mapping[str, Size]) -> list[tuple[tuple[Size, ...], str]]:
        dims: dict[str, int] = {**workload.dims, **given}  # type: ignore[dict-item]
        asked = DynamicWorkload(workload.operator, dims, workload.dtype, workload.attrs)
        return list(problem.template.scratch(asked, choice.config).values())

    try:
        found = shapes(sizes)
    except (TypeError, TileSightError) as error:
        raise InputError(
            f"{problem.template.name}: the scratch memory of {choice.config} is no formula of sizes: {error}"
        ) from None
    for number, (shape, _) in enumerate(found):

        def at(values: Mapping[str, int], number: int = number) -> tuple[int, ...]:
            known = {name: values[name] for name in sizes}
            return tuple(value_at(extent, {}) for extent in shapes(known)[number][0])

        _check(f"scratch of {choice.config}", shape, kernels, at)
    return tuple(product([*shape, DTYPE_BYTES[dtype]]) for shape, dtype in found)


def _check(what: str, shape: tuple[Size, ...], kernels: KernelSet, at: _At) -> None:
    """Raise `InputError` unless the formulas of a shape give what the code gives for numbers."""
    for sizes in kernels.bounds:
        found = tuple(value_at(extent, sizes) for extent in shape)
        if found != at(sizes):
            raise InputError(
                f"{kernels.problem.operator.name}: {what} is no formula of sizes: {found} and {at(sizes)} "
                f"at {dict(sizes)}"
            )


def _source(problem: DispatchProblem, dim: str, fields: Mapping[str, str]) -> SizeSource:
    places = [
        (name, position, axis)
        for name in problem.inputs
        for position, axis in enumerate(problem.axes[name])
        if getattr(axis, "dim", axis) == dim
    ]
    for name, position, axis in places:
        if axis == dim or isinstance(axis, Plus):
            return SizeSource(dim, fields[name], position, more=axis.more if isinstance(axis, Plus) else 0)
    for name, position, axis in places:
        if isinstance(axis, Parts):
            part = axis.size({**problem.attrs, **problem.fixed})
            return SizeSource(dim, fields[name], position, part=part)
    raise InputError(f"{problem.operator.name}: {dim} is not in the shape of any input; export one shape")
