"""A user's function at one call's arguments, as a `KernelTemplate`.

Worker processes cannot import the user's module. So the function is traced in a copy of the process that
calls it, when a candidate is about to be sent, and the traced IR travels (`TracedTemplate`): some ten
kilobytes, compressed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..bounded_dict import BoundedDict
from ..errors import InputError, headline
from ..problem.space import Config, SearchSpace
from ..problem.template import KernelTemplate
from ..problem.workload import Workload
from ..target.spec import Target
from .config_space import Choices
from .interface import Interface, inputs_first, read_interface
from .trace_configs import TraceError, Traces, packed, unpacked
from .user_function import UserFunction, flag_list
from .user_operator import UserOperator

_TRACED_LIMIT = 512  # configs whose IR is remembered: each is sent to be lowered, and again to be built


@dataclass(frozen=True, slots=True)
class TracedConfig:
    """The compressed IR of one config, or why there is none."""

    code: bytes
    error: str = ""


@dataclass(eq=False)
class UserTemplate(KernelTemplate):
    """The template of the process that tunes. `version` depends on code, check programs and options."""

    function: UserFunction
    traces: Traces  # of the call's arguments
    choices: Choices
    interface: Interface  # of the first config; other configs must have the same
    operator: UserOperator
    version: str
    _traced: BoundedDict[Config, TracedConfig] = field(
        default_factory=lambda: BoundedDict(_TRACED_LIMIT), repr=False
    )

    target_kinds = ("cuda", "hip", "cpu")
    dtypes = ()

    def __post_init__(self) -> None:
        self.name = self.operator.name

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return self.choices.space

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        return self.choices.first

    def build(self, workload: Workload, config: Config) -> Any:
        """The PrimFunc, inputs first, with its pass options as an attribute.

        Raises:
            TraceError: its arguments are not those of the first config.
            Exception: whatever the function raises.
        """
        traced = self.traces.trace(config)
        ours = self.interface
        values = dict(ours.sizes) | {number.name: number.value for number in ours.numbers}
        interface = read_interface(traced, self.function.out_idx, self.function.name, values)
        unlike = self.interface.difference(interface)
        if unlike:
            raise TraceError(f"its arguments are not those of the first config: {unlike}")
        return with_options(
            inputs_first(traced, self.interface),
            {**own_options(traced), **self.function.options_of(self.choices.values(config))},
        )

    def arguments(self, config: Config) -> dict[str, Any]:
        """The arguments that the config stands for."""
        return dict(self.choices.values(config))

    def usage(self, workload: Workload, target: Target, config: Config, dynamic: Sequence[str] = ()) -> str:
        """The call with the config's arguments; arguments that are no plain values stand by name."""
        names, values = list(inspect.signature(self.function.python).parameters), self.arguments(config)
        if len(self.traces.args) > len(names) or not set(values) <= set(
            names
        ):  # e.g. options of TileLang's passes
            return ""
        given = [_written(value, name) for value, name in zip(self.traces.args, names, strict=False)]
        given += [f"{name}={_written(value, name)}" for name, value in self.traces.kwargs.items()]
        given += [f"{name}={_written(value, name)}" for name, value in values.items()]
        return f"{self.function.python.__name__}({', '.join(given)})"

    def for_config(self, config: Config) -> TracedTemplate:
        repeats = not (self.interface.accumulates or self.operator.check.skip)
        flags = compiler_flags(self.function, self.choices.values(config))
        return TracedTemplate(self.operator, self.version, repeats, flags, lambda: self._trace(config))

    def _trace(self, config: Config) -> TracedConfig:
        if config not in self._traced:
            try:
                self._traced[config] = TracedConfig(packed(self.build(Workload(self.name, {}, ""), config)))
            except Exception as error:  # the user's code may raise anything
                self._traced[config] = TracedConfig(b"", f"{type(error).__name__}: {headline(str(error))}")
        return self._traced[config]


def _written(value: Any, name: str) -> str:
    """The value as Python text if it is a plain one, else the name of its argument."""
    return repr(value) if isinstance(value, bool | int | float | str | None) else name


def own_options(prim_func: Any) -> dict[str, Any]:
    """Options of TileLang's passes that the function itself has."""
    return dict((prim_func.attrs or {}).get("tilelang_pass_configs") or {})


def with_options(prim_func: Any, options: Mapping[str, Any]) -> Any:
    """The PrimFunc with options of TileLang's passes."""
    return prim_func.with_attr("tilelang_pass_configs", dict(options)) if options else prim_func


def compiler_flags(function: UserFunction, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Flags of the device compiler that the function's options mean, at one config's arguments."""
    return flags_of_options(function.options_of(values), function.compile_flags)


def flags_of_options(options: Mapping[str, Any], given: Sequence[str]) -> tuple[str, ...]:
    """Flags of the device compiler: the `given` ones, and those that options of TileLang's passes mean."""
    flags = [*given, *flag_list(options.get("tl.device_compile_flags"))]
    if options.get("tl.enable_fast_math"):
        flags.append("--use_fast_math")
    if (level := options.get("tl.ptxas_register_usage_level")) is not None:
        flags.append(f"--ptxas-options=--register-usage-level={int(level)}")
    return tuple(part for flag in flags for part in flag.split())


class TracedTemplate(KernelTemplate):
    """One config of a user's kernel, in any process. It is traced when it is sent."""

    target_kinds = ("cuda", "hip", "cpu")
    dtypes = ()

    def __init__(
        self,
        operator: UserOperator,
        version: str,
        deterministic: bool,
        flags: tuple[str, ...],
        trace: Callable[[], TracedConfig],
    ) -> None:
        self.operator, self.name, self.version = operator, operator.name, version
        self.deterministic, self.numbers = deterministic, operator.interface.numbers
        self._flags, self._trace = flags, trace

    def check_dynamic(self, dims: str | Sequence[str]) -> tuple[str, ...]:
        """The user's kernel has named them: nothing is to be checked."""
        return (dims,) if isinstance(dims, str) else tuple(dims)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.operator, self.version, self.deterministic, self._flags, self._trace())

    @property
    def compile_flags(self) -> Mapping[str, tuple[str, ...]]:
        return {"cuda": self._flags}

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        raise InputError(f"{self.name}: only the process that calls a user's kernel knows its search space")

    def build(self, workload: Workload, config: Config) -> Any:
        traced = self._trace()
        if traced.error:
            raise TraceError(traced.error)
        return unpacked(traced.code)


def _received(
    operator: UserOperator, version: str, deterministic: bool, flags: tuple[str, ...], traced: TracedConfig
) -> TracedTemplate:
    return TracedTemplate(operator, version, deterministic, flags, lambda: traced)
