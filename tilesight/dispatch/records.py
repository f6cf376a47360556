"""Records: winners of the performance database as a dispatcher sees them, in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

from ..known import Known, Miss
from ..session import Context
from ..workload import Workload
from .problem import Problem


class WinnerStore(Protocol):
    """What a dispatcher asks of the performance database."""

    def winners(self, context: Context, fixed: Mapping[str, int], *, any_open: bool = False) -> list[Known]: ...

    def record_misses(self, misses: Iterable[Miss]) -> None: ...


class Records:
    """Winners of all recorded shapes of one problem. Replaced as a whole, so that readers need no lock."""

    def __init__(self, problem: Problem, known: Iterable[Known] = ()) -> None:
        self.problem = problem
        self._by_key: dict[tuple[int, ...], list[Known]] = {}
        for one in known:
            self._by_key.setdefault(problem.key_of(one.workload.dims), []).append(one)
        for alike in self._by_key.values():
            alike.sort(key=lambda one: one.latency_us)
        self._places = [(self._place(key), alike) for key, alike in self._by_key.items()]

    @staticmethod
    def read(store: WinnerStore, problem: Problem, context: Context) -> Records:
        """Raises `DatabaseError`. Of kernels with open dimensions those are taken whose open dimensions are free here."""
        found = store.winners(context, problem.fixed, any_open=True)
        return Records(problem, (one for one in found if set(one.open) <= set(problem.free)))

    def __len__(self) -> int:
        return len(self._by_key)

    def all(self) -> list[Known]:
        return [one for alike in self._by_key.values() for one in alike]

    def exact(self, workload: Workload) -> list[Known]:
        """Of this very workload, the fastest first: of a kernel built for it and one with open dimensions, say."""
        return self._by_key.get(self.problem.key_of(workload.dims), [])

    def nearest(self, workload: Workload, count: int) -> list[Known]:
        """Of the nearest other shapes, nearest first; distances are those of the logarithms of the dimensions."""
        key = self.problem.key_of(workload.dims)
        place = self._place(key)
        by_distance = sorted(((math.dist(place, other), i) for i, (other, _) in enumerate(self._places) if other != place))
        return [one for _, i in by_distance[:count] for one in self._places[i][1]][:count]

    def with_one(self, known: Known) -> Records:
        """These and one more, which takes the place of what was known of its workload."""
        same = known.workload.key
        return Records(self.problem, [*(one for one in self.all() if one.workload.key != same), known])

    @staticmethod
    def _place(key: tuple[int, ...]) -> tuple[float, ...]:
        return tuple(math.log2(size) for size in key)
