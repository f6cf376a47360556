"""Search spaces of matmul: C[m, n] = A[m, k] B[k, n] in tiles of block_m x block_n, block_k deep."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .cluster_sums import bytes_of_sums
from .constraints import (
    SCALED_BLOCK,
    WGMMA_REGISTERS,
    divides,
    fits_block,
    fits_grid,
    fits_instruction,
    fits_registers,
    fits_shared_memory,
    not_beyond,
    pipelines,
    rows_of_scales,
    stages_within_loop,
    swizzle_matters,
    whole_instructions,
    whole_scales,
)
from .matrix_unit import GROUP, POLICIES, is_hopper, launch, matrix_unit, wgmma_columns
from .stored_parts import PART_BYTES, PARTS, bytes_of_parts

FULL_TILE = 64  # smaller tiles read the operands too often for the caches; they help only with few blocks
SWIZZLES = (0, 4, 8, 16)
GPU_TILES = (16, 32, 64, 128, 192, 256)
UNEVEN_COLUMNS = 160  # of C; a few more sizes of large tiles leave fewer cores idle
COLUMN_TILES = tuple(sorted({*GPU_TILES, UNEVEN_COLUMNS}))
GPU_DEPTHS = (32, 64, 128)
SPLITS = (1, 2, 3, 4, 8, 16)
PART_TRIPS = 4  # iterations that a part of k is worth
LEAST_IDLE = 0.1  # share of the cores' time that streaming is worth
LEAST_AHEAD = 3  # stages of an explicit pipeline
CLUSTERED_TILE = 128
EXPLICIT = ("stream_k", "cluster_m", "cluster_n")  # parameters of tiles with pipelines of their own
MOST_SWAPPED = 512  # rows of A
RESULT_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float8_e4m3fn": 2, "int8": 4}
SCALED_BYTES = 2  # of a result of int8 operands with scales
MAX_VECTOR_FLOATS = 512  # the largest vector register file of a CPU core: 32 registers of 64 bytes


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    return _cpu_space(workload, target) if target.kind == "cpu" else _gpu_space(workload, target)


def _gpu_space(workload: Workload, target: Target) -> SearchSpace:
    m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
    hopper, hip, cores = is_hopper(target), target.kind == "hip", target.int("core.count")
    layout, scales = str(workload.attrs.get("layout", "nn")), workload.attrs.get("scales")
    element_bytes = DTYPE_BYTES[workload.dtype]
    is_scaled = scales not in (None, "none")
    result_bytes = SCALED_BYTES if is_scaled else RESULT_BYTES[workload.dtype]
    a_row, b_row = (m if layout[0] == "t" else k), (k if layout[1] == "t" else n)
    bulk_copies = a_row * element_bytes % 16 == 0 and b_row * element_bytes % 16 == 0
    tiles = GPU_TILES if hopper else tuple(tile for tile in GPU_TILES if tile != 192)
    columns = COLUMN_TILES if hopper else tiles
    depths = GPU_DEPTHS
    persists = hopper and bulk_copies and -(-m // FULL_TILE) * -(-n // FULL_TILE) > cores
    explicit, by_blocks = hopper and bulk_copies, scales == "block128"
    is_fused = workload.attrs.get("fuse", "none") != "none" or scales in ("tensor", "row")
    by_parts = explicit and n * result_bytes % 16 == 0  # parts of C leave through TMA
    stays_ahead = persists and by_parts and -(-m // CLUSTERED_TILE) * -(-n // CLUSTERED_TILE) > cores
    most_parts = round(target.get("cluster.max_blocks")) if hopper else 1  # whose blocks can be a cluster
    splits = -(-m // max(tiles)) * -(-n // max(tiles)) < cores
    parameters = (
        Parameter("block_m", tiles, "rows of C that one block computes"),
        Parameter("block_n", columns, "columns of C that one block computes"),
        Parameter("block_k", depths, "depth of the product in one iteration of the main loop"),
        Parameter("num_stages", (1, 2, 3, 4, 5), "iterations whose copies are in flight together"),
        Parameter(
            "threads", (64, 128, 256, 384, 512) if hopper else (64, 128, 256, 512), "threads that compute"
        ),
        Parameter("policy", POLICIES, "how the tile is divided over the warps"),
        # an LDS of 64 KiB is too small for large tiles of C
        Parameter(
            "epilogue",
            ("shared", "direct") if hip else ("shared", "parts") if by_parts and is_fused else ("shared",),
            "path of C: through shared memory, all of a tile or by parts of columns, or from registers",
        ),
        Parameter(
            "swizzle",
            SWIZZLES,
            "block rows that are walked together, so that operands stay in the cache; 0: one by one",
        ),
        Parameter(
            "split_k",
            SPLITS if splits else SPLITS[:1],
            "parts of k with blocks of their own, whose sums are added",
            default=1,
        ),
        Parameter(
            "reduce",
            ("kernel", "cluster") if splits and hopper and most_parts > 1 else ("kernel",),
            "what adds sums of parts of k: a second kernel, or a cluster of their blocks, in shared memory",
            default="kernel",
        ),
        Parameter(
            "persistent",
            (0, cores) if persists else (0,),
            "blocks that loop over tiles and copy for the next one meanwhile; 0: one block a tile",
            default=0,
        ),
        Parameter(
            "schedule",
            ("serial", "overlapped") if stays_ahead else ("serial",),
            "of persistent blocks: tile after tile, or with copies ahead of the next tile and C by parts",
            default="serial",
        ),
        Parameter(
            "swapped",
            (False, True) if hopper and m <= MOST_SWAPPED else (False,),
            "whether the rows of matrix instructions run along n: tiles of C^T, for few rows of A",
            default=False,
        ),
        Parameter(
            "stream_k",
            (0, cores) if explicit and not by_blocks else (0,),
            "blocks that share the iterations of the tiles that would not fill a last wave; 0: whole tiles",
            default=0,
        ),
        *(
            Parameter(
                f"cluster_{side}",
                (1, 2) if explicit else (1,),
                f"neighbours along {side}, a cluster of blocks that read the tiles of {shared} together",
                default=1,
            )
            for side, shared in (("m", "B"), ("n", "A"))
        ),
    )

    def blocks(config: Config) -> tuple[int, int]:
        return -(-m // config.int("block_m")), -(-n // config.int("block_n"))

    def tile_count(config: Config) -> int:
        rows, cols = blocks(config)
        return rows * cols

    def trips(config: Config) -> int:
        return -(-k // config.int("block_k")) // config.int("split_k", 1) or 1

    def result_size(config: Config) -> int:
        return config.int("block_m") * config.int("block_n")

    def scaled_columns(config: Config) -> int:
        # that one product has
        cols = config.int("block_n")
        return min(cols, SCALED_BLOCK) if by_blocks else cols

    def registers(config: Config) -> int:
        # sums of a block of k have registers of their own; a thread holds two numbers of 16 bits in each
        size, product = result_size(config), config.int("block_m") * scaled_columns(config)
        return size + product if by_blocks else size // 2 if "accumulate" in workload.attrs else size

    def shared_bytes(config: Config) -> int:
        # C replaces the operands after the main loop, unless copies for the next tile are under way
        operands = (
            config.int("num_stages") * (config.int("block_m") + config.int("block_n")) * config.int("block_k")
        ) * element_bytes
        is_direct = config["epilogue"] != "shared" or config.int("split_k", 1) > 1
        result = 0 if is_direct else result_size(config) * result_bytes
        if _adds_in_cluster(config):
            is_swapped = bool(config.get("swapped", False))
            result = bytes_of_sums(config.int("block_m"), config.int("block_n"), is_swapped)
        if _is_by_parts(config):
            result = bytes_of_parts(config.int("block_m"), config.int("block_n"), result_bytes)
        is_ahead = config.int("persistent", 0) or _is_scheduled(config)
        both = operands + result if is_ahead else max(operands, result)
        return both + launch(target, config.int("threads"), bulk_copies).barrier_bytes

    def instruction_columns(config: Config) -> int:
        rows, cols, threads = config.int("block_m"), scaled_columns(config), config.int("threads")
        if config.get("swapped", False):
            rows, cols = cols, rows
        return wgmma_columns(target, config.str("policy"), rows, cols, threads)

    constraints = (
        *_impossible(workload, target, layout),
        _one_schedule(),
        _stays_ahead(stays_ahead, PART_BYTES // element_bytes),
        _stored_by_parts(target, PART_BYTES // result_bytes),
        pipelines(target),
        not_beyond("block_m", tiles, "m", m),
        not_beyond("block_n", columns, "n", n),
        not_beyond("block_k", depths, "k", k),
        fits_grid("block_m", m),
        _enough_tile(m, n, cores),
        _uneven_columns(target),
        whole_scales(by_blocks, _is_ahead),
        _rows_of_scales(target, by_blocks),
        stages_within_loop(trips, "k"),
        fits_block(target, bulk_copies),
        _instructions(target),
        fits_registers(target, bulk_copies, registers, "take more threads or a smaller block_m or block_n"),
        fits_instruction(target, bulk_copies, instruction_columns, "take a smaller block_n, or threads=256"),
        swizzle_matters(blocks, cores, SWIZZLES),
        _whole_tiles(),
        _split_helps(tile_count, trips, cores),
        _cluster_of_parts(target, most_parts),
        _persistence_helps(target, tile_count, registers, bulk_copies),
        _swap_helps(),
        _streaming_helps(tile_count, lambda config: -(-k // config.int("block_k")), cores),
        _clusters_help(blocks, cores),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_k, block_m or block_n"),
    )
    return SearchSpace(parameters, constraints)


def _impossible(workload: Workload, target: Target, layout: str) -> list[Constraint]:
    """What the chip's matrix unit cannot do at all."""
    hip, dtype = target.kind == "hip", workload.dtype
    found = []
    if DTYPE_BYTES[dtype] == 1 and layout != "nt":
        found.append(
            f"layout={layout} has operands of 1 byte that are not contiguous along k, as matrix units need "
            "them: take layout=nt"
        )
    if hip and dtype.startswith("float8"):
        found.append(f"{dtype} is not the format of 8 bits that {target.name} multiplies: take bfloat16")
    if hip and "accumulate" in workload.attrs:
        found.append(f"accumulate=float16: {target.name} adds in float32 only; take accumulate=float32")
    return [_always(reason) for reason in found]


