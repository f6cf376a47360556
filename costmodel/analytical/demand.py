"""The busy cycles of each resource of a core in one iteration of a phase."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import zip_longest

from ...profile.values import CLUSTER, Access, MatrixWork, Space, Work
from ...target.spec import Target
from .constants import Constants
from .first_level import LINE_BYTES
from .gathers import SECTOR_BYTES

L2_WRITES = "device.memory.l2.write_gb_per_s"
HELD_BYTES = 32 * 1024  # that the first-level cache holds for sure until the next loads of a statement
CLUSTER_RATE = "cluster.network.bytes_per_cycle"
L2_UPDATES = "device.memory.l2.update_gb_per_s"
RESOURCES = ("matrix", "shared", "vector", "special", "issue", "copy", "l2", "cluster")

# Warp instructions beside those in the IR. Each wgmma builds the descriptors of its operands (four to six
# moves and two additions on the uniform path). A wait is a loop of tests of a barrier's phase, which is
# computed first. Read off SASS, and compared with the instruction counters of 348 kernels with wgmma of an
# H200.
WGMMA_INSTRUCTIONS = 7.0
WAIT_INSTRUCTIONS = 6.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Busy cycles of each resource of one core, for one block and one iteration."""

    matrix: float = 0.0  # matrix pipe
    shared: float = 0.0  # banks of shared memory: accesses, operands of matrix instructions, bulk copies
    vector: float = 0.0  # fp32, integer and conversion lanes
    special: float = 0.0  # special-function unit and lane exchanges
    issue: float = 0.0  # warp schedulers
    copy: float = 0.0  # bulk copy engine, row by row
    l2: float = 0.0  # this core's share of L2 bandwidth
    cluster: float = 0.0  # network between the cores of a cluster

    def __add__(self, other: Demand) -> Demand:
        return Demand(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Demand)))

    def scaled(self, factor: float) -> Demand:
        """All resources times `factor`."""
        return Demand(*(getattr(self, f.name) * factor for f in fields(Demand)))

    @property
    def largest(self) -> tuple[str, float]:
        """(name, cycles) of the busiest resource."""
        name = max(RESOURCES, key=lambda n: getattr(self, n))
        return name, getattr(self, name)


def demand(
    work: Work,
    target: Target,
    constants: Constants,
    cores_busy: float,
    edge_weight: float = 0.0,
    threads: float = 0.0,
    blocks: int = 1,
) -> Demand:
    """Busy cycles of each resource of one core for one execution of `work`, at the rates of the target.

    Shared memory serves one wavefront (128 bytes) a cycle. Bulk copies write to it beside the operand reads
    of matrix instructions, and cost only a share of their rows.

    Args:
        work: the work of one block.
        target: the rates of the resources.
        constants: the fitted shares.
        cores_busy: number of cores that share the L2 bandwidth.
        edge_weight: weight of the block that hangs over the edge of its tensor most, against the mean block.
            1 in a grid of one wave, where all blocks wait for it.
        threads: threads of the role.
        blocks: blocks of a cluster.
    """
    warp = target["warp.threads"]
    integer_ops = work.integer_ops
    if work.matrix:
        # loops over a tile are unrolled beside matrix work: their shared addresses are constants in the
        # instructions
        integer_ops -= min(
            integer_ops, sum(a.instructions for a in work.accesses if is_plain_shared(a)) * warp
        )
    lane_ops = work.vector_ops + integer_ops + work.convert_ops + work.special_ops + work.shuffles
    matrix_instructions = sum(
        m.count * m.warps * (WGMMA_INSTRUCTIONS if m.warps > 1 else 1.0) for m in work.matrix
    )
    instructions = lane_ops / warp + sum(a.instructions for a in work.accesses) + matrix_instructions
    instructions += WAIT_INSTRUCTIONS * (work.barrier_waits + work.matrix_waits) * threads / warp
    vector = (
        (work.vector_ops - work.selections) / target["core.unit.vector.fp32_lanes"]
        + (integer_ops + work.selections) / target["core.unit.vector.int32_lanes"]
        + work.convert_ops / target["core.unit.vector.convert_lanes"]
    )
    wavefronts = sum(
        a.transactions * (constants.bulk_copy_share if a.mechanism == "tma" else 1.0)
        for a in work.accesses
        if a.space is Space.SHARED
    )
    shared = wavefronts * 128 / target["core.memory.shared.bytes_per_cycle"]
    shared += (
        constants.operand_share
        * sum(m.count * m.shared_bytes for m in work.matrix)
        / target["core.memory.shared.bytes_per_cycle"]
    )
    shared += sum(a.transactions for a in work.accesses if a.space is Space.LOCAL)  # the same memory
    # global accesses other than bulk copies use the same load/store pipe
    shared += sum(_lines(a) for a in work.accesses if a.space is Space.GLOBAL and a.mechanism != "tma")
    return Demand(
        matrix=sum(matrix_cycles(m, target, constants) for m in work.matrix),
        shared=shared,
        vector=vector,
        special=(work.special_ops + work.shuffles * 0.5) / target["core.unit.special.lanes"],
        issue=instructions / target["core.issue_per_cycle"],
        copy=sum(copy_cycles(a, constants, edge_weight) * n for a, n in bulk_copies(work, blocks)),
        l2=_l2_cycles(work, target, constants, cores_busy),
        cluster=_cluster_cycles(work, target, blocks),
    )


