"""A function under `@tilesight.autotune`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..problem.space import SearchSpace
from ..records.session import SessionResult
from .arguments import Call, as_tilelang, hashable, read_call
from .call_kernels import CallKernels
from .check_programs import CheckPrograms
from .config_space import Choices
from .options import AutotuneOptions
from .run_time_values import open_axes
from .trace_configs import Traces, find_mode, first_traced
from .tune_task import TuneTask, make_task
from .tuned import Tuned, TunedSource
from .user_frames import without_own_frames
from .user_function import UserFunction
from .user_operator import CheckOptions

if TYPE_CHECKING:
    from ..explanation import Explanation


class Autotuned:
    """Is called like the decorated function: a lazy function returns the tuned kernel, an eager one runs it.

    `kernel.tilesight` (`Tuned`) holds the chosen config and how it was found. All methods take the call's
    arguments."""

    def __init__(
        self,
        function: UserFunction,
        choices: Choices | Callable[..., Choices],
        check: CheckOptions,
        programs: CheckPrograms,
        options: AutotuneOptions,
        unspecialized: tuple[str, ...] = (),
    ) -> None:
        """
        Args:
            function: the decorated function.
            choices: the configs to choose from, or a function that makes them from TileLang's form of a
                call's arguments.
            check: how results are checked.
            programs: the user's check programs.
            options: further options of the decorator.
            unspecialized: arguments that share one tuning.
        """
        self._function, self._choices, self._check, self._programs = function, choices, check, programs
        self._options, self._unspecialized = options, unspecialized
        self._kernels = CallKernels(function, options, self._task, self._is_eager)
        self._made_choices: dict[Hashable, Choices] = {}
        self._ready: dict[Hashable, Any] = {}  # final kernels by how their calls are written
        self._eager: bool | None = None
        self._open_axes: Mapping[str, frozenset[int]] | None = None
        functools.update_wrapper(self, function.python, updated=())

    def __repr__(self) -> str:
        return f"<tilesight.autotune of {self._function.name}>"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method."""
        return self if instance is None else Bound(self, instance)

    @property
    def func(self) -> Any:
        """The decorated function."""
        return self._function.wrapped

    @property
    def jit_impl(self) -> Any:
        return self._function.wrapped

    @without_own_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The tuned kernel of a lazy function; the results of an eager one."""
        written = (hashable(args), hashable(kwargs))
        kernel = self._ready.get(written)
        if kernel is None:
            call = self._call(args, kwargs)
            kernel = self._kernels.kernel(call)
            self._is_eager(call)
            if self._kernels.is_final(call):
                self._ready[written] = kernel
        if not self._eager:
            return kernel
        tuned: Tuned = kernel.tilesight
        values = {} if tuned.source is TunedSource.GIVEN else tuned.values
        return kernel(*self._function.run_arguments(args, kwargs, values))

    @without_own_frames
    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """The tuned kernel. An eager function is not run."""
        return self._kernels.kernel(self._call(args, kwargs))

    @without_own_frames
    def tune(self, *args: Any, **kwargs: Any) -> SessionResult:
        """Tune for these arguments, or recall the result, without building a kernel for this process.

        Raises:
            InputError: the call gives an argument that configs choose.
            TileSightError: whatever `tilesight.tune` raises.
        """
        return self._kernels.tune(self._call_to_tune(args, kwargs))

    @without_own_frames
    def space(self, *args: Any, **kwargs: Any) -> SearchSpace:
        """The configs to choose from."""
        return self._choices_of(self._call(args, kwargs)).space

    def choices_for(self, arguments: Mapping[str, Any]) -> Choices:
        """The configs to choose from in a call with these arguments, which need not be all."""
        return self._choices_for((), dict(arguments))

    @without_own_frames
    def choice(self, *args: Any, **kwargs: Any) -> Tuned:
        """The config that is known to be best for a call, and where it comes from (`Tuned.source`).

        Nothing is tuned or built: before the arguments are tuned, this is the best prediction in the database
        (`model`), or the default config (`default`).
        """
        return self._kernels.choice(self._call(args, kwargs))

    @without_own_frames
    def explain(
        self, *args: Any, config: str | Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Explanation:
        """What limits a config and by how much, how the chosen config differs, and how sure the model is.

        Nothing is tuned: the chosen config is that of `choice`.

        Args:
            args, kwargs: Of the call.
            config: The config to explain: `block=32,...`, or the values by argument; None: the chosen one.

        Raises:
            InputError: the call gives an argument that configs choose, or the config is not in the space.
            NoCandidateError: a config does not lower.
        """
        return self._kernels.explain(self._call_to_tune(args, kwargs), config)

    def _call_to_tune(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        call = self._call(args, kwargs)
        if call.chosen:
            given = ", ".join(call.chosen)
            raise InputError(
                f"{self._function.name}: {given} is given; leave it out, or there is nothing to tune"
            )
        return call

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        kwargs, function = dict(kwargs), self._function
        names = self._choices_for(args, kwargs).names
        given = (function.signature, args, kwargs, names, self._unspecialized, function.tensors)
        try:
            if self._open_axes is None:
                call = read_call(*given)
                self._open_axes = self._find_open_axes(call) if function.tensors else {}
                if not self._open_axes:
                    return call
            return read_call(*given, self._open_axes)
        except TypeError as error:
            raise TypeError(f"{function.name}(): {error}") from None

    def _find_open_axes(self, call: Call) -> Mapping[str, frozenset[int]]:
        """What the kernel of an eager function takes at run time: its call's key must leave that out."""
        self._is_eager(call)
        function, choices = self._function, self._choices_of(call)
        _, traced = first_traced(Traces(function, call.args, call.kwargs, choices), function.name, choices)
        return open_axes(traced, function.run_time_names, function.name)

    def _choices_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Choices:
        if isinstance(self._choices, Choices):
            return self._choices
        key = (hashable(args), hashable(kwargs))
        found = self._made_choices.get(key)
        if found is None:
            given_args, given_kwargs = self._as_tilelang(args, kwargs)
            found = self._made_choices[key] = self._choices(*given_args, **given_kwargs)
        return found

    def _as_tilelang(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as `tilelang.autotune` gives them to a function that makes the configs."""
        if self._unspecialized:
            bound = self._function.signature.bind_partial(*args, **kwargs)
            bound.apply_defaults()
            named = {
                name: value for name, value in bound.arguments.items() if name not in self._unspecialized
            }
            return (), {name: as_tilelang(value) for name, value in named.items()}
        named = {name: as_tilelang(value) for name, value in sorted(kwargs.items())}
        return tuple(as_tilelang(value) for value in args), named

    def _choices_of(self, call: Call) -> Choices:
        return self._choices_for(call.args, dict(call.kwargs))

    def _is_eager(self, call: Call) -> bool:
        """TileLang may have to run the function to know, so it gets a complete set of arguments, once."""
        if self._eager is None:
            self._eager = find_mode(self._function, call, self._choices_of(call))
        return self._eager

    def _task(self, call: Call) -> TuneTask:
        self._is_eager(call)  # TileLang's wrapper must know its mode before it is traced
        choices = self._choices_of(call)
        return make_task(
            self._function, call, choices, self._check, self._programs, self._options, self._unspecialized
        )


class Bound:
    """An autotuned method of one object."""

    def __init__(self, autotuned: Autotuned, instance: object) -> None:
        self._autotuned, self._instance = autotuned, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._autotuned(self._instance, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._autotuned, name)
        takes_call = name in ("compile", "tune", "space", "choice", "explain")
        return functools.partial(found, self._instance) if takes_call else found
