"""Work ahead: an iterator that runs in a thread of its own, while its items are used in this one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")
_LOOK_S = 0.2  # between two looks at whether the other side has stopped
_PATIENCE_S = 15.0  # for the thread to end: what it waits for may take that long


class Ahead(Generic[T]):
    """A context manager. `make` is called in the thread, so that what it opens belongs to that thread; it is closed there
    too, once it is exhausted or this block is left. The thread is at most `room` items ahead."""

    def __init__(self, make: Callable[[], Iterator[T]], room: int) -> None:
        self._make = make
        self._items: queue.Queue[T] = queue.Queue(room)
        self._stop, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        # a daemon: an interrupted program does not wait for it
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if kind is None or issubclass(kind, Exception):
            self._thread.join(_PATIENCE_S)

    @property
    def is_over(self) -> bool:
        """Nothing is there, nothing will come, and no error is left to be raised by `take`."""
        return self._is_drained and self._error is None

    def take(self, *, wait: bool) -> list[T]:
        """What is there; with `wait` at least one, unless none came within a moment. Raises what the iterator raised, after
        the items that it gave before."""
        found: list[T] = []
        if wait and not self._is_drained:
            with suppress(queue.Empty):
                found.append(self._items.get(timeout=_LOOK_S))
        while not self._items.empty():
            found.append(self._items.get_nowait())
        if not found and self._is_drained and self._error is not None:
            raise self._error
        return found

    @property
    def _is_drained(self) -> bool:
        return self._ended.is_set() and self._items.empty()

    def _run(self) -> None:
        try:
            items = self._make()
            try:
                for item in items:
                    self._put(item)
                    if self._stop.is_set():
                        return
            finally:
                if hasattr(items, "close"):
                    items.close()
        except BaseException as error:  # the other thread raises it
            self._error = error
        finally:
            self._ended.set()

    def _put(self, item: T) -> None:
        while not self._stop.is_set():
            with suppress(queue.Full):
                self._items.put(item, timeout=_LOOK_S)
                return
