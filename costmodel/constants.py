"""The analytical model's own constants: what no data sheet states.

They were fitted to the measured kernels of experiments/datasets (an H200; calibration.py does it) but for modified_share,
kept_share and drift_share, which were read off hardware counters, and hold for other chips in cycles or as shares, which
carry over better than times.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    overlap_norm: float = 15.3  # busy times of a core's resources combine as this p-norm: close to their maximum
    memory_norm: float = 3.09  # the same for the cores' makespan, L2 and device memory
    arithmetic_norm: float = 3.0  # the same for vector, special and issue slots within one program
    barrier_wait_cycles: float = 38.2  # a wait on a barrier whose phase is complete already
    matrix_drain_cycles: float = 107.0  # last matrix instruction issued to its result usable
    contention: float = 1.05  # of the work queued at a unit, what a newcomer waits for
    shuffle_cycles: float = 1.07  # lane exchange: several of them overlap, so less than the latency of one
    copy_start_cycles: float = 632.0  # bulk copy: issue, descriptor, completion on the barrier, wake-up, release
    warp_issue_share: float = 0.595  # of the issue slots that one warp alone can use on dependent arithmetic
    bulk_copy_share: float = 0.103  # of a bulk copy's rows, what they cost the banks beside operand reads
    copy_row_cycles: float = 1.7  # bulk copy engine, for each contiguous row of a box (narrow swizzles make many)
    outside_row_cycles: float = 1.11  # what a row outside the tensor costs more
    operand_share: float = 1.03  # of the operand bytes of matrix instructions, what they cost the banks
    spill_bytes_per_cycle: float = 97.7  # spilled fragments overflow L1, which shared memory has left little of
    kept_share: float = 0.42  # of L2's capacity that one wave leaves to the next
    block_cycles: float = 176.0  # from the end of a block to the first instruction of the next in its place, and back
    modified_share: float = 0.4  # of L2, what a kernel leaves to be written back by the next ones
    dram_ramp: float = 5.66  # latencies of device memory that pass before it is fully busy and after it was
    core_l2_bytes_per_cycle: float = 57.8  # port of one core
    drift_share: float = 0.18  # of re-used tiles that blocks out of step fetch again, once a wave's panels exceed L2


DEFAULT = Constants()
