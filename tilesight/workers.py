"""Worker processes: run untrusted work (lowering, building, measuring) where a crash costs one item and no more.

    with WorkerPool(2, timeout_s=60) as pool:
        for index, outcome in pool.run(function, items):
            ...

A worker is a fresh Python process that lives as long as its pool. It is lost and replaced when an item crashes it,
exceeds the time limit, or asks for it with `retire()`; the other items do not notice. Workers ignore Ctrl-C (the
parent decides), die when the parent does, and write their output to a file of their own.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Any, Generic, TypeVar

from .errors import Failure, FailureKind, ToolchainError, headline
from .worker_process import Message, is_worker

OUTPUT_TAIL_BYTES = 4000

# what a worker runs: its arguments are the connection's descriptor, its parent's id, and the parent's import path
_START = """import sys
descriptor, parent_pid, *sys.path[:] = sys.argv[1:]
from tilesight.worker_process import serve
serve(int(descriptor), int(parent_pid))
"""

T = TypeVar("T")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    value: T
    seconds: float


@dataclass(frozen=True, slots=True)
class Raised:
    """The function raised, or its item or value cannot be sent between processes."""

    type_name: str
    message: str
    traceback: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process ended: with `exit_code`, or by the signal `-exit_code` where that is negative."""

    exit_code: int
    output: str
    seconds: float

    @property
    def reason(self) -> str:
        if self.exit_code >= 0:
            return f"the process ended with exit code {self.exit_code}"
        number = -self.exit_code
        known = {s.value for s in signal.Signals}
        name = signal.Signals(number).name if number in known else f"signal {number}"
        return f"the process was killed by {name}" + (" (out of memory?)" if number == signal.SIGKILL else "")


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The process was killed because the item took longer than `seconds`."""

    seconds: float
    output: str


Outcome = Done[T] | Raised | Crashed | TimedOut


def failure_of(outcome: Raised | Crashed | TimedOut, error: FailureKind, crash: FailureKind, timeout: FailureKind) -> Failure:
    """What a worker's fault means for the candidate, in the kinds of the stage that was running."""
    if isinstance(outcome, Raised):
        return Failure(error, f"{outcome.type_name}: {headline(outcome.message)}", outcome.traceback)
    if isinstance(outcome, Crashed):
        return Failure(crash, outcome.reason, outcome.output)
    return Failure(timeout, f"stopped after {outcome.seconds:g} s", outcome.output)


@dataclass(frozen=True, slots=True)
class _Task:
    index: int
    payload: bytes


@dataclass
class _Worker:
    """The parent's side of one process. `task` is None while it starts or waits."""

    process: subprocess.Popen[bytes]
    connection: Connection
    log: Any  # its output: a file that has no name, so that nothing stays behind
    limit_s: float  # of what it is doing now
    ready: bool = False
    task: _Task | None = None
    since: float = field(default_factory=time.monotonic)

    @property
    def overdue(self) -> float:
        """Seconds past its limit; negative before. A worker that waits for work has none."""
        return time.monotonic() - self.since - self.limit_s

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    def give(self, task: _Task, limit_s: float) -> None:
        os.ftruncate(self.log.fileno(), 0)
        self.connection.send_bytes(task.payload)
        self.task, self.limit_s, self.since = task, limit_s, time.monotonic()

    def output(self) -> str:
        size = os.fstat(self.log.fileno()).st_size
        start = max(0, size - OUTPUT_TAIL_BYTES)
        return os.pread(self.log.fileno(), OUTPUT_TAIL_BYTES, start).decode(errors="replace")

    def end(self, patience_s: float) -> int:
        """Let it exit by itself for `patience_s`, then kill it and all that it started. Returns its exit code."""
        self.connection.close()
        patient_until = time.monotonic() + patience_s
        # look without reaping: its process group must not be re-used before the rest of the group is killed
        while os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < patient_until:
            time.sleep(0.005)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.log.close()
        return code


