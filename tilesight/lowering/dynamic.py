"""Lowers kernels with dynamic dimensions, which are built once and take these sizes when they are called.

Templates are written for workloads of integers. For a kernel with dynamic dimensions, `build` gets the same
workload with a TIR variable in place of each dynamic dimension, and TileLang makes arguments of the kernel
from these. `at` replaces the variables by sizes: profiles are read from the resulting static IR.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from ..code_hash import module_hash
from ..problem.candidate import Candidate
from ..problem.workload import Workload
from .lower import Lowered, calls_of, lower


class DynamicWorkload(Workload):
    """A workload with TIR variables as dynamic dimensions, for `KernelTemplate.build` only."""

    __slots__ = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", MappingProxyType(dict(self.dims)))
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))


def lower_candidate(candidate: Candidate, *, only_read: bool = False) -> Lowered:
    """Trace and lower a candidate, with its dynamic dimensions as variables.

    Args:
        candidate: the candidate.
        only_read: whether the IR is read and not compiled (see `lower`).

    Raises:
        InputError: a dimension cannot be dynamic in this template.
        Exception: whatever the template or TileLang raises.
    """
    template, workload, config = candidate.template, candidate.workload, candidate.config
    if not candidate.dynamic:
        return lower(template.build(workload, config), candidate.target, only_read=only_read)
    template.check_dynamic(candidate.dynamic)
    import tilelang.language as T  # noqa: N812

    sizes = {dim: T.dynamic(dim) for dim in candidate.dynamic}
    dynamic_workload = DynamicWorkload(
        workload.operator, {**workload.dims, **sizes}, workload.dtype, workload.attrs
    )
    prim_func = template.build(dynamic_workload, config)
    # a user's kernel has variables of its own for its sizes
    own = {str(size.name): size for size in runtime_sizes(prim_func)}
    return replace(
        lower(prim_func, candidate.target, only_read=only_read),
        sizes=tuple(own.get(dim, size) for dim, size in sizes.items()),
    )


@cache
def lowering_version() -> str:
    """12 hex digits over the code of this package. Generated code depends on it and on TileLang."""
    return module_hash([__name__], [__name__.rpartition(".")[0]])


def at(
    lowered: Lowered, dims: Mapping[str, int], numbers: Mapping[str, int | float] | None = None
) -> Lowered:
    """The static IR of `lowered` with its dynamic dimensions at the sizes in `dims`.

    `lowered` itself if it has none. `numbers`: values of its arguments that are numbers.
    """
    if not lowered.sizes and not numbers:
        return lowered
    from tvm import IRModule, tirx

    values = {size: tirx.IntImm(size.dtype, dims[size.name]) for size in lowered.sizes}
    for parameter in lowered.traced.params:
        if str(parameter.name) in (numbers or {}) and parameter not in lowered.traced.buffer_map:
            kind = tirx.FloatImm if "float" in str(parameter.dtype) else tirx.IntImm
            values[parameter] = kind(parameter.dtype, (numbers or {})[str(parameter.name)])
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


def runtime_sizes(prim_func: Any) -> tuple[Any, ...]:
    """The TIR variables that a traced function takes when it is called, in its order of arguments.

    They are sizes of its tensors (`T.dynamic`), and arguments that are whole numbers.
    """
    found: list[Any] = []
    for parameter in prim_func.params:
        if parameter in prim_func.buffer_map:
            given = _sizes_of(prim_func.buffer_map[parameter])
        else:
            given = [parameter] if "int" in str(parameter.dtype) else []
        found += [one for one in given if not any(one.same_as(known) for known in found)]
    return tuple(found)


def launch_sizes(lowered: Lowered) -> frozenset[str]:
    """Names of the variables that the host part passes to the kernels and to their tensor descriptors.

    What the kernels do depends on no other size, such as that of a tensor that no kernel uses.
    """
    from tvm import tirx

    (host,) = lowered.host.functions.values()
    kernels = {str(symbol.name_hint) for symbol in lowered.device.functions}
    described = ((host.attrs or {}).get("tma_descriptor_args") or {}).values()
    passed = [a for given in (*dict(_launched(host.body, kernels)).values(), *described) for a in given]
    return frozenset(str(v.name) for v in _variables([a for a in passed if isinstance(a, tirx.PrimExpr)]))


def tensor_sizes(prim_func: Any) -> frozenset[str]:
    """Names of those of them that shapes or strides of tensors are computed from."""
    return frozenset(str(size.name) for buffer in prim_func.buffer_map.values() for size in _sizes_of(buffer))


def loop_bounds(prim_func: Any) -> frozenset[str]:
    """Names of the variables in the bounds of its loops."""
    from tvm import tirx

    bounds: list[Any] = []

    def look(node: Any) -> None:
        if isinstance(node, tirx.For):
            bounds.extend((node.min, node.extent))

    tirx.stmt_functor.post_order_visit(prim_func.body, look)
    return frozenset(str(variable.name) for variable in _variables(bounds))


def _sizes_of(buffer: Any) -> list[Any]:
    """The variables in the shape and the strides of a tensor, without repetition."""
    return _variables((*buffer.shape, *buffer.strides))


def _variables(expressions: Iterable[Any]) -> list[Any]:
    """The variables in some expressions, without repetition."""
    from tvm import tirx

    found: list[Any] = []

    def add(node: Any) -> None:
        if isinstance(node, tirx.Var) and not any(node.same_as(known) for known in found):
            found.append(node)

    for expression in expressions:
        tirx.stmt_functor.post_order_visit(expression, add)
    return found


def _launched(body: Any, kernels: set[str]) -> list[tuple[str, Sequence[Any]]]:
    """(name, arguments) of each kernel that a host program launches, without repetition."""
    return list({name: arguments for name, arguments in calls_of(body, kernels) if name in kernels}.items())


def _put(value: Any, values: Mapping[Any, Any]) -> Any:
    """`value` with sizes in place of their variables, simplified."""
    from tvm import arith, tirx

    if not isinstance(value, tirx.PrimExpr) or isinstance(
        value, tirx.StringImm | tirx.IntImm | tirx.FloatImm
    ):
        return value
    return arith.Analyzer().simplify(tirx.stmt_functor.substitute(value, values))


def _with_arguments(kernel: Any, arguments: Sequence[Any]) -> Any:
    """`kernel` with its arguments that are constants substituted."""
    from tvm import tirx

    known = {
        parameter: a
        for parameter, a in zip(kernel.params, arguments, strict=False)
        if isinstance(a, tirx.IntImm | tirx.FloatImm)
    }
    params = [parameter for parameter in kernel.params if parameter not in known]
    body = tirx.stmt_functor.substitute(kernel.body, known)
    return tirx.PrimFunc(params, body, kernel.ret_type, kernel.buffer_map, kernel.attrs)


def _with_shapes(traced: Any, values: Mapping[Any, Any]) -> Any:
    """`traced` with static shapes of its tensor arguments and without a body."""
    from tvm import tirx

    shaped = {}
    for parameter, buffer in traced.buffer_map.items():
        shape = [_put(extent, values) for extent in buffer.shape]
        shaped[parameter] = tirx.decl_buffer(shape, buffer.dtype, buffer.data.name)
    return tirx.PrimFunc(traced.params, tirx.Evaluate(0), traced.ret_type, shaped, traced.attrs)
