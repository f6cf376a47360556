"""The fitted constants of the analytical model, which no data sheet states.

They were fitted to the measured kernels of experiments/datasets (an H200; see training/fit_constants.py).
They are in cycles or are shares, which carry over to other chips better than times.
"""

from __future__ import annotations

from dataclasses import dataclass

FITTED_ARCHS = ("sm_90a",)  # instruction sets of these kernels
# Of targets whose figures nobody measured here, and whose instruction set the constants were not fitted to.
# With the base it gives 30 %, by which predictions for an MI300X differ from published results
# (experiments/public_bands). Of it, figures of another chip and constants that were not fitted add 6 %
# (experiments/evaluation, between an H200 and an H100); the rest is the other instruction set.
UNMEASURED_UNCERTAINTY = 0.26


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of the model; cycles are core cycles."""

    overlap_norm: float = (
        16.0  # p-norm by which the busy times of a core's resources combine: near their maximum
    )
    memory_norm: float = 3.58  # the same for the cores' makespan, L2 and device memory
    streaming_norm: float = (
        5.0  # the same for kernels without matrix instructions, which wait for memory only
    )
    arithmetic_norm: float = 3.26  # the same for vector, special and issue slots within one program
    barrier_wait_cycles: float = 20.4  # a wait at a barrier whose phase is already complete
    matrix_drain_cycles: float = 145.0  # from the issue of the last matrix instruction to its result
    contention: float = 1.01  # share of the queued work of a unit that a new request waits for
    shuffle_cycles: float = 1.32  # a lane exchange; less than its latency, since several overlap
    rewrite_cycles: float = (
        71.5  # of a value from shared memory through arithmetic and back, before the next value
    )
    copy_start_cycles: float = 150.0  # bulk copy: issue, descriptor, barrier completion, wake-up, release
    # a bulk copy that misses L2 waits longer than a single load, by this factor of what a miss adds to that
    copy_miss_factor: float = 1.6
    warp_issue_share: float = 0.945  # share of issue slots that one warp alone uses on dependent arithmetic
    bulk_copy_share: float = 0.85  # share of a bulk copy's rows that costs bank cycles beside operand reads
    copy_row_cycles: float = (
        1.71  # of the bulk copy engine for each contiguous row (narrow swizzles have many)
    )
    outside_row_cycles: float = 0.968  # additional cycles of a row outside the tensor
    operand_share: float = 0.751  # share of the operand bytes of matrix instructions that costs bank cycles
    kept_share: float = 0.271  # share of the L2 capacity that one wave leaves to the next
    block_cycles: float = 250.0  # start and end of a block that takes the place of another
    dispatch_cycles: float = 1.18  # between the starts of two blocks anywhere on the device
    modified_share: float = 0.436  # share of L2 that a kernel leaves modified for later kernels to write back
    dram_ramp: float = 5.99  # ramp-up and ramp-down of device memory, in multiples of its latency
    load_cycles: float = 47.7  # between the uses of two plain loads of a thread, beyond their common latency
    core_l2_bytes_per_cycle: float = 63.8  # of the port of one core
    drift_share: float = (
        0.13  # share of reused tiles that blocks out of step fetch again if a wave exceeds L2
    )


DEFAULT = Constants()
