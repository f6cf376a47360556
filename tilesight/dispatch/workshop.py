"""A workshop of a dispatcher: one daemon thread with tasks, and worker processes while it has some.

What goes wrong there is the outcome of the task and disturbs nobody else. The thread and its processes end with `close`, with
the interpreter, or when nothing was asked for a while.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import InputError

if TYPE_CHECKING:
    from ..executor import LocalExecutor
    from ..where import Where

IDLE_S = 20.0  # without work after which worker processes are ended
T = TypeVar("T")


class Tools:
    """What the tasks of a workshop work with, made when it is first needed."""

    def __init__(self, where: Where, cache_dir: Path, workers: int) -> None:
        self._where, self._cache_dir, self._workers = where, cache_dir, workers

    @cached_property
    def executor(self) -> LocalExecutor:
        """Worker processes that lower, build and, where there is a device, measure."""
        from ..executor import LocalExecutor

        return LocalExecutor(self._workers, self._cache_dir, self._where.gpus)

    def close(self) -> None:
        if "executor" in self.__dict__:
            self.executor.close()


class Workshop:
    """`tools` makes new ones whenever there is work again."""

    def __init__(self, tools: Callable[[], Tools]) -> None:
        self._tools = tools
        self._tasks: deque[tuple[Callable[[Tools], Any], Future[Any]]] = deque()
        self._news = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    @property
    def waiting(self) -> int:
        """Tasks that have not begun."""
        return len(self._tasks)

    def submit(self, task: Callable[[Tools], T]) -> Future[T]:
        """`task` is called with tools that it must not keep. Raises `InputError` once this is closed."""
        future: Future[T] = Future()
        with self._news:
            if self._is_closed:
                raise InputError("this dispatcher is closed: it builds and compares nothing any more; make a new one")
            self._tasks.append((task, future))
            if self._thread is None or self._process != os.getpid():  # a fork has no threads but the one that forked
                self._process = os.getpid()
                self._thread = threading.Thread(target=_work, args=(weakref.ref(self), self._news), name="tilesight dispatch", daemon=True)
                self._thread.start()
            self._news.notify()
        return future

    def close(self, wait_s: float = 10.0) -> None:
        """Give up what has not begun; what runs is waited for up to `wait_s`."""
        with self._news:
            self._is_closed = True
            while self._tasks:
                self._tasks.popleft()[1].cancel()
            self._news.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(wait_s)


def _work(owner: weakref.ref[Workshop], news: threading.Condition) -> None:
    """Tasks one by one, until there are none for a while, the workshop is closed, or nobody holds it any more."""
    tools: Tools | None = None
    try:
        while _next(owner, news):
            shop = owner()
            with news:
                if shop is None or not shop._tasks:
                    continue
                work, future = shop._tasks.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    tools = tools or shop._tools()
                    future.set_result(work(tools))
                except BaseException as error:  # the outcome of the task, for whoever waits for it
                    future.set_exception(error)
            del shop, work, future
    finally:
        if tools is not None:
            with suppress(Exception):
                tools.close()


def _next(owner: weakref.ref[Workshop], news: threading.Condition) -> bool:
    """Wait until there is a task. False where this thread is not needed any more; a later task begins another one."""
    with news:
        for is_late in (False, True):
            shop = owner()
            if shop is None:
                return False
            if shop._tasks:
                return True
            if is_late or shop._is_closed:
                shop._thread = None
                return False
            del shop
            news.wait(IDLE_S)
    return False
