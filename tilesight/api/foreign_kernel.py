"""A TileLang kernel that is not among the shipped ones: its PrimFunc, and its profiles on a target."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import InputError, UnknownNameError
from ..profile.names import KernelNames
from ..profile.values import KernelProfile
from ..target.spec import Target
from .run_time_facts import CallFacts, RunTimeFacts, facts_of_call

if TYPE_CHECKING:
    from ..lowering.lower import Lowered


@dataclass(frozen=True)
class ForeignKernel:
    """A traced kernel. `pass_configs` are options of TileLang's passes beside those of the PrimFunc, and
    `compile_flags` options of the device compiler beside those that these mean.
    """

    name: str
    prim_func: Any
    pass_configs: Mapping[str, Any] | None = None
    compile_flags: tuple[str, ...] = ()


def find_kernel(
    given: Any, target: Target, arguments: Mapping[str, Any] | None = None, name: str = ""
) -> ForeignKernel:
    """The kernel that `given` is or makes.

    Args:
        given: A PrimFunc, what `tilelang.compile` made of one, or a function that returns one, also under
            `@tilelang.jit`, `@tilelang.autotune` or `@tilesight.autotune`.
        target: A function is traced for this target unless `@tilelang.jit` names another.
        arguments: Of the function, by name. For an eager function these are the sizes that it names, and its
            arguments that are no tensors.
        name: Of a PrimFunc; "": its own name.

    Raises:
        InputError: `given` is no kernel and returns none, or an argument is missing or unknown.
        Exception: Whatever the function raises.
    """
    from ..decorator.user_function import flag_list

    values = dict(arguments or {})
    maker = getattr(given, "jit_impl", given)  # under an autotuner
    if _is_prim_func(found := getattr(maker, "prim_func", maker)):
        name = name or str((found.attrs or {}).get("global_symbol", "kernel"))
        if values:
            raise InputError(
                f"{name} is traced already and takes no arguments; leave out {', '.join(values)}"
            )
        flags = flag_list(getattr(maker, "compile_flags", None))
        return ForeignKernel(name, found, getattr(maker, "pass_configs", None), flags)
    if not callable(maker) or inspect.isclass(maker):
        raise InputError(_wrong_type(given))
    return _traced(maker, target, values)


def profiles_of(
    kernel: ForeignKernel, target: Target, facts: RunTimeFacts | None = None
) -> tuple[KernelProfile, ...]:
    """Lower the kernel and read its profiles; see `named_profiles_of`."""
    return tuple(profile for profile, _ in named_profiles_of(kernel, target, facts))


def named_profiles_of(
    kernel: ForeignKernel, target: Target, facts: RunTimeFacts | None = None
) -> tuple[tuple[KernelProfile, KernelNames], ...]:
    """Lower the kernel, and read its profiles and the names in it.

    Args:
        kernel: The kernel.
        target: The target to lower for.
        facts: What is known of its calls: its run-time sizes at least, if it takes any.

    Raises:
        InputError: `facts` lacks a size, or does not fit the kernel.
        Exception: Whatever TileLang or the profile reader raises.
    """
    from ..lowering.lower import lower

    lowered = lower(kernel.prim_func, target, kernel.pass_configs, only_read=True)
    return read_lowered(kernel, lowered, target, call_of(kernel, lowered, facts))


def read_lowered(
    kernel: ForeignKernel, lowered: Lowered, target: Target, call: CallFacts
) -> tuple[tuple[KernelProfile, KernelNames], ...]:
    """The profiles of a lowered kernel, for what is known of its calls, and the names in it."""
    from ..costmodel.extract import read_named_profiles
    from ..lowering.dynamic import at, runtime_sizes

    sizes = tuple(s for s in runtime_sizes(kernel.prim_func) if str(s.name) in call.sizes)
    at_sizes = at(replace(lowered, sizes=sizes), call.sizes, fractions_of(kernel))
    return read_named_profiles(at_sizes, target, call.data, flags=flags_of_kernel(kernel))


def fractions_of(kernel: ForeignKernel) -> dict[str, float]:
    """A value for each argument that is a number with a fraction: the work does not depend on it."""
    prim_func = kernel.prim_func
    return {
        str(parameter.name): 1.0
        for parameter in prim_func.params
        if parameter not in prim_func.buffer_map and "float" in str(parameter.dtype)
    }


def call_of(kernel: ForeignKernel, lowered: Lowered, facts: RunTimeFacts | None) -> CallFacts:
    """What is known of the kernel's calls. Raises `InputError` as `profiles_of` does."""
    from ..costmodel.extract import variable_names
    from ..lowering.dynamic import launch_sizes

    return facts_of_call(
        kernel.name,
        kernel.prim_func,
        launch_sizes(lowered),
        variable_names(lowered),
        facts or RunTimeFacts(),
    )


def flags_of_kernel(kernel: ForeignKernel) -> tuple[str, ...]:
    """Options of the device compiler that the kernel is compiled with."""
    from ..decorator.user_template import flags_of_options, own_options

    options = {**own_options(kernel.prim_func), **(kernel.pass_configs or {})}
    return flags_of_options(options, kernel.compile_flags)


def _traced(maker: Any, target: Target, arguments: Mapping[str, Any]) -> ForeignKernel:
    import tilelang  # noqa: F401 - before anything of tvm
    from tvm.target import Target as TvmTarget

    from ..decorator.user_function import UserFunction

    function = UserFunction(maker)
    _check_arguments(function, arguments)
    with TvmTarget(target.tvm_target()):
        made = function.trace((), arguments, {}) if function.is_jit else maker(**arguments)
    found = getattr(made, "prim_func", made)
    if not _is_prim_func(found):
        raise InputError(f"{function.name} returned {_a(type(made).__name__)} and no PrimFunc; name a kernel")
    given = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return ForeignKernel(
        f"{function.name}({given})", found, function.options_of({}) or None, function.compile_flags
    )


def _check_arguments(function: Any, arguments: Mapping[str, Any]) -> None:
    parameters: Mapping[str, inspect.Parameter] = function.signature.parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    if not function.tensors and inspect.Parameter.VAR_KEYWORD not in kinds:  # an eager function names sizes
        for name in arguments:
            if name not in parameters:
                raise UnknownNameError(f"argument of {function.name}", name, parameters)
    missing = [
        name
        for name, parameter in parameters.items()
        if name not in arguments
        and name not in function.tensors
        and parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if missing:
        raise InputError(
            f"{function.name}{function.signature} needs a value of {', '.join(missing)}: "
            f"arguments={{'{missing[0]}': ...}}, or --arg {missing[0]}=... on the command line"
        )


def _is_prim_func(value: Any) -> bool:
    return type(value).__name__ == "PrimFunc"


def _wrong_type(value: Any) -> str:
    found = _a(type(value).__name__)
    return f"{found} is no kernel: give a TileLang PrimFunc, or a function that returns one"


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