def _lines(access: Access) -> float:
    """Lines of the first-level cache that the instructions of an access touch, of which it finds one a cycle.

    A line has four sectors; a sector that is alone in its 64 bytes is taken for the only one of its line,
    unless the lines of a load are known.
    """
    if access.mechanism == "ld" and access.lines:
        return access.lines
    each = SECTOR_BYTES / LINE_BYTES
    lines = access.transactions * (access.alone_share + (1 - access.alone_share) * each)
    return max(lines, access.instructions)


def _cluster_cycles(work: Work, target: Target, blocks: int) -> float:
    """Cycles of a core's link to the other cores of its cluster.

    Accesses of lanes to the shared memory of all `blocks` of the cluster alike: one part is the core's own.
    """
    moved = sum(a.bytes for a in work.accesses if a.mechanism.endswith(CLUSTER)) * (1 - 1 / blocks)
    return moved / target[CLUSTER_RATE] if moved else 0.0


# Bytes that L2 updates in the time of one store to parts of the sectors of a line: a request for a line costs
# as much however many of its sectors it touches. Where the next instruction fills the other half of the
# sectors, L2 may find the line of the one before. Source: transposes, and fragments that go to device memory
# from registers, on an H200 (the seventh set of experiments/outside).
LINE_REQUEST_BYTES, CONTINUED_REQUEST_BYTES = 64.0, 48.0


def _busy_bytes(access: Access) -> float:
    """Bytes for which an access keeps L2 busy: those that it moves, or more if it stores parts of sectors."""
    each = access.bytes / max(1.0, access.transactions)
    if access.mechanism != "st" or not access.lines or 2 * each > SECTOR_BYTES:
        return l2_bytes(access)
    return access.lines * (CONTINUED_REQUEST_BYTES if 2 * each == SECTOR_BYTES else LINE_REQUEST_BYTES)


def _l2_cycles(work: Work, target: Target, constants: Constants, cores_busy: float) -> float:
    """Cycles of this core's share of L2: of all bytes, or of those that lanes write, which are slower.

    Bulk stores are not slower (the matmuls and chunk states of experiments/datasets).
    """
    accesses = [a for a in work.accesses if a.space is Space.GLOBAL]
    cycles = sum(map(_busy_bytes, accesses)) / l2_bytes_per_cycle(target, constants, cores_busy)
    written = 0.0
    for access in accesses:
        rate = target.get(L2_WRITES if _writes_sectors(access) else L2_UPDATES)
        if access.write and access.mechanism != "tma" and rate:
            written += _busy_bytes(access) / _each_cycle(rate, target, cores_busy)
    return max(cycles, written)


def _writes_sectors(access: Access) -> bool:
    """Whether each instruction of a store writes whole sectors, of which L2 needs no other bytes.

    Those of sectors alone in their 64 bytes move at half of that rate (experiments/stripes, 32 bytes).
    """
    return access.mechanism != "atomic" and access.bytes >= l2_bytes(access) / (1 + access.alone_share)


def copy_cycles(access: Access, constants: Constants, edge_weight: float) -> float:
    """Cycles of the bulk copy engine, row by row.

    Rows outside the tensor are filled with zeros, which is slower. A block that walks through several tiles
    copies the one at the edge once.
    """
    rows = access.instructions * access.box_bytes / access.vector_bytes
    outside = 1 - access.bytes / max(1.0, access.instructions * access.box_bytes)
    outside += edge_weight / access.turns * (1 - access.least_inside - outside)
    return rows * (constants.copy_row_cycles + outside * constants.outside_row_cycles)