def _always(reason: str) -> Constraint:
    def violation(_: Config) -> str:
        return reason

    return Constraint("matrix unit", violation)


def _uneven_columns(target: Target) -> Constraint:
    """Tiles between the usual sizes are worth a try where they are large, and need whole instructions."""

    def violation(config: Config) -> str | None:
        cols, rows, threads = config.int("block_n"), config.int("block_m"), config.int("threads")
        if cols != UNEVEN_COLUMNS:
            return None
        if config.int("stream_k", 0) or config.int("split_k", 1) > 1 or rows < CLUSTERED_TILE:
            return (
                f"block_n={cols} is for whole tiles of {CLUSTERED_TILE} rows or more, without parts of k: "
                f"take block_n={CLUSTERED_TILE}"
            )
        split = matrix_unit(target, rows, threads).split(config.str("policy"), rows, cols, threads)
        if split is None or split[1] == 1:
            return None
        return (
            f"block_n={cols} over {split[1]} warpgroups side by side is no layout that TileLang 0.1.15 "
            f"lowers for all: take policy=full_row, fewer threads, or block_n={CLUSTERED_TILE}"
        )

    return Constraint("uneven columns", violation)


def _instructions(target: Target) -> Constraint:
    """`whole_instructions` for tiles of C, or of C^T."""
    straight = whole_instructions(target, "block_m", "block_n")
    swapped = whole_instructions(target, "block_n", "block_m")

    def violation(config: Config) -> str | None:
        return (swapped if config.get("swapped", False) else straight).violation(config)

    return Constraint(straight.name, violation)


