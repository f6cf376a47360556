"""Search space of chunk_state: tiles of block_p x block_n of a head's state, block_k tokens at a time."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    by_copies,
    fits_block,
    fits_registers,
    fits_shared_memory,
    not_beyond,
    pipelines,
    stages_within_loop,
    whole_instructions,
)
from .matrix_unit import POLICIES, is_hopper, launch, matrix_unit
from .resident_chunks import (
    GROUP,
    ROWS,
    enough_heads,
    heads_parameter,
    if_resident,
    is_resident,
    resident_form,
    unless_resident,
)

TILES_P = (32, 64, 128)
TILES_N = (32, 64, 128, 256)
DEPTHS = (32, 64, 128, 256)
SPARE_REGISTERS = 32  # of a thread beside its sums: addresses, and x on its way
LAST_BYTES = 16  # the chunk's last sum, in a copy of its own
WAY_OUT = "take more threads or a smaller block_p, block_n or block_k"
TILE_ALIGNMENT = 1024  # bytes: swizzled tiles, after the factors, start at multiples of it
FLOAT_BYTES = 4


def overhang(extent: int) -> int:
    """Most elements of a legal tile beyond a row of `extent`."""
    covering = min((tile for tile in TILES_N if tile >= extent), default=max(TILES_N))
    return max(-extent % tile for tile in TILES_N if tile <= covering)


def copies(workload: Workload, target: Target) -> Parameter:
    """By threads, or by TMA where rows start at multiples of 16 bytes."""
    head_dim, d_state = workload.dims["head_dim"], workload.dims["d_state"]
    element_bytes = DTYPE_BYTES[workload.dtype]
    bulk = is_hopper(target) and head_dim * element_bytes % 16 == 0 and d_state * element_bytes % 16 == 0
    return Parameter(
        "copies",
        ("threads", "bulk") if bulk else ("threads",),
        "copies by the threads that compute, or by TMA from a separate warpgroup",
    )


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    head_dim, d_state, chunk = (
        workload.dims["head_dim"],
        workload.dims["d_state"],
        int(workload.attrs["chunk"]),
    )
    element_bytes = DTYPE_BYTES[workload.dtype]
    hopper, by = is_hopper(target), copies(workload, target)
    parameters = (
        Parameter("block_p", TILES_P, "rows of the state (elements of a head) that one block computes"),
        Parameter("block_n", TILES_N, "columns of the state that one block computes"),
        Parameter("block_k", DEPTHS, "tokens of one iteration of the main loop"),
        Parameter("num_stages", (1, 2, 3, 4), "iterations whose copies are in flight together"),
        Parameter("threads", (64, 128, 256, 384) if hopper else (64, 128, 256), "threads that compute"),
        Parameter("policy", POLICIES, "how the tile is divided over the warps"),
        Parameter(
            "scaled_x",
            ("registers", "shared"),
            "where the scaled x is kept for the matrix unit",
        ),
        by,
        *((heads_parameter(),) if "bulk" in by.values else ()),
    )

    def resident_registers(config: Config) -> int:
        """Registers of all threads: the state of each group, and addresses."""
        return config.int("threads") * (config.int("block_n") * ROWS // GROUP + SPARE_REGISTERS)

    def resident_bytes(config: Config) -> int:
        cols, depth, groups = config.int("block_n"), config.int("block_k"), config.int("threads") // GROUP
        slots = groups * config.int("num_stages")
        tiles = chunk * cols + slots * depth * ROWS + groups * ROWS * cols
        decays = slots * (2 * depth * FLOAT_BYTES + LAST_BYTES)
        return tiles * element_bytes + decays + 2 * TILE_ALIGNMENT

    def registers(config: Config) -> int:
        """Registers of all threads: the state, and x in registers for each warp along the columns."""
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
        # the result replaces the operands after the main loop
        factors = -(-chunk * FLOAT_BYTES // TILE_ALIGNMENT) * TILE_ALIGNMENT
        need = max((operands + scaled) * element_bytes + factors, rows * cols * element_bytes)
        return need + launch(target, config.int("threads"), config["copies"] == "bulk").barrier_bytes

    constraints = (
        pipelines(target),
        not_beyond("block_p", TILES_P, "head_dim", head_dim),
        not_beyond("block_n", TILES_N, "d_state", d_state),
        not_beyond("block_k", DEPTHS, "chunk", chunk),
        stages_within_loop(
            lambda config: -(-chunk // config.int("block_k")) * max(config.int("heads", 0), 1), "tokens"
        ),
        resident_form(
            chunk,
            lambda config: {
                "block_p": ROWS,
                "threads": max(config.int("threads") // GROUP, 1) * GROUP,
                "policy": "square",
                "scaled_x": "shared",
                "copies": "bulk",
            },
        ),
        enough_heads(workload.dims["nheads"], lambda config: config.int("threads") // GROUP),
        unless_resident(by_copies(fits_block(target, False), fits_block(target, True))),
        unless_resident(whole_instructions(target, "block_p", "block_n")),
        unless_resident(
            by_copies(*(fits_registers(target, bulk, registers, WAY_OUT) for bulk in (False, True)))
        ),
        if_resident(fits_registers(target, False, resident_registers, "take a smaller block_n or heads=0")),
        fits_shared_memory(
            target,
            lambda config: (resident_bytes if is_resident(config) else shared_bytes)(config),
            "lower num_stages, block_k, block_p or block_n",
        ),
    )
    return SearchSpace(parameters, constraints)
