"""Search space of rms_norm: y = x / rms(x) * w over rows of n, by blocks of block_m rows."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import fits_block, fits_shared_memory
from .row_reduction import (
    fits_thread,
    no_idle_threads,
    rows_of_a_thread,
    whole_rows,
    widest_vectors,
    within_row,
)

VECTORS = (1, 2, 4, 8)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_ROWS = 4  # of a thread, which reads w once for all of them
FLOAT_BYTES = 4


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    m, n = workload.dims["m"], workload.dims["n"]
    element_bytes, warp = DTYPE_BYTES[workload.dtype], target.int("warp.threads")
    parameters = (
        Parameter("block_m", ROWS, "rows of one block"),
        Parameter("threads", (64, 128, 256, 512, 1024), "threads of a block"),
        Parameter("reduce_threads", (8, 16, 32, 64, 128, 256, 512, 1024), "threads that share a row"),
        Parameter("vector", VECTORS, "elements of one load or store of a thread"),
        Parameter(
            "keep",
            ("registers", "shared", "global"),
            "where a row is kept until its scale is known; global: it is read again",
        ),
        Parameter(
            "unroll",
            (1, 2, 4),
            "loads of a row by each thread that are in flight together, if it is read twice",
        ),
    )

    def parts(config: Config) -> int:
        return -(-n // (config.int("reduce_threads") * config.int("vector")))

    def live_registers(config: Config) -> int:
        rows, vector, keep = rows_of_a_thread(config, "block_m"), config.int("vector"), config["keep"]
        together = {"registers": parts(config), "shared": 1}.get(str(keep), config.int("unroll"))
        weights = 1 if keep == "registers" else together
        return (rows * together + weights) * vector * element_bytes // 4 + rows * vector

    def shared_bytes(config: Config) -> int:
        across_warps = config.int("threads") * FLOAT_BYTES if config.int("reduce_threads") > warp else 0
        if config["keep"] != "shared":
            return across_warps
        row = parts(config) * config.int("reduce_threads") * config.int("vector")
        return config.int("block_m") * row * element_bytes + across_warps

    constraints = (
        widest_vectors("n", n, element_bytes, VECTORS),
        fits_block(target, bulk_copies=False),
        whole_rows("block_m", MOST_ROWS),
        no_idle_threads("block_m", "m", m, "n", n, warp),
        Constraint("unroll", _unroll_matters),
        within_row(parts, "n", n),
        fits_thread(
            target, live_registers, "take more reduce_threads, fewer rows, or keep=shared or keep=global"
        ),
        fits_shared_memory(target, shared_bytes, "lower block_m, or take keep=registers or keep=global"),
    )
    return SearchSpace(parameters, constraints)


def _unroll_matters(config: Config) -> str | None:
    """A row that is kept is loaded at once, whatever `unroll` is."""
    if config["keep"] == "global" or config["unroll"] == 1:
        return None
    return (
        f"unroll={config['unroll']} changes nothing with keep={config['keep']}, where a row is loaded at "
        "once: take unroll=1"
    )