def _whole_tiles() -> Constraint:
    """Persistent blocks compute whole tiles, of C."""

    def violation(config: Config) -> str | None:
        persistent = config.int("persistent", 0)
        if not persistent or not (config.int("split_k", 1) > 1 or config.get("swapped", False)):
            return None
        return (
            f"persistent={persistent} computes whole tiles of C: take persistent=0, or split_k=1 and "
            "swapped=false"
        )

    return Constraint("whole tiles", violation)


def _split_helps(
    tile_count: Callable[[Config], int], trips: Callable[[Config], int], cores: int
) -> Constraint:
    """Parts of k give work to idle cores. More blocks than run at once, or short parts, only add sums."""

    def violation(config: Config) -> str | None:
        parts = config.int("split_k", 1)
        if parts == 1:
            return None
        tiles, each = tile_count(config), trips(config)
        if tiles * parts > 2 * cores:
            return (
                f"split_k={parts} makes {tiles * parts} blocks of {tiles} tiles for {cores} cores: take a "
                "smaller split_k"
            )
        if each < PART_TRIPS:
            return f"split_k={parts} leaves {each} iterations, fewer than {PART_TRIPS}: take split_k=1"
        if config.int("swizzle"):
            return (
                f"split_k={parts} with swizzle={config['swizzle']} reorders blocks that run at once: take 0"
            )
        if config["epilogue"] != "shared":
            return f"split_k={parts} ignores epilogue={config['epilogue']}: take epilogue=shared"
        return None

    return Constraint("split of k", violation, is_waste=True)


