"""Misses: shapes that were called without a record of their own.

A call only increments a number; a thread writes the numbers to the database now and then, and no fault of the
database reaches a call. Calls that a captured CUDA graph repeats are not counted.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from ..machine.fork_locks import ForkLock, reset_in_forks
from ..records.winners import Miss
from .kernels.bound_calls import CallCounter
from .select.choice import Choice

SHAPE_LIMIT = 10_000  # shapes that are counted at once; further ones are left out until the next write
WRITE_EVERY_S = 60.0
CLOSE_WAIT_S = 2.0  # the longest that `close` waits for the database


class MissStore(Protocol):
    def record_misses(self, misses: Iterable[Miss]) -> None: ...


@dataclass
class _MissedShape:
    choice: Choice
    calls: CallCounter
    first_at: datetime
    written: int = 0  # calls that the database has


class MissLog:
    """Counts the calls of shapes without a record.

    `target`, `device` and `template` are named as in contexts.
    """

    def __init__(self, store: MissStore, target: str, device: str, template: str) -> None:
        self._store, self._target, self._device, self._template = store, target, device, template
        self._missed: dict[str, _MissedShape] = {}
        self._lock, self._write_lock, self._closed = ForkLock(), ForkLock(), threading.Event()
        self._thread: threading.Thread | None = None
        self.failure = ""  # the error of the last write, if it failed
        reset_in_forks(self)

    def counter(self, choice: Choice) -> CallCounter:
        """The counter for the calls of a shape that has no record; `choice` is the one in use."""
        key = choice.workload.key
        with self._lock:
            known = self._missed.get(key)
            if known is not None:
                known.choice = choice
                return known.calls
            calls = CallCounter()
            if len(self._missed) < SHAPE_LIMIT:
                self._missed[key] = _MissedShape(choice, calls, datetime.now(UTC))
                self._start()
            return calls

    def unwritten(self) -> list[Miss]:
        """The misses since the last write, most calls first."""
        with self._lock:
            shapes = list(self._missed.values())
        return sorted((miss for shape in shapes if (miss := self._miss(shape))), key=lambda miss: -miss.count)

    def write(self) -> bool:
        """Write the misses since the last write. False if the database fails: the next write repeats them."""
        with self._write_lock:
            with self._lock:
                shapes = list(self._missed.items())
            found = [(key, shape, miss) for key, shape in shapes if (miss := self._miss(shape))]
            if not found:
                return True
            try:
                self._store.record_misses([miss for _, _, miss in found])
            except Exception as error:
                self.failure = f"{type(error).__name__}: {error}"
                return False
            self.failure = ""
            for _, shape, miss in found:
                shape.written += miss.count
            with self._lock:
                if (
                    len(self._missed) >= SHAPE_LIMIT
                ):  # make room; these shapes are counted again from a later first call
                    for key, _, _ in found:
                        self._missed.pop(key, None)
            return True

    def reset_after_fork(self) -> None:
        """The parent writes the calls before the fork."""
        was_closed, self._closed, self._thread = self._closed.is_set(), threading.Event(), None
        if was_closed:
            self._closed.set()
        for shape in self._missed.values():
            shape.written = shape.calls.count

    def close(self) -> None:
        """Write for the last time, and wait at most `CLOSE_WAIT_S` for it."""
        self._closed.set()
        last = threading.Thread(target=self.write, name="tilesight misses", daemon=True)
        last.start()
        last.join(CLOSE_WAIT_S)

    def _miss(self, shape: _MissedShape) -> Miss | None:
        count = shape.calls.count - shape.written
        if count <= 0:
            return None
        choice = shape.choice
        return Miss(
            choice.workload,
            self._target,
            self._device,
            self._template,
            count,
            choice.config,
            choice.source.value,
            choice.expected_us,
            shape.first_at,
            datetime.now(UTC),
        )

    def _start(self) -> None:
        if self._thread is None:
            arguments = weakref.ref(self), self._closed
            self._thread = threading.Thread(
                target=_write_regularly, args=arguments, name="tilesight misses", daemon=True
            )
            self._thread.start()
            atexit.register(_close_at_exit, weakref.ref(self))


def _write_regularly(reference: weakref.ref[MissLog], closed: threading.Event) -> None:
    while not closed.wait(WRITE_EVERY_S):
        log = reference()
        if log is None:
            return
        log.write()
        del log


def _close_at_exit(reference: weakref.ref[MissLog]) -> None:
    log = reference()
    if log is not None and not log._closed.is_set():
        log.close()