def bulk_copies(work: Work, blocks: int) -> list[tuple[Access, float]]:
    """The bulk copies among `work`, each with the number of blocks of a cluster that receive it.

    That is 1 unless it is a multicast. One block issues the copies for its cluster, so the mean block has
    only a part of them. All blocks wait for that one: its copies bound the pace.

    Args:
        work: of one block; the shared side of a bulk copy stands after its global side.
        blocks: blocks of the cluster.
    """
    sides = zip_longest(work.accesses, work.accesses[1:])
    return [(access, _receivers(access, side, blocks)) for access, side in sides if _is_bulk(access)]


def _receivers(access: Access, side: Access | None, blocks: int) -> float:
    """The blocks of a cluster that receive a bulk copy, whose other side may be `side`."""
    if side is None or side.space is not Space.SHARED or access.write:
        return 1.0
    if blocks == 1 or not access.instructions:
        return 1.0
    return max(1.0, side.instructions / access.instructions)


def is_plain_shared(access: Access) -> bool:
    """Whether the lanes of a warp load from or store to shared memory."""
    return access.space is Space.SHARED and access.mechanism in ("ld", "st")


def _is_bulk(access: Access) -> bool:
    return access.space is Space.GLOBAL and access.mechanism == "tma"


def matrix_cycles(work: MatrixWork, target: Target, constants: Constants) -> float:
    """Cycles during which `work` occupies the matrix pipe of its core.

    mma.sync cannot fill Hopper's pipe: it reaches two thirds of the rate of wgmma, measured by `tilesight
    calibrate`. A wgmma of few columns waits for its operands: of 16 columns it computes 8 cycles, and reads
    2.5 KB of shared memory, at the same share as all operands (`Constants.operand_share`). A dtype without a
    rate in the target is charged at the rate of fp16 (see `rate_is_known`).
    """
    rate = _rate(work, target) or target["core.unit.matrix.fp16_flops_per_cycle"]
    if work.instruction.startswith("mma."):
        rate *= target.get("core.unit.matrix.mma_sync_share", 1.0)
    cycles = work.flops / rate
    if work.warps > 1:
        cycles = max(
            cycles,
            constants.operand_share * work.shared_bytes / target["core.memory.shared.bytes_per_cycle"],
        )
    return work.count * cycles


def rate_is_known(work: MatrixWork, target: Target) -> bool:
    """Whether the target gives a matrix rate for the dtype of `work`."""
    return _rate(work, target) > 0


def _rate(work: MatrixWork, target: Target) -> float:
    path = {"float32": "fp32", "float8": "fp8", "int8": "int8", "float16": "fp16", "bfloat16": "fp16"}.get(
        work.dtype
    )
    # fp32 on CDNA is exact, not rounded to tf32 as elsewhere: target files have no figure for it
    if path is None or (path == "fp32" and target.kind == "hip"):
        return 0.0
    return target.matrix_flops_per_cycle(path)


def l2_bytes(access: Access) -> float:
    """Bytes between core and L2: whole sectors, each once a warp instruction, or whole boxes of loads.

    A request moves 64 bytes at least: loads and stores of one sector in each line reach half the rate of
    those of two (experiments/scattered). Sectors that a few loads or stores in turn touch are moved once.
    """
    if access.mechanism != "tma":
        moved = access.transactions * SECTOR_BYTES * (1 + access.alone_share)
        if access.mechanism in ("ld", "st") and 0 < access.sector_bytes <= HELD_BYTES:
            moved = min(moved, access.sector_bytes * (1 + access.alone_share))
        return moved
    return access.bytes if access.write else max(access.bytes, access.instructions * access.box_bytes)


def l2_bytes_per_cycle(target: Target, constants: Constants, cores_busy: float) -> float:
    """L2 bandwidth of one core: its fair share, at most the rate of its port."""
    return min(constants.core_l2_bytes_per_cycle, _each_cycle(l2_gb_per_s(target), target, cores_busy))


def l2_writes_per_cycle(target: Target, constants: Constants, cores_busy: float) -> float:
    """Bytes a cycle of whole sectors that the lanes of one core write to L2."""
    rate = target.get(L2_WRITES)
    reads = l2_bytes_per_cycle(target, constants, cores_busy)
    return min(reads, _each_cycle(rate, target, cores_busy)) if rate else reads


def _each_cycle(gb_per_s: float, target: Target, cores_busy: float) -> float:
    """Bytes a cycle of one core's share of a bandwidth of all cores."""
    return gb_per_s * 1e9 / (target["core.clock_mhz"] * 1e6) / max(1.0, cores_busy)


def l2_gb_per_s(target: Target) -> float:
    """L2 bandwidth of all cores together.

    Blocks share most of what they read. If the target has a figure for shared reads, reads of several cores
    at the same time are served once.
    """
    return target.get("device.memory.l2.shared_gb_per_s") or target["device.memory.l2.gb_per_s"]
