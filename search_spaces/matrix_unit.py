"""Matrix units: how TileLang 0.1.15 divides a tile product over the warps of a block, and launches the block.

The division determines which configs can be lowered and which of them are the same kernel.
`tests/unit/search_spaces/test_matrix_unit.py` compares it with TileLang's result.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..target.spec import Target

POLICIES = ("square", "full_row", "full_col")
MAX_WGMMA_COLUMNS = 256  # of one instruction
GROUP, GROUP_ROWS = 128, 64  # threads of a warpgroup, and rows of its instruction


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """Matrix instructions of one kind.

    Each warp has whole multiples of `rows` x `cols` of the output tile. The number of warps along the rows is
    a multiple of `group` (four for a Hopper warpgroup).
    """

    name: str
    rows: int
    cols: int
    group: int
    warp_threads: int

    def splits(self, tile_rows: int, tile_cols: int, threads: int) -> list[tuple[int, int]]:
        """Every (warps along rows, warps along columns) that covers the tile evenly."""
        warps = threads // self.warp_threads
        return [
            (along_rows, warps // along_rows)
            for along_rows in range(self.group, warps + 1, self.group)
            if warps % along_rows == 0
            and tile_rows % (along_rows * self.rows) == 0
            and tile_cols % (warps // along_rows * self.cols) == 0
        ]

    def split(self, policy: str, tile_rows: int, tile_cols: int, threads: int) -> tuple[int, int] | None:
        """The division by `policy`; None if no division is even."""
        even = self.splits(tile_rows, tile_cols, threads)
        if not even:
            return None
        if policy == "full_row":
            return even[-1]
        if policy == "full_col":
            return even[0]

        def imbalance(split: tuple[int, int]) -> float:
            rows, cols = split
            return abs(
                (tile_rows / (rows * self.rows)) / (tile_cols / (cols * self.cols)) - tile_rows / tile_cols
            )

        return min(even, key=imbalance)


def matrix_unit(target: Target, tile_rows: int, threads: int) -> MatrixUnit:
    """The instructions that TileLang chooses for a tile of that many rows and that many threads."""
    if target.kind == "hip":
        return MatrixUnit("MFMA", rows=16, cols=16, group=1, warp_threads=target.int("warp.threads"))
    warp = target.int("warp.threads")
    if is_hopper(target) and tile_rows >= 64 and threads % (4 * warp) == 0:
        return MatrixUnit("wgmma", rows=16, cols=8, group=4, warp_threads=warp)
    return MatrixUnit("mma", rows=16, cols=8, group=1, warp_threads=warp)


def wgmma_columns(target: Target, policy: str, rows: int, cols: int, threads: int) -> int:
    """Columns of one wgmma of a tile of `rows` x `cols`; 0 if the tile has other instructions or none."""
    unit = matrix_unit(target, rows, threads)
    split = unit.split(policy, rows, cols, threads) if unit.name == "wgmma" else None
    return min(MAX_WGMMA_COLUMNS, cols // split[1]) if split else 0


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch that TileLang makes for a block."""

    threads: int  # launched, with the warpgroup that only copies if there is one
    registers: int  # most 32-bit registers of a computing thread
    compiled_registers: int  # limit of ptxas: an even share of the file, before registers move at run time
    barrier_bytes: int  # shared memory of the copies' barriers, with their alignment


def launch(target: Target, threads: int, bulk_copies: bool) -> Launch:
    """The launch of a block.

    Args:
        target: the chip.
        threads: number of threads that compute.
        bulk_copies: every row of the tensors starts at a multiple of 16 bytes, so that a Hopper kernel copies
            through TMA, from a separate warpgroup. TileLang moves registers from that warpgroup to up to
            three computing ones (240, 240 or 160 per thread); four or more keep an even share.
    """
    most, file = target.int("thread.max_registers"), target.int("core.memory.registers.bytes") // 4
    if not (is_hopper(target) and bulk_copies):
        return Launch(threads, min(most, file // threads), min(most, file // threads // 8 * 8), 0)
    producer = 4 * target.int("warp.threads")
    launched = threads + producer
    moved = {1: 240, 2: 240, 3: 160}.get(threads // producer)
    share = min(most, file // launched // 8 * 8)
    return Launch(launched, moved or share, share, 1024)


def is_hopper(target: Target) -> bool:
    """Whether TileLang uses wgmma, TMA and warp specialisation on this target."""
    return target.kind == "cuda" and target.arch.startswith("sm_90")
