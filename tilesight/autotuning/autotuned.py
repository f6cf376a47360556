"""A function under `@tilesight.autotune`: what it does when it is called, in threads, in several processes, in a capture."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..candidate import Candidate
from ..errors import InputError, ToolchainError, headline
from ..session import SessionResult
from ..settings import load_settings
from ..space import Config, SearchSpace
from ..target import Target
from ..trial import Status
from .arguments import Call, as_tilelang, hashable, read_call
from .capture import is_capturing
from .choices import Choices
from .host_kernel import HostKernel
from .interface import inputs_first, read_interface
from .one_tunes import right_to_tune, who_tunes
from .operator import Checking, Programs, UserOperator
from .template import TracedTemplate, compiler_flags, packed
from .tuned import Source, Tuned
from .tuning import Asked, Task, find_known, host_target, make_task, model_choice, opened_store, predicted_only, run_session
from .user_function import UserFunction

_ASK_AGAIN_S = 1.0  # while an interim kernel serves: how often database and lock are asked


@dataclass
class _Entry:
    """What is known of one call's arguments. `lock` is held by the thread that tunes them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    tuned: Tuned | None = None
    interim: dict[Hashable, Any] = field(default_factory=dict)  # kernels that serve until then, by the call
    asked_s: float = -math.inf  # when database and lock were asked last, by the monotonic clock


