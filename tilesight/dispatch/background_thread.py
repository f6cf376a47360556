"""A daemon thread with a queue of tasks, and the executor whose worker processes do the work.

An exception of a task is the outcome of its future and reaches nobody else. The thread and the worker
processes end with `close`, with the interpreter, or after some seconds without a task.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from ..errors import InputError
from ..executor.jobs import Executor
from ..machine.fork_locks import reset_in_forks

IDLE_S = 20.0  # without a task, after which the thread and the worker processes end
T = TypeVar("T")


class OwnedExecutor(Executor, Protocol):
    """An executor that its user closes."""

    def close(self) -> None: ...


class BackgroundThread:
    """Runs tasks one after another.

    `make_executor` is called for the first task, and again after an idle time.
    """

    def __init__(self, make_executor: Callable[[], OwnedExecutor]) -> None:
        self._make_executor = make_executor
        self._tasks: deque[tuple[Callable[[Executor], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        reset_in_forks(self)

    @property
    def waiting(self) -> int:
        """Number of tasks that have not begun."""
        return len(self._tasks)

    def submit(self, task: Callable[[Executor], T]) -> Future[T]:
        """Queue a task. It is called with the executor, which it must not keep.

        Raises `InputError` after `close`.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._is_closed:
                raise InputError("this dispatcher is closed and builds nothing any more; make a new one")
            self._tasks.append((task, future))
            if self._thread is None:
                arguments = weakref.ref(self), self._changed
                self._thread = threading.Thread(
                    target=_run, args=arguments, name="tilesight dispatch", daemon=True
                )
                self._thread.start()
            self._changed.notify()
        return future

    def reset_after_fork(self) -> None:
        """The tasks stay with the parent, and so do the thread and the worker processes."""
        self._changed, self._tasks, self._thread = threading.Condition(), deque(), None

    def close(self, wait_s: float = 10.0) -> None:
        """Cancel the tasks that have not begun, and wait up to `wait_s` seconds for the one that runs."""
        with self._changed:
            self._is_closed = True
            while self._tasks:
                self._tasks.popleft()[1].cancel()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(wait_s)


def _run(reference: weakref.ref[BackgroundThread], changed: threading.Condition) -> None:
    """Run tasks until the queue stays empty, or the owner is closed or garbage collected."""
    executor: OwnedExecutor | None = None
    try:
        while _wait_for_task(reference, changed):
            owner = reference()
            with changed:
                if owner is None or not owner._tasks:
                    continue
                task, future = owner._tasks.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    executor = executor or owner._make_executor()
                    future.set_result(task(executor))
                except BaseException as error:
                    future.set_exception(error)
            del owner, task, future
    finally:
        if executor is not None:
            with suppress(Exception):
                executor.close()


def _wait_for_task(reference: weakref.ref[BackgroundThread], changed: threading.Condition) -> bool:
    """Wait until the queue has a task. False: this thread must end; a later task starts another thread."""
    with changed:
        for has_waited in (False, True):
            owner = reference()
            if owner is None:
                return False
            if owner._tasks:
                return True
            if has_waited or owner._is_closed:
                owner._thread = None
                return False
            del owner
            changed.wait(IDLE_S)
    return False
