"""Open dimensions: a kernel that takes some of its sizes when it is called, and so is built once for all their values.

Templates are written for workloads of whole numbers. For a kernel with open dimensions `build` is given the same workload
with a TIR variable in place of each of them, from which TileLang makes arguments of the kernel. What was lowered so is
turned into what it is at given sizes by putting these in (`at`): that is what profiles are read from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from .candidate import Candidate
from .code_hash import module_hash
from .lowering import Lowered, calls_of, lower
from .workload import Workload


class OpenWorkload(Workload):
    """A workload some of whose dimensions are TIR variables: for `KernelTemplate.build`, and for nothing else."""

    __slots__ = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", MappingProxyType(dict(self.dims)))
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))


def lower_candidate(candidate: Candidate) -> Lowered:
    """Trace and lower a candidate, with its open dimensions as variables. Raises `InputError` where one cannot be open, and
    whatever the template or TileLang raises."""
    template, workload, config = candidate.template, candidate.workload, candidate.config
    if not candidate.open:
        return lower(template.build(workload, config), candidate.target)
    template.check_open(candidate.open)
    import tilelang.language as T  # noqa: N812

    sizes = {dim: T.dynamic(dim) for dim in candidate.open}
    asked = OpenWorkload(workload.operator, {**workload.dims, **sizes}, workload.dtype, workload.attrs)
    return replace(lower(template.build(asked, config), candidate.target), sizes=tuple(sizes.values()))


@cache
def lowering_version() -> str:
    """12 hex digits over this package's own part of lowering: what code is generated depends on it, beside TileLang."""
    package = __name__.rpartition(".")[0]
    return module_hash([__name__], [__name__, f"{package}.lowering"])


def at(lowered: Lowered, dims: Mapping[str, int]) -> Lowered:
    """`lowered` with its open dimensions at these values, as IR of a kernel without any. The same value where it has none."""
    if not lowered.sizes:
        return lowered
    from tvm import IRModule, tirx

    values = {size: tirx.IntImm(size.dtype, dims[size.name]) for size in lowered.sizes}
    kernels = {str(symbol.name_hint): function for symbol, function in lowered.device.functions.items()}
    (host,) = lowered.host.functions.values()
    device = IRModule(
        {
            name: _with_arguments(kernels[name], [_put(argument, values) for argument in arguments])
            for name, arguments in _launched(host.body, set(kernels))
        }
    )
    described = {
        descriptor: [_put(part, values) for part in parts]
        for descriptor, parts in ((host.attrs or {}).get("tma_descriptor_args") or {}).items()
    }
    return Lowered(
        _with_shapes(lowered.traced, values),
        IRModule({"host": host.with_attr("tma_descriptor_args", described) if described else host}),
        device,
    )


def _launched(body: Any, kernels: set[str]) -> list[tuple[str, Sequence[Any]]]:
    """Name and arguments of each kernel that a host program launches, once each."""
    return list({name: arguments for name, arguments in calls_of(body, kernels) if name in kernels}.items())


def _put(value: Any, values: Mapping[Any, Any]) -> Any:
    """`value` with sizes in place of their variables, as one number where it is one."""
    from tvm import arith, tirx

    if not isinstance(value, tirx.PrimExpr) or isinstance(value, tirx.StringImm | tirx.IntImm):
        return value
    return arith.Analyzer().simplify(tirx.stmt_functor.substitute(value, values))


def _with_arguments(kernel: Any, arguments: Sequence[Any]) -> Any:
    """`kernel` with the whole numbers among its arguments put in."""
    from tvm import tirx

    known = {parameter: a for parameter, a in zip(kernel.params, arguments, strict=False) if isinstance(a, tirx.IntImm)}
    params = [parameter for parameter in kernel.params if parameter not in known]
    body = tirx.stmt_functor.substitute(kernel.body, known)
    return tirx.PrimFunc(params, body, kernel.ret_type, kernel.buffer_map, kernel.attrs)


def _with_shapes(traced: Any, values: Mapping[Any, Any]) -> Any:
    """The arguments of `traced` as tensors of known shapes; its body is left out."""
    from tvm import tirx

    shaped = {}
    for parameter, buffer in traced.buffer_map.items():
        shape = [_put(extent, values) for extent in buffer.shape]
        shaped[parameter] = tirx.decl_buffer(shape, buffer.dtype, buffer.data.name)
    return tirx.PrimFunc(traced.params, tirx.Evaluate(0), traced.ret_type, shaped)
