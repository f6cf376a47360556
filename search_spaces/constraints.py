"""Constraints that several search spaces share. Each reason has the rule, its numbers and a way out."""

from __future__ import annotations

from collections.abc import Callable

from ..problem.space import Config, Constraint
from ..target.spec import Target
from .matrix_unit import GROUP, GROUP_ROWS, POLICIES, MatrixUnit, is_hopper, launch, matrix_unit

MAX_GRID_Y = 65535  # blocks along the second axis of a CUDA or HIP grid
MIN_WGMMA_COLUMNS = 16  # "Not a canonical GMMA_MN layout" with 8
# registers that ptxas 13.0 needs besides the sums of one wgmma: "register target of 154" for 256 columns
WGMMA_REGISTERS = 26
MOST_GROUPS = 3  # of computing threads, to which TileLang moves registers of those that copy
SCALED_BLOCK = 128  # elements along k and n with one scale, in blocks
LEFT_OPERAND_REGISTERS = 4  # the same for a left operand in registers: "158"


def fits_shared_memory(target: Target, needed: Callable[[Config], int], way_out: str) -> Constraint:
    """The buffers of one block fit into shared memory. TileLang does not check this limit when it lowers."""
    limit = target.int("core.memory.shared.block_bytes")

    def violation(config: Config) -> str | None:
        need = needed(config)
        if need <= limit:
            return None
        return (
            f"the tiles need {need} bytes of shared memory, and one block on {target.name} has {limit}: "
            f"{way_out}"
        )

    return Constraint("shared memory", violation)


