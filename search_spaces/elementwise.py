"""Search spaces of kernels without reductions, whose blocks have block_m rows of block_n columns."""

from __future__ import annotations

from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..target.spec import Target
from .constraints import fits_block
from .row_reduction import MIN_THREADS, fits_thread, widest_vectors

ROWS = (1, 2, 4, 8, 16, 32, 64)
COLUMNS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
VECTORS = (1, 2, 4, 8)
MOST_VECTORS = 8  # of a thread, of one tensor


def tile_space(target: Target, m: int, n: int, element_bytes: int, tensors: int) -> SearchSpace:
    """The search space of kernels on m rows of n columns.

    `tensors`: number of tensors of which a thread has elements in registers at once.
    """
    parameters = (
        Parameter("block_m", ROWS, "rows of one block"),
        Parameter("block_n", COLUMNS, "columns of one block"),
        Parameter("threads", (64, 128, 256, 512, 1024), "threads of a block"),
        Parameter("vector", VECTORS, "elements of one load or store of a thread"),
    )

    def registers(config: Config) -> int:
        elements = config.int("block_m") * config.int("block_n") // config.int("threads")
        return tensors * elements * element_bytes // 4 + config.int("vector")

    constraints = (
        widest_vectors("n", n, element_bytes, VECTORS),
        fits_block(target, bulk_copies=False),
        Constraint("whole vectors", _whole_vectors),
        Constraint("wasted columns", lambda config: _wasted(config, "block_n", "n", n), is_waste=True),
        Constraint("wasted rows", lambda config: _wasted(config, "block_m", "m", m), is_waste=True),
        fits_thread(target, registers, "take more threads, or lower block_m or block_n"),
    )
    return SearchSpace(parameters, constraints)


def _whole_vectors(config: Config) -> str | None:
    """Threads divide a block into whole vectors, one to `MOST_VECTORS` for each."""
    block_m, block_n, threads, vector = (
        config.int(name) for name in ("block_m", "block_n", "threads", "vector")
    )
    elements, least = block_m * block_n, threads * vector
    if least <= elements <= MOST_VECTORS * least:
        return None
    return (
        f"block_m={block_m} times block_n={block_n} is {elements} elements, and {threads} threads with "
        f"vector={vector} take {least} to {MOST_VECTORS * least}: "
        f"{'take more' if elements < least else 'lower'} block_m or block_n"
    )


def _wasted(config: Config, block: str, dim: str, size: int) -> str | None:
    """Half of a block's rows or columns cover all, and give each thread of the smallest block a vector."""
    half = config.int(block) // 2
    if half < size or config.int("block_m") * config.int("block_n") // 2 < MIN_THREADS * config.int("vector"):
        return None
    return f"{block}={config[block]} is wasted on {dim}={size}: {half} covers it"
