"""A user's function that makes a TileLang kernel, of any style: how it is called, traced and compiled.

lazy    it returns a PrimFunc; calling it gives the kernel
eager   it writes the kernel with the tensors that it is called with; calling it runs the kernel
plain   not decorated by TileLang: it returns a PrimFunc
"""

from __future__ import annotations

import copy
import inspect
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..errors import InputError
from ..machine.fork_locks import ForkLock

PASS_CONFIGS = "pass_configs"  # a key of a config that is no argument of the function
_MOST_WRAPPERS = 24  # decorators around one function


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Arguments of `@tilelang.jit`, for plain functions."""

    out_idx: list[int] | int | None = None
    target: Any = None
    target_host: Any = None
    execution_backend: str | None = None
    verbose: bool | None = None
    pass_configs: Mapping[str, Any] | None = None
    compile_flags: list[str] | str | None = None

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}


def flag_list(flags: str | Iterable[object] | None) -> tuple[str, ...]:
    """Flags of the device compiler, which TileLang takes as one text or as several."""
    return (flags,) if isinstance(flags, str) else tuple(map(str, flags or ()))


@dataclass
class UserFunction:
    """`wrapped` is the decorated function."""

    wrapped: Any
    options: CompileOptions = field(default_factory=CompileOptions)
    # tracing changes TileLang's wrappers
    _tracing: ForkLock = field(default_factory=lambda: ForkLock(threading.RLock), repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.wrapped, staticmethod | classmethod):
            raise InputError("autotune stands below @staticmethod and @classmethod: put them above it")
        if type(self.wrapped).__name__ == "PrimFunc":
            raise InputError(
                "autotune takes a function that returns a PrimFunc, not a PrimFunc: nothing is left to tune"
            )
        if not callable(self.wrapped):
            raise InputError(f"autotune decorates functions, not {type(self.wrapped).__name__} values")
        if self.is_jit and self.options.given:
            names = ", ".join(self.options.given)
            raise InputError(
                f"autotune over @tilelang.jit takes no {names}: give them to @tilelang.jit; they are for "
                "plain functions"
            )

    @cached_property
    def is_jit(self) -> bool:
        jit = sys.modules.get("tilelang.jit")
        return jit is not None and isinstance(self.wrapped, jit.JITImpl)

    @cached_property
    def python(self) -> Any:
        """The Python function that the user wrote."""
        return python_function(self.wrapped)

    @property
    def source(self) -> Any:
        """What makes the kernels: the Python function, or the partial function or object around it."""
        return self.python if self.is_jit else self.wrapped

    @property
    def name(self) -> str:
        name = str(getattr(self.python, "__name__", type(self.python).__name__))
        return name if name.isidentifier() else "lambda_"

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.source)

    @property
    def tensors(self) -> frozenset[str]:
        """Arguments of an eager function that its kernel takes: tensors, and numbers (`T.float32`)."""
        return frozenset(self.run_time_names)

    @property
    def run_time_names(self) -> tuple[str, ...]:
        """Arguments of an eager function that its kernel takes: tensors and numbers, in order."""
        return tuple(self.wrapped.func.tensor_args) if self.is_jit else ()

    @property
    def target(self) -> Any:
        """The target that the user gave TileLang."""
        return self.wrapped.target if self.is_jit else self.options.target

    @property
    def out_idx(self) -> list[int] | int | None:
        found: list[int] | int | None = self.wrapped.out_idx if self.is_jit else self.options.out_idx
        return found

    @property
    def pass_configs(self) -> dict[str, Any]:
        return plain_keys(self.wrapped.pass_configs if self.is_jit else self.options.pass_configs)

    @property
    def compile_flags(self) -> tuple[str, ...]:
        return flag_list(self.wrapped.compile_flags if self.is_jit else self.options.compile_flags)

    @property
    def runs_to_know_its_mode(self) -> bool:
        """Whether TileLang may have to run the function to know whether it is eager."""
        return self.is_jit and self.wrapped.mode == "auto"

    def set_mode(self, *, eager: bool) -> None:
        with self._tracing:
            self.wrapped.mode = "eager" if eager else "lazy"

    def is_eager(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether calling it with these arguments runs the kernel."""
        if not self.is_jit:
            return False
        with self._tracing:
            return bool(self.wrapped.initialize_jit_mode(*args, **kwargs) == "eager")

    def trace(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
        """The PrimFunc of one config. Raises what the function or TileLang raises, or `InputError`."""
        merged = {**kwargs, **{name: value for name, value in config.items() if name != PASS_CONFIGS}}
        with self._tracing:
            if self.is_jit:
                return self.wrapped.get_tir(*args, **merged)
            with self._frontend():
                found = self.wrapped(*args, **merged)
        if type(found).__name__ != "PrimFunc":
            raise InputError(
                f"{self.name} returned {type(found).__name__} and no PrimFunc; decorate it with "
                "@tilelang.jit below autotune, or return what @T.prim_func made"
            )
        return found

    def options_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Options of TileLang's passes for one config: the function's, and over them its own."""
        return {**self.pass_configs, **plain_keys(config.get(PASS_CONFIGS))}

    def compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
        """TileLang's own kernel of one config (`tilelang.JITKernel`). Raises what TileLang raises."""
        merged = {**kwargs, **{name: value for name, value in config.items() if name != PASS_CONFIGS}}
        if self.is_jit:
            with self._tracing:
                jit = copy.copy(self.wrapped)
            jit.pass_configs = self.options_of(config) or self.wrapped.pass_configs
            return jit.compile(*args, **merged)
        import tilelang

        given = {**self.options.given, PASS_CONFIGS: self.options_of(config) or None}
        return tilelang.compile(self.trace(args, kwargs, config), **given)

    def run_arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], config: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """The tensors that an eager function's kernel is called with."""
        merged = {**kwargs, **{name: value for name, value in config.items() if name != PASS_CONFIGS}}
        with self._tracing:
            _, tensors = self.wrapped.func.parse_args(*args, **merged)
        return tuple(tensors.values())

    @contextmanager
    def forking(self) -> Iterator[None]:
        """A context in which this process may be copied for tracing.

        No other thread traces this function meanwhile. The function has its target resolved: a copy of a
        process cannot use the GPU, so TileLang could not find the target there.
        """
        with self._tracing:
            before, options = self.target, self.options
            found = _resolved(before)
            if self.is_jit:
                self.wrapped.target = found
            else:
                self.options = replace(options, target=found)
            try:
                yield
            finally:
                self.options = options
                if self.is_jit:
                    self.wrapped.target = before

    def _frontend(self) -> AbstractContextManager[Any]:
        """A plain function is traced under its target, as @tilelang.jit does."""
        if self.options.target is None or self.options.target == "auto":
            return nullcontext()
        from tilelang.backend.target import determine_target

        found = determine_target(self.options.target, return_object=True)
        return found if hasattr(found, "__enter__") else nullcontext()


def _resolved(target: Any) -> Any:
    """The target as an object; as it was if it is not here."""
    if target is None:
        return None
    from tilelang.backend.target import determine_target

    try:
        return determine_target(target, return_object=True)
    except Exception:  # no GPU, or no toolkit
        return target


def plain_keys(options: Mapping[Any, Any] | None) -> dict[str, Any]:
    """Options of TileLang's passes by their names in the passes."""
    return {str(getattr(name, "value", name)): value for name, value in (options or {}).items()}


def python_function(value: Any) -> Any:
    """The Python function inside the results of decorators; `value` itself if it holds none."""
    for _ in range(_MOST_WRAPPERS):
        names = ("orig_func", "func", "__wrapped__", "fget")
        inner = next(
            (found for name in names if (found := _callable_attribute(value, name)) is not None), None
        )
        if inspect.isfunction(value) or inner is None:
            return value
        value = inner
    return value


def _callable_attribute(value: Any, name: str) -> Any:
    try:
        found = getattr(value, name, None)
    except Exception:  # a property may raise anything
        return None
    return found if callable(found) else None
