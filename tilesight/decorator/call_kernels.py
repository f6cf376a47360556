"""The kernels of a function's calls: each call is tuned once, by one thread of one process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..machine.fork_locks import ForkLock
from ..problem.space import Config
from ..records.session import SessionResult
from ..records.trial import Status
from ..settings import load_settings
from ..tuner.tuning_lock import tuning_lock
from .arguments import Call
from .explain_call import explain_call
from .graph_capture import is_capturing
from .kernel_of_choice import build_kernel_of
from .options import AutotuneOptions
from .recall import checked_task, find_recorded, interim_choice, opened_store
from .run_session import run_session
from .tune_task import TuneTask, predict_only
from .tuned import Tuned, TunedSource
from .user_function import UserFunction

if TYPE_CHECKING:
    from ..database.store import Store
    from ..explanation import Explanation

_CHECK_AGAIN_S = 1.0  # with an interim kernel: how often database and lock are looked at


@dataclass
class _TuningState:
    """State of one call's arguments in this process. The thread that tunes them holds `lock`."""

    lock: ForkLock = field(default_factory=ForkLock)
    tuned: Tuned | None = None
    interim: dict[Hashable, Any] = field(default_factory=dict)  # kernels of interim choices, by call
    checked_s: float = -math.inf  # when database and lock were looked at last, by the monotonic clock


class CallKernels:
    """Kernels by call, for one decorated function."""

    def __init__(
        self,
        function: UserFunction,
        options: AutotuneOptions,
        make_task: Callable[[Call], TuneTask],
        prepare: Callable[[Call], object],
    ) -> None:
        """`prepare` is called with each call before its kernel is traced."""
        self._function, self._options, self._make_task, self._prepare = function, options, make_task, prepare
        self._waits = options.while_tuning == "wait"
        self._lock = ForkLock()
        self._states: dict[Hashable, _TuningState] = {}
        self._kernels: dict[Hashable, Any] = {}

    def is_final(self, call: Call) -> bool:
        """Whether later calls get the same kernel; an interim kernel is replaced."""
        return call.key in self._kernels

    def kernel(self, call: Call) -> Any:
        """The kernel of a call, tuned now if that is needed and allowed."""
        found = self._kernels.get(call.key)
        if found is not None:
            return found
        if call.chosen:
            return self._keep(call, self._built(call, _given(call)))
        state = self._state(call)
        if is_capturing():
            return self._captured(call, state)
        if not state.lock.acquire(blocking=self._waits):
            return self._meanwhile(call, state)
        try:
            found = self._kernels.get(call.key)
            if found is not None:
                return found
            if state.tuned is None:
                if call.key in state.interim and time.monotonic() - state.checked_s < _CHECK_AGAIN_S:
                    return state.interim[call.key]
                state.checked_s = time.monotonic()
                tuned = self._tuned(self._make_task(call), wait=self._waits)
                if not tuned.is_final:
                    return self._interim(call, state, tuned)
                state.tuned = tuned
            state.interim.clear()
            return self._keep(call, self._built(call, state.tuned))
        finally:
            state.lock.release()

    def choice(self, call: Call) -> Tuned:
        """The config that is known to be best for a call now. Nothing is tuned, built or waited for."""
        found = self._kernels.get(call.key)
        if found is not None:
            tuned: Tuned = found.tilesight
            return tuned
        if call.chosen:
            return _given(call)
        tuned_now = self._state(call).tuned
        if tuned_now is not None:
            return tuned_now
        with opened_store(self._options) as store:
            return self._known(checked_task(self._make_task(call), store), store)

    def explain(self, call: Call, config: str | Mapping[str, Any] | None) -> Explanation:
        """What limits a config, and how the chosen one differs from it; see `explain_call`."""
        with opened_store(self._options) as store:
            task = checked_task(self._make_task(call), store)
            chosen = self._known(task, store).config
            return explain_call(task, store, self._options, chosen, config)

    def _known(self, task: TuneTask, store: Store) -> Tuned:
        return find_recorded(task, store) or interim_choice(task, store, "a call tunes these arguments first")

    def tune(self, call: Call) -> SessionResult:
        """The session of a call's arguments; nothing is built for this process."""
        task = self._make_task(call)
        state = self._state(call)
        with state.lock:
            if state.tuned is None or state.tuned.result is None:
                state.tuned = self._tuned(task, wait=True)
            result = state.tuned.result
        assert result is not None  # it waited, so this is no interim choice
        return result

    def _state(self, call: Call) -> _TuningState:
        with self._lock:
            return self._states.setdefault(call.tuned_key, _TuningState())

    def _keep(self, call: Call, kernel: Any) -> Any:
        return self._kernels.setdefault(call.key, kernel)

    def _built(self, call: Call, tuned: Tuned) -> Any:
        self._prepare(call)
        return build_kernel_of(self._function, self._options, call, tuned)

    def _tuned(self, task: TuneTask, *, wait: bool) -> Tuned:
        """A recorded choice, or that of a session, or an interim choice."""
        options = self._options
        with opened_store(options) as store:
            task = checked_task(task, store)
            recorded = find_recorded(task, store)
            if recorded is not None:
                return recorded
            if options.on_miss == "model":
                return run_session(predict_only(task), store, options)
            cache_dir, key = load_settings().cache_dir, task.request.context.key
            with tuning_lock(cache_dir, key, wait=wait, notice=options.observer.message) as is_held:
                if not is_held:
                    return interim_choice(task, store, "another process tunes it")
                # another process may have recorded a result while this one waited
                return find_recorded(task, store) or run_session(task, store, options)

    def _meanwhile(self, call: Call, state: _TuningState) -> Any:
        """The interim kernel of a call whose arguments another thread tunes."""
        if call.key in state.interim:
            return state.interim[call.key]
        task = self._make_task(call)
        with opened_store(self._options) as store:
            choice = interim_choice(checked_task(task, store), store, "another thread tunes it")
        return self._interim(call, state, choice)

    def _interim(self, call: Call, state: _TuningState, choice: Tuned) -> Any:
        if call.key not in state.interim:
            state.interim[call.key] = self._built(call, choice)
        return state.interim[call.key]

    def _captured(self, call: Call, state: _TuningState) -> Any:
        """Inside a CUDA-graph capture nothing is tuned. Building a recorded choice may end the capture."""
        if state.tuned is not None:
            return self._keep(call, self._built(call, state.tuned))
        task = self._make_task(call)
        with opened_store(self._options) as store:
            recorded = find_recorded(checked_task(task, store), store)
        if recorded is not None:
            return self._keep(call, self._built(call, recorded))
        if call.key in state.interim:
            return state.interim[call.key]
        raise InputError(
            f"{self._function.name} is called with new arguments ({task.request.workload.label}) inside a "
            "CUDA-graph capture, where nothing can be tuned; call it once with them before the capture"
        )


def _given(call: Call) -> Tuned:
    """The caller's own choice."""
    values = {name: call.named[name] for name in call.chosen}
    return Tuned(Config({}), values, TunedSource.GIVEN, Status.PREDICTED)
