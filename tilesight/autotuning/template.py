"""A user's function at one call's arguments, as a `KernelTemplate`.

Workers know nothing of the user's module. So the function is traced here, in the process that calls it, when a candidate is
about to be sent; what travels is the traced IR as text (`TracedTemplate`), some ten kilobytes compressed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..candidate import Candidate
from ..errors import InputError, headline
from ..request import Request
from ..space import Config, SearchSpace
from ..target import Target
from ..template import KernelTemplate
from ..workload import Workload
from .choices import Choices
from .interface import Interface, inputs_first, read_interface
from .operator import UserOperator
from .user_function import UserFunction

_MOST_KEPT = 512  # traced configs that are remembered: each is traced for its lowering and again for its build


class TraceError(Exception):
    """The user's function, or TileLang in it, raised at one config."""


@dataclass(eq=False)
class UserTemplate(KernelTemplate):
    """In the process that tunes."""

    function: UserFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    choices: Choices
    interface: Interface  # of the first config; all others must have the same
    operator: UserOperator  # type: ignore[misc] # of the value, where other templates have it of the class
    version: str  # of the code, the programs that check it, and how it is compiled
    _traced: dict[Config, tuple[bytes, str]] = field(default_factory=dict, repr=False)

    target_kinds = ("cuda", "hip", "cpu")
    dtypes = ()

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.operator.name

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return self.choices.space

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        return self.choices.first

    def build(self, workload: Workload, config: Config) -> Any:
        """The PrimFunc, inputs first, with its options as an attribute. Raises `TraceError` where its arguments are not those
        of the first config, and whatever the function raises."""
        values = self.choices.values(config)
        traced = self.function.trace(self.args, self.kwargs, values)
        interface = read_interface(traced, self.function.out_idx, self.function.name)
        unlike = self.interface.difference(interface)
        if unlike:
            raise TraceError(f"its arguments are not those of the first config: {unlike}")
        options = {**dict((traced.attrs or {}).get("tilelang_pass_configs") or {}), **self.function.options_of(values)}
        ordered = inputs_first(traced, self.interface)
        return ordered.with_attr("tilelang_pass_configs", options) if options else ordered

    def traced(self, config: Config) -> tuple[bytes, str]:
        """(IR as compressed text, "") or (nothing, why there is none)."""
        found = self._traced.get(config)
        if found is None:
            found = self._trace(config)
            if len(self._traced) >= _MOST_KEPT:
                self._traced.clear()
            self._traced[config] = found
        return found

    def _trace(self, config: Config) -> tuple[bytes, str]:
        try:
            return packed(self.build(Workload(self.name, {}, ""), config)), ""
        except Exception as error:  # the user's code may raise anything
            return b"", f"{type(error).__name__}: {headline(str(error))}"

    def of(self, config: Config) -> TracedTemplate:
        """What goes to a worker with that config."""
        repeats = not (self.interface.accumulates or self.operator.checking.skip)
        flags = compiler_flags(self.function, self.choices.values(config))
        return TracedTemplate(self.operator, self.version, repeats, flags, lambda: self.traced(config))


def packed(prim_func: Any) -> bytes:
    import tilelang  # noqa: F401 - before anything of tvm
    from tvm.ir import save_json

    return zlib.compress(save_json(prim_func).encode(), 1)


def compiler_flags(function: UserFunction, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Flags of the device compiler that the function's options mean to TileLang."""
    options = function.options_of(values)
    extra = options.get("tl.device_compile_flags") or ()
    flags = [*function.compile_flags, *([extra] if isinstance(extra, str) else map(str, extra))]
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
        self, operator: UserOperator, version: str, deterministic: bool, flags: tuple[str, ...], traced: Callable[[], tuple[bytes, str]]
    ) -> None:
        self.operator, self.name, self.version = operator, operator.name, version  # type: ignore[misc]
        self.deterministic = deterministic  # type: ignore[misc]
        self.compile_flags = {"cuda": flags}  # type: ignore[misc]
        self._traced = traced

    def __reduce__(self) -> tuple[Any, ...]:
        operator, flags = self.operator, self.compile_flags["cuda"]
        return _received, (operator, self.version, self.deterministic, flags, *self._traced())

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        raise InputError(f"{self.name}: the space of a user's kernel is known where it is called only")

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang  # noqa: F401 - before anything of tvm
        from tvm.ir import load_json

        code, refusal = self._traced()
        if refusal:
            raise TraceError(refusal)
        return load_json(zlib.decompress(code).decode())


def _received(
    operator: UserOperator, version: str, deterministic: bool, flags: tuple[str, ...], code: bytes, refusal: str
) -> TracedTemplate:
    return TracedTemplate(operator, version, deterministic, flags, lambda: (code, refusal))


class UserRequest(Request):
    """A request whose candidates can be sent to workers."""

    __slots__ = ()

    def candidate(self, config: Config) -> Candidate:
        template = self.template
        assert isinstance(template, UserTemplate)
        return Candidate(self.workload, self.target, template.of(config), config, self.context.open)
