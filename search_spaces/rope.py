"""Search space of rope: a block has block_m tokens and block_h heads."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import fits_block
from .row_reduction import MIN_THREADS, fits_thread, widest_vectors

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
HEADS = (1, 2, 4, 8)
VECTORS = (1, 2, 4, 8)
MOST_TOKENS = 4  # of a thread
MOST_HEAD_DIM = 512


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    tokens, heads, head_dim = workload.dims.values()
    half, element_bytes = head_dim // 2, DTYPE_BYTES[workload.dtype]
    parameters = (
        Parameter("block_m", TOKENS, "tokens of one block"),
        Parameter("block_h", HEADS, "heads of one block, which each thread loads together"),
        Parameter("threads", (64, 128, 256, 512), "threads of a block"),
        Parameter("vector", VECTORS, "elements of one load or store of a thread, of each half of a head"),
    )

    def lanes(config: Config) -> int:
        return 1 << (max(1, half // config.int("vector")) - 1).bit_length()

    def registers(config: Config) -> int:
        vectors = max(1, config.int("block_m") * lanes(config) // config.int("threads"))
        a_head = 2 * config.int("block_h") * element_bytes // 4 + 2
        return vectors * config.int("vector") * a_head

    def whole_tokens(config: Config) -> str | None:
        block, threads, of_token = config.int("block_m"), config.int("threads"), lanes(config)
        together = max(1, threads // of_token)
        if of_token <= threads and block % together == 0 and block <= MOST_TOKENS * together:
            return None
        return (
            f"block_m={block} must be 1 to {MOST_TOKENS} times the {together} tokens that {threads} threads "
            f"have at a time, {of_token} for each: take block_m={together} or other threads"
        )

    def wasted(config: Config) -> str | None:
        block, each = config.int("block_m"), config.int("block_h")
        if each > 1 and each // 2 >= heads:
            return f"block_h={each} is wasted on heads={heads}: {each // 2} covers it"
        if block > 1 and block // 2 >= tokens and block // 2 * lanes(config) >= MIN_THREADS:
            return f"block_m={block} is wasted on tokens={tokens}: {block // 2} covers it"
        return None

    constraints = (
        widest_vectors("head_dim/2", half, element_bytes, VECTORS),
        fits_block(target, bulk_copies=False),
        Constraint("whole tokens", whole_tokens),
        Constraint("wasted rows", wasted, is_waste=True),
        fits_thread(target, registers, "lower block_m or block_h"),
    )
    return SearchSpace(parameters, constraints)
