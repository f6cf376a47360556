"""Search space of dequant_matmul: C[m, n] = A[m, k] W[n, k]^T in tiles of block_m x block_n x block_k."""

from __future__ import annotations

from collections.abc import Mapping

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    fits_block,
    fits_grid,
    fits_registers,
    fits_shared_memory,
    not_beyond,
    pipelines,
    same_division,
    stages_within_loop,
    swizzle_matters,
    uneven,
)
from .matrix_unit import POLICIES, MatrixUnit, is_hopper, launch, matrix_unit

RUNS = {"shared": 8, "shared_wide": 32}  # weights that a thread unpacks at a time for shared memory
SWIZZLES = (0, 8)
TILES = (16, 32, 64, 128, 256)
DEPTHS = (64, 128, 256)
FULL_TILE = 64  # with more rows of A, smaller tiles read too often for the caches
TENSOR_COPY_ALIGNMENT = 128  # bytes, of a bulk copy of a tensor's box in shared memory
TABLE_BYTES = 128  # sixteen numbers, and what aligns them
ALIGNMENT = 1024  # bytes, of TileLang for operands of matrix instructions
# ways to decode the weights of a format
DECODERS: Mapping[str, tuple[str, ...]] = {
    "int4": ("bits", "convert", "words"),
    "nf4": ("table",),
    "fp4": ("words", "table"),
    "mxfp4": ("words", "table"),
    "int2": ("words",),
}


