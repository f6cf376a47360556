"""Search spaces of matmul: C[m, n] = A[m, k] B[k, n] in tiles of block_m x block_n, block_k deep."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    divides,
    fits_block,
    fits_grid,
    fits_instruction,
    fits_registers,
    fits_shared_memory,
    not_beyond,
    pipelines,
    stages_within_loop,
    swizzle_matters,
    whole_instructions,
)
from .matrix_unit import MAX_WGMMA_COLUMNS, POLICIES, is_hopper, launch, matrix_unit

FULL_TILE = 64  # smaller tiles read the operands too often for the caches; they help only with few blocks
SWIZZLES = (0, 4, 8, 16)
GPU_TILES = (16, 32, 64, 128, 192, 256)
GPU_DEPTHS = (32, 64, 128)
MAX_VECTOR_FLOATS = 512  # the largest vector register file of a CPU core: 32 registers of 64 bytes


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    return _cpu_space(workload, target) if target.kind == "cpu" else _gpu_space(workload, target)


def _gpu_space(workload: Workload, target: Target) -> SearchSpace:
    m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
    hopper, hip = is_hopper(target), target.kind == "hip"
    element_bytes = DTYPE_BYTES[workload.dtype]
    bulk_copies = k * element_bytes % 16 == 0 and n * element_bytes % 16 == 0
    tiles = GPU_TILES if hopper else tuple(tile for tile in GPU_TILES if tile != 192)
    depths = GPU_DEPTHS
    parameters = (
        Parameter("block_m", tiles, "rows of C that one block computes"),
        Parameter("block_n", tiles, "columns of C that one block computes"),
        Parameter("block_k", depths, "depth of the product in one iteration of the main loop"),
        Parameter("num_stages", (1, 2, 3, 4, 5), "iterations whose copies are in flight together"),
        Parameter(
            "threads", (64, 128, 256, 384, 512) if hopper else (64, 128, 256, 512), "threads that compute"
        ),
        Parameter("policy", POLICIES, "how the tile is divided over the warps"),
        # an LDS of 64 KiB is too small for large tiles of C
        Parameter(
            "epilogue",
            ("shared", "direct") if hip else ("shared",),
            "path of C: through shared memory, or from registers",
        ),
        Parameter(
            "swizzle",
            SWIZZLES,
            "block rows that are walked together, so that operands stay in the cache; 0: one by one",
        ),
    )

    def blocks(config: Config) -> tuple[int, int]:
        return -(-m // config.int("block_m")), -(-n // config.int("block_n"))

    def result_size(config: Config) -> int:
        return config.int("block_m") * config.int("block_n")

    def shared_bytes(config: Config) -> int:
        # C replaces the operands after the main loop
        operands = (
            config.int("num_stages") * (config.int("block_m") + config.int("block_n")) * config.int("block_k")
        )
        result = result_size(config) if config["epilogue"] == "shared" else 0
        return (
            max(operands, result) * element_bytes
            + launch(target, config.int("threads"), bulk_copies).barrier_bytes
        )

    def instruction_columns(config: Config) -> int:
        rows, cols, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
        unit = matrix_unit(target, rows, threads)
        split = unit.split(config.str("policy"), rows, cols, threads) if unit.name == "wgmma" else None
        return min(MAX_WGMMA_COLUMNS, cols // split[1]) if split else 0

    constraints = (
        pipelines(target),
        not_beyond("block_m", tiles, "m", m),
        not_beyond("block_n", tiles, "n", n),
        not_beyond("block_k", depths, "k", k),
        fits_grid("block_m", m),
        _enough_tile(m, n, target.int("core.count")),
        stages_within_loop(lambda config: -(-k // config.int("block_k")), "k"),
        fits_block(target, bulk_copies),
        whole_instructions(target, "block_m", "block_n"),
        fits_registers(target, bulk_copies, result_size, "take more threads or a smaller block_m or block_n"),
        fits_instruction(target, bulk_copies, instruction_columns, "take a smaller block_n, or threads=256"),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_k, block_m or block_n"),
        swizzle_matters(blocks, target.int("core.count"), SWIZZLES),
    )
    return SearchSpace(parameters, constraints)


def _enough_tile(m: int, n: int, cores: int) -> Constraint:
    """Tiles below 64 are for problems where tiles of 64 would leave cores without a block."""
    full_blocks = -(-m // FULL_TILE) * -(-n // FULL_TILE)

    def violation(config: Config) -> str | None:
        if full_blocks < cores:
            return None
        for parameter, dimension, extent in (("block_m", "m", m), ("block_n", "n", n)):
            if config.int(parameter) < min(FULL_TILE, extent):
                return (
                    f"{parameter}={config[parameter]} reads the operands more often than necessary: tiles of "
                    f"{FULL_TILE}x{FULL_TILE} "
                    f"already make {full_blocks} blocks for {cores} cores; cover min({FULL_TILE}, "
                    f"{dimension}={extent})"
                )
        return None

    return Constraint("tile not too small", violation, is_waste=True)


def _cpu_space(workload: Workload, target: Target) -> SearchSpace:
    m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
    block_ms, block_ns, block_ks = (32, 64, 96, 128, 192, 256, 512), (64, 128, 256, 512), (64, 128, 256, 512)
    parameters = (
        Parameter("block_m", block_ms, "rows of A that are packed together"),
        Parameter("block_n", block_ns, "columns of B that are packed together"),
        Parameter("block_k", block_ks, "depth of the packed blocks"),
        Parameter("tile_m", (4, 6, 8, 12), "rows of C that the micro-kernel keeps in registers"),
        Parameter("tile_n", (16, 32, 64), "columns of C that the micro-kernel keeps in registers"),
        Parameter("unroll", (1, 2, 4, 8), "steps along k between two visits to the accumulators"),
    )
    cache = target.int("core.memory.l2.bytes")

    def in_registers(config: Config) -> str | None:
        floats = config.int("tile_m") * config.int("tile_n")
        if floats <= MAX_VECTOR_FLOATS:
            return None
        return (
            f"a micro-kernel of {config['tile_m']}x{config['tile_n']} keeps {floats} values, and no vector "
            "register file holds "
            f"more than {MAX_VECTOR_FLOATS}: take a smaller tile_m or tile_n"
        )

    def in_cache(config: Config) -> str | None:
        need = (
            (config.int("block_m") + config.int("block_n"))
            * config.int("block_k")
            * DTYPE_BYTES[workload.dtype]
        )
        if need <= cache:
            return None
        return (
            f"the packed blocks take {need} bytes, and a core's cache on {target.name} has {cache}: lower "
            "block_k, block_m or block_n"
        )

    constraints = (
        not_beyond("block_m", block_ms, "m", m),
        not_beyond("block_n", block_ns, "n", n),
        not_beyond("block_k", block_ks, "k", k),
        divides("tile_m", "block_m", block_ms),
        divides("tile_n", "block_n", block_ns),
        Constraint("registers", in_registers),
        Constraint("cache", in_cache),
    )
    return SearchSpace(parameters, constraints)
