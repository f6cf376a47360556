"""The analytical model's own constants: what no data sheet states.

They were fitted once to measured kernels of an H200 (experiments/model_fit), starting from public microbenchmarks, and hold
for other chips in cycles or as shares, which carry over better than times.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    overlap_norm: float = 7.04  # busy times of a core's resources combine as this p-norm: close to their maximum
    memory_norm: float = 5.06  # the same for the cores' makespan, L2 and device memory
    barrier_wait_cycles: float = 141.0  # a wait on a barrier whose phase is complete already
    matrix_drain_cycles: float = 10.5  # last matrix instruction issued to its result usable
    shuffle_cycles: float = 35.8
    copy_start_cycles: float = 968.0  # bulk copy: issue, descriptor, completion on the barrier, wake-up, release
    warp_issue_share: float = 0.855  # of the issue slots that one warp alone can use on dependent arithmetic
    bulk_copy_share: float = 0.793  # of a bulk copy's rows, what they cost the banks beside operand reads
    copy_row_cycles: float = 1.5  # bulk copy engine, for each contiguous row of a box (narrow swizzles make many)
    operand_share: float = 0.79  # of the operand bytes of matrix instructions, what they cost the banks
    spill_bytes_per_cycle: float = 30.6  # spilled fragments overflow L1, which shared memory has left little of
    kept_share: float = 0.414  # of L2's capacity that one wave leaves to the next
    core_l2_bytes_per_cycle: float = 78.6  # port of one core
    drift_share: float = 0.89  # of re-used tiles that blocks out of step fetch again, once a wave's panels exceed L2


DEFAULT = Constants()
