"""Search space of gemv: y[n] = W[n, k] x[k], by blocks of block_n rows."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import fits_block, fits_shared_memory, stages_within_loop
from .matrix_unit import launch
from .row_reduction import (
    fits_thread,
    no_idle_threads,
    rows_of_a_thread,
    whole_rows,
    widest_vectors,
    within_row,
)

VECTORS = (1, 2, 4, 8)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_ROWS = 4  # of a thread, which reads x once for all of them
FLOAT_BYTES = 4


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    n, k = workload.dims["n"], workload.dims["k"]
    element_bytes, warp = DTYPE_BYTES[workload.dtype], target.int("warp.threads")
    parameters = (
        Parameter("block_n", ROWS, "rows of W of one block"),
        Parameter("threads", (64, 128, 256, 512), "threads that compute"),
        Parameter("reduce_threads", (8, 16, 32, 64, 128, 256), "threads that share a row"),
        Parameter("vector", VECTORS, "elements of one load of a thread"),
        Parameter("unroll", (1, 2, 4), "loads of a row by each thread that are in flight together"),
        Parameter(
            "num_stages",
            (0, 2, 4),
            "iterations whose copies to shared memory are in flight together; 0: W goes to registers",
        ),
    )

    def step(config: Config) -> int:
        return config.int("reduce_threads") * config.int("vector")

    def block_k(config: Config) -> int:
        return step(config) * config.int("unroll")

    def live_registers(config: Config) -> int:
        rows, vector, unroll = rows_of_a_thread(config, "block_n"), config.int("vector"), config.int("unroll")
        loaded = 0 if config.int("num_stages") else (rows + 1) * unroll * vector * element_bytes // 4
        return loaded + rows * vector

    def shared_bytes(config: Config) -> int:
        stages, threads, lanes = config.int("num_stages"), config.int("threads"), config.int("reduce_threads")
        tiles = stages * (config.int("block_n") + 1) * block_k(config) * element_bytes
        across_warps = threads * FLOAT_BYTES if lanes > warp else 0
        return (
            tiles + across_warps + (launch(target, threads, bulk_copies=True).barrier_bytes if stages else 0)
        )

    constraints = (
        widest_vectors("k", k, element_bytes, VECTORS),
        fits_block(target, bulk_copies=False),
        whole_rows("block_n", MOST_ROWS),
        no_idle_threads("block_n", "n", n, "k", k, warp),
        within_row(lambda config: -(-k // step(config)), "k", k),
        _through_shared_memory(target, k, element_bytes),
        stages_within_loop(lambda config: max(1, -(-k // block_k(config))), "k"),
        fits_thread(target, live_registers, "take fewer rows, a smaller unroll or fewer threads"),
        fits_shared_memory(target, shared_bytes, "lower num_stages, unroll or block_n"),
    )
    return SearchSpace(parameters, constraints)


def _through_shared_memory(target: Target, k: int, element_bytes: int) -> Constraint:
    """Copies to shared memory are asynchronous on NVIDIA only, and move 16 bytes at a time."""
    widest = 16 // element_bytes

    def violation(config: Config) -> str | None:
        stages, vector = config.int("num_stages"), config.int("vector")
        if stages == 0:
            return None
        if target.kind == "hip":
            return (
                f"num_stages={stages} copies nothing ahead on {target.name}, since TileLang 0.1.15 has no "
                "pipelines there: take 0"
            )
        if k % widest:
            return (
                f"num_stages={stages} needs rows that start at multiples of 16 bytes, and k={k} is no "
                f"multiple of {widest}: take 0"
            )
        if vector != widest:
            return (
                f"vector={vector} is too narrow with num_stages={stages}, which reads tiles {widest} "
                f"elements at a time: take {widest}"
            )
        return None

    return Constraint("through shared memory", violation)
