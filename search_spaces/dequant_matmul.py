"""Search space of dequant_matmul: C[m, n] = A[m, k] W[n, k]^T in tiles of block_m x block_n, W unpacked block_k deep at a time."""

from __future__ import annotations

from ..space import Config, Constraint, Parameter, SearchSpace
from ..target import Target
from ..workload import DTYPE_BYTES, Workload
from .constraints import fits_block, fits_registers, fits_shared_memory, not_beyond, pipelines, same_division, stages_within_loop, uneven
from .matrix_unit import POLICIES, MatrixUnit, is_hopper, launch, matrix_unit

MAX_GRID_Y = 65535  # blocks along the second axis of a CUDA or HIP grid
RUNS = {"shared": 8, "shared_wide": 32}  # weights that a thread unpacks at a time on their way to shared memory
TILES = (16, 32, 64, 128, 256)
DEPTHS = (64, 128, 256)
FULL_TILE = 64  # with more rows of A than that, smaller tiles read more than the caches deliver
TENSOR_COPY_ALIGNMENT = 128  # bytes: where a bulk copy of a tensor's box may begin in shared memory
ALIGNMENT = 1024  # bytes: where TileLang lets the operand of a matrix instruction start


def scale_rows(block_k: int, group: int) -> int:
    """Groups, and so rows of S, that `block_k` weights of a row meet; -1 is one group for all."""
    return 1 if group == -1 else -(-block_k // group)


def space(workload: Workload, target: Target) -> SearchSpace:
    """What can be tuned for `workload` on `target`."""
    m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
    group, element_bytes = int(workload.attrs["group"]), DTYPE_BYTES[workload.dtype]
    bulk_copies = k * element_bytes % 16 == 0
    rows, cols, depths = TILES, TILES, DEPTHS
    parameters = (
        Parameter("block_m", rows, "rows of A and C of one block"),
        Parameter("block_n", cols, "rows of W, columns of C, of one block"),
        Parameter("block_k", depths, "depth of the product that one iteration of the main loop adds"),
        Parameter("num_stages", (1, 2, 3, 4), "iterations whose copies are in flight together"),
        Parameter("threads", (64, 128, 256, 512), "threads that compute"),
        Parameter(
            "weights",
            ("registers", "registers_linear", "shared", "shared_wide"),
            "where unpacked weights go: into registers, from a swizzled or linear tile; or into shared memory, 8 or 32 at a time",
        ),
        Parameter("decode", ("bits", "convert"), "how four bits become a float: by writing its bits, or by a conversion"),
        Parameter("policy", POLICIES, "how the tile is divided over the warps"),
        Parameter("swizzle", (0, 8), "block rows that are walked together, to find operands in the cache; 0: one by one"),
    )

    def result_size(config: Config) -> int:
        return config.int("block_m") * config.int("block_n")

    def registers(config: Config) -> int:
        if config["weights"] in RUNS:
            return result_size(config)
        # each warp holds the weights of its rows: warps side by side along the columns hold the same
        _unit, split = _division(target, config)
        along_cols = split[1] if split else 1
        return result_size(config) + config.int("block_n") * config.int("block_k") * along_cols * element_bytes // 4

    def shared_bytes(config: Config) -> int:
        block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
        stages = config.int("num_stages")
        operands = stages * (
            block_m * block_k * element_bytes + block_n * block_k // 2 + scale_rows(block_k, group) * block_n * element_bytes
        )
        if config["weights"] in RUNS:
            operands = -(-operands // ALIGNMENT) * ALIGNMENT + block_n * block_k * element_bytes
        # C takes the place of the operands after the main loop
        result = result_size(config) * element_bytes
        return max(operands, result) + launch(target, config.int("threads"), bulk_copies).barrier_bytes

    constraints = (
        pipelines(target),
        _unpacking(),
        not_beyond("block_m", rows, "m", m),
        not_beyond("block_n", cols, "n", n),
        not_beyond("block_k", depths, "k", k),
        Constraint("grid", lambda config: _too_many_blocks(-(-m // config.int("block_m")), config)),
        _enough_tile(m, n, target.int("core.count")),
        stages_within_loop(lambda config: -(-k // config.int("block_k")), "k"),
        fits_block(target, bulk_copies),
        _whole_instructions(target),
        _same_rows(target),
        _aligned_scales(target, n, group, element_bytes),
        fits_registers(target, bulk_copies, registers, "take more threads or a smaller block_m, block_n or block_k"),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_k, block_m or block_n"),
        _swizzle_matters(m, n, target.int("core.count")),
    )
    return SearchSpace(parameters, constraints)


def _division(target: Target, config: Config) -> tuple[MatrixUnit, tuple[int, int] | None]:
    """The matrix instructions, and how many warps stand along the rows and columns of the product's tile."""
    block_m, block_n, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
    rows, cols = (block_n, block_m) if config["weights"] not in RUNS else (block_m, block_n)
    unit = matrix_unit(target, rows, threads)
    return unit, unit.split(config.str("policy"), rows, cols, threads)


def _unpacking() -> Constraint:
    """Every thread unpacks whole runs on their way to shared memory. On their way to registers, the layout decides."""

    def violation(config: Config) -> str | None:
        run, threads = RUNS.get(config.str("weights")), config.int("threads")
        weights = config.int("block_n") * config.int("block_k")
        if run is None or weights % (threads * run) == 0:
            return None
        return (
            f"a tile of {weights} weights makes no whole runs of {run} for each of {threads} threads: take fewer threads, "
            "or a larger block_n or block_k"
        )

    return Constraint("whole runs", violation)


def _too_many_blocks(block_rows: int, config: Config) -> str | None:
    if block_rows <= MAX_GRID_Y:
        return None
    return f"block_m={config['block_m']} makes {block_rows} block rows, and a grid has at most {MAX_GRID_Y}: take a larger block_m"


def _enough_tile(m: int, n: int, cores: int) -> Constraint:
    """Small tiles only where larger ones would leave cores without a block. Few rows of A are read again at no cost, so
    tiles of half as many columns will do there, but every further block row unpacks all weights again."""
    rows, cols = min(FULL_TILE, m), min(FULL_TILE // 2 if m <= FULL_TILE else FULL_TILE, n)
    blocks = -(-m // rows) * -(-n // cols)

    def violation(config: Config) -> str | None:
        if blocks < cores:
            return None
        for parameter, enough in (("block_m", rows), ("block_n", cols)):
            if config.int(parameter) < enough:
                return (
                    f"{parameter}={config[parameter]} reads and unpacks more often than it must: tiles of {rows}x{cols} already make "
                    f"{blocks} blocks for {cores} cores; take at least {parameter}={enough}"
                )
        return None

    return Constraint("tile not too small", violation, is_waste=True)


def _whole_instructions(target: Target) -> Constraint:
    """Each warp owns whole matrix instructions, no matrix unit idles, and no two policies mean the same kernel."""

    def violation(config: Config) -> str | None:
        block_m, block_n, threads, policy = config.int("block_m"), config.int("block_n"), config.int("threads"), config.str("policy")
        rows, cols = (block_n, block_m) if config["weights"] not in RUNS else (block_m, block_n)
        unit, split = _division(target, config)
        if is_hopper(target) and rows >= 64 and unit.name != "wgmma":
            return f"threads={threads} is no whole warpgroup, so {rows} rows would miss wgmma: take threads=128 or more"
        if split is None:
            return uneven(unit, rows, cols, threads)
        return same_division(unit, policy, rows, cols, threads)

    return Constraint("whole matrix instructions", violation)


def _same_rows(target: Target) -> Constraint:
    """TileLang 0.1.15 deals the rows of a wgmma's left operand in registers to the warps in turn, and those of the product
    to whole warpgroups. With several warpgroups along the rows the two agree only where each has one instruction's rows;
    elsewhere a weight is multiplied into another row's result."""

    def violation(config: Config) -> str | None:
        if config["weights"] in RUNS:
            return None
        unit, split = _division(target, config)
        block_n = config.int("block_n")
        if unit.name != "wgmma" or split is None or split[0] == unit.group or block_n == split[0] * unit.rows:
            return None
        return (
            f"weights={config['weights']} would meet wrong rows: {split[0] // unit.group} warpgroups along block_n={block_n} have "
            f"{block_n // split[0] * unit.group} rows each, more than the {unit.group * unit.rows} of an instruction; take "
            f"block_n={split[0] * unit.rows}, policy=full_row with threads={2 * block_n}, or weights=shared"
        )

    return Constraint("rows of weights in registers", violation)


def _swizzle_matters(m: int, n: int, cores: int) -> Constraint:
    """The order of blocks changes what caches hold only where they do not all run at once."""

    def violation(config: Config) -> str | None:
        panel = config.int("swizzle")
        if panel == 0:
            return None
        rows, cols = -(-m // config.int("block_m")), -(-n // config.int("block_n"))
        if rows * cols <= cores:
            return f"swizzle={panel} reorders {rows * cols} blocks that run at once on {cores} cores: take swizzle=0"
        if rows == 1 or cols == 1:
            return f"swizzle={panel} has no panel to make of {rows}x{cols} blocks: take swizzle=0"
        return None

    return Constraint("swizzle", violation, is_waste=True)


def _aligned_scales(target: Target, n: int, group: int, element_bytes: int) -> Constraint:
    """TileLang 0.1.15 puts the stages of a tile side by side. Where the last tile reaches beyond n, scales come by bulk copies
    of a tensor's box, which a stage of 64 bytes sends to addresses that the hardware refuses (seen on an H200)."""
    boxes = is_hopper(target) and n * element_bytes % 16 == 0

    def violation(config: Config) -> str | None:
        block_n, stages = config.int("block_n"), config.int("num_stages")
        stage_bytes = scale_rows(config.int("block_k"), group) * block_n * element_bytes
        if not boxes or stages == 1 or n % block_n == 0 or stage_bytes % TENSOR_COPY_ALIGNMENT == 0:
            return None
        return (
            f"block_n={block_n} makes stages of {stage_bytes} bytes of scales, and where n={n} is no multiple of it each must be a "
            f"multiple of {TENSOR_COPY_ALIGNMENT}: take a larger block_n, or num_stages=1"
        )

    return Constraint("aligned scales", violation)
