"""Worker pools: run functions in worker processes, where a crash or a hang costs one item only.

    with WorkerPool(2, timeout_s=60) as pool:
        for index, outcome in pool.run(function, items):
            ...

A pool's workers are forked by its fork server (`fork_server.py`), a fresh Python process that has imported
the slow modules. A worker lives as long as its pool, unless an item crashes it, exceeds its limits, or calls
`retire()`: then the worker is killed with all processes that it started, and replaced within milliseconds.
Other items are not affected. Workers ignore Ctrl-C (the parent decides), end when the parent ends, and write
their output to a file of their own.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, TypeVar

from .fork_server import ServerSetup
from .handle import WorkItem
from .host_memory import available_bytes
from .outcomes import Outcome, Raised
from .supervisor import Supervisor, WorkerSlot
from .time_limits import TimeLimit
from .worker import Gate, Setup, is_worker

_MIN_MEMORY_BYTES = (
    2**30
)  # of the default limit when little memory is free: less is not enough to build a kernel

T = TypeVar("T")
Item = TypeVar("Item")


class WorkerPool:
    """Up to `count` processes, each of which runs one item at a time.

    Processes start with the first items, or with `start()`. Only one thread at a time may use a pool. All
    callables must be module-level functions, or `functools.partial` of module-level functions.
    """

    def __init__(
        self,
        count: int,
        *,
        timeout_s: float | TimeLimit,
        preload: Callable[[], object] | None = None,
        initializer: Callable[[], object] | None = None,
        environment: Mapping[str, str] | None = None,
        environments: Sequence[Mapping[str, str]] | None = None,
        gate: Gate | Sequence[Gate] | None = None,
        memory_bytes: int | None = None,
        start_timeout_s: float = 180.0,
    ) -> None:
        """Prepare a pool; no process starts yet.

        Args:
            count: Number of slots: processes at once.
            timeout_s: Time limit of an item.
            preload: Called once in the fork server. It may import modules and read data that the
                workers share: no thread, no device.
            initializer: Called in each worker before its first item, outside the time limit.
            environment: Environment variables that are set before anything is imported.
            environments: Further variables for each slot, set after `preload` and before `initializer`.
            gate: Returns a context manager in which each item runs; entering it is outside the time limit. A
                sequence has one gate for each slot.
            memory_bytes: Limit of the host memory of a worker with all processes that it started. By default,
                half of the memory that is available.
            start_timeout_s: Time limit for starting a worker.

        Raises:
            ValueError: `count` is below 1, or a sequence does not have `count` elements.
            RuntimeError: This process is itself a worker.
        """
        if count < 1:
            raise ValueError(f"a pool needs at least one worker, not {count}")
        if is_worker():
            raise RuntimeError(
                "a worker process tried to start workers of its own; in a script that defines kernels, "
                "put the calls of TileSight under: if __name__ == '__main__':"
            )
        gates = [gate] * count if gate is None or callable(gate) else list(gate)
        slots = [{}] * count if environments is None else [dict(e) for e in environments]
        if not len(gates) == len(slots) == count:
            raise ValueError(
                f"a pool of {count} workers needs {count} environments and gates, "
                f"not {len(slots)} and {len(gates)}"
            )
        self._count, self._limit, self._tickets = count, _time_limit(timeout_s), 0
        if memory_bytes is None:
            memory_bytes = max(_MIN_MEMORY_BYTES, available_bytes() // 2)
        loader, start, main = pickle.dumps(preload), pickle.dumps(initializer), _main_path()
        setups = [
            pickle.dumps(Setup(e, loader, start, pickle.dumps(g), main))
            for e, g in zip(slots, gates, strict=True)
        ]
        worker_slots = [
            WorkerSlot(setup, gate is not None) for setup, gate in zip(setups, gates, strict=True)
        ]
        self._supervisor = Supervisor(
            worker_slots, ServerSetup(loader, main, memory_bytes), dict(environment or {}), start_timeout_s
        )

    def run(self, function: Callable[[Item], T], items: Iterable[Item]) -> Iterator[tuple[int, Outcome[T]]]:
        """Run `function` on each item; yields (index of the item, outcome) as items finish.

        An item is drawn only when a worker is free for it and all finished outcomes were yielded, so `items`
        may depend on outcomes. Leaving the loop early kills the running items.

        Raises:
            ToolchainError: Workers cannot start.
            RuntimeError: The pool has other items in progress.
        """
        if self._supervisor.busy:
            raise RuntimeError(
                "this pool has items in progress; take their outcomes, or cancel them, before run()"
            )
        pickle.dumps(function)  # raises for a lambda: that is the caller's error, not the item's
        source = enumerate(items)
        indices: dict[int, int] = {}
        exhausted = False
        try:
            while True:
                while not exhausted and self.room():
                    try:
                        index, item = next(source)
                    except StopIteration:
                        exhausted = True
                        break
                    indices[self.submit(function, item)] = index
                found = wait_for([self])
                if not found:
                    return
                for _, ticket, outcome in found:
                    yield indices.pop(ticket), outcome
        finally:
            self.cancel()

    def room(self) -> int:
        """How many items may be submitted now."""
        return (
            self._count
            - len(self._supervisor.waiting)
            - sum(w.item is not None for w in self._supervisor.workers)
        )

    def submit(
        self,
        function: Callable[[Item], T],
        item: Item,
        *,
        fresh: bool = False,
        timeout_s: float | TimeLimit | None = None,
    ) -> int:
        """Start one item and return its ticket, under which `wait_for` returns the outcome.

        Args:
            function: Called with `item` in a worker.
            item: The argument.
            fresh: Run the item in a process that has run no other item.
            timeout_s: Time limit; by default the pool's.

        Raises:
            RuntimeError: No worker is free; see `room()`.
            ToolchainError: Workers cannot start.
        """
        if self.room() < 1:
            raise RuntimeError(
                f"all {self._count} workers of this pool are taken; ask room() before submit()"
            )
        self._tickets += 1
        try:
            payload = pickle.dumps((function, item))
        except Exception as error:  # pickle raises TypeError, AttributeError, PicklingError, ...
            refused = Raised(type(error).__name__, f"cannot be sent to a worker: {error}", "", 0.0)
            self._supervisor.finished.append((self._tickets, refused))
            return self._tickets
        limit = self._limit if timeout_s is None else _time_limit(timeout_s)
        self._supervisor.waiting.append(WorkItem(self._tickets, payload, limit, fresh))
        self._supervisor.assign_items()
        return self._tickets

    def start(self) -> None:
        """Start all workers now, without waiting: their imports are then done when the first items come."""
        while len(self._supervisor.workers) < self._count:
            self._supervisor.start_worker()

    @property
    def is_starting(self) -> bool:
        """Whether workers have been started of which none can take an item yet."""
        return bool(self._supervisor.workers) and not any(w.ready for w in self._supervisor.workers)

    def wait_until_started(self) -> None:
        """Wait until a worker can take an item. Raises `ToolchainError` if none can start."""
        self.start()
        while self.is_starting:
            wait(self._supervisor.sources(), max(0.0, self._supervisor.deadline() - time.monotonic()))
            self._supervisor.advance()

    def cancel(self) -> None:
        """Kill the running items, and drop them and the outcomes that were not taken."""
        self._supervisor.cancel()

    def close(self) -> None:
        """End all workers and every process that they started."""
        self._supervisor.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def pids(self) -> list[int]:
        """Process ids of the living workers that have been started."""
        self._supervisor.receive_events()
        return [w.pid for w in self._supervisor.workers if w.pid is not None and w.ended is None]

    @property
    def count(self) -> int:
        """How many items can run at once."""
        return self._count

    @property
    def forks(self) -> bool:
        """Whether workers are forked after `preload`; otherwise each is a fresh Python process.

        False until one runs.
        """
        return self._supervisor.server is not None and self._supervisor.server.forks

    @property
    def waiting_for_gate(self) -> int:
        """How many items wait for their gate."""
        return sum(w.at_gate for w in self._supervisor.workers)


def wait_for(
    pools: Iterable[WorkerPool], timeout_s: float | None = None
) -> list[tuple[WorkerPool, int, Outcome[Any]]]:
    """Wait until items of some of the pools are finished, and return (pool, ticket, outcome) of each.

    The list is empty after `timeout_s`, and if no item is in progress. Raises `ToolchainError` if workers
    cannot start.
    """
    supervisors = {pool: pool._supervisor for pool in pools}
    until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    while True:
        for supervisor in supervisors.values():
            supervisor.advance()
        found = [
            (pool, ticket, outcome)
            for pool, supervisor in supervisors.items()
            for ticket, outcome in supervisor.take_finished()
        ]
        now = time.monotonic()
        if found or now >= until or not any(supervisor.busy for supervisor in supervisors.values()):
            return found
        deadline = min(until, *(supervisor.deadline() for supervisor in supervisors.values()))
        sources = [source for supervisor in supervisors.values() for source in supervisor.sources()]
        wait(sources, None if deadline == float("inf") else max(0.0, deadline - now))


def thread_limits(threads: int) -> dict[str, str]:
    """Environment for `WorkerPool` that limits numeric libraries to `threads` threads."""
    return {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def _time_limit(limit: float | TimeLimit) -> TimeLimit:
    return limit if isinstance(limit, TimeLimit) else TimeLimit(limit, floor_s=limit)


def _main_path() -> str | None:
    """Path of the running script: workers import it if a function or item is defined there."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(path) if path else None
