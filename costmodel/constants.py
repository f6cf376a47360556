"""The analytical model's own constants: what no data sheet states.

They were fitted to the measured kernels of experiments/datasets (an H200; calibration.py does it) and hold for other chips in
cycles or as shares, which carry over better than times.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    overlap_norm: float = 16.0  # busy times of a core's resources combine as this p-norm: close to their maximum
    memory_norm: float = 3.58  # the same for the cores' makespan, L2 and device memory
    streaming_norm: float = 5.0  # the same for kernels without matrix instructions: nothing but memory to wait for, so sharper
    arithmetic_norm: float = 3.26  # the same for vector, special and issue slots within one program
    barrier_wait_cycles: float = 20.4  # a wait on a barrier whose phase is complete already
    matrix_drain_cycles: float = 145.0  # last matrix instruction issued to its result usable
    contention: float = 1.01  # of the work queued at a unit, what a newcomer waits for
    shuffle_cycles: float = 1.32  # lane exchange: several of them overlap, so less than the latency of one
    rewrite_cycles: float = 71.5  # a value's way from shared memory through arithmetic and back, before the next one's
    copy_start_cycles: float = 602.0  # bulk copy: issue, descriptor, completion on the barrier, wake-up, release
    warp_issue_share: float = 0.945  # of the issue slots that one warp alone can use on dependent arithmetic
    bulk_copy_share: float = 0.85  # of a bulk copy's rows, what they cost the banks beside operand reads
    copy_row_cycles: float = 1.71  # bulk copy engine, for each contiguous row of a box (narrow swizzles make many)
    outside_row_cycles: float = 0.968  # what a row outside the tensor costs more
    operand_share: float = 0.751  # of the operand bytes of matrix instructions, what they cost the banks
    kept_share: float = 0.271  # of L2's capacity that one wave leaves to the next
    block_cycles: float = 50.1  # from the end of a block to the first instruction of the next in its place, and back
    dispatch_cycles: float = 1.06  # of the whole device, from the start of one block to that of the next one anywhere
    modified_share: float = 0.436  # of L2, what a kernel leaves to be written back by the next ones
    dram_ramp: float = 5.99  # latencies of device memory that pass before it is fully busy and after it was
    load_cycles: float = 47.7  # plain loads in one thread: from the use of one to that of the next, beyond their common latency
    core_l2_bytes_per_cycle: float = 63.8  # port of one core
    drift_share: float = 0.13  # of re-used tiles that blocks out of step fetch again, once a wave's panels exceed L2


DEFAULT = Constants()
