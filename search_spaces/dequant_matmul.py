"""Search space of dequant_matmul: C[m, n] = A[m, k] W[n, k]^T in tiles of block_m x block_n x block_k."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace, Value
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    fits_block,
    fits_grid,
    fits_registers,
    fits_shared_memory,
    multiplies_float8,
    not_beyond,
    pipelines,
    same_division,
    stages_within_loop,
    swizzle_matters,
    uneven,
)
from .matrix_unit import POLICIES, MatrixUnit, is_hopper, launch, matrix_unit
from .row_reduction import fits_thread

RUNS = {"shared": 8, "shared_wide": 32}  # weights that a thread unpacks at a time for shared memory
SWIZZLES = (0, 8)
TILES = (8, 16, 32, 64, 128, 256)
OVERLAPPED_TILES = (8, 16, 32, 64, 128, 192, 256)
COLUMN_TILES = (16, 32, 64, 128, 256)
DEPTHS = (64, 128, 256)
FULL_TILE = 64  # with more rows of A, smaller tiles read too often for the caches
TENSOR_COPY_ALIGNMENT = 128  # bytes, of a bulk copy of a tensor's box in shared memory
TABLE_BYTES = 128  # sixteen numbers, and what aligns them
ALIGNMENT = 1024  # bytes, of TileLang for operands of matrix instructions
# weights that go from memory to registers
ROWS, COLUMNS, WARP = 16, 8, 32  # of an instruction
FEW_ROWS = 16  # of A
MOST_TILES = 4  # of 16 rows, of a warp
# weights that stream through shared memory
DEEP_STAGES = (6, 8)  # more than other schedules have
STREAMED_ROW = 128  # bytes of a row of W in a stage, at least
KEPT_BYTES = 128 * 1024  # of A in shared memory, at most
LEAST_OVERLAPPED = 64  # rows of weights: those of a matrix instruction of a warpgroup
MOST_ORDERED = 512  # threads from which on a wgmma may overtake stores of float8 weights
PAIRS_BYTES = 16 * 1024 + TABLE_BYTES  # of a table of pairs of weights
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


def keeps_a(m: int, k: int, element_bytes: int, block_m: int) -> bool:
    """Whether blocks that stream weights keep all of A in shared memory."""
    return m <= block_m and m * k * element_bytes <= KEPT_BYTES


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
    format_name, group = str(workload.attrs.get("format", "int4")), int(workload.attrs["group"])
    result_bytes = max(2, DTYPE_BYTES[workload.dtype])  # bfloat16 for float8
    is_float8 = workload.dtype == "float8_e4m3fn"
    element_bytes = 1 if format_name == "int2" or is_float8 else result_bytes
    weights_a_byte = 4 if format_name == "int2" else 2
    scale_bytes = 1 if format_name == "mxfp4" else result_bytes
    zero_bytes = result_bytes if workload.attrs.get("zeros", False) else 0
    bulk_copies = k * element_bytes % 16 == 0
    cols, depths = COLUMN_TILES, DEPTHS
    step = 256 if format_name == "int2" else 128  # weights of a row that four lanes read at once
    groups = 1 if group == -1 else max(1, step // group)
    cores = target.int("core.count")
    # every tensor is copied through TMA
    overlaps = (
        is_hopper(target)
        and m > FULL_TILE
        and format_name != "int2"
        and k % (16 * weights_a_byte) == 0
        and n * scale_bytes % 16 == 0
    )
    rows = OVERLAPPED_TILES if overlaps else TILES
    overlapped: Mapping[str, Value] = {
        "weights": "registers",
        "block_k": 128 if is_float8 and group != 64 else 64,
        "decode": "words" if "words" in DECODERS[format_name] else "table",
    }
    in_registers: tuple[str, ...] = ("registers", "registers_linear")
    if is_float8:
        in_registers = ("registers",) if overlaps else ()
    goes_direct = not is_float8 and target.kind == "cuda" and m <= FEW_ROWS and k % (step // 4) == 0
    # weights are copied through TMA, and scales that are read before the end
    streams = (
        goes_direct and is_hopper(target) and ((group == -1 and not zero_bytes) or n * scale_bytes % 16 == 0)
    )
    persistent: tuple[int, ...] = (0,)
    if streams:
        persistent = (0, cores, 2 * cores)
    elif overlaps and is_float8 and -(-m // FULL_TILE) * -(-n // FULL_TILE) > cores:
        persistent = (0, cores)
    parameters = (
        Parameter("block_m", rows, "rows of A and C of one block"),
        Parameter("block_n", cols, "rows of W, columns of C, of one block"),
        Parameter("block_k", depths, "depth of the product in one iteration of the main loop"),
        Parameter(
            "num_stages",
            (1, 2, 3, 4, *(DEEP_STAGES if streams else ())),
            "iterations whose copies are in flight together",
        ),
        Parameter("threads", (64, 128, 256, 512), "threads that compute"),
        Parameter(
            "weights",
            (*in_registers, *RUNS),
            "where weights are unpacked to: registers, from a swizzled or linear tile; or shared memory, 8 "
            "or 32 at a time",
        ),
        Parameter(
            "decode",
            ("words",) if is_float8 else DECODERS[format_name],
            "how codes become numbers: by bit operations on one or a word of them, a conversion, or a table",
        ),
        Parameter("policy", POLICIES, "how the tile is divided over the warps"),
        Parameter(
            "swizzle",
            SWIZZLES,
            "block rows that are walked together, so that operands stay in the cache; 0: one by one",
        ),
        Parameter(
            "reduce_warps",
            (0, 1, 2, 4, 8) if goes_direct else (0,),
            "warps that share rows of W, which goes from memory to registers; 0: through shared memory",
            default=0,
        ),
        Parameter(
            "overlapped",
            (False, True) if overlaps else (False,),
            "whether weights are unpacked to registers during the product of those before",
            default=False,
        ),
        Parameter(
            "persistent",
            persistent,
            "blocks that loop over tiles and copy for the next one meanwhile, where weights go to registers; "
            "0: one block a tile",
            default=0,
        ),
    )

    def blocks(config: Config) -> tuple[int, int]:
        return -(-m // config.int("block_m")), -(-n // config.int("block_n"))

    def result_size(config: Config) -> int:
        return config.int("block_m") * config.int("block_n")

    def registers(config: Config) -> int:
        size = result_size(config) * (2 if is_float8 else 1)  # sums of a group have registers of their own
        if config["weights"] in RUNS:
            return size
        # each warp has the weights of its rows, so warps along the columns have copies
        _unit, split = _division(target, config)
        copies = (split[1] if split else 1) * (2 if config.get("overlapped", False) else 1)
        return size + config.int("block_n") * config.int("block_k") * copies * element_bytes // 4

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
        # C replaces the operands after the main loop, unless copies are explicit
        result = result_size(config) * result_bytes
        if format_name == "int2":  # sums are scaled when they are complete
            result += config.int("block_n") * scale_bytes
        if config["decode"] == "table":
            operands += TABLE_BYTES
        both = operands + result if config.get("overlapped", False) else max(operands, result)
        return both + launch(target, config.int("threads"), bulk_copies).barrier_bytes

    def columns(config: Config) -> int:  # instructions along those of the product
        return -(-min(m, config.int("block_m")) * groups // COLUMNS)

    def direct_registers(config: Config) -> int:
        tiles, wide = _tiles_of_a_warp(config), columns(config)
        steps = 1 if _streams(config) else config.int("num_stages")
        loaded = steps * tiles * (8 + (0 if group == -1 else 4) + (4 if zero_bytes else 0))
        return loaded + 16 + (16 + 4 + 8 * tiles) * wide

    def direct_bytes(config: Config) -> int:
        block_n, parts = config.int("block_n"), config.int("reduce_warps", 0)
        pairs = PAIRS_BYTES if config["decode"] == "table" else 0
        if not _streams(config):
            return parts * block_n * columns(config) * COLUMNS * 4 + pairs
        block_m, depth = config.int("block_m"), parts * config.int("block_k")
        rows = 1 if group == -1 else max(1, depth // group)
        copied = block_n * depth // weights_a_byte
        for each in ((0 if group == -1 else scale_bytes), zero_bytes):
            copied += max(rows * block_n * each, TENSOR_COPY_ALIGNMENT) if each else 0
        # a kernel for any m has parts of A in its stages, and sums for block_m: it may need more, and fail
        of_a = config.int("num_stages") * block_m * depth * element_bytes
        if keeps_a(m, k, element_bytes, block_m):
            of_a = m * -(-k // depth) * depth * element_bytes
        sums = 2 * parts * min(m, block_m) * groups * block_n * 4
        return config.int("num_stages") * copied + of_a + sums + pairs + ALIGNMENT

    tiled = (
        *((multiplies_float8(target), _whole_groups(group), _ordered_stores()) if is_float8 else ()),
        _whole_tile(),
        not_beyond("block_m", rows[1:], "m", m),
        pipelines(target),
        _unpacking(),
        _enough_tile(m, n, cores),
        stages_within_loop(lambda config: -(-k // config.int("block_k")), "k"),
        fits_block(target, bulk_copies),
        _whole_instructions(target),
        _same_rows(target),
        _aligned_scales(target, n, group, scale_bytes, zero_bytes > 0),
        fits_registers(
            target, bulk_copies, registers, "take more threads or a smaller block_m, block_n or block_k"
        ),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_k, block_m or block_n"),
        swizzle_matters(blocks, cores, SWIZZLES),
        _overlapped_products(target, overlapped, is_float8),
        _few_stages(),
        _persistence_helps(blocks),
    )
    direct = (
        _streamed_stages(step, STREAMED_ROW * weights_a_byte),
        _together(target, blocks, cores, direct_registers, direct_bytes),
        _fixed_values(step, workload.dtype if format_name in ("fp4", "mxfp4") else ""),
        _whole_warps(),
        _few_stages(),
        not_beyond("block_m", rows, "m", m),
        _parts_within_row(-(-k // step), step),
        fits_thread(target, direct_registers, "take a smaller num_stages, block_n or block_m"),
        fits_shared_memory(target, direct_bytes, "take fewer reduce_warps or a smaller block_n"),
    )
    constraints = (
        *(_where(rule, is_direct=True) for rule in direct if goes_direct),
        not_beyond("block_n", cols, "n", n),
        not_beyond("block_k", depths, "k", k),
        fits_grid("block_m", m),
        *(_where(rule, is_direct=False) for rule in tiled),
    )
    return SearchSpace(parameters, constraints)


def _whole_groups(group: int) -> Constraint:
    """An iteration has one group, whose sums are scaled."""

    def violation(config: Config) -> str | None:
        depth = config.int("block_k")
        if group == -1 or group % depth == 0:
            return None
        return f"block_k={depth} exceeds the {group} weights with one scale: take block_k={group}"

    return Constraint("whole groups", violation)


def _where(rule: Constraint, is_direct: bool) -> Constraint:
    """`rule` for one of the two ways of W alone."""

    def violation(config: Config) -> str | None:
        return rule.violation(config) if (config.int("reduce_warps", 0) > 0) == is_direct else None

    return Constraint(rule.name, violation, rule.is_waste)


def _tiles_of_a_warp(config: Config) -> int:
    """Tiles of 16 rows of W that a warp has; 0 if they are not whole."""
    warps = config.int("threads") // WARP // max(1, config.int("reduce_warps", 0))
    return config.int("block_n") // ROWS // warps if warps else 0


def _whole_tile() -> Constraint:
    """Tiles of the product that pass through shared memory have at least the rows of an instruction."""

    def violation(config: Config) -> str | None:
        block_m = config.int("block_m")
        if block_m >= ROWS:
            return None
        return f"block_m={block_m} fills no instruction with reduce_warps=0: take block_m={ROWS}"

    return Constraint("whole tile", violation)


def _fixed_values(step: int, dtype: str) -> Constraint:
    """Weights that go from memory to registers leave no choice of some parameters.

    Numbers of fp4 have their bits in the places of float16; `dtype` is that of a workload of fp4.
    """
    fixed = {"block_k": step, "weights": "registers", "policy": "square", "swizzle": 0}

    def violation(config: Config) -> str | None:
        parts = config.int("reduce_warps", 0)
        for name, value in fixed.items():
            if config[name] != value and not (name == "block_k" and _streams(config)):
                return f"reduce_warps={parts} ignores {name}={config[name]}: take {name}={value}"
        if config.int("block_m") > FEW_ROWS:
            return f"reduce_warps={parts} is for few rows of A: take block_m={FEW_ROWS} or less"
        if config["decode"] not in ("words", "table"):
            return f"reduce_warps={parts} decodes words of 32 bits: take decode=words"
        if dtype == "bfloat16" and config["decode"] == "words":
            return f"reduce_warps={parts} decodes words of fp4 to float16, not bfloat16: take decode=table"
        return None

    return Constraint("direct weights", violation)


def _whole_warps() -> Constraint:
    """Each warp has one to four tiles of 16 rows."""

    def violation(config: Config) -> str | None:
        threads, parts, block_n = (config.int(name, 0) for name in ("threads", "reduce_warps", "block_n"))
        warps = threads // WARP
        if warps % parts:
            return f"threads={threads} has {warps} warps, fewer than reduce_warps={parts}: take {warps}"
        together = warps // parts * ROWS  # rows of a tile of each
        if block_n % together == 0 and block_n <= MOST_TILES * together:
            return None
        legal = ", ".join(str(together * count) for count in (1, 2, MOST_TILES))
        return (
            f"block_n={block_n} gives each of {warps // parts} warps no whole tiles of {ROWS} rows, or more "
            f"than {MOST_TILES}: take block_n={legal}"
        )

    return Constraint("whole warps", violation)


def _streams(config: Config) -> bool:
    """Whether weights stream through shared memory to registers."""
    return config.int("reduce_warps", 0) > 0 and config.int("persistent", 0) > 0


def _few_stages() -> Constraint:
    """Blocks that do not stay have few iterations in flight."""

    def violation(config: Config) -> str | None:
        stages = config.int("num_stages")
        if stages not in DEEP_STAGES or _streams(config):
            return None
        return f"num_stages={stages} is for weights that stream, with persistent > 0: take num_stages=4"

    return Constraint("few stages", violation)


def _streamed_stages(step: int, least: int) -> Constraint:
    """Stages of weights that stream have rows of at least `least` weights, and copies run ahead.

    `step` weights of a row are read at once by a warp, which reads one or two steps of each stage.
    """

    def violation(config: Config) -> str | None:
        block_k, parts, stages = (config.int(name, 0) for name in ("block_k", "reduce_warps", "num_stages"))
        if not _streams(config):
            return None
        if block_k not in (step, 2 * step):
            return f"persistent={config['persistent']} has no block_k={block_k}: take block_k={step}"
        if parts * block_k < least:
            return (
                f"reduce_warps={parts} with block_k={block_k} has stages of {parts * block_k} weights of a "
                f"row, fewer than the {least} of {STREAMED_ROW} bytes: take reduce_warps={least // block_k}"
            )
        if stages < 2:
            return f"num_stages={stages} copies nothing ahead: take num_stages=2 or more"
        return None

    return Constraint("streamed stages", violation)


def _together(
    target: Target,
    blocks: Callable[[Config], tuple[int, int]],
    cores: int,
    registers: Callable[[Config], int],
    shared_bytes: Callable[[Config], int],
) -> Constraint:
    """All blocks that stream weights run together, and there are no more than tiles."""
    file = target.int("core.memory.registers.bytes") // 4
    memory = target.int("core.memory.shared.bytes")

    def violation(config: Config) -> str | None:
        if not _streams(config) or config.int("persistent") == cores:
            return None
        persistent, (rows, cols) = config.int("persistent"), blocks(config)
        if rows * cols <= cores:
            return f"persistent={persistent} has only {rows * cols} tiles: take persistent={cores}"
        threads, each = config.int("threads") + WARP, persistent // cores
        if each * shared_bytes(config) > memory or each * threads * registers(config) > file:
            return (
                f"persistent={persistent} needs {each} times on a core the registers of {threads} threads, "
                f"and {shared_bytes(config)} bytes of shared memory: take persistent={cores}"
            )
        return None

    return Constraint("blocks together", violation)


def _parts_within_row(steps: int, step: int) -> Constraint:
    """Every warp that shares rows has a step, and every stage one; stages that weights stream through wait
    for no more.
    """

    def violation(config: Config) -> str | None:
        parts, stages = config.int("reduce_warps", 0), config.int("num_stages")
        if _streams(config):
            depth = parts * config.int("block_k") // step
            if depth <= steps or depth <= 2:
                return None
            return (
                f"reduce_warps={parts} with block_k={config['block_k']} needs {depth} steps of a row, which "
                f"has {steps}: take fewer"
            )
        if parts * stages <= steps or parts * stages == 1:
            return None
        return (
            f"reduce_warps={parts} with num_stages={stages} needs {parts * stages} steps of a row, which has "
            f"{steps}: take fewer"
        )

    return Constraint("parts within row", violation, is_waste=True)


def _division(target: Target, config: Config) -> tuple[MatrixUnit, tuple[int, int] | None]:
    """The matrix instructions, and the number of warps along rows and columns of the product's tile."""
    block_m, block_n, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
    rows, cols = (block_n, block_m) if config["weights"] not in RUNS else (block_m, block_n)
    unit = matrix_unit(target, rows, threads)
    return unit, unit.split(config.str("policy"), rows, cols, threads)