def fits_registers(
    target: Target, bulk_copies: bool, accumulators: Callable[[Config], int], way_out: str
) -> Constraint:
    """The float32 accumulators of the main loop take less than all registers of a thread."""

    def violation(config: Config) -> str | None:
        threads = config.int("threads")
        limit = launch(target, threads, bulk_copies).registers
        need = -(-accumulators(config) // threads)
        if need < limit:
            return None
        return (
            f"the accumulators take {need} registers of each of {threads} threads, which have at most "
            f"{limit} on {target.name}: {way_out}"
        )

    return Constraint("registers", violation)


def fits_instruction(
    target: Target,
    bulk_copies: bool,
    columns: Callable[[Config], int],
    way_out: str,
    left_in_registers: bool = False,
) -> Constraint:
    """All sums of one wgmma (64 rows x `columns` of float32, over 128 threads) fit into registers at once.

    ptxas compares them with an even share of the register file per launched thread, before TileLang moves
    registers between warpgroups.

    `columns` is 0 without wgmma. On the H200, 192 columns compile with 128 registers, and 256 do not (C7602).
    """

    def violation(config: Config) -> str | None:
        wide = columns(config)
        launched = launch(target, config.int("threads"), bulk_copies)
        need = wide // 2 + WGMMA_REGISTERS + (LEFT_OPERAND_REGISTERS if left_in_registers else 0)
        if not wide or need <= launched.compiled_registers:
            return None
        return (
            f"a wgmma of {wide} columns needs {need} registers of each thread, and ptxas compiles "
            f"{launched.threads} launched threads "
            f"with {launched.compiled_registers} (C7602): {way_out}"
        )

    return Constraint("registers of an instruction", violation)


def fits_block(target: Target, bulk_copies: bool) -> Constraint:
    """A block has whole warps and, with threads that TileLang adds for copies, at most the target's limit."""
    limit, warp = target.int("core.max_block_threads"), target.int("warp.threads")

    def violation(config: Config) -> str | None:
        threads = config.int("threads")
        if threads % warp:
            return f"threads={threads} must be a multiple of the {warp} threads of a warp on {target.name}"
        launched = launch(target, threads, bulk_copies).threads
        if launched > limit:
            return (
                f"threads={threads} launches {launched}, and one block on {target.name} has at most {limit}: "
                "take fewer"
            )
        return None

    return Constraint("threads", violation)


def fits_grid(parameter: str, extent: int) -> Constraint:
    """Tiles of `parameter` along `extent`, the second axis of the grid, are not too many for it."""

    def violation(config: Config) -> str | None:
        block_rows = -(-extent // config.int(parameter))
        if block_rows <= MAX_GRID_Y:
            return None
        return (
            f"{parameter}={config[parameter]} makes {block_rows} block rows, "
            f"and a grid has at most {MAX_GRID_Y}: take a larger {parameter}"
        )

    return Constraint("grid", violation)


def swizzle_matters(
    blocks: Callable[[Config], tuple[int, int]], cores: int, panels: tuple[int, ...]
) -> Constraint:
    """The order of blocks matters for caches only if they do not all run at once.

    Args:
        blocks: rows and columns of blocks.
        cores: of the target.
        panels: values of the parameter `swizzle`.
    """

    def violation(config: Config) -> str | None:
        panel = config.int("swizzle")
        if panel == 0:
            return None
        rows, cols = blocks(config)
        if rows * cols <= cores:
            return (
                f"swizzle={panel} reorders {rows * cols} blocks that run at once on {cores} cores: "
                "take swizzle=0"
            )
        if rows == 1 or cols == 1:
            return f"swizzle={panel} makes no panels of {rows}x{cols} blocks: take swizzle=0"
        same = next((p for p in panels if rows <= p < panel), None)
        if same is not None:
            return f"swizzle={panel} covers all {rows} block rows as swizzle={same} does: take {same}"
        return None

    return Constraint("swizzle", violation, is_waste=True)


def walks_over_tiles(blocks: Callable[[Config], tuple[int, int]]) -> Constraint:
    """`persistent` blocks that walk over the tiles have more than one each, in one order."""

    def violation(config: Config) -> str | None:
        persistent, swizzle = config.int("persistent"), config.int("swizzle")
        if not persistent:
            return None
        if swizzle:
            return (
                f"persistent={persistent} blocks walk in an order without swizzle={swizzle}: take swizzle=0"
            )
        rows, cols = blocks(config)
        if rows * cols <= persistent:
            return (
                f"persistent={persistent} blocks have {rows * cols} tiles, at most one each: "
                "take persistent=0"
            )
        return None

    return Constraint("many tiles", violation, is_waste=True)


def not_beyond(parameter: str, values: tuple[int, ...], dimension: str, extent: int) -> Constraint:
    """A tile is at most the dimension, rounded up to the next value of the parameter."""
    largest = min((v for v in values if v >= extent), default=max(values))

    def violation(config: Config) -> str | None:
        value = config.int(parameter)
        if value <= largest:
            return None
        return f"{parameter}={value} is wasted on {dimension}={extent}: {largest} covers it"

    return Constraint(f"{parameter} within {dimension}", violation, is_waste=True)


def divides(part: str, whole: str, wholes: tuple[int, ...]) -> Constraint:
    """A tile consists of whole sub-tiles. `wholes` are the values of the tile's parameter."""

    def violation(config: Config) -> str | None:
        small, large = config.int(part), config.int(whole)
        if large % small == 0:
            return None
        fitting = sorted(
            (value for value in wholes if value % small == 0), key=lambda value: abs(value - large)
        )[:2]
        return (
            f"{part}={small} must divide {whole}={large}; nearest legal {whole}: "
            f"{', '.join(map(str, sorted(fitting)))}"
        )

    return Constraint(f"{part} divides {whole}", violation)


def pipelines(target: Target) -> Constraint:
    """TileLang 0.1.15 has no pipelines on AMD: it generates the same kernel for every number of stages."""

    def violation(config: Config) -> str | None:
        stages = config.int("num_stages")
        if target.kind != "hip" or stages == 1:
            return None
        return (
            f"num_stages={stages} makes the same kernel on {target.name} as 1, since TileLang 0.1.15 has no "
            "pipelines there: take 1"
        )

    return Constraint("pipeline", violation)


def stages_within_loop(trips: Callable[[Config], int], loop: str) -> Constraint:
    """A pipeline has at most as many stages as its loop has iterations."""

    def violation(config: Config) -> str | None:
        stages, iterations = config.int("num_stages"), trips(config)
        if stages <= iterations or stages == 1:
            return None
        return (
            f"num_stages={stages} exceeds the {iterations} iterations of the loop over {loop}: take "
            f"num_stages={iterations}"
        )

    return Constraint("stages within loop", violation)


def causal_pipelines(target: Target, subject: str, has_pipeline: Callable[[Config], bool]) -> Constraint:
    """Without TMA, loops that end at a block's last row have no pipeline.

    TileLang 0.1.15 fails on the waits at the end of a pipeline of cp.async copies if the number of iterations
    depends on the block (`Downcast from tirx.Sub to ir.IntImm failed`).

    Args:
        target: the chip.
        subject: what has such a loop, for the reason.
        has_pipeline: whether a config copies through TMA, or has another kind of loop.
    """

    def violation(config: Config) -> str | None:
        stages = config.int("num_stages")
        if stages == 1 or target.kind == "hip" or has_pipeline(config):
            return None
        return (
            f"num_stages={stages} cannot be compiled for {subject} without TMA (TileLang 0.1.15): take "
            "num_stages=1"
        )

    return Constraint("causal pipeline", violation)


def rows_of_warps(target: Target) -> Constraint:
    """Each warp has whole rows, since it computes the weights of the rows of a tile of block_m."""

    def violation(config: Config) -> str | None:
        rows, threads = config.int("block_m"), config.int("threads")
        unit = matrix_unit(target, rows, threads)
        warps = threads // unit.warp_threads
        if rows % (unit.rows * warps):
            fewer = rows // unit.rows * unit.warp_threads
            return (
                f"block_m={rows} gives none of {warps} warps {unit.rows} whole rows: take at most "
                f"threads={fewer}, or a larger block_m"
            )
        groups = warps // unit.group
        if unit.name == "wgmma" and groups > 1 and rows > unit.rows * warps:
            return (
                f"block_m={rows} gives each of {groups} warpgroups {rows // groups} rows, and TileLang "
                "0.1.15 cannot pass on the weights "
                f"(layout conflict): take block_m={unit.rows * warps}, or "
                f"threads={unit.warp_threads * unit.group}"
            )
        return None

    return Constraint("whole rows", violation)


def whole_scales(has_blocks: bool, in_parts: Callable[[Config], bool]) -> Constraint:
    """With a scale for each block, an iteration of a tile has one block of k and of n, or of n two.

    Args:
        has_blocks: whether a block of elements has one scale.
        in_parts: whether a kernel with this config multiplies a tile in parts of one block of n.
    """

    def violation(config: Config) -> str | None:
        depth, cols = config.int("block_k"), config.int("block_n")
        is_whole = SCALED_BLOCK % cols == 0 or (cols == 2 * SCALED_BLOCK and in_parts(config))
        if not has_blocks or (depth == SCALED_BLOCK and is_whole):
            return None
        return (
            f"block_k={depth} and block_n={cols} cover other blocks than those of {SCALED_BLOCK}x"
            f"{SCALED_BLOCK} with one scale: take block_k={SCALED_BLOCK} and a block_n that divides "
            f"{SCALED_BLOCK}, or block_n={2 * SCALED_BLOCK} where schedule=overlapped is possible"
        )

    return Constraint("whole blocks of scales", violation)


def rows_of_scales(target: Target, policy: str, rows: int, cols: int, threads: int) -> str | None:
    """What is wrong with a tile whose warpgroups need 64 rows each, all its columns, and registers for sums
    of a product beside those of the tile.
    """
    groups = max(threads // GROUP, 1)
    if groups > MOST_GROUPS:
        return (
            f"threads={threads} are {groups} warpgroups, between which TileLang 0.1.15 moves no registers, "
            f"and sums of products with scales spill: take threads={2 * GROUP}"
        )
    split = matrix_unit(target, rows, threads).split(policy, rows, cols, threads)
    if rows == GROUP_ROWS * groups and split is not None and split[1] == 1:
        return None
    return (
        f"block_m={rows} with threads={threads} and policy={policy} does not give each warpgroup "
        f"{GROUP_ROWS} rows and all columns, as the exchange of their scales needs: take "
        f"block_m={GROUP_ROWS * groups} with warpgroups below each other"
    )


def multiplies_float8(target: Target) -> Constraint:
    """Hopper's matrix unit multiplies e4m3; AMD's has another format of 8 bits, and Ampere's has none."""

    def violation(_: Config) -> str | None:
        if is_hopper(target):
            return None
        return f"float8_e4m3fn is no format that {target.name} multiplies: take bfloat16"

    return Constraint("matrix unit", violation)


def by_copies(threads: Constraint, bulk: Constraint) -> Constraint:
    """One constraint for copies by threads, and another one for bulk copies, as one constraint."""
    return Constraint(
        threads.name, lambda config: (bulk if config["copies"] == "bulk" else threads).violation(config)
    )


def whole_instructions(target: Target, row_parameter: str, column_parameter: str) -> Constraint:
    """Each warp has whole matrix instructions, and no two policies give the same kernel."""

    def violation(config: Config) -> str | None:
        rows, cols, threads, policy = (
            config.int(row_parameter),
            config.int(column_parameter),
            config.int("threads"),
            config.str("policy"),
        )
        unit = matrix_unit(target, rows, threads)
        if is_hopper(target) and rows >= 64 and unit.name != "wgmma":
            return (
                f"threads={threads} is no whole warpgroup, so {row_parameter}={rows} would not use wgmma: "
                "take threads=128 or more"
            )
        split = unit.split(policy, rows, cols, threads)
        if split is None:
            return uneven(unit, rows, cols, threads)
        if unit.name == "wgmma" and cols // split[1] < MIN_WGMMA_COLUMNS:
            return (
                f"policy={policy} leaves each of {split[1]} warpgroups side by side {cols // split[1]} "
                "columns of "
                f"{column_parameter}={cols}, and TileLang 0.1.15 cannot lower wgmma on fewer than "
                f"{MIN_WGMMA_COLUMNS} of a shared "
                f"tile: take a larger {column_parameter}"
            )
        return same_division(unit, policy, rows, cols, threads)

    return Constraint("whole matrix instructions", violation)


def uneven(unit: MatrixUnit, rows: int, cols: int, threads: int) -> str:
    """The reason for a tile that `unit` cannot divide."""
    return (
        f"a tile of {rows}x{cols} cannot be divided evenly over {threads // unit.warp_threads} warps: "
        f"{unit.name} needs "
        f"multiples of {unit.rows * unit.group}x{unit.cols} a {'warpgroup' if unit.group > 1 else 'warp'}; "
        "take fewer threads"
    )


def same_division(unit: MatrixUnit, policy: str, rows: int, cols: int, threads: int) -> str | None:
    """The reason for a policy that gives the same kernel as an earlier one; None for the first."""
    split = unit.split(policy, rows, cols, threads)
    for other in POLICIES[: POLICIES.index(policy)]:
        if split is not None and unit.split(other, rows, cols, threads) == split:
            return (
                f"policy={policy} divides {rows}x{cols} over {split[0]}x{split[1]} warps as policy={other} "
                f"does: take {other}"
            )
    return None
