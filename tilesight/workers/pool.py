"""Worker processes: run untrusted work (lowering, building, measuring) where a crash costs one item and no more.

    with WorkerPool(2, timeout_s=60) as pool:
        for index, outcome in pool.run(function, items):
            ...

The workers of a pool are forked by its nursery (`nursery.py`), a fresh Python process that has imported what is
slow. A worker lives as long as its pool. It is ended with all that it started, and replaced within milliseconds, when an
item crashes it, exceeds its limits, or asks for it with `retire()`; the other items do not notice. Workers ignore
Ctrl-C (the parent decides), die when the parent does, and write their output to a file of their own.
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

from .crew import Crew, Slot
from .host_memory import available_bytes
from .link import Task
from .nursery import Nurture
from .outcomes import Outcome, Raised
from .process import Gate, Setup, is_worker
from .time_limits import TimeLimit

_LEAST_BYTES = 2**30  # that a worker may hold by default, where memory seems to be gone: less builds no kernel

T = TypeVar("T")
Item = TypeVar("Item")


class WorkerPool:
    """Up to `count` processes that run one item at a time each.

    They start when there is work for them, or with `start()`. All callables are module-level, or `functools.partial` of
    such. `preload` (no arguments) runs once in the nursery and must only import: no thread, no device. `initializer` (no
    arguments) runs in each worker before its first item, outside the time limit. `environment` is set before anything
    is imported; `environments`, one for each of the `count` slots, after `preload` and before `initializer`.

    `timeout_s` limits an item's time, `memory_bytes` the host memory of a worker with all that it started (half of what
    is available by default). `gate` returns a context manager in which each item runs; waiting for it is outside the
    time limit. A sequence gives each slot a gate of its own.

    One thread at a time may use a pool.
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
            raise ValueError(f"a pool of {count} workers needs {count} environments and gates, not {len(slots)} and {len(gates)}")
        self._count, self._limit, self._tickets = count, _time_limit(timeout_s), 0
        held = max(_LEAST_BYTES, available_bytes() // 2) if memory_bytes is None else memory_bytes
        loader, start, main = pickle.dumps(preload), pickle.dumps(initializer), _main_path()
        setups = [pickle.dumps(Setup(e, loader, start, pickle.dumps(g), main)) for e, g in zip(slots, gates, strict=True)]
        places = [Slot(setup, gate is not None) for setup, gate in zip(setups, gates, strict=True)]
        self._crew = Crew(places, Nurture(loader, main, held), dict(environment or {}), start_timeout_s)

    def run(self, function: Callable[[Item], T], items: Iterable[Item]) -> Iterator[tuple[int, Outcome[T]]]:
        """Yield (index of the item, outcome) as items finish. An item is drawn only when a worker is free for it, after
        the results at hand were yielded, so `items` may depend on them. Leaving the loop early kills what still runs.

        Raises `ToolchainError` where workers cannot start, `RuntimeError` where the pool has other items under way.
        """
        if self._crew.busy:
            raise RuntimeError("this pool has items under way; take their outcomes, or cancel them, before run()")
        pickle.dumps(function)  # a lambda is the caller's mistake and not the item's
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
        return self._count - len(self._crew.waiting) - sum(w.task is not None for w in self._crew.workers)

    def submit(self, function: Callable[[Item], T], item: Item, *, fresh: bool = False, timeout_s: float | TimeLimit | None = None) -> int:
        """Have an item run; its outcome comes from `wait_for` under the ticket that is returned.

        `fresh`: in a process that has run nothing before. `timeout_s`: another limit than the pool's. Raises
        `RuntimeError` where there is no `room()`, `ToolchainError` where workers cannot start.
        """
        if self.room() < 1:
            raise RuntimeError(f"all {self._count} workers of this pool are taken; ask room() before submit()")
        self._tickets += 1
        try:
            payload = pickle.dumps((function, item))
        except Exception as error:  # pickle raises TypeError, AttributeError, PicklingError, ...
            refused = Raised(type(error).__name__, f"cannot be sent to a worker: {error}", "", 0.0)
            self._crew.finished.append((self._tickets, refused))
            return self._tickets
        limit = self._limit if timeout_s is None else _time_limit(timeout_s)
        self._crew.waiting.append(Task(self._tickets, payload, limit, fresh))
        self._crew.place()
        return self._tickets

    def start(self) -> None:
        """Start all workers now, without waiting for them: what they import is then there when the first items come."""
        while len(self._crew.workers) < self._count:
            self._crew.bear()

    def cancel(self) -> None:
        """Kill all that runs and forget it, with the outcomes that nobody has taken."""
        self._crew.cancel()

    def close(self) -> None:
        """End all workers and everything that they started."""
        self._crew.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def pids(self) -> list[int]:
        """Process ids of the workers that live now; those that have yet to be forked have none."""
        self._crew.hear()
        return [w.pid for w in self._crew.workers if w.pid is not None and w.ended is None]

    @property
    def count(self) -> int:
        """How many items can run at once."""
        return self._count

    @property
    def forks(self) -> bool:
        """Whether workers are forked from what `preload` imported; else each is a fresh Python process. Known once one runs."""
        return self._crew.nursery is not None and self._crew.nursery.forks

    @property
    def waiting_for_gate(self) -> int:
        """How many items wait to pass their gate."""
        return sum(w.at_gate for w in self._crew.workers)


def wait_for(pools: Iterable[WorkerPool], timeout_s: float | None = None) -> list[tuple[WorkerPool, int, Outcome[Any]]]:
    """Wait until items of some of the pools are finished: (pool, ticket, outcome) of each. Empty after `timeout_s`, and
    where nothing is under way. Raises `ToolchainError` where workers cannot start."""
    crews = {pool: pool._crew for pool in pools}
    until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    while True:
        for crew in crews.values():
            crew.advance()
        found = [(pool, ticket, outcome) for pool, crew in crews.items() for ticket, outcome in crew.take()]
        now = time.monotonic()
        if found or now >= until or not any(crew.busy for crew in crews.values()):
            return found
        due = min(until, *(crew.due() for crew in crews.values()))
        sources = [source for crew in crews.values() for source in crew.sources()]
        wait(sources, None if due == float("inf") else max(0.0, due - now))


def thread_limits(threads: int) -> dict[str, str]:
    """Environment for `WorkerPool` under which numeric libraries use that many threads: with a worker for each core, 1."""
    return {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def _time_limit(limit: float | TimeLimit) -> TimeLimit:
    return limit if isinstance(limit, TimeLimit) else TimeLimit(limit, floor_s=limit)


def _main_path() -> str | None:
    """The script that is running, for workers that are sent something defined in it."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(path) if path else None
