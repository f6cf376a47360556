"""The recorded winners of one problem, in memory, by shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

from ...problem.workload import Workload
from ...records.session import Context
from ...records.winners import Miss, Winner
from ..problem import DispatchProblem, ShapeKey


class WinnerStore(Protocol):
    """The requests of a dispatcher to the performance database."""

    def winners(
        self, context: Context, fixed: Mapping[str, int], *, any_dynamic: bool = False
    ) -> list[Winner]: ...

    def record_misses(self, misses: Iterable[Miss]) -> None: ...


class WinnerIndex:
    """Winners of all recorded shapes of one problem. It never changes, so threads read it without a lock."""

    def __init__(self, problem: DispatchProblem, winners: Iterable[Winner] = ()) -> None:
        self.problem = problem
        self._by_key: dict[ShapeKey, list[Winner]] = {}
        for winner in winners:
            self._by_key.setdefault(problem.key_of(winner.workload.dims), []).append(winner)
        for of_shape in self._by_key.values():
            of_shape.sort(key=lambda winner: winner.latency_us)
        self._points = [(_log_sizes(key), of_shape) for key, of_shape in self._by_key.items()]

    @staticmethod
    def read(store: WinnerStore, problem: DispatchProblem, context: Context) -> WinnerIndex:
        """The winners in a store. Raises `DatabaseError`.

        Winners with dynamic dimensions are included if those dimensions are free here.
        """
        found = store.winners(context, problem.fixed, any_dynamic=True)
        return WinnerIndex(problem, (winner for winner in found if set(winner.dynamic) <= set(problem.free)))

    def __len__(self) -> int:
        """Number of shapes."""
        return len(self._by_key)

    def all(self) -> list[Winner]:
        return [winner for of_shape in self._by_key.values() for winner in of_shape]

    def exact(self, workload: Workload) -> list[Winner]:
        """Winners of this workload, fastest first: there may be one per set of dynamic dimensions."""
        return self._by_key.get(self.problem.key_of(workload.dims), [])

    def nearest(self, workload: Workload, count: int) -> list[Winner]:
        """Winners of the nearest other shapes, nearest first.

        The distance is Euclidean, between the logarithms of the dimensions.
        """
        point = _log_sizes(self.problem.key_of(workload.dims))
        points = enumerate(self._points)
        by_distance = sorted((math.dist(point, other), i) for i, (other, _) in points if other != point)
        return [winner for _, i in by_distance[:count] for winner in self._points[i][1]][:count]

    def with_winner(self, winner: Winner) -> WinnerIndex:
        """A copy in which `winner` replaces all winners of its workload."""
        same = winner.workload.key
        return WinnerIndex(
            self.problem, [*(other for other in self.all() if other.workload.key != same), winner]
        )


def _log_sizes(key: ShapeKey) -> tuple[float, ...]:
    return tuple(math.log2(size) for size in key)
