"""Misses: shapes that were asked for and had no exact record. Counted in memory, written now and then by a thread of their own.

A call adds one to a number; all else happens elsewhere, and no fault of the database reaches a call. Calls that a captured CUDA
graph repeats are not seen.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from ..known import Miss
from .choice import Choice
from .serving import Calls

MOST_SHAPES = 10_000  # counted at once; further ones are left out until the next writing
EVERY_S = 60.0
LAST_S = 2.0  # that the end of the process waits for the database


class MissStore(Protocol):
    def record_misses(self, misses: Iterable[Miss]) -> None: ...


@dataclass
class _Missed:
    choice: Choice
    calls: Calls
    first_at: datetime
    written: int = 0


class Misses:
    """`device`, `target` and `template` are as contexts name them."""

    def __init__(self, store: MissStore, target: str, device: str, template: str) -> None:
        self._store, self._place = store, (target, device, template)
        self._missed: dict[str, _Missed] = {}
        self._lock, self._writing, self._ended = threading.Lock(), threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        _COUNTING.add(self)
        self.failure = ""  # why the last writing failed, if it did

    def counter(self, choice: Choice) -> Calls:
        """What counts the calls of a shape that has no exact record, served by `choice`."""
        key = choice.workload.key
        with self._lock:
            known = self._missed.get(key)
            if known is not None:
                known.choice = choice
                return known.calls
            calls = Calls()
            if len(self._missed) < MOST_SHAPES:
                self._missed[key] = _Missed(choice, calls, datetime.now(UTC))
                self._begin()
            return calls

    def found(self) -> list[Miss]:
        """What was missed since it was last written, the most often called first."""
        with self._lock:
            listed = list(self._missed.values())
        return sorted((miss for one in listed if (miss := self._miss(one))), key=lambda miss: -miss.count)

    def write(self) -> bool:
        """Write what is not written yet; False where the database did not take it, and then it is kept for the next time."""
        with self._writing:
            with self._lock:
                listed = list(self._missed.items())
            found = [(key, one, miss) for key, one in listed if (miss := self._miss(one))]
            if not found:
                return True
            try:
                self._store.record_misses([miss for _, _, miss in found])
            except Exception as error:  # whatever is wrong with the database, calls go on
                self.failure = f"{type(error).__name__}: {error}"
                return False
            self.failure = ""
            for _, one, miss in found:
                one.written += miss.count
            with self._lock:
                if len(self._missed) >= MOST_SHAPES:  # room for others: calls of these are counted until they are met anew
                    for key, _, _ in found:
                        self._missed.pop(key, None)
            return True

    def close(self) -> None:
        """Write for the last time, and wait no longer than a moment for it."""
        self._ended.set()
        last = threading.Thread(target=self.write, name="tilesight misses", daemon=True)
        last.start()
        last.join(LAST_S)

    def _miss(self, one: _Missed) -> Miss | None:
        count = one.calls.count - one.written
        if count <= 0:
            return None
        choice, (target, device, template) = one.choice, self._place
        return Miss(
            choice.workload,
            target,
            device,
            template,
            count,
            choice.config,
            choice.source.value,
            choice.expected_us,
            one.first_at,
            datetime.now(UTC),
        )

    def _begin(self) -> None:
        if self._thread is None:
            arguments = weakref.ref(self), self._ended
            self._thread = threading.Thread(target=_write_again_and_again, args=arguments, name="tilesight misses", daemon=True)
            self._thread.start()
            atexit.register(_close_at_exit, weakref.ref(self))


def _write_again_and_again(owner: weakref.ref[Misses], ended: threading.Event) -> None:
    while not ended.wait(EVERY_S):
        misses = owner()
        if misses is None:
            return
        misses.write()
        del misses


_COUNTING: weakref.WeakSet[Misses] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """In a fork: what was counted before it is its parent's to write, whose threads, and the locks they hold, are not here."""
    for misses in _COUNTING:
        misses._lock, misses._writing, misses._thread = threading.Lock(), threading.Lock(), None
        for missed in misses._missed.values():
            missed.written = missed.calls.count


os.register_at_fork(after_in_child=_leave_to_the_parent)


def _close_at_exit(owner: weakref.ref[Misses]) -> None:
    misses = owner()
    if misses is not None and not misses._ended.is_set():
        misses.close()
