"""Search space of native_sparse_attention: rows of the heads of a query, and tiles within selected blocks."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    by_copies,
    fits_block,
    fits_instruction,
    fits_registers,
    fits_shared_memory,
    pipelines,
    stages_within_loop,
)
from .flash_decoding import ROWS, WEIGHTS, divides_over_warps, no_idle_rows
from .matrix_unit import is_hopper, launch, matrix_unit
from .split_kv import REDUCTION_BYTES, STAGES

KEYS = (16, 32, 64)
THREADS = (32, 64, 128, 256)


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    head_dim, group = workload.dims["head_dim"], int(workload.attrs["group"])
    block, topk = int(workload.attrs["block"]), int(workload.attrs["topk"])
    element_bytes, warp = DTYPE_BYTES[workload.dtype], target.int("warp.threads")
    parameters = (
        Parameter("block_m", ROWS, "rows of a block: the heads that share a kv head, and padding"),
        Parameter("block_n", tuple(k for k in KEYS if k <= block), "keys and values of one iteration"),
        STAGES,
        Parameter("threads", tuple(t for t in THREADS if t >= warp), "threads that compute"),
        WEIGHTS,
        Parameter(
            "copies",
            ("bulk", "threads") if is_hopper(target) else ("threads",),
            "who copies keys and values: TMA from a warpgroup of its own, or the threads that compute",
        ),
    )

    def accumulators(config: Config) -> int:
        return config.int("block_m") * (config.int("block_n") + head_dim)

    def shared_bytes(config: Config) -> int:
        block_m, block_n, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
        weights = block_m * block_n if config["weights"] == "shared" else 0
        elements = (block_m + 2 * config.int("num_stages") * block_n) * head_dim + weights
        barriers = launch(target, threads, config["copies"] == "bulk").barrier_bytes
        return element_bytes * elements + REDUCTION_BYTES * threads + barriers

    def instruction_columns(config: Config) -> int:
        """Columns of the wider product of one warpgroup."""
        threads = config.int("threads")
        groups = threads // 128 if config["weights"] == "shared" else 1
        unit = matrix_unit(target, config.int("block_m"), threads)
        return max(config.int("block_n"), head_dim) // groups if unit.name == "wgmma" else 0

    fewer = "take more threads or a smaller block_n or block_m"

    def whole_rows(config: Config) -> str | None:
        rows = config.int("block_m")
        if rows >= group:
            return None
        least = next(size for size in ROWS if size >= group)
        return f"block_m={rows} has no rows for some of the group={group} heads: take block_m={least}"

    constraints = (
        pipelines(target),
        Constraint("rows of a group", whole_rows),
        no_idle_rows(group),
        divides_over_warps(target, head_dim),
        stages_within_loop(lambda config: topk * block // config.int("block_n"), "selected keys"),
        by_copies(*(fits_block(target, bulk) for bulk in (False, True))),
        by_copies(*(fits_registers(target, bulk, accumulators, fewer) for bulk in (False, True))),
        by_copies(
            *(
                fits_instruction(target, bulk, instruction_columns, "take threads=128", True)
                for bulk in (False, True)
            )
        ),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_n or block_m"),
    )
    return SearchSpace(parameters, constraints)
