"""A copy of this process that runs one function, for untrusted work that cannot be sent to a worker.

A worker imports what it runs. A function of a notebook, or one that uses objects of its caller, exists in the
caller's process alone. So that process is forked: the copy has all its objects, but no other threads, no
files of its parent except the standard ones, and no use of a GPU that its parent uses.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, Generic, TypeVar

from .outcomes import Crashed, Done, Raised, TimedOut

T = TypeVar("T")
Item = TypeVar("Item")


class ProcessCopy(Generic[Item, T]):
    """Runs `function` on items in one copy of this process, which is made for the first item.

    It is made again after an item that ended it, and ends with this object or with its parent. Any thread may
    use it; others wait.
    """

    def __init__(
        self,
        function: Callable[[Item], T],
        timeout_s: float,
        forking: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """
        Args:
            function: any function; its items and values are pickled.
            timeout_s: time limit of an item.
            forking: returns a context in which the process is copied: it holds the locks that `function`
                takes, which another thread may hold.
        """
        self._function, self._timeout_s, self._forking = function, timeout_s, forking
        self._lock = threading.Lock()
        self._copy: tuple[int, Connection[Any, Any]] | None = None
        self._end: weakref.finalize[..., ProcessCopy[Item, T]] | None = None

    def run(self, item: Item) -> Done[T] | Raised | Crashed | TimedOut:
        """The outcome of one item. Raises `OSError` if this process cannot be copied."""
        with self._lock:
            begin = time.monotonic()
            pid, connection = self._copy or self._start()
            try:
                connection.send_bytes(pickle.dumps(item))
                if not connection.poll(self._timeout_s):
                    self._close()
                    return TimedOut(self._timeout_s, "")
                answer = pickle.loads(connection.recv_bytes())
            except (EOFError, ConnectionError):
                self._forget()
                return Crashed(_exit_code(pid), "", time.monotonic() - begin)
            except BaseException:  # e.g. Ctrl-C: its answer would be taken for that of the next item
                self._close()
                raise
            seconds = time.monotonic() - begin
            if answer[0]:
                _, type_name, message, trace = answer
                return Raised(type_name, message, trace, seconds)
            return Done(answer[1], seconds)

    def _start(self) -> tuple[int, Connection[Any, Any]]:
        ours, theirs = Pipe()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # what is buffered would be written twice
                stream.flush()
        with self._forking(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks beside threads
            pid = os.fork()
            if not pid:
                _serve(self._function, theirs)
        theirs.close()
        self._copy = pid, ours
        self._end = weakref.finalize(self, _kill, os.getpid(), pid, ours)
        return self._copy

    def _forget(self) -> None:
        """The copy has ended: its number may become that of another process."""
        if self._copy is not None and self._end is not None:
            self._copy[1].close()
            self._end.detach()
        self._copy = None

    def _close(self) -> None:
        self._copy = None
        if self._end is not None:
            self._end()


def _serve(function: Callable[[Any], Any], connection: Connection[Any, Any]) -> None:
    """The program of the copy, which never returns."""
    try:
        gc.freeze()  # objects of the parent are not finalised here
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        keep = connection.fileno()
        os.closerange(3, keep)  # locks and pipes of the parent must end with the parent
        os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
        while True:
            item = pickle.loads(connection.recv_bytes())
            connection.send_bytes(_answer(function, item))
            sys.stdout.flush()
    finally:
        os._exit(0)


def _answer(function: Callable[[Any], Any], item: Any) -> bytes:
    """(False, value), or (True, type, message, traceback) of what was raised."""
    try:
        return pickle.dumps((False, function(item)))
    except BaseException as error:
        return pickle.dumps((True, type(error).__name__, str(error), traceback.format_exc()))


def _exit_code(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # a handler of the program took it
        return 1


def _kill(parent: int, pid: int, connection: Connection[Any, Any]) -> None:
    connection.close()
    if os.getpid() != parent:  # another copy of the parent drops its own copy of the object
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
