"""Locks and objects in a forked child, where the threads that held them or worked do not exist."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class Forkable(Protocol):
    """An object that depends on threads of its process."""

    def reset_after_fork(self) -> None:
        """Forget, in a forked child, what threads of the parent hold or do."""


def reset_in_forks(owner: Forkable) -> None:
    """Call `owner.reset_after_fork` in each forked child, as long as `owner` exists."""
    _owners[id(owner)] = owner


class ForkLock:
    """A lock that is free in a forked child, even if a thread of the parent holds it.

    Args:
        make: `threading.Lock` or `threading.RLock`.
    """

    __slots__ = ("__weakref__", "_lock", "_make")

    def __init__(self, make: Callable[[], Any] = threading.Lock) -> None:
        self._make, self._lock = make, make()
        reset_in_forks(self)

    def acquire(self, blocking: bool = True) -> bool:
        return bool(self._lock.acquire(blocking))

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def reset_after_fork(self) -> None:
        self._lock = self._make()


_owners: weakref.WeakValueDictionary[int, Forkable] = weakref.WeakValueDictionary()


def _reset() -> None:
    for owner in list(_owners.values()):
        owner.reset_after_fork()


os.register_at_fork(after_in_child=_reset)