def _cluster_of_parts(target: Target, most: int) -> Constraint:
    """A cluster of the blocks of all parts of k adds their sums, each block those of its share of rows."""

    def violation(config: Config) -> str | None:
        if config.get("reduce", "kernel") != "cluster":
            return None
        parts, rows = config.int("split_k", 1), config.int("block_m")
        if parts == 1:
            return "reduce=cluster adds sums of parts of k, and split_k=1 has none: take reduce=kernel"
        if parts > most:
            return (
                f"reduce=cluster with split_k={parts} needs clusters of {parts} blocks, and {target.name} "
                f"has clusters of at most {most}: take split_k={most} or reduce=kernel"
            )
        if rows % parts:
            return (
                f"reduce=cluster divides block_m={rows} among {parts} blocks, which is not even: take "
                "another split_k or reduce=kernel"
            )
        return None

    return Constraint("cluster of parts", violation)


def _persistence_helps(
    target: Target,
    tile_count: Callable[[Config], int],
    registers: Callable[[Config], int],
    bulk_copies: bool,
) -> Constraint:
    """Persistent blocks help if they have more than one tile each, and copies ahead of it."""

    def violation(config: Config) -> str | None:
        persistent = config.int("persistent", 0)
        if not persistent:
            return None
        tiles, stages = tile_count(config), config.int("num_stages")
        if tiles <= persistent:
            return (
                f"persistent={persistent} has at most one of {tiles} tiles for each block: take persistent=0"
            )
        if stages < 2:
            return f"persistent={persistent} with num_stages={stages} copies nothing ahead: take persistent=0"
        if _is_scheduled(config):
            if stages >= LEAST_AHEAD:
                return None
            return (
                f"persistent={persistent} with num_stages={stages} copies too late: take "
                f"num_stages={LEAST_AHEAD}"
            )
        threads = config.int("threads")
        need, share = (
            -(-registers(config) // threads),
            launch(target, threads, bulk_copies).compiled_registers,
        )
        if need + WGMMA_REGISTERS > share:
            return (
                f"persistent={persistent} needs {need} registers of a thread for sums, and TileLang 0.1.15 "
                f"moves none between the warpgroups of such blocks, which have {share}: take persistent=0"
            )
        return None

    return Constraint("persistent blocks", violation, is_waste=True)


def _swap_helps() -> Constraint:
    """Tiles of C^T need the rows of an instruction along n."""

    def violation(config: Config) -> str | None:
        block_n = config.int("block_n")
        if not config.get("swapped", False) or block_n >= FULL_TILE:
            return None
        return (
            f"swapped=true with block_n={block_n} fills no instruction of {FULL_TILE} rows: take "
            f"block_n={FULL_TILE} or more"
        )

    return Constraint("swapped operands", violation, is_waste=True)


def _adds_in_cluster(config: Config) -> bool:
    return config.int("split_k", 1) > 1 and config.get("reduce", "kernel") == "cluster"


def _is_scheduled(config: Config) -> bool:
    """Whether the tile's pipeline is an explicit one."""
    return _is_ahead(config) or max(config.int(name, 0) for name in EXPLICIT) > 1


def _is_ahead(config: Config) -> bool:
    return config.str("schedule", "serial") != "serial"


def _is_by_parts(config: Config) -> bool:
    return config["epilogue"] == "parts" or _is_ahead(config)


def _stored_by_parts(target: Target, columns: int) -> Constraint:
    """Parts are of columns that all warps of a tile have, and leave while the next ones are finished."""

    def violation(config: Config) -> str | None:
        if not _is_by_parts(config):
            return None
        rows, cols, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
        if config.int("split_k", 1) > 1 or config.get("swapped", False):
            return "parts are of tiles of C, with split_k=1 and swapped=false: take epilogue=shared"
        if rows < FULL_TILE or cols < PARTS * columns:
            return (
                f"a tile of {rows}x{cols} has no {PARTS} parts of {columns} columns and {FULL_TILE} rows: "
                "take epilogue=shared and schedule=serial"
            )
        split = matrix_unit(target, rows, threads).split(config.str("policy"), rows, cols, threads)
        if split is not None and split[1] > 1:
            return (
                f"policy={config['policy']} puts {split[1]} warpgroups side by side, with other columns: "
                "take policy=full_row, or epilogue=shared and schedule=serial"
            )
        return None

    return Constraint("parts", violation)


def _stays_ahead(has_schedules: bool, least_depth: int) -> Constraint:
    """Persistent blocks copy ahead of their next tile where they can."""

    def violation(config: Config) -> str | None:
        schedule, persistent = config.get("schedule", "serial"), config.int("persistent", 0)
        if schedule == "serial":
            if not persistent or not has_schedules:
                return None
            return (
                f"persistent={persistent} with schedule=serial ends its copies with each tile: take "
                "schedule=overlapped or persistent=0"
            )
        if not persistent:
            return f"schedule={schedule} is of blocks that stay, not of persistent=0: take schedule=serial"
        if config["epilogue"] != "shared":
            return f"schedule={schedule} has {PARTS} parts in any epilogue: take epilogue=shared"
        threads = config.int("threads")
        if threads < 2 * GROUP:
            return (
                f"schedule={schedule} with threads={threads} is 1 warpgroup, which waits for each product: "
                f"take threads={2 * GROUP}"
            )
        size, depth = config.int("block_m") * config.int("block_n"), config.int("block_k")
        if size < CLUSTERED_TILE**2 or depth < least_depth:
            return (
                f"schedule={schedule} with tiles of {size} elements, {depth} deep, waits for few bytes: "
                f"take tiles of {CLUSTERED_TILE}x{CLUSTERED_TILE}, {least_depth} deep, or more"
            )
        return None

    return Constraint("schedule", violation, is_waste=True)


def _one_schedule() -> Constraint:
    """Explicit pipelines are of wgmma on whole tiles of C, copy ahead, and have one schedule."""

    def violation(config: Config) -> str | None:
        stream, rows, cols = config.int("stream_k", 0), config.int("cluster_m", 1), config.int("cluster_n", 1)
        if not _is_scheduled(config):
            return None
        name = next((n for n in EXPLICIT if config.int(n, 0) > 1), "schedule")
        if (stream > 1) + (rows > 1) + (cols > 1) > 1:
            return (
                f"stream_k={stream}, cluster_m={rows} and cluster_n={cols} are schedules of their own: take "
                "one of them"
            )
        stays = _is_ahead(config)
        others = {"persistent": 0, "split_k": 1, "swapped": False}
        for other, plain in others.items():
            if config.get(other, plain) != plain and not (stays and other == "persistent" and stream <= 1):
                return (
                    f"{name}={config[name]} is a schedule of its own beside {other}={config[other]}: take "
                    f"{other}={str(plain).lower()}"
                )
        if config.int("block_m") < FULL_TILE:
            return f"{name}={config[name]} multiplies by wgmma: take block_m={FULL_TILE} or more"
        return None

    return Constraint("one schedule", violation)


def _rows_of_scales(target: Target, by_blocks: bool) -> Constraint:
    """In explicit pipelines, the lanes of a warp exchange the scales of the 64 rows of their warpgroup."""

    def violation(config: Config) -> str | None:
        if not by_blocks or not _is_scheduled(config):
            return None
        rows, cols, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
        return rows_of_scales(target, config.str("policy"), rows, cols, threads)

    return Constraint("rows of scales", violation)


def _streaming_helps(
    tile_count: Callable[[Config], int], depths: Callable[[Config], int], cores: int
) -> Constraint:
    """Shared iterations help if whole tiles leave cores idle for long, and cost a pass over their sums."""

    def violation(config: Config) -> str | None:
        if not config.int("stream_k", 0):
            return None
        tiles, each, stages = tile_count(config), depths(config), config.int("num_stages")
        waves = -(-tiles // cores)
        idle = 1 - tiles / (waves * cores)
        if idle < LEAST_IDLE:
            return (
                f"stream_k={cores} has {tiles} tiles, which leave {100 * idle:.0f} % of {waves} waves idle: "
                "take stream_k=0"
            )
        if 2 * tiles < cores:
            return f"stream_k={cores} has {tiles} tiles for {cores} cores: take split_k=2 or more"
        share = -(-(tiles % cores) * each // cores)
        if share < 2 * PART_TRIPS:
            return f"stream_k={cores} gives each block {share} iterations: take stream_k=0"
        if stages < LEAST_AHEAD:
            return f"stream_k={cores} with num_stages={stages} copies too late: take num_stages={LEAST_AHEAD}"
        return None

    return Constraint("shared iterations", violation, is_waste=True)


def _clusters_help(blocks: Callable[[Config], tuple[int, int]], cores: int) -> Constraint:
    """Clusters help large tiles in many blocks, which wait for their operands, and share the larger one."""

    def violation(config: Config) -> str | None:
        sizes = {"cluster_m": config.int("block_n"), "cluster_n": config.int("block_m")}
        name = next((name for name in sizes if config.int(name, 1) > 1), None)
        if name is None:
            return None
        other = next(n for n in sizes if n != name)
        rows, cols = blocks(config)
        along = rows if name == "cluster_m" else cols
        if along % 2:
            return f"{name}=2 leaves one of {along} blocks without a neighbour: take {name}=1"
        if 2 * rows * cols < cores:
            return f"{name}=2 has {rows * cols} blocks for {cores} cores: take {name}=1"
        if sizes[name] < sizes[other]:
            return (
                f"{name}=2 shares tiles of {sizes[name]} rows or columns, the smaller ones: take {name}=1 "
                f"and {other}=2"
            )
        stages = config.int("num_stages")
        if stages < LEAST_AHEAD:
            return f"{name}=2 with num_stages={stages} waits for both blocks: take num_stages={LEAST_AHEAD}"
        if min(sizes.values()) < CLUSTERED_TILE:
            return (
                f"{name}=2 with block_m={config['block_m']} and block_n={config['block_n']} reads much that "
                f"blocks do not share: take tiles of {CLUSTERED_TILE} or more"
            )
        return None

    return Constraint("clusters", violation, is_waste=True)


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
