"""Search space of gated_delta_rule: chunks of tokens, and block_v columns of a head's state per block."""

from __future__ import annotations

from collections.abc import Callable

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    MIN_WGMMA_COLUMNS,
    fits_block,
    fits_registers,
    fits_shared_memory,
    not_beyond,
    pipelines,
    stages_within_loop,
    uneven,
)
from .matrix_unit import matrix_unit

CHUNKS = (32, 64)
TILES_V = (16, 32, 64, 128)
FLOAT_BYTES = 4
HIP_REDUCTION_BYTES = 8  # shared memory per thread for reductions of rows, in warps of 64 threads
ALIGNMENT_BYTES = 512  # most that is lost between the small buffers


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    width, element_bytes = padded(workload.dims["head_k"]), DTYPE_BYTES[workload.dtype]
    chunks, *others = state_parameters(CHUNKS)
    sub_block = Parameter("sub_block", (16, 32), "rows on the diagonal that threads invert by substitution")

    def registers(config: Config) -> int:
        """The state, three tiles of values, the scores, and the columns of the inverse."""
        chunk, cols, threads = config.int("chunk"), config.int("block_v"), config.int("threads")
        return width * cols + 3 * chunk * cols + chunk * chunk + config.int("sub_block") * threads

    def shared_bytes(config: Config) -> int:
        chunk, cols, stages = config.int("chunk"), config.int("block_v"), config.int("num_stages")
        copied = chunk * ((2 * width + cols) * element_bytes + 2 * FLOAT_BYTES)
        tiles = (3 * chunk * chunk + 4 * chunk * cols + width * cols) * element_bytes
        reduction = HIP_REDUCTION_BYTES * config.int("threads") if target.kind == "hip" else 0
        return stages * copied + tiles + chunk * (chunk + 5) * FLOAT_BYTES + reduction + ALIGNMENT_BYTES

    own = _two_sub_blocks(), _deep_pipelines_of_two_warps()
    rules = state_rules(workload, target, CHUNKS, registers, shared_bytes, *own)
    return SearchSpace((chunks, sub_block, *others), rules)


def padded(head_k: int) -> int:
    """Rows of a state as the templates keep it: a matrix instruction takes 16 of them at once."""
    return -(-head_k // 16) * 16


def state_parameters(chunks: tuple[int, ...]) -> tuple[Parameter, ...]:
    """Parameters of templates that loop over a sequence in chunks, with a part of a head's state at hand."""
    return (
        Parameter("chunk", chunks, "tokens of one iteration of the main loop"),
        Parameter("block_v", TILES_V, "columns of a head's state that one block keeps"),
        Parameter("num_stages", (1, 2, 3), "iterations whose copies are in flight together"),
        Parameter("threads", (64, 128, 256), "threads of a block"),
    )


def state_rules(
    workload: Workload,
    target: Target,
    chunks: tuple[int, ...],
    registers: Callable[[Config], int],
    shared_bytes: Callable[[Config], int],
    *own: Constraint,
) -> tuple[Constraint, ...]:
    """Their rules; `own` are those of one template alone."""
    _, seq_len, _, head_k, head_v = workload.dims.values()
    return (
        pipelines(target),
        not_beyond("chunk", chunks, "seq_len", seq_len),
        not_beyond("block_v", TILES_V, "head_v", head_v),
        stages_within_loop(lambda config: -(-seq_len // config.int("chunk")), "chunks"),
        fits_block(target, False),
        _whole_products(target, padded(head_k)),
        _narrow_states(head_k),
        *own,
        fits_registers(target, False, registers, "take more threads or a smaller block_v"),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_v or chunk"),
    )


def _narrow_states(head_k: int) -> Constraint:
    """Wide tiles of short states raced in an earlier form of this kernel."""

    def violation(config: Config) -> str | None:
        cols = config.int("block_v")
        if head_k > 64 or cols < 64:
            return None
        return f"block_v={cols} races with head_k={head_k}, which is not above 64: take block_v=32"

    return Constraint("narrow states", violation)


def _two_sub_blocks() -> Constraint:
    """Two products solve what is below two blocks on the diagonal; four blocks would need six."""

    def violation(config: Config) -> str | None:
        chunk, rows = config.int("chunk"), config.int("sub_block")
        if chunk <= 2 * rows:
            return None
        return f"chunk={chunk} has more than two blocks of sub_block={rows}: take sub_block={chunk // 2}"

    return Constraint("two sub-blocks", violation)


def _deep_pipelines_of_two_warps() -> Constraint:
    """On an H200, two workloads with three stages and 64 threads accessed illegal memory.

    The cause is not known. Every address in the generated source is within its tensor or buffer, and with two
    stages, too, ptxas takes 255 registers and spills.
    """

    def violation(config: Config) -> str | None:
        stages, threads = config.int("num_stages"), config.int("threads")
        if stages < 3 or threads > 64:
            return None
        return (
            f"num_stages={stages} with threads={threads} accessed illegal memory on an H200: take "
            "num_stages=2 or threads=128"
        )

    return Constraint("deep pipelines of two warps", violation)


def _whole_products(target: Target, width: int) -> Constraint:
    """Every product of a chunk, or with `width` rows of a state, divides evenly over the warps."""

    def violation(config: Config) -> str | None:
        chunk, cols, threads = config.int("chunk"), config.int("block_v"), config.int("threads")
        for rows, columns in ((chunk, chunk), (chunk, cols), (width, cols)):
            unit = matrix_unit(target, rows, threads)
            split = unit.split("square", rows, columns, threads)
            if split is None:
                return uneven(unit, rows, columns, threads)
            if unit.name == "wgmma" and columns // split[1] < MIN_WGMMA_COLUMNS:
                return (
                    f"a product of {rows}x{columns} leaves each of {split[1]} warpgroups side by side "
                    f"{columns // split[1]} columns, and TileLang 0.1.15 cannot lower wgmma on fewer than "
                    f"{MIN_WGMMA_COLUMNS}: take threads=128, or a larger block_v"
                )
        return None

    return Constraint("whole matrix instructions", violation)
