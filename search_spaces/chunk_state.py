"""Search space of chunk_state: tiles of block_p x block_n of a head's state, block_k tokens of the chunk at a time."""

from __future__ import annotations

from ..space import Config, Constraint, Parameter, SearchSpace
from ..target import Target
from ..workload import DTYPE_BYTES, Workload
from .constraints import fits_block, fits_registers, fits_shared_memory, not_beyond, pipelines, stages_within_loop, whole_instructions
from .matrix_unit import POLICIES, is_hopper, launch, matrix_unit

TILES_P = (32, 64, 128)
TILES_N = (32, 64, 128, 256)
DEPTHS = (32, 64, 128, 256)
WAY_OUT = "take more threads or a smaller block_p, block_n or block_k"
TILE_ALIGNMENT = 1024  # bytes: swizzled tiles start at multiples of it, behind the factors
FACTOR_BYTES = 4  # a token's factor is kept in float32


def overhang(extent: int) -> int:
    """Elements by which a legal tile can reach beyond a row of `extent`."""
    covering = min((tile for tile in TILES_N if tile >= extent), default=max(TILES_N))
    return max(-extent % tile for tile in TILES_N if tile <= covering)


def space(workload: Workload, target: Target) -> SearchSpace:
    """What can be tuned for `workload` on `target`."""
    head_dim, d_state, chunk = workload.dims["head_dim"], workload.dims["d_state"], int(workload.attrs["chunk"])
    element_bytes = DTYPE_BYTES[workload.dtype]
    hopper = is_hopper(target)
    # TMA starts rows at multiples of 16 bytes
    bulk = hopper and head_dim * element_bytes % 16 == 0 and d_state * element_bytes % 16 == 0
    parameters = (
        Parameter("block_p", TILES_P, "rows of the state (elements of a head) that one block computes"),
        Parameter("block_n", TILES_N, "columns of the state that one block computes"),
        Parameter("block_k", DEPTHS, "tokens that one iteration of the main loop adds"),
        Parameter("num_stages", (1, 2, 3, 4), "iterations whose copies are in flight together"),
        Parameter("threads", (64, 128, 256, 384) if hopper else (64, 128, 256), "threads that compute"),
        Parameter("policy", POLICIES, "how the tile is divided over the warps"),
        Parameter("scaled_x", ("registers", "shared"), "where x lives once it is scaled: the matrix unit takes it from there"),
        Parameter(
            "copies", ("threads", "bulk") if bulk else ("threads",), "by the threads that compute, or TMA from a warpgroup of its own"
        ),
    )

    def registers(config: Config) -> int:
        """Of all threads: the state, and x where it is turned in registers, once for each warp along the columns."""
        rows, cols, threads = config.int("block_p"), config.int("block_n"), config.int("threads")
        turned = 0
        if config["scaled_x"] == "registers":
            unit = matrix_unit(target, rows, threads)
            split = unit.split(config.str("policy"), rows, cols, threads)
            turned = rows * config.int("block_k") * (split[1] if split else 1) * element_bytes // 4
        return rows * cols + turned

    def shared_bytes(config: Config) -> int:
        rows, cols, depth = config.int("block_p"), config.int("block_n"), config.int("block_k")
        operands = config.int("num_stages") * (rows + cols) * depth
        scaled = rows * depth if config["scaled_x"] == "shared" else 0
        # the result takes the place of the operands after the main loop
        factors = -(-chunk * FACTOR_BYTES // TILE_ALIGNMENT) * TILE_ALIGNMENT
        need = max((operands + scaled) * element_bytes + factors, rows * cols * element_bytes)
        return need + launch(target, config.int("threads"), config["copies"] == "bulk").barrier_bytes

    constraints = (
        pipelines(target),
        not_beyond("block_p", TILES_P, "head_dim", head_dim),
        not_beyond("block_n", TILES_N, "d_state", d_state),
        not_beyond("block_k", DEPTHS, "chunk", chunk),
        stages_within_loop(lambda config: -(-chunk // config.int("block_k")), "tokens"),
        _by_copies(fits_block(target, False), fits_block(target, True)),
        whole_instructions(target, "block_p", "block_n"),
        _by_copies(*(fits_registers(target, copies, registers, WAY_OUT) for copies in (False, True))),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_k, block_p or block_n"),
    )
    return SearchSpace(parameters, constraints)


def _by_copies(threads: Constraint, bulk: Constraint) -> Constraint:
    """The rule for a config's copies, of two rules for how TileLang then launches the block."""
    return Constraint(threads.name, lambda config: (bulk if config["copies"] == "bulk" else threads).violation(config))
