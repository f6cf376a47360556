"""Mutable counts of one phase while the IR is read, converted to a frozen `Phase` at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...profile.values import Access, MatrixWork, Phase, Trips, Work
from .accesses import AccessSite
from .joined_runs import JoinedRuns
from .scope import Scope

ONCE = Trips((1.0,))
# instructions that warps issue although their predicate does not hold
PREDICATED = ("vector_ops", "selections", "integer_ops", "convert_ops", "special_ops")
# Instructions of a warp below which a loop's code is small: a scheduler's own cache holds 2,048 (experiments/
# fetch), and the IR lacks the instructions of addresses.
LARGE_CODE = 800
OPERATIONS = ("vector_ops", "integer_ops", "convert_ops", "special_ops", "shuffles")
Position = tuple[float, float]  # matrix operations and others before a place of an iteration
Slot = tuple[int, int]  # a ring of mbarriers: the buffer, and the place of the first of them


@dataclass
class LoopOrder:
    """What one iteration of a loop does at its barriers, in order, over all roles that have phases in it.

    Positions in the iteration are the matrix operations before them, and the other ones.

    Attributes:
        block_syncs: at which all threads of the block meet.
        awaited: keys of the mbarriers at which threads wait.
        phases: of the loop, in the order in which they begin.
        commits: positions at which threads close groups of asynchronous copies.
        waits: (position, groups closed before it in the iteration, groups that it leaves in flight).
    """

    block_syncs: float = 0.0
    awaited: set[tuple[int, ...]] = field(default_factory=set)
    phases: list[PhaseCounts] = field(default_factory=list)
    commits: list[Position] = field(default_factory=list)
    waits: list[tuple[Position, int, int]] = field(default_factory=list)
    has_loops: bool = False  # whose operations are not among those of `phases`
    is_certain: bool = True  # groups are closed and waited for once an iteration, on every path

    @property
    def _position(self) -> Position:
        return (
            sum(phase.operations for phase in self.phases),
            sum(phase.counts.get(name, 0.0) for phase in self.phases for name in OPERATIONS),
        )

    def commit_copies(self) -> None:
        """Close a group of asynchronous copies."""
        self.commits.append(self._position)

    def wait_for_copies(self, left: int) -> None:
        """Wait for all groups of copies but the last `left`."""
        self.waits.append((self._position, len(self.commits), left))

    def copies_ahead(self) -> float | None:
        """Iterations from the end of the group of copies that is waited for soonest to that wait.

        None if the loop closes no group, waits for none, computes nothing, or does so several times or in a
        branch. Other operations count in loops without matrix work and inner loops.
        """
        if not self._position[0] and self.has_loops:
            return None
        unit = 0 if self._position[0] else 1
        whole, count = self._position[unit], len(self.commits)
        if not (self.is_certain and whole and count and self.waits):
            return None
        found = []
        for position, before, left in self.waits:
            earlier, group = divmod(before - 1 - left, count)
            found.append((position[unit] - self.commits[group][unit]) / whole - earlier)
        return min(found)


@dataclass
class PhaseCounts:
    """Counts of one iteration of a phase, over all threads of the block that execute it."""

    trips: Trips = ONCE
    is_loop: bool = False
    between: bool = (
        False  # the role's code around its own loops, inside a loop that belongs to the whole block
    )
    unrolled_by: int = 1  # number of iterations whose plain loads the compiler issues together
    order: LoopOrder = field(default_factory=LoopOrder)  # of the loop around this phase
    filled: set[tuple[int, ...]] = field(default_factory=set)  # keys of mbarriers of bulk loads
    # Matrix operations before the wait at an mbarrier, and before the last arrival at one; in a loop that
    # copies, by the mbarrier of the copy: the one at which the loop waits for a free buffer before it.
    awaited: dict[Slot, float] = field(default_factory=dict)
    arrived: dict[Slot, float] = field(default_factory=dict)
    refills: dict[Slot, Slot] = field(default_factory=dict)
    matrix: list[MatrixWork] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    runs: JoinedRuns = field(default_factory=JoinedRuns)
    counts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    unknown: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    quotients: set[str] = field(default_factory=set)  # texts of those that were counted
    computed: dict[Hashable, float] = field(default_factory=dict)  # lane executions by value, of those that
    # the compiler computes once
    # by local buffer: how often the compiler finds each element in what was last loaded into it
    staged: dict[int, float] = field(default_factory=dict)
    repeated: float = 0.0  # instructions of warps that repeat the code of a loop inside the iteration
    named_syncs: float = 0.0  # of `block_syncs`, those at a barrier with a number of its own
    named_arrivals: float = 0.0  # at such barriers, by warps that go on at once
    committed: list[float] = field(default_factory=list)  # operations of groups of matrix instructions that
    # are in flight, at this place of the program
    _grouped: float = 0.0  # operations of all groups so far
    in_flight: float = 0.0  # operations that were in flight when the program went on after a wait
    wait_groups: list[int] = field(
        default_factory=list
    )  # number of copy groups that each wait leaves in flight

    def add_access(self, access: Access, scope: Scope, site: AccessSite) -> None:
        """Count an access of lanes to `site`."""
        self.runs.note(access, scope, site)
        self.accesses.append(access)

    @contextmanager
    def under_predicate(self, times: float, warp_threads: int) -> Iterator[None]:
        """Counts the statements inside as those of a branch of which the compiler makes predicates.

        All warps issue its instructions: `times` as many as those for which the condition holds. Loads and
        stores of the others move nothing.
        """
        before, first = dict(self.counts), len(self.accesses)
        yield
        for name in PREDICATED:
            self.counts[name] += (self.counts[name] - before.get(name, 0.0)) * (times - 1)
        issued = sum(access.instructions for access in self.accesses[first:])
        self.counts["integer_ops"] += issued * warp_threads * (times - 1)

    def instructions(self, warp_threads: int) -> float:
        """Instructions of all warps so far, without those of addresses."""
        lanes = sum(self.counts.get(name, 0.0) for name in OPERATIONS)
        issued = sum(access.instructions for access in self.accesses)
        return lanes / warp_threads + issued + sum(item.count * item.warps for item in self.matrix)

    @contextmanager
    def repeating(self, times: float, warp_threads: int, *, beyond: float = 0.0) -> Iterator[None]:
        """Counts the statements inside as those of a loop that stays one: its code runs `times` times.

        It stays one if its iterations have more than `beyond` instructions of all warps together.
        """
        if times <= 1:
            yield
            return
        first, repeated = self.instructions(warp_threads), self.repeated
        yield
        made = self.instructions(warp_threads) - first - (self.repeated - repeated)
        if made > beyond:
            self.repeated += made * (1 - 1 / times)

    def _code_instructions(self, warps: float, warp_threads: int) -> float:
        """As `Phase.code_instructions`, of a role of so many warps."""
        found = float(round((self.instructions(warp_threads) - self.repeated) / max(1.0, warps)))
        return found if found >= LARGE_CODE else 0.0

    def note_wait(self, barrier: Slot | None) -> None:
        if barrier is not None:
            self.awaited.setdefault(barrier, self.operations)

    def note_arrival(self, barrier: Slot | None) -> None:
        if barrier is not None:
            self.arrived[barrier] = self.operations

    def note_copy(self, barrier: Slot | None) -> None:
        if barrier is not None and self.awaited:
            self.refills.setdefault(barrier, list(self.awaited)[-1])

    def _held_share(self, refills: Mapping[Slot, Slot]) -> float | None:
        """As `Phase.held_share`, of a loop whose products are those of single warps.

        Warps of mma.sync have read their operands when they arrive at the mbarrier that frees the buffer.
        """
        if not (self.is_loop and self.matrix and all(item.warps == 1 for item in self.matrix)):
            return None
        copies = [copy for copy in self.awaited if copy in refills]
        if not copies or not all(refills[copy] in self.arrived for copy in copies):
            return None
        share = max(self.arrived[refills[copy]] - self.awaited[copy] for copy in copies) / self.operations
        return share if share < 1 else None

    def to_phase(self, refills: Mapping[Slot, Slot], warps: float, warp_threads: int) -> Phase:
        """Convert the counts to a frozen phase of a role of so many warps.

        `refills` are those of all phases.

        Warps at a named barrier where others only arrive wait for their turn. That joins no warps.
        """
        turns = min(self.named_syncs, self.named_arrivals)
        if turns:
            self.counts["block_syncs"] -= turns
            self.counts["barrier_waits"] += turns
        accesses = self._accesses_in_flight()
        depths = [w + 1 for w in self.wait_groups]
        depths += [a.slots for a in accesses if _is_bulk_load(a)]
        pipeline_depth = max(depths, default=self.unrolled_by)
        is_loop = self.is_loop and not (self.between and not self._keeps_pace)
        return Phase(
            trips=self.trips,
            work=Work(
                matrix=_merged_matrix(self.matrix),
                accesses=accesses,
                unknown=dict(self.unknown),
                # a group that several waits leave in flight counts once
                matrix_in_flight=min(1.0, self.in_flight / (self.operations or 1.0)),
                **self.counts,
            ),
            pipeline_depth=pipeline_depth,
            is_loop=is_loop,
            copies_ahead=self._copies_ahead(pipeline_depth),
            held_share=self._held_share(refills),
            code_instructions=self._code_instructions(warps, warp_threads) if is_loop else 0.0,
        )

    def _copies_ahead(self, pipeline_depth: int) -> float | None:
        """As `Phase.copies_ahead`."""
        if not self.is_loop or not any(a.mechanism == "cp_async" for a in self.accesses):
            return None
        ahead = self.order.copies_ahead()
        return None if ahead == pipeline_depth - 1 else ahead

    def _accesses_in_flight(self) -> tuple[Access, ...]:
        """The accesses, whose bulk loads take a single buffer if no two of their iterations are in flight.

        All threads of a block meet in each iteration of the loop, and one role waits for the copies that
        another one issues in the same iteration. Then the next copies are issued after these were used,
        however many buffers there are.
        """
        if not (self.between and self.order.block_syncs and self.filled & self.order.awaited):
            return self.runs.joined(self.accesses)
        return tuple(replace(a, slots=1) if _is_bulk_load(a) else a for a in self.runs.joined(self.accesses))

    @property
    def operations(self) -> float:
        """Of all matrix instructions so far."""
        return sum(item.flops * item.count for item in self.matrix)

    def commit_matrix(self) -> None:
        """Close the group of the matrix instructions that were counted since the last group."""
        self.committed.append(self.operations - self._grouped)
        self._grouped = self.operations

    def leave_in_flight(self, groups: int) -> None:
        """Wait for all groups of matrix instructions but the last `groups`."""
        self.committed = self.committed[-groups:] if groups else []
        self.in_flight += sum(self.committed)

    @property
    def _keeps_pace(self) -> bool:
        """Whether each iteration waits for another role or fetches data for it."""
        fetches = any(a.asynchronous and not a.write for a in self.accesses)
        return fetches or bool(self.counts.get("barrier_waits"))

    @property
    def is_empty(self) -> bool:
        return not (self.matrix or self.accesses or self.counts or self.unknown)


def _is_bulk_load(access: Access) -> bool:
    return access.asynchronous and access.mechanism == "tma" and not access.write


def _merged_matrix(work: list[MatrixWork]) -> tuple[MatrixWork, ...]:
    merged: dict[MatrixWork, float] = {}
    for item in work:
        kind = replace(item, count=0.0)
        merged[kind] = merged.get(kind, 0.0) + item.count
    return tuple(replace(kind, count=count) for kind, count in merged.items())
