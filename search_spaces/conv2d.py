"""Search space of conv2d: tiles of block_m pixels and block_n filters, block_k channels at a time."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.axes import Windows, extent, window
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    fits_block,
    fits_grid,
    fits_instruction,
    fits_registers,
    fits_shared_memory,
    not_beyond,
    pipelines,
    stages_within_loop,
    swizzle_matters,
    walks_over_tiles,
    whole_instructions,
)
from .matrix_unit import POLICIES, is_hopper, launch, wgmma_columns

TILES_M = (64, 128, 256)
TILES_N = (32, 64, 128, 192, 256)
DEPTHS = (32, 64, 128)
STAGES = (1, 2, 3, 4, 5, 6)
SWIZZLES = (0, 8)
# limits of a TMA copy of windows
MAX_STRIDE, MAX_PADDING, MAX_REACH = 8, 128, 255


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    batch, _, _, channels, filters = workload.dims.values()
    kernel = int(workload.attrs["kernel"])
    rows, cols = (extent(Windows(dim), workload.dims, workload.attrs) for dim in ("height", "width"))
    pixels, taps, element_bytes = batch * rows * cols, kernel**2, DTYPE_BYTES[workload.dtype]
    bulk, cores = _takes_windows(workload, target), target.int("core.count")
    # TileLang 0.1.15 divides 192 columns over 12 of 8 warps on AMD
    tiles_n = tuple(tile for tile in TILES_N if is_hopper(target) or tile != 192)
    parameters = (
        Parameter("block_m", TILES_M, "pixels of Y that one block computes"),
        Parameter("block_n", tiles_n, "filters that one block computes"),
        Parameter("block_k", DEPTHS, "channels of one iteration of the main loop"),
        Parameter("num_stages", STAGES, "iterations whose copies are in flight together"),
        Parameter("threads", (128, 256, 512), "threads that compute"),
        Parameter("policy", POLICIES, "how the tile is divided over the warps"),
        Parameter(
            "copies",
            ("bulk",) if bulk else ("threads",),
            "copies of windows by TMA from a separate warpgroup, or by the threads that compute",
        ),
        Parameter(
            "swizzle",
            SWIZZLES,
            "block rows that are walked together, so that operands stay in the cache; 0: one by one",
        ),
        Parameter(
            "persistent",
            (0, cores) if bulk else (0,),
            "blocks that walk over the tiles and copy for the next one meanwhile; 0: one block a tile",
        ),
    )

    def blocks(config: Config) -> tuple[int, int]:
        return -(-pixels // config.int("block_m")), -(-filters // config.int("block_n"))

    def trips(config: Config) -> int:
        rows, cols = blocks(config)
        tiles = rows * cols // config.int("persistent") if config.int("persistent") else 1
        return max(1, tiles) * taps * -(-channels // config.int("block_k"))

    def result_size(config: Config) -> int:
        return config.int("block_m") * config.int("block_n")

    def shared_bytes(config: Config) -> int:
        sides = config.int("block_m") + config.int("block_n")
        operands, result = config.int("num_stages") * sides * config.int("block_k"), result_size(config)
        # Y replaces the operands after the main loop, but not where the next tile's are copied meanwhile
        need = (operands + result if config.int("persistent") else max(operands, result)) * element_bytes
        return need + launch(target, config.int("threads"), bulk).barrier_bytes

    def instruction_columns(config: Config) -> int:
        rows, cols, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
        return wgmma_columns(target, config.str("policy"), rows, cols, threads)

    constraints = (
        pipelines(target),
        not_beyond("block_m", TILES_M, "batch*rows*cols", pixels),
        not_beyond("block_n", tiles_n, "filters", filters),
        not_beyond("block_k", DEPTHS, "channels", channels),
        fits_grid("block_m", pixels),
        *((_whole_channels(channels),) if bulk else ()),
        stages_within_loop(trips, "windows and channels"),
        fits_block(target, bulk),
        whole_instructions(target, "block_m", "block_n"),
        fits_registers(target, bulk, result_size, "take more threads or a smaller block_m or block_n"),
        fits_instruction(target, bulk, instruction_columns, "take a smaller block_n, or threads=256"),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_k, block_m or block_n"),
        walks_over_tiles(blocks),
        swizzle_matters(blocks, cores, SWIZZLES),
    )
    return SearchSpace(parameters, constraints)


def _takes_windows(workload: Workload, target: Target) -> bool:
    """Whether TMA can copy the windows.

    TileLang 0.1.15 lets the first window begin `padding` before the image and the last one as far before its
    end, which is right for a padding of half a window's reach.
    """
    kernel, stride, padding, dilation = window(workload.attrs)
    reach, element_bytes = dilation * (kernel - 1), DTYPE_BYTES[workload.dtype]
    return (
        is_hopper(target)
        and 2 * padding == reach <= MAX_REACH
        and padding <= MAX_PADDING
        and stride <= MAX_STRIDE
        and workload.dims["channels"] % min(DEPTHS) == 0
        and workload.dims["filters"] * element_bytes % 16 == 0
    )


def _whole_channels(channels: int) -> Constraint:
    """TMA copies whole parts of the channels of a window."""

    def violation(config: Config) -> str | None:
        block_k = config.int("block_k")
        if channels % block_k == 0:
            return None
        fitting = ", ".join(str(depth) for depth in DEPTHS if channels % depth == 0)
        return f"block_k={block_k} must divide channels={channels}; nearest legal values: {fitting}"

    return Constraint("whole channels", violation)
