"""Search space of grouped_matmul: C = A B[g] for each group g, in tiles of block_m x block_n x block_k."""

from __future__ import annotations

from collections.abc import Callable

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    SCALED_BLOCK,
    WGMMA_REGISTERS,
    fits_block,
    fits_instruction,
    fits_registers,
    fits_shared_memory,
    multiplies_float8,
    not_beyond,
    pipelines,
    rows_of_scales,
    stages_within_loop,
    swizzle_matters,
    walks_over_tiles,
    whole_instructions,
    whole_scales,
)
from .matrix_unit import GROUP, POLICIES, is_hopper, launch, matrix_unit, wgmma_columns
from .stored_parts import bytes_of_parts

TILES_M = (16, 32, 64, 128, 256)
TILES_N = (32, 64, 128, 192, 256)
DEPTHS = (32, 64, 128)
SWIZZLES = (0, 8)
MAX_WAVES = 128  # tiles of a block: each thread keeps six numbers of each in local memory
FULL_TILE = 64  # smaller tiles read the operands too often for the caches; they help only with few blocks
SWIZZLED_BYTES = 128  # of a row, by TMA
LEAST_AHEAD = 3  # stages of an explicit pipeline
LEAST_DEPTH = 128  # bytes of a row that one of its copies brings
MOST_COLUMNS = 256  # of one wgmma
TABLE_BYTES = 1024  # that shared memory for numbers of tiles is a multiple of: the alignment of operands


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    tokens, groups, n, k = workload.dims.values()
    is_float8, by_blocks = workload.dtype == "float8_e4m3fn", workload.attrs.get("scales") == "block128"
    element_bytes, result_bytes = DTYPE_BYTES[workload.dtype], 2
    # TMA starts rows at multiples of 16 bytes
    a_bulk = is_hopper(target) and k * element_bytes % 16 == 0
    b_bulk = is_hopper(target) and (k if workload.attrs["layout"] == "nt" else n) * element_bytes % 16 == 0
    bulk, any_bulk = a_bulk and b_bulk, a_bulk or b_bulk
    cores = target.int("core.count")
    products = 2 if workload.attrs["fuse"] == "silu_mul" else 1
    masked = workload.attrs["rows"] == "masked"
    stays_ahead = bulk and n * result_bytes % 16 == 0  # parts of C leave through TMA
    mean = tokens if masked else -(-tokens // groups)
    # TileLang 0.1.15 divides 192 columns over 12 of 8 warps on AMD, as for matmul
    tiles_n = tuple(tile for tile in TILES_N if is_hopper(target) or tile != 192)
    parameters = (
        Parameter("block_m", TILES_M, "rows of a group that one block computes"),
        Parameter("block_n", tiles_n, "columns of C that one block computes"),
        Parameter("block_k", DEPTHS, "depth of the product in one iteration of the main loop"),
        Parameter("num_stages", (1, 2, 3, 4, 5), "iterations whose copies are in flight together"),
        Parameter("threads", (64, 128, 256, 512), "threads that compute"),
        Parameter("policy", POLICIES, "how the tile is divided over the warps"),
        Parameter(
            "swizzle",
            SWIZZLES,
            "block rows that are walked together, so that operands stay in the cache; 0: one by one",
        ),
        Parameter(
            "skip",
            ("loop",) if bulk else ("branch",),
            "how a block without a tile ends: by a loop without iterations, or by a branch",
        ),
        Parameter(
            "persistent",
            (0, cores - 1, cores) if stays_ahead else (0, cores) if bulk and not by_blocks else (0,),
            "blocks that walk over the tiles and copy for the next one meanwhile; 0: one block a tile. With "
            "one block less than cores, full and partly empty tiles are spread more evenly",
        ),
        Parameter(
            "schedule",
            ("serial", "overlapped") if stays_ahead else ("serial",),
            "TileLang's pipeline, or threads of their own for copies and C by parts",
            default="serial",
        ),
    )

    def blocks(config: Config) -> tuple[int, int]:
        block_m = config.int("block_m")
        rows = -(-tokens // block_m) * groups if masked else tokens // block_m + groups
        return rows, -(-n // config.int("block_n"))

    def result_size(config: Config) -> int:
        return config.int("block_m") * config.int("block_n")

    def sums(config: Config) -> int:
        # sums of a block of k have registers of their own; explicit pipelines compute one product at a time
        all_sums = products * result_size(config)
        if by_blocks and is_ahead(config):
            return all_sums + config.int("block_m") * min(config.int("block_n"), SCALED_BLOCK)
        return all_sums * (2 if by_blocks else 1)

    def shared_bytes(config: Config) -> int:
        rows = config.int("block_m") + products * config.int("block_n")
        operands = config.int("num_stages") * rows * config.int("block_k") * element_bytes
        result = result_size(config) * result_bytes
        if is_ahead(config):
            result = bytes_of_parts(config.int("block_m"), config.int("block_n"), result_bytes)
            result += -(-(groups + 1) * 4 // TABLE_BYTES) * TABLE_BYTES
        # C replaces the operands after the main loop, but not in a branch with a warpgroup that copies,
        # or while that warpgroup copies for the next tile; parts of C have memory of their own
        beside = (any_bulk and not bulk) or config.int("persistent") > 0 or is_ahead(config)
        both = operands + result if beside else max(operands, result)
        return both + launch(target, config.int("threads"), any_bulk).barrier_bytes

    def instruction_columns(config: Config) -> int:
        rows, cols, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
        if is_ahead(config):  # both products of a tile are one, unless they have scales in between
            cols = min(cols, SCALED_BLOCK) if by_blocks else cols * products
        return wgmma_columns(target, config.str("policy"), rows, cols, threads)

    constraints = (
        *((multiplies_float8(target), whole_scales(by_blocks, is_ahead)) if is_float8 else ()),
        pipelines(target),
        not_beyond("block_m", TILES_M, "tokens", tokens),
        not_beyond("block_n", tiles_n, "n", n),
        not_beyond("block_k", DEPTHS, "k", k),
        _enough_tile(n, mean, blocks, cores),
        stages_within_loop(lambda config: -(-k // config.int("block_k")), "k"),
        fits_block(target, any_bulk),
        whole_instructions(target, "block_m", "block_n"),
        fits_registers(target, any_bulk, sums, "take more threads or a smaller block_m or block_n"),
        fits_instruction(target, any_bulk, instruction_columns, "take a smaller block_n, or threads=256"),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_k, block_m or block_n"),
        walks_over_tiles(blocks),
        _short_table(blocks),
        _mixed_heights(cores),
        _even_registers(target, sums),
        _whole_pipeline(target, products, by_blocks),
        _whole_swizzle(products, workload.attrs["layout"] == "nn", element_bytes),
        _scaled_pipeline(by_blocks),
        _pipeline_helps(LEAST_DEPTH // element_bytes, mean),
        swizzle_matters(blocks, cores, SWIZZLES),
    )
    return SearchSpace(parameters, constraints)


def is_ahead(config: Config) -> bool:
    """Whether the tile's pipeline is an explicit one."""
    return config.str("schedule", "serial") != "serial"


def _enough_tile(n: int, mean: int, blocks: Callable[[Config], tuple[int, int]], cores: int) -> Constraint:
    """Tiles below 64 are for groups of fewer rows, and for problems with few blocks."""

    def violation(config: Config) -> str | None:
        for parameter, dimension, extent in (("block_m", "rows of a group", mean), ("block_n", "n", n)):
            least = min(FULL_TILE, max(TILES_M[0], extent))
            read = {name: config[name] for name in ("block_m", "block_n")}  # the rule must read no others
            rows, cols = blocks(Config({**read, parameter: FULL_TILE}))
            if config.int(parameter) < least and rows * cols >= cores:
                return (
                    f"{parameter}={config[parameter]} reads the operands more often than necessary: tiles of "
                    f"{FULL_TILE} make {rows * cols} blocks for {cores} cores; cover min({FULL_TILE}, "
                    f"{dimension}={extent})"
                )
        return None

    return Constraint("tile not too small", violation, is_waste=True)


def _short_table(blocks: Callable[[Config], tuple[int, int]]) -> Constraint:
    """A block that walks over the tiles has a table of its own."""

    def violation(config: Config) -> str | None:
        persistent = config.int("persistent")
        rows, cols = blocks(config)
        if not persistent or is_ahead(config) or rows * cols <= MAX_WAVES * persistent:
            return None
        return (
            f"persistent={persistent} blocks have {rows * cols} tiles, and tables of at most {MAX_WAVES}: "
            "take persistent=0 or a larger block_m or block_n"
        )

    return Constraint("table of tiles", violation)


def _mixed_heights(cores: int) -> Constraint:
    """One block less than cores is for explicit pipelines, in which each block takes every nth tile.

    A group whose height divides the number of blocks gives some blocks full tiles only.
    """

    def violation(config: Config) -> str | None:
        persistent = config.int("persistent")
        if persistent != cores - 1 or is_ahead(config):
            return None
        return f"persistent={persistent} is for schedule=overlapped: take persistent={cores}"

    return Constraint("heights of groups", violation, is_waste=True)


def _even_registers(target: Target, sums: Callable[[Config], int]) -> Constraint:
    """TileLang 0.1.15 moves no registers from a warpgroup that copies by a table in local memory."""

    def violation(config: Config) -> str | None:
        persistent, threads = config.int("persistent"), config.int("threads")
        if not persistent or is_ahead(config):
            return None
        limit = launch(target, threads, True).compiled_registers - WGMMA_REGISTERS
        need = -(-sums(config) // threads)
        if need <= limit:
            return None
        return (
            f"with persistent={persistent} the accumulators may take {limit} registers of each of {threads} "
            f"threads, and take {need}: take persistent=0, or a smaller block_m or block_n"
        )

    return Constraint("registers of equal warpgroups", violation)


def _whole_pipeline(target: Target, products: int, by_blocks: bool) -> Constraint:
    """Explicit pipelines are of tiles in their own order, and of warpgroups below each other."""

    def violation(config: Config) -> str | None:
        if not is_ahead(config):
            return None
        schedule = f"schedule={config['schedule']}"
        if config.int("swizzle"):
            return f"{schedule} has an order of its own, not swizzle={config['swizzle']}: take swizzle=0"
        rows, cols, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
        if rows < FULL_TILE:
            return f"{schedule} multiplies by wgmma: take block_m={FULL_TILE} or more"
        if cols * products > MOST_COLUMNS:
            return (
                f"{schedule} multiplies {products} tiles of {cols} columns at once, and a wgmma has at most "
                f"{MOST_COLUMNS}: take a smaller block_n"
            )
        policy = config.str("policy")
        split = matrix_unit(target, rows, threads).split(policy, rows, cols * products, threads)
        if split is not None and split[1] == 1:
            return rows_of_scales(target, policy, rows, cols, threads) if by_blocks else None
        return (
            f"policy={config['policy']} puts warpgroups side by side, and parts of C with {schedule} are of "
            f"columns that all warps have: take policy=full_row, or block_m={FULL_TILE * threads // GROUP}"
        )

    return Constraint("schedule", violation)


def _whole_swizzle(products: int, is_nn: bool, element_bytes: int) -> Constraint:
    """Two tiles of weights are halves of one, whose rows TMA swizzles by 128 bytes.

    In layout nn the halves are of rows. In layout nt they are of columns; longer rows lie in panels of 128
    bytes one after the other, each with rows of both halves, and a copy fills no half of two panels.
    """

    def violation(config: Config) -> str | None:
        name = "block_n" if is_nn else "block_k"
        size = config.int(name) * element_bytes
        fits = size >= SWIZZLED_BYTES if is_nn else size <= SWIZZLED_BYTES
        if products == 1 or not is_ahead(config) or fits:
            return None
        schedule, elements = f"schedule={config['schedule']}", SWIZZLED_BYTES // element_bytes
        wrong = (
            f"has halves of {size} bytes of a row, fewer than the {SWIZZLED_BYTES} that TMA swizzles"
            if is_nn
            else f"has rows of {size} bytes, and halves are copied in rows of {SWIZZLED_BYTES} alone"
        )
        return f"{name}={config[name]} with {schedule} {wrong}: take {name}={elements}"

    return Constraint("halves of a tile", violation)


def _scaled_pipeline(by_blocks: bool) -> Constraint:
    """TileLang's pipeline across tiles has no sums of single blocks of k, which have a scale each."""

    def violation(config: Config) -> str | None:
        persistent = config.int("persistent")
        if not by_blocks or not persistent or is_ahead(config):
            return None
        return (
            f"persistent={persistent} with schedule=serial does not scale blocks of k: take "
            "schedule=overlapped, or persistent=0"
        )

    return Constraint("scales of blocks", violation)


def _pipeline_helps(least_depth: int, mean: int) -> Constraint:
    """Explicit pipelines help if copies are early, and products are large."""

    def violation(config: Config) -> str | None:
        if not is_ahead(config):
            return None
        schedule, stages = f"schedule={config['schedule']}", config.int("num_stages")
        if stages < LEAST_AHEAD:
            return f"{schedule} with num_stages={stages} copies too late: take num_stages={LEAST_AHEAD}"
        depth = config.int("block_k")
        if depth < least_depth:
            return f"{schedule} with block_k={depth} waits for few bytes: take block_k={least_depth}"
        if config.int("threads") < 2 * GROUP and mean > FULL_TILE:
            return (
                f"{schedule} with threads={config['threads']} is 1 warpgroup, which waits for each product, "
                f"and groups have {mean} rows: take threads={2 * GROUP}"
            )
        return None

    return Constraint("explicit pipeline", violation, is_waste=True)
