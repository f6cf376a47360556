"""The steady iteration of each loop of each role, from the stamps of several blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median

from .values import BlockTrace, KernelTrace, LoopRun, StampedLoop, WarpTrace

GROUP = 4  # warps
WINDOW = (
    4  # iterations in a row whose mean is one value: buffers and unrolling make iterations differ in turn
)
FIRST_LEFT_OUT = 4  # iterations at most, in which a pipeline fills


@dataclass(frozen=True, slots=True)
class TracedRole:
    """Warps of a block that run the same loops, represented by the first of them.

    Attributes:
        name: "producer", "consumer", "all threads"; with a number where several groups of warps run the same.
        warp: The one whose stamps stand for it.
        loops: Numbers of the loops that it runs.
    """

    name: str
    warp: int
    loops: tuple[int, ...]


class Basis(StrEnum):
    """What the time of an iteration is."""

    STEADY = "steady iteration"
    FEW = "iteration of few"  # the first and the last ones among them
    MEAN = "mean of a loop whose iterations overlap"


@dataclass(frozen=True, slots=True)
class LoopTime:
    """What was traced of one loop of one role, over all sampled blocks.

    Attributes:
        role: The name of the role.
        loop: The number of the loop.
        iterations: Of a block, on average over the sampled ones.
        steady_us: An iteration in the middle of a run, without the time of loops within it: the median over
            all windows of `WINDOW` iterations.
        single_us: The median of single iterations.
        basis: What `steady_us` is where there are no steady iterations.
        outer: The number of the loop around it, if that has stamps, too.
    """

    role: str
    loop: int
    iterations: float
    steady_us: float
    single_us: float
    basis: Basis
    outer: int | None


def roles_of(trace: KernelTrace) -> tuple[TracedRole, ...]:
    """The roles of a kernel, from what its warps did in the sampled blocks, in the order of the warps."""
    done: dict[int, set[int]] = defaultdict(set)
    for block in trace.sampled:
        for traced in block.warps:
            done[traced.warp].update(run.loop for run in traced.runs)
    groups: dict[tuple[int, tuple[int, ...]], int] = {}  # group of warps and loops -> first warp
    for warp, own in sorted(done.items()):
        if own:
            groups.setdefault((warp // GROUP, tuple(sorted(own))), warp)
    sets = list(dict.fromkeys(loops for _, loops in groups))
    if len(sets) == 1:
        return (TracedRole("all threads", next(iter(groups.values())), sets[0]),)
    shared = set[int]().union(*sets).intersection(*sets)  # loops before the roles part
    names = [_name(set(loops) - shared, trace.kernel.loops) for _, loops in groups]
    found: list[TracedRole] = []
    for name, ((_, loops), warp) in zip(names, groups.items(), strict=True):
        before = sum(other.name.startswith(name) for other in found)
        number = f" {1 + before}" if names.count(name) > 1 else ""
        found.append(TracedRole(name + number, warp, loops))
    return tuple(found)


def _name(loops: set[int], known: Sequence[StampedLoop]) -> str:
    own = [loop for loop in known if loop.number in loops]
    if not own:
        return "other warps"
    return "producer" if all(loop.loads and not loop.computes for loop in own) else "consumer"


def warp_of(block: BlockTrace, role: TracedRole) -> WarpTrace | None:
    return next((warp for warp in block.warps if warp.warp == role.warp), None)


def loop_times(trace: KernelTrace) -> tuple[LoopTime, ...]:
    """The loops of each role, in the order of the roles and of the text."""
    found = []
    for role in roles_of(trace):
        warps = [warp for block in trace.sampled if (warp := warp_of(block, role)) is not None]
        for loop in role.loops:
            if timed := _loop_time(role, trace.kernel.loops[loop], warps):
                found.append(timed)
    return tuple(found)


def _loop_time(role: TracedRole, loop: StampedLoop, warps: Sequence[WarpTrace]) -> LoopTime | None:
    values, singles, short = [], [], []
    count = 0
    for warp in warps:
        for run in warp.runs:
            if run.loop != loop.number:
                continue
            count += run.count
            lengths = list(_own_lengths(run, warp.runs))
            if loop.overlaps:
                short += [length / run.count for length in lengths if run.count]
                continue
            steady = interior(lengths)
            width = min(WINDOW, len(steady))
            singles += steady
            values += [fmean(steady[i : i + width]) for i in range(len(steady) - width + 1)] if steady else []
            short += lengths
    chosen = values or short
    if not chosen:
        return None
    return LoopTime(
        role.name,
        loop.number,
        count / len(warps),
        median(chosen),
        median(singles or short),
        Basis.MEAN if loop.overlaps else Basis.STEADY if values else Basis.FEW,
        loop.outer,
    )


def interior(lengths: Sequence[float]) -> list[float]:
    """The lengths of iterations without the first ones and the last one; none of fewer than three."""
    if len(lengths) < 3:
        return []
    return list(lengths[max(1, min(FIRST_LEFT_OUT, len(lengths) // 4)) : -1])


def _own_lengths(run: LoopRun, runs: Sequence[LoopRun]) -> Iterator[float]:
    """The length of each iteration, without the runs of loops within it."""
    inner = [r for r in runs if r.loop > run.loop and r.starts and r.end_us is not None]
    for start, end in run.spans:
        covered, until = 0.0, start
        for other in inner:
            assert other.end_us is not None
            if until <= other.starts[0] and other.end_us <= end:
                covered += other.end_us - other.starts[0]
                until = other.end_us
        yield end - start - covered