class WorkerPool:
    """Up to `count` processes that run one item at a time each.

    They start when there is work for them, or with `start()`. `initializer` (module-level, no arguments) runs once in each, before its
    first item, outside the time limit: import what is slow there. `environment` is set before anything is imported.
    `timeout_s` is the limit for one item. A pool is used by one thread, which must outlive it: Linux ends the workers
    with the thread that started them.
    """

    def __init__(
        self,
        count: int,
        *,
        timeout_s: float,
        initializer: Callable[[], object] | None = None,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 180.0,
    ) -> None:
        if count < 1:
            raise ValueError(f"a pool needs at least one worker, not {count}")
        if is_worker():
            raise RuntimeError(
                "a worker process tried to start workers of its own; in a script that defines kernels, "
                "put the calls of TileSight under: if __name__ == '__main__':"
            )
        self._count, self._timeout_s, self._start_timeout_s = count, timeout_s, start_timeout_s
        self._setup = pickle.dumps((dict(environment or {}), pickle.dumps(initializer), _main_path()))
        self._workers: list[_Worker] = []

    def run(self, function: Callable[[Item], T], items: Iterable[Item]) -> Iterator[tuple[int, Outcome[T]]]:
        """Yield (index of the item, outcome) as items finish. An item is drawn only when a worker is free for it, after
        the results at hand were yielded, so `items` may depend on them. Leaving the loop early kills what still runs.

        Raises `ToolchainError` where workers cannot start. `function` must be importable (module-level, or a
        `functools.partial` of such).
        """
        pickle.dumps(function)  # a lambda is the caller's mistake and not the item's
        source = enumerate(items)
        waiting: deque[_Task] = deque()  # for workers that are still starting
        exhausted = False
        try:
            while True:
                while not exhausted and (self._idle() or len(self._workers) < self._count):
                    try:
                        index, item = next(source)
                    except StopIteration:
                        exhausted = True
                        break
                    try:
                        waiting.append(_Task(index, pickle.dumps((function, item))))
                    except Exception as error:  # pickle raises TypeError, AttributeError, PicklingError, ...
                        yield index, Raised(type(error).__name__, f"cannot be sent to a worker: {error}", "", 0.0)
                        continue
                    self._place(waiting)
                self._place(waiting)
                if exhausted and not waiting and not any(w.task for w in self._workers):
                    return
                yield from self._finished()
        finally:
            for w in [w for w in self._workers if w.task]:
                self._drop(w)

    def start(self) -> None:
        """Start all workers now, without waiting for them: what they import is then there when the first items come."""
        while len(self._workers) < self._count:
            self._workers.append(self._start())

    def close(self) -> None:
        """End all workers and everything that they started."""
        for w in list(self._workers):
            self._drop(w, patience_s=0.5 if w.ready and w.task is None else 0.0)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def pids(self) -> list[int]:
        """Process ids of the workers that live now."""
        return [w.process.pid for w in self._workers]

    def _idle(self) -> list[_Worker]:
        return [w for w in self._workers if w.ready and w.task is None]

    def _place(self, waiting: deque[_Task]) -> None:
        """Give waiting tasks to idle workers, and start workers for those that are left."""
        for w in self._idle():
            if not waiting:
                return
            try:
                w.give(waiting[0], self._timeout_s)
                waiting.popleft()
            except OSError:  # it died while it had nothing to do
                self._drop(w)
        starting = sum(not w.ready for w in self._workers)
        for _ in range(min(len(waiting) - starting, self._count - len(self._workers))):
            self._workers.append(self._start())

    def _start(self) -> _Worker:
        try:
            return self._launch()
        except OSError as error:  # no memory, no process, no disk space, too many open files
            raise ToolchainError(f"a worker process cannot be started: {error}") from error

    def _launch(self) -> _Worker:
        ours, theirs = Pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the worker ends
        # appending, or a worker would write on where it stood after the file was emptied
        fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(theirs.fileno()), str(os.getpid()), *(p or os.getcwd() for p in sys.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C on the terminal is not for them, and a group can be killed as one
        )
        theirs.close()
        with suppress(OSError):  # one that died at once is noticed when it is waited for
            ours.send_bytes(self._setup)
        return _Worker(process, ours, log, self._start_timeout_s)

    def _drop(self, w: _Worker, patience_s: float = 0.0) -> int:
        self._workers.remove(w)
        return w.end(patience_s)

    def _finished(self) -> Iterator[tuple[int, Outcome[T]]]:
        """Wait until something happens, and yield the outcomes that it brought."""
        active = [w for w in self._workers if w.task or not w.ready]
        nearest = min(-w.overdue for w in active)
        readable = wait([w.connection for w in active], max(0.0, nearest))
        for w in active:
            outcome: tuple[int, Outcome[T]] | None
            if w.connection in readable:
                outcome = self._receive(w)
            elif w.overdue >= 0:
                outcome = self._stop_overdue(w)
            else:
                continue
            if outcome is not None:
                yield outcome

    def _receive(self, w: _Worker) -> tuple[int, Outcome[T]] | None:
        task, seconds = w.task, w.seconds
        try:
            message: Message = pickle.loads(w.connection.recv_bytes())
        except (EOFError, OSError):
            output = w.output()
            code = self._drop(w, patience_s=2.0)
            if task is None:
                raise ToolchainError(f"a worker process ended while it started (exit code {code}); its output:\n{output}") from None
            return task.index, Crashed(code, output, seconds)
        if task is None:
            if message.error is not None:
                self._drop(w)
                raise ToolchainError(f"a worker process cannot start: {message.error[0]}: {message.error[1]}\n{message.error[2]}")
            w.ready = True
            return None
        w.task = None
        if message.retires:
            self._drop(w, patience_s=0.5)
        if message.error is not None:
            return task.index, Raised(*message.error, message.seconds)
        try:
            return task.index, Done(pickle.loads(message.value), message.seconds)
        except Exception as error:
            return task.index, Raised(type(error).__name__, f"the result cannot be read back: {error}", "", message.seconds)

    def _stop_overdue(self, w: _Worker) -> tuple[int, Outcome[T]]:
        output, task = w.output(), w.task
        self._drop(w)
        if task is None:
            raise ToolchainError(f"a worker process did not start within {self._start_timeout_s:g} s; its output:\n{output}")
        return task.index, TimedOut(self._timeout_s, output)


def thread_limits(threads: int) -> dict[str, str]:
    """Environment for `WorkerPool` under which numeric libraries use that many threads: with a worker for each core, 1."""
    return {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def _main_path() -> str | None:
    """The script that is running, for workers that are sent something defined in it."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(path) if path else None
