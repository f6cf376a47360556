"""Which level of a CPU's memory serves how many bytes, in a nest of loops with warm caches.

Source of the rule: the classic reuse argument. A loop whose distinct lines fit a cache fetches them once. A
loop whose lines do not fit fetches them again in each iteration. Nothing is fetched if the whole kernel fits,
since it ran before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from ...profile.values import Access, KernelProfile, Space
from ...target.spec import Target
from .gathers import LINE_BYTES, first_share, hit_share

LEVELS = ("l2", "llc", "dram")
# Bytes after which addresses share a set: the first level has 64 sets on current x86-64 cores, so that it can
# be indexed by the page offset; the second level has 1024 or 2048. The sets of the last level follow from a
# hash.
L1_WAY_BYTES = 4096.0
L2_WAY_BYTES = 65536.0
# A cache fills gradually: lines collide in their sets, and other data take a part. Misses are the mean of
# those of caches with these shares of the capacity.
CAPACITY_SHARES = (0.5, 0.7, 0.9, 1.1)
# Data that exceeds the last level and is read again and again: the share of the cache that keeps a part of
# it, since last levels do not evict in strict order. Streams of twice its size were a fifth faster than
# memory alone.
LLC_KEEPS = 0.5
# No prefetcher foresees lines that lie apart. Their bytes count several times.
APART_COST = 4.0
# The protocol calls the kernel on several sets of inputs in turn, as many as fit half of the second level.
MOST_INPUT_SETS = 4
INPUT_SETS_SHARE = 0.5


@dataclass(frozen=True)
class _Cache:
    """A level of `room` usable bytes; lines that are multiples of `way_bytes` apart share a set."""

    room: float
    way_bytes: float


@dataclass(frozen=True)
class _Lines:
    """Distinct lines of one tensor: their bytes, and the bytes from one line to the next (0: neighbours)."""

    size: float
    gap: float

    def occupied(self, cache: _Cache) -> float:
        """Bytes of the cache that these lines keep others from using: with some gaps they use few sets."""
        step = float(int(self.gap) & -int(self.gap)) if self.gap >= LINE_BYTES else LINE_BYTES
        return self.size * max(1.0, min(step, cache.way_bytes) / LINE_BYTES)

    @property
    def cost(self) -> float:
        """Bytes that their transfer is charged as."""
        return self.size * (APART_COST if self.gap else 1.0)


@dataclass(frozen=True)
class _Reuse:
    """One tensor in one phase.

    Attributes:
        tensor: its label.
        extents: iterations of the loops around a tile, outermost first.
        inside: distinct lines of the whole phase, of an iteration of the first loop, ..., of a tile.
        is_global: not a local buffer.
    """

    tensor: str
    extents: tuple[float, ...]
    inside: tuple[_Lines, ...]
    is_global: bool


_Phase = Sequence[_Reuse]


@dataclass(frozen=True)
class _Gather:
    """Accesses at places of one tensor that loaded data chooses: bytes of all lines, and of different
    ones."""

    read: float
    different: float

    def missed(self, streamed: float, room: float) -> float:
        """Bytes that a cache of `room` bytes fetches, through which `streamed` bytes of other data pass."""
        first = self.different / self.read
        again = (1 - first) * (1 - hit_share(self.read, self.different, streamed, room))
        return self.read * (first + again) * APART_COST


@dataclass(frozen=True)
class _Nest:
    """The accesses of a kernel: those with known addresses by phase, and those that data chooses."""

    phases: Sequence[_Phase]
    gathers: Sequence[_Gather]

    @property
    def tensor_bytes(self) -> float:
        known = _footprint([[r for r in phase if r.is_global] for phase in self.phases], 0)
        return sum(lines.size for lines in known.values()) + sum(g.different for g in self.gathers)

    def misses(self, capacity: float, way_bytes: float, resident: float) -> float:
        """Bytes that a cache fetches in one launch, if `resident` bytes are used between two launches."""
        first = sum(lines.cost for lines in _footprint(self.phases, 0).values())
        total = 0.0
        for share in CAPACITY_SHARES:
            cache = _Cache(share * capacity, way_bytes)
            fetched = sum(_fetched(self.phases, 0, cache).values())
            if resident > cache.room:
                total += fetched + sum(gather.missed(first, cache.room) for gather in self.gathers)
            else:  # the first access finds the lines in the cache
                total += max(0.0, fetched - first)
        return total / len(CAPACITY_SHARES)


def served_bytes(profile: KernelProfile, target: Target) -> Mapping[str, float]:
    """Bytes that the second level ("l2"), the last level ("llc") and memory ("dram") serve to one launch."""
    phases = [phase for role in profile.roles for phase in role.phases]
    sizes = {tensor.label: float(tensor.bytes) for tensor in profile.tensors}
    known = [_reuses(phase.work.accesses) for phase in phases]
    chosen = [_gather(a, sizes) for phase in phases for a in phase.work.accesses if a.row_bytes]
    nest = _Nest([phase for phase in known if phase], chosen)
    l1, l2 = target["core.memory.l1.bytes"], target["core.memory.l2.bytes"]
    resident = nest.tensor_bytes
    sets = max(1, min(MOST_INPUT_SETS, int(INPUT_SETS_SHARE * l2 // max(1.0, resident))))
    misses_l1 = nest.misses(l1, L1_WAY_BYTES, sets * resident)
    misses_l2 = min(misses_l1, nest.misses(l2, L2_WAY_BYTES, resident))
    llc = target["device.memory.llc.bytes"]
    kept = LLC_KEEPS * llc / resident if resident > llc else 0.0
    misses_llc = min(misses_l2, (1 - kept) * nest.misses(llc, LINE_BYTES, resident))
    return {"l2": misses_l1 - misses_l2, "llc": misses_l2 - misses_llc, "dram": misses_llc}


def _gather(access: Access, sizes: Mapping[str, float]) -> _Gather:
    """A gather or scatter. A loop that does not change its places accesses them again."""
    read = access.levels[-1][1]
    for (here, inside), (outer, around) in pairwise(access.levels):
        if around == inside:
            read *= here / outer
    different = access.levels[-1][1]
    share = first_share(different, sizes.get(access.tensor, 0.0), access.row_bytes, LINE_BYTES)
    return _Gather(read, different * share)


def _reuses(accesses: Sequence[Access]) -> list[_Reuse]:
    """The tensors of a phase, at known addresses. Equal steps in one tensor walk over the same lines."""
    found: dict[object, _Reuse] = {}
    for access in accesses:
        if access.row_bytes:
            continue
        executions = [count for count, _ in access.levels[::-1]]
        extents = tuple(inner / outer for outer, inner in pairwise(executions))
        gaps = access.gaps[::-1] or (0.0,) * len(executions)
        inside = tuple(_Lines(size, gap) for (_, size), gap in zip(access.levels[::-1], gaps, strict=True))
        reuse = _Reuse(access.tensor, extents, inside, access.space is Space.GLOBAL)
        found.setdefault((access.tensor, inside), reuse)
    return list(found.values())


def _fits(lines: Mapping[str, _Lines], cache: _Cache) -> bool:
    return sum(part.occupied(cache) for part in lines.values()) <= cache.room


def _fetched(phases: Sequence[_Phase], depth: int, cache: _Cache) -> dict[str, float]:
    """Bytes of each tensor that one execution of the loops at `depth` fetches into an empty cache."""
    if _fits(whole := _footprint(phases, depth), cache):
        return {name: lines.cost for name, lines in whole.items()}
    fetched: dict[str, float] = {}
    for extent, group in groupby(phases, key=lambda phase: _extent(phase, depth)):
        members = list(group)
        if extent is None or _fits(_footprint(members, depth + 1), cache):
            parts = {name: lines.cost for name, lines in _footprint(members, depth).items()}
        else:
            parts = {name: extent * size for name, size in _fetched(members, depth + 1, cache).items()}
        for name, size in parts.items():
            fetched[name] = fetched.get(name, 0.0) + size
    return fetched


def _extent(phase: _Phase, depth: int) -> float | None:
    """Iterations of the loop at `depth`; None if the phase has no loop there."""
    extents = phase[0].extents
    return extents[depth] if depth < len(extents) else None


def _footprint(phases: Sequence[_Phase], depth: int) -> dict[str, _Lines]:
    """Distinct lines of each tensor in one execution of the loops at `depth`.

    Phases that use one tensor are taken to use the same part of it.
    """
    found: dict[str, _Lines] = {}
    for phase in phases:
        for reuse in phase:
            lines = reuse.inside[min(depth, len(reuse.inside) - 1)]
            if reuse.tensor not in found or found[reuse.tensor].size < lines.size:
                found[reuse.tensor] = lines
    return found
