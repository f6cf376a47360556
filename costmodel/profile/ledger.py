"""The book that is kept while the IR is read: counts of one phase, turned into a frozen `Work` at its end."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from ...profile import Access, MatrixWork, Phase, Trips, Work

ONCE = Trips((1.0,))


@dataclass
class Ledger:
    """Counts for one iteration of one phase, over the whole block."""

    trips: Trips = ONCE
    is_loop: bool = False
    between: bool = False  # the stretch of a role's program around loops of its own, within a loop that is not
    unrolled_by: int = 1  # iterations whose plain loads the compiler issues together
    matrix: list[MatrixWork] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    counts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    unknown: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    wait_groups: list[int] = field(default_factory=list)  # copy groups that each wait leaves in flight

    def phase(self) -> Phase:
        depths = [w + 1 for w in self.wait_groups]
        depths += [a.slots for a in self.accesses if a.asynchronous and a.mechanism == "tma" and not a.write]
        return Phase(
            trips=self.trips,
            work=Work(matrix=_merged_matrix(self.matrix), accesses=tuple(self.accesses), unknown=dict(self.unknown), **self.counts),
            pipeline_depth=max(depths, default=self.unrolled_by),
            is_loop=self.is_loop and not (self.between and not self._keeps_pace),
        )

    @property
    def _keeps_pace(self) -> bool:
        """Each iteration waits for another role, or fetches for it."""
        fetches = any(a.asynchronous and not a.write for a in self.accesses)
        return fetches or bool(self.counts.get("barrier_waits"))

    @property
    def is_empty(self) -> bool:
        return not (self.matrix or self.accesses or self.counts or self.unknown)


def _merged_matrix(work: list[MatrixWork]) -> tuple[MatrixWork, ...]:
    merged: dict[MatrixWork, float] = {}
    for item in work:
        kind = replace(item, count=0.0)
        merged[kind] = merged.get(kind, 0.0) + item.count
    return tuple(replace(kind, count=count) for kind, count in merged.items())