class Autotuned:
    """Called like the function that it stands over: lazy functions give the tuned kernel, eager ones run it.

    `kernel.tilesight` (`Tuned`) says which config was chosen and how it is known to be good. All methods take the call's
    arguments.
    """

    def __init__(
        self,
        function: UserFunction,
        choices: Choices | Callable[..., Choices],
        checking: Checking,
        programs: Programs,
        asked: Asked,
        merged: tuple[str, ...] = (),
    ) -> None:
        """`choices` of all calls, or a function that makes those of one, from TileLang's form of its arguments. `merged`:
        arguments that are not told apart."""
        self._function, self._choices, self._checking, self._programs = function, choices, checking, programs
        self._asked, self._merged = asked, merged
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}
        self._kernels: dict[Hashable, Any] = {}
        self._made_choices: dict[Hashable, Choices] = {}
        self._seen: dict[Hashable, Any] = {}  # kernels by the call's form, for calls that come again
        self._eager: bool | None = None
        functools.update_wrapper(self, function.python, updated=())

    def __repr__(self) -> str:
        return f"<tilesight.autotune of {self._function.name}>"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method."""
        return self if instance is None else Bound(self, instance)

    @property
    def func(self) -> Any:
        """What the decorator stands over."""
        return self._function.wrapped

    @property
    def jit_impl(self) -> Any:
        return self._function.wrapped

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The tuned kernel of a lazy function, or what an eager one computes."""
        form = (hashable(args), hashable(kwargs))
        kernel = self._seen.get(form)
        if kernel is None:
            call = self._call(args, kwargs)
            kernel = self._kernel(call)
            self._is_eager(call)
            if call.key in self._kernels:
                self._seen[form] = kernel
        if not self._eager:
            return kernel
        facts: Tuned = kernel.tilesight
        return kernel(*self._function.run_arguments(args, kwargs, {} if facts.source is Source.GIVEN else facts.values))

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """The tuned kernel, also of an eager function, which is not run."""
        return self._kernel(self._call(args, kwargs))

    def tune(self, *args: Any, **kwargs: Any) -> SessionResult:
        """Tune for these arguments, or recall it, and build nothing for this process: works for targets that are not here.
        Raises what `tilesight.tune` raises."""
        call = self._call(args, kwargs)
        if call.chosen:
            raise InputError(f"{self._function.name}: {', '.join(call.chosen)} is given; leave it out, or there is nothing to tune")
        task = self._task(call)
        entry = self._entry(call)
        with entry.lock:
            tuned = entry.tuned if entry.tuned is not None and entry.tuned.result is not None else self._tuned(task, wait=True)
            entry.tuned = tuned
        assert tuned.result is not None  # nobody waits, so it is no interim choice
        return tuned.result

    def space(self, *args: Any, **kwargs: Any) -> SearchSpace:
        """What is chosen from."""
        return self._choices_of(self._call(args, kwargs)).space

    def choice(self, *args: Any, **kwargs: Any) -> Tuned:
        """What a call would use, and why."""
        found: Tuned = self._kernel(self._call(args, kwargs)).tilesight
        return found

    # ---- one call

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        kwargs = dict(kwargs)
        choices = self._choices_for(args, kwargs)
        try:
            return read_call(self._function.signature, args, kwargs, choices.names, self._merged, self._function.tensors)
        except TypeError as error:
            raise TypeError(f"{self._function.name}(): {error}") from None

    def _choices_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Choices:
        if isinstance(self._choices, Choices):
            return self._choices
        key = (hashable(args), hashable(kwargs))
        found = self._made_choices.get(key)
        if found is None:
            given_args, given_kwargs = self._as_tilelang(args, kwargs)
            found = self._made_choices[key] = self._choices(*given_args, **given_kwargs)
        return found

    def _as_tilelang(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as `tilelang.autotune` hands them to a function that makes the configs."""
        if self._merged:
            bound = self._function.signature.bind_partial(*args, **kwargs)
            bound.apply_defaults()
            return (), {name: as_tilelang(value) for name, value in bound.arguments.items() if name not in self._merged}
        return tuple(as_tilelang(value) for value in args), {name: as_tilelang(value) for name, value in sorted(kwargs.items())}

    def _choices_of(self, call: Call) -> Choices:
        return self._choices_for(call.args, dict(call.kwargs))

    def _is_eager(self, call: Call) -> bool:
        """Asked of TileLang once, with a whole set of arguments: it may have to run the function to know."""
        if self._eager is None:
            choices = self._choices_of(call)
            values = {} if call.chosen or choices.first is None else choices.values(choices.first)
            self._eager = self._function.is_eager(call.args, {**call.kwargs, **values})
        return self._eager

    def _entry(self, call: Call) -> _Entry:
        with self._lock:
            return self._entries.setdefault(call.tuned_key, _Entry())

    def _task(self, call: Call) -> Task:
        choices = self._choices_of(call)
        self._is_eager(call)  # TileLang's wrapper must know its mode before it is traced
        return make_task(self._function, call, choices, self._checking, self._programs, self._asked, self._merged)

    def _kernel(self, call: Call) -> Any:
        found = self._kernels.get(call.key)
        if found is not None:
            return found
        if call.chosen:
            return self._keep(call, self._given(call))
        entry = self._entry(call)
        if is_capturing():
            return self._captured(call, entry)
        if not entry.lock.acquire(blocking=self._asked.while_tuning == "wait"):
            return self._meanwhile(call, entry, "another thread tunes it")
        try:
            found = self._kernels.get(call.key)
            if found is not None:
                return found
            if entry.tuned is None:
                if call.key in entry.interim and time.monotonic() - entry.asked_s < _ASK_AGAIN_S:
                    return entry.interim[call.key]
                entry.asked_s = time.monotonic()
                tuned = self._tuned(self._task(call), wait=self._asked.while_tuning == "wait")
                if not tuned.is_final:
                    return self._interim(call, entry, tuned)
                entry.tuned = tuned
            entry.interim.clear()
            return self._keep(call, self._built(call, entry.tuned))
        finally:
            entry.lock.release()

    def _keep(self, call: Call, kernel: Any) -> Any:
        return self._kernels.setdefault(call.key, kernel)

    # ---- who tunes

    def _tuned(self, task: Task, *, wait: bool) -> Tuned:
        """From the database, from a session of this process or of another one that is waited for, or an interim choice."""
        with opened_store(self._asked) as store:
            known = find_known(task, store)
            if known is not None:
                return known
            if self._asked.on_miss == "model":
                return run_session(predicted_only(task), store, self._asked)
            cache_dir, key = load_settings().cache_dir, task.request.context.key
            owner = who_tunes(cache_dir, key)
            if owner is not None and wait:
                self._asked.observer.message(f"waiting for process {owner}, which tunes the same")
            with right_to_tune(cache_dir, key, wait=wait) as ours:
                if not ours:
                    return model_choice(task, store, "another process tunes it")
                # what another process found while this one waited
                return find_known(task, store) or run_session(task, store, self._asked)

    def _meanwhile(self, call: Call, entry: _Entry, reason: str) -> Any:
        if call.key in entry.interim:
            return entry.interim[call.key]
        task = self._task(call)
        with opened_store(self._asked) as store:
            return self._interim(call, entry, model_choice(task, store, reason))

    def _interim(self, call: Call, entry: _Entry, tuned: Tuned) -> Any:
        if call.key not in entry.interim:
            entry.interim[call.key] = self._built(call, tuned)
        return entry.interim[call.key]

    def _captured(self, call: Call, entry: _Entry) -> Any:
        """Inside a CUDA-graph capture: nothing is tuned. A record of the database must be built, which may end the capture."""
        if entry.tuned is not None:
            return self._keep(call, self._built(call, entry.tuned))
        task = self._task(call)
        with opened_store(self._asked) as store:
            known = find_known(task, store)
        if known is not None:
            return self._keep(call, self._built(call, known))
        if call.key in entry.interim:
            return entry.interim[call.key]
        raise InputError(
            f"{self._function.name} is called with new arguments ({task.request.workload.label}) inside a CUDA-graph capture, where "
            "nothing can be tuned; call it once with them before the capture"
        )

    # ---- kernels

    def _built(self, call: Call, tuned: Tuned) -> Any:
        host = host_target(self._asked, self._function)
        values = {} if tuned.source is Source.GIVEN else tuned.values  # they are among the call's arguments
        kernel = self._compiled(call, values) if host is None else self._host_kernel(call, values, tuned.config, host)
        return _with_facts(kernel, tuned)

    def _given(self, call: Call) -> Any:
        """The caller chose: compiled as it is, nothing is tuned."""
        values = {name: call.named[name] for name in call.chosen}
        return self._built(call, Tuned(Config({}), values, Source.GIVEN, Status.PREDICTED))

    def _compiled(self, call: Call, values: Mapping[str, Any]) -> Any:
        try:
            return self._function.compile(call.args, call.kwargs, values)
        except Exception as error:  # TileLang raises whatever it likes
            import torch

            if torch.cuda.is_available():
                raise
            raise ToolchainError(
                f"{self._function.name}: TileLang cannot compile here, where torch sees no GPU ({headline(str(error))}). For predictions "
                f"without one decorate it with effort='predict' and a target, and call {self._function.name}.tune(...); with target='cpu' "
                "it runs on the processor"
            ) from error

    def _host_kernel(self, call: Call, values: Mapping[str, Any], config: Config, target: Target) -> HostKernel:
        self._is_eager(call)
        traced = self._function.trace(call.args, call.kwargs, values)
        interface = read_interface(traced, self._function.out_idx, self._function.name)
        ordered = inputs_first(traced, interface)
        options = self._function.options_of(values)
        code = packed(ordered.with_attr("tilelang_pass_configs", options) if options else ordered)
        operator = UserOperator(f"user.{self._function.name}", interface, self._checking, b"")
        template = TracedTemplate(operator, "", True, compiler_flags(self._function, values), lambda: (code, ""))
        workload = call.workload(operator.name, interface, self._merged)
        return HostKernel(Candidate(workload, target, template, config), interface, load_settings().cache_dir)


class Bound:
    """An autotuned method of one object."""

    def __init__(self, autotuned: Autotuned, instance: object) -> None:
        self._autotuned, self._instance = autotuned, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._autotuned(self._instance, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._autotuned, name)
        return functools.partial(found, self._instance) if name in ("compile", "tune", "space", "choice") else found


def _with_facts(kernel: Any, tuned: Tuned) -> Any:
    """What users of TileLang's tuner read (milliseconds), and ours."""
    milliseconds = None if tuned.latency_us is None else tuned.latency_us / 1e3  # a prediction is no measurement
    reference = None if tuned.reference_us is None else tuned.reference_us / 1e3
    kernel.update_tuner_result(milliseconds, dict(tuned.values), reference)
    kernel.tilesight = tuned
    return kernel
