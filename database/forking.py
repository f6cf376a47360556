"""Engines and forks. A fork shares no connection with its parent.

SQLite keeps by process what that process has locked. Whoever takes over a connection in a fork believes in locks that it does
not have, and what it writes later is lost without a word. So before a fork idle connections to files are closed, and
transactions of other threads are waited for; where one takes too long, the fork refuses to work with that database. Connections
to a server stay with the parent, who goes on with them. A database in memory cannot be shared.
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

from ..errors import DatabaseError

WAIT_S = 2.0  # for transactions of other threads


class Connections:
    """Those of one engine."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self._name = engine, name
        self._gate = threading.Condition()
        self._running: Counter[int] = Counter()  # transactions, by thread
        self._is_torn = False  # a transaction was under way in the parent when this process was forked
        _all.add(self)

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """A connection for one transaction. Raises `DatabaseError` in a fork that cannot have any."""
        if self._is_torn:
            raise DatabaseError(
                f"database '{self._name}' was in use when this process was forked, so it cannot be used here: fork while no thread uses "
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
