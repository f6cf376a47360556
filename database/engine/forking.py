"""Database connections and forks: a forked process uses no connection of its parent.

SQLite's file locks belong to a process. A fork that used its parent's connection would rely on locks that it
does not have, and its writes could be lost silently. So idle connections to files are closed before a fork,
and the fork waits for transactions of other threads; if one takes too long, the database raises errors in the
forked process. Connections to a server stay with the parent. A database in memory cannot be shared.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.pool import StaticPool

from ...errors import DatabaseError

WAIT_S = 2.0  # a fork waits so long for transactions of other threads


class Connections:
    """The connections of one engine."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self._name = engine, name
        self._gate = threading.Condition()
        self._running: Counter[int] = Counter()  # number of transactions, by thread
        self._is_torn = False  # the parent had a running transaction when this process was forked
        _all.add(self)

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """A connection for one transaction. Raises `DatabaseError` in a fork that cannot use the database."""
        if self._is_torn:
            raise DatabaseError(
                f"database '{self._name}' was in use when this process was forked, so it cannot be used "
                "here: fork while no thread uses "
                "it, or start a process instead"
            )
        me = threading.get_ident()
        with self._gate:
            self._running[me] += 1
        try:
            with self.engine.connect() as connection:
                yield connection
        finally:
            with self._gate:
                self._running[me] -= 1
                if not self._running[me]:
                    del self._running[me]
                    self._gate.notify_all()

    def before_fork(self) -> None:
        self._gate.acquire()
        if self._is_file:
            me = threading.get_ident()
            self._gate.wait_for(lambda: not self._running.keys() - {me}, WAIT_S)
            self.engine.dispose()

    def after_fork(self) -> None:
        """In the parent."""
        self._gate.release()

    def in_fork(self) -> None:
        self._is_torn = self._is_torn or (self._is_file and bool(self._running))
        self._gate, self._running = threading.Condition(), Counter()
        if self.engine.dialect.name != "sqlite":
            self.engine.dispose(close=False)

    @property
    def _is_file(self) -> bool:
        return self.engine.dialect.name == "sqlite" and not isinstance(self.engine.pool, StaticPool)


_all: weakref.WeakSet[Connections] = weakref.WeakSet()
_forking: list[Connections] = []
_one_at_a_time = threading.RLock()


def _before() -> None:
    _one_at_a_time.acquire()
    _forking[:] = list(_all)
    for connections in _forking:
        connections.before_fork()


def _in_parent() -> None:
    for connections in _forking:
        connections.after_fork()
    _forking.clear()
    _one_at_a_time.release()


def _in_fork() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.RLock()
    for connections in _forking:
        connections.in_fork()
    _forking.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_fork)