def scale_rows(block_k: int, group: int) -> int:
    """Number of groups, and of rows of S, for `block_k` weights of a row; -1 is one group for all."""
    return 1 if group == -1 else -(-block_k // group)


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
    format_name, group = str(workload.attrs.get("format", "int4")), int(workload.attrs["group"])
    result_bytes = DTYPE_BYTES[workload.dtype]
    element_bytes = 1 if format_name == "int2" else result_bytes
    weights_a_byte = 4 if format_name == "int2" else 2
    scale_bytes = 1 if format_name == "mxfp4" else result_bytes
    zero_bytes = result_bytes if workload.attrs.get("zeros", False) else 0
    bulk_copies = k * element_bytes % 16 == 0
    rows, cols, depths = TILES, TILES, DEPTHS
    parameters = (
        Parameter("block_m", rows, "rows of A and C of one block"),
        Parameter("block_n", cols, "rows of W, columns of C, of one block"),
        Parameter("block_k", depths, "depth of the product in one iteration of the main loop"),
        Parameter("num_stages", (1, 2, 3, 4), "iterations whose copies are in flight together"),
        Parameter("threads", (64, 128, 256, 512), "threads that compute"),
        Parameter(
            "weights",
            ("registers", "registers_linear", "shared", "shared_wide"),
            "where weights are unpacked to: registers, from a swizzled or linear tile; or shared memory, 8 "
            "or 32 at a time",
        ),
        Parameter(
            "decode",
            DECODERS[format_name],
            "how codes become numbers: by bit operations on one or a word of them, a conversion, or a table",
        ),
        Parameter("policy", POLICIES, "how the tile is divided over the warps"),
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

    def registers(config: Config) -> int:
        if config["weights"] in RUNS:
            return result_size(config)
        # each warp has the weights of its rows, so warps along the columns have copies
        _unit, split = _division(target, config)
        along_cols = split[1] if split else 1
        return (
            result_size(config)
            + config.int("block_n") * config.int("block_k") * along_cols * element_bytes // 4
        )

    def shared_bytes(config: Config) -> int:
        block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
        stages = config.int("num_stages")
        operands = stages * (
            block_m * block_k * element_bytes
            + block_n * block_k // weights_a_byte
            + scale_rows(block_k, group) * block_n * (scale_bytes + zero_bytes)
        )
        if config["weights"] in RUNS:
            operands = -(-operands // ALIGNMENT) * ALIGNMENT + block_n * block_k * element_bytes
        # C replaces the operands after the main loop
        result = result_size(config) * result_bytes
        if format_name == "int2":  # sums are scaled when they are complete
            result += config.int("block_n") * scale_bytes
        if config["decode"] == "table":
            operands += TABLE_BYTES
        return max(operands, result) + launch(target, config.int("threads"), bulk_copies).barrier_bytes

    constraints = (
        pipelines(target),
        _unpacking(),
        not_beyond("block_m", rows, "m", m),
        not_beyond("block_n", cols, "n", n),
        not_beyond("block_k", depths, "k", k),
        fits_grid("block_m", m),
        _enough_tile(m, n, target.int("core.count")),
        stages_within_loop(lambda config: -(-k // config.int("block_k")), "k"),
        fits_block(target, bulk_copies),
        _whole_instructions(target),
        _same_rows(target),
        _aligned_scales(target, n, group, scale_bytes, zero_bytes > 0),
        fits_registers(
            target, bulk_copies, registers, "take more threads or a smaller block_m, block_n or block_k"
        ),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_k, block_m or block_n"),
        swizzle_matters(blocks, target.int("core.count"), SWIZZLES),
    )
    return SearchSpace(parameters, constraints)


def _division(target: Target, config: Config) -> tuple[MatrixUnit, tuple[int, int] | None]:
    """The matrix instructions, and the number of warps along rows and columns of the product's tile."""
    block_m, block_n, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
    rows, cols = (block_n, block_m) if config["weights"] not in RUNS else (block_m, block_n)
    unit = matrix_unit(target, rows, threads)
    return unit, unit.split(config.str("policy"), rows, cols, threads)


def _unpacking() -> Constraint:
    """Every thread unpacks whole runs to shared memory. For registers the layout decides."""

    def violation(config: Config) -> str | None:
        run, threads = RUNS.get(config.str("weights")), config.int("threads")
        weights = config.int("block_n") * config.int("block_k")
        if run is None or weights % (threads * run) == 0:
            return None
        return (
            f"a tile of {weights} weights does not divide into runs of {run} for each of {threads} threads: "
            "take fewer threads, "
            "or a larger block_n or block_k"
        )

    return Constraint("whole runs", violation)


def _enough_tile(m: int, n: int, cores: int) -> Constraint:
    """Small tiles are for problems where larger ones would leave cores without a block.

    Few rows of A are read again at no cost, so half as many columns suffice there. Every further block row
    unpacks all weights again.
    """
    rows, cols = min(FULL_TILE, m), min(FULL_TILE // 2 if m <= FULL_TILE else FULL_TILE, n)
    blocks = -(-m // rows) * -(-n // cols)

    def violation(config: Config) -> str | None:
        if blocks < cores:
            return None
        for parameter, enough in (("block_m", rows), ("block_n", cols)):
            if config.int(parameter) < enough:
                return (
                    f"{parameter}={config[parameter]} reads and unpacks more often than necessary: tiles of "
                    f"{rows}x{cols} already make "
                    f"{blocks} blocks for {cores} cores; take at least {parameter}={enough}"
                )
        return None

    return Constraint("tile not too small", violation, is_waste=True)


def _whole_instructions(target: Target) -> Constraint:
    """Each warp has whole matrix instructions, and no two policies give the same kernel."""

    def violation(config: Config) -> str | None:
        block_m, block_n, threads, policy = (
            config.int("block_m"),
            config.int("block_n"),
            config.int("threads"),
            config.str("policy"),
        )
        rows, cols = (block_n, block_m) if config["weights"] not in RUNS else (block_m, block_n)
        unit, split = _division(target, config)
        if is_hopper(target) and rows >= 64 and unit.name != "wgmma":
            return (
                f"threads={threads} is no whole warpgroup, so {rows} rows would not use wgmma: take "
                "threads=128 or more"
            )
        if split is None:
            return uneven(unit, rows, cols, threads)
        return same_division(unit, policy, rows, cols, threads)

    return Constraint("whole matrix instructions", violation)


def _same_rows(target: Target) -> Constraint:
    """Weights in registers are multiplied into the right rows.

    TileLang 0.1.15 distributes rows of a wgmma's left operand in registers over warps in turn, and rows of
    the product over whole warpgroups. With several warpgroups along the rows the two agree only if each has
    the rows of one instruction; else results are wrong.
    """

    def violation(config: Config) -> str | None:
        if config["weights"] in RUNS:
            return None
        unit, split = _division(target, config)
        block_n = config.int("block_n")
        if unit.name != "wgmma" or split is None or split[0] == unit.group or block_n == split[0] * unit.rows:
            return None
        return (
            f"weights={config['weights']} would be multiplied into wrong rows: {split[0] // unit.group} "
            f"warpgroups along block_n={block_n} have "
            f"{block_n // split[0] * unit.group} rows each, more than the {unit.group * unit.rows} of an "
            "instruction; take "
            f"block_n={split[0] * unit.rows}, policy=full_row with threads={2 * block_n}, or weights=shared"
        )

    return Constraint("rows of weights in registers", violation)


def _aligned_scales(target: Target, n: int, group: int, scale_bytes: int, zeros: bool) -> Constraint:
    """Bulk copies of scales and zero points have legal addresses in shared memory.

    TileLang 0.1.15 puts the stages of a tile side by side. If the last tile extends beyond n, or an iteration
    has several groups, scales are copied as boxes of a tensor, and stages of 64 bytes give addresses that the
    hardware refuses (seen on an H200). Zero points follow the scales.
    """
    bulk_copies = is_hopper(target) and n * scale_bytes % 16 == 0

    def violation(config: Config) -> str | None:
        block_n, stages = config.int("block_n"), config.int("num_stages")
        rows = scale_rows(config.int("block_k"), group)
        stage_bytes = rows * block_n * scale_bytes
        boxes = bulk_copies and (n % block_n != 0 or rows > 1)
        if not boxes or (stages == 1 and not zeros) or stage_bytes % TENSOR_COPY_ALIGNMENT == 0:
            return None
        return (
            f"block_n={block_n} makes stages of {stage_bytes} bytes of scales, and where n={n} is no "
            f"multiple of it, or an iteration has several groups, each must be a multiple of "
            f"{TENSOR_COPY_ALIGNMENT}: "
            f"take a larger block_n{'' if zeros else ', or num_stages=1'}"
        )

    return Constraint("aligned scales", violation)