def _ordered_stores() -> Constraint:
    """Weights of float8 that four warpgroups store for each other.

    TileLang 0.1.15 orders stores before a wgmma by a fence that follows the barrier. Without a stage between,
    a few tiles were wrong on an H200.
    """

    def violation(config: Config) -> str | None:
        if config.int("num_stages") > 1 or config.int("threads") < MOST_ORDERED:
            return None
        return (
            f"num_stages=1 with threads={config['threads']} multiplies weights that other warpgroups may "
            f"still be storing: take num_stages=2, or threads={MOST_ORDERED // 2}"
        )

    return Constraint("ordered stores", violation)


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


def _overlapped_products(target: Target, fixed: Mapping[str, Value], is_float8: bool) -> Constraint:
    """Weights that are unpacked during a product: each warpgroup has those of one instruction's rows."""

    def violation(config: Config) -> str | None:
        block_m, block_n, stages = (config.int(name) for name in ("block_m", "block_n", "num_stages"))
        if not config.get("overlapped", False):
            if block_m not in TILES:
                return f"block_m={block_m} is for overlapped=true: take block_m={TILES[-2]}"
            if is_float8 and config["weights"] == "registers":
                return "weights=registers of float8 is for overlapped=true: take weights=shared"
            return None
        for name, value in {**fixed, "threads": 2 * block_n}.items():
            if config[name] != value:
                return (
                    f"overlapped=true with block_n={block_n} has no {name}={config[name]}: take "
                    f"{name}={value}"
                )
        if stages < 2:
            return (
                f"overlapped=true with num_stages={stages} unpacks nothing ahead: take num_stages=2 or more"
            )
        _unit, split = _division(target, config)
        if config.int("block_n") < LEAST_OVERLAPPED:
            return (
                f"overlapped=true needs whole instructions of {LEAST_OVERLAPPED} rows of weights, more than "
                f"block_n={config['block_n']}: take block_n={LEAST_OVERLAPPED}"
            )
        if split is None or split[1] == 1:
            return None
        return (
            f"overlapped=true unpacks each weight once, and policy={config['policy']} does so {split[1]} "
            "times: take policy=full_row"
        )

    return Constraint("overlapped products", violation)


def _persistence_helps(blocks: Callable[[Config], tuple[int, int]]) -> Constraint:
    """Persistent blocks have several overlapped tiles each."""

    def violation(config: Config) -> str | None:
        persistent = config.int("persistent", 0)
        if not persistent:
            return None
        if not config.get("overlapped", False):
            return f"persistent={persistent} is a schedule of overlapped=true: take persistent=0"
        rows, cols = blocks(config)
        if rows * cols > persistent:
            return None
        return f"persistent={persistent} has at most one of {rows * cols} tiles a block: take persistent=0"

    return Constraint("persistent blocks", violation, is_waste=True)


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
