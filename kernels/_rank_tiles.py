"""Tiles of a product of which each goes to the rank that it belongs to, by blocks that stay.

Every core has a block, which walks over tiles with its own pipeline (`_scheduled_tiles`), and each tile
leaves by parts of its columns while the next one is computed. Rows of A come in shards, one for each rank,
and a tile lies in one shard.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config
from ..search_spaces.rank_products import ORDERS, SPREAD
from ..search_spaces.stored_parts import part_columns
from ._scheduled_tiles import GROUP, in_order, scheduled_tiles
from ._stored_parts import stored_by_parts
from ._warp_policy import warp_policy


@dataclass(frozen=True)
class RankTiles:
    """The tiles of a product on one rank, and how blocks walk over them.

    Attributes:
        rows: of a shard, those of one rank.
        columns: of B.
        depth: of the product.
        world: number of shards.
        config: block_m, block_n, block_k, num_stages, threads, policy, swizzle, persistent and `order`:
            `last` takes one shard after the other, `spread` tiles of all shards in turns.
        dtype: of the operands and of what leaves.
        begin: the shard that comes first is that of so many ranks later; with 1 the own one is the last.
    """

    rows: int
    columns: int
    depth: int
    world: int
    config: Config
    dtype: str
    begin: int = 1

    @property
    def block_m(self) -> int:
        return self.config.int("block_m")

    @property
    def block_n(self) -> int:
        return self.config.int("block_n")

    @property
    def shard_tiles(self) -> int:
        """Rows of tiles of a shard."""
        return -(-self.rows // self.block_m)

    @property
    def tile_columns(self) -> int:
        return -(-self.columns // self.block_n)

    @property
    def tiles(self) -> int:
        return self.world * self.shard_tiles * self.tile_columns

    @property
    def panel(self) -> int:
        """Rows of tiles that are walked together."""
        return max(self.config.int("swizzle"), 1)

    @property
    def computing(self) -> int:
        """Threads of a block that compute."""
        return self.config.int("threads")

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.computing + GROUP

    def workers(self, others: int) -> int:
        """Blocks that compute, beside `others` that do not."""
        return min(self.config.int("persistent") - others, self.tiles)

    @property
    def depths(self) -> int:
        return -(-self.depth // self.config.int("block_k"))

    def place(self, tile: Any, rank: Any) -> tuple[Any, Any, Any]:
        """Of a tile by its number: its column of tiles, its shard, and its row of tiles there."""
        import tilelang.language as T  # noqa: N812

        total = self.world * self.shard_tiles
        panel = self.panel
        first = tile // (panel * self.tile_columns) * panel
        height = T.min(panel, total - first)
        inner = tile % (panel * self.tile_columns)
        column, row = inner // height, first + inner % height
        if self.config.str("order", ORDERS[0]) == SPREAD:
            return column, (row + rank + self.begin) % self.world, row // self.world
        shard = (row // self.shard_tiles + rank + self.begin) % self.world
        return column, shard, row % self.shard_tiles


@dataclass(frozen=True)
class Beside:
    """Blocks of the product's kernel that compute no tiles, and what the other ones do for them.

    Attributes:
        blocks: their number. They are the first ones, so that each has a core when tiles begin to wait. There
            may be none, where something else does what blocks of tiles wait for.
        act: a macro `(A, others, stages, block)`: all that such a block does, nothing of blocks that compute.
            `stages` are those of A and their barriers, which it may use.
        wait: a macro `(A, shard, first, count)` for one warp: returns when `count` rows of a shard are there.
            None: they are there.
        report: a macro `(others, place)` for the threads that compute, when they have sent a tile and
            computed the next one. None: nobody waits for tiles.
    """

    blocks: int
    act: Callable[[Any, Any, Any, Any], Any]
    wait: Callable[[Any, Any, Any, Any], Any] | None = None
    report: Callable[[Any, Any], Any] | None = None


def product_to_ranks(
    tiles: RankTiles,
    send_part: Callable[[Any, Any, Any, Any], Any],
    load_rows: Callable[[Any, Any, Any, Any], Any] | None = None,
    beside: Beside | None = None,
) -> Any:
    """A function `launch(A, B, others, rank)` for a PrimFunc: the launch of a kernel with these tiles.

    Args:
        tiles: the tiles.
        send_part: `(others, shard, part, at)` returns the copy of a part of a tile to the slices `at`, of
            rows within the shard and of columns. The copy may end later. `others` is a tuple, so that tensors
            keep their names.
        load_rows: `(A, shard, at, copy)` calls `copy` with a part of A: the slices `at` of rows of the shard
            and of depths. None: A has all shards.
        beside: blocks that compute no tiles; None: all blocks do.
    """
    import tilelang.language as T  # noqa: N812

    config, dtype = tiles.config, tiles.dtype
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, config.int("block_k")
    num_stages, threads = config.int("num_stages"), tiles.computing
    others = beside.blocks if beside else 0
    workers = tiles.workers(others)
    wait, report = (beside.wait, beside.report) if beside else (None, None)
    policy, width = warp_policy(config.str("policy")), part_columns(block_n, DTYPE_BYTES[dtype])

    def of_all(a: Any, shard: Any, at: tuple[slice, slice], copy: Callable[[Any], Any]) -> Any:
        first = shard * tiles.rows
        return copy(a[first + at[0].start : first + at[0].stop, at[1]])

    read = of_all if load_rows is None else load_rows

    @T.macro
    def load(tensors, place, depth, a_tile, b_tile, stage, full):  # type: ignore[no-untyped-def]
        column, shard, row = place
        rows = slice(row * block_m, row * block_m + block_m)
        deeps = slice(depth * block_k, depth * block_k + block_k)
        columns = slice(column * block_n, column * block_n + block_n)
        if wait is not None:  # noqa: SIM102 (of Python, the next one of the kernel)
            if depth == 0:
                wait(tensors[0], shard, row * block_m, block_m)
        read(
            tensors[0],
            shard,
            (rows, deeps),
            lambda part: T.tma_copy(part, a_tile[stage, :, :], barrier=full[stage], leader_scope_threads=32),
        )
        T.tma_copy(
            tensors[1][deeps, columns], b_tile[stage, :, :], barrier=full[stage], leader_scope_threads=32
        )

    def multiply(a: Any, b: Any, total: Any, clear: Any) -> Any:
        return T.wgmma_gemm(a, b, total, False, False, policy=policy, clear_accum=clear)

    @T.macro
    def fill(_, c_sum, first, c_parts, slot):  # type: ignore[no-untyped-def]
        T.copy(c_sum[:, first : first + width], c_parts[slot, :, :])

    @T.macro
    def send(where, first, c_parts, slot):  # type: ignore[no-untyped-def]
        target, place = where
        column, shard, row = place
        start = column * block_n + first
        at = slice(row * block_m, row * block_m + block_m), slice(start, start + width)
        send_part(target, shard, c_parts[slot, :, :], at)

    store_parts = stored_by_parts(fill, send, block_m, block_n, dtype)

    @T.macro
    def keep(tensors, place, before, c_sum):  # type: ignore[no-untyped-def]
        if report is not None:
            turn, sent = before
            if turn > 0:
                report(tensors[2], sent)
        store_parts((tensors[2], place), c_sum)

    @T.macro
    def walk(role, tensors, buffers, barriers, where):  # type: ignore[no-untyped-def]
        block, rank = where
        turns = (tiles.tiles + workers - 1 - (block - others)) // workers
        for turn in T.serial(T.if_then_else(block < others, 0, turns) if others else turns):
            # the model evaluates turns that the last blocks do not have
            tile = T.min(turn * workers + block - others, tiles.tiles - 1)
            place = tiles.place(tile, rank)
            before = (turn, tiles.place(T.max(tile - workers, 0), rank)) if report is not None else None
            role(tensors, buffers, barriers, place, (0, tiles.depths), turn * tiles.depths, before)

    run = scheduled_tiles(load, multiply, keep, num_stages, threads, False, in_order())

    @T.macro
    def launch(A, B, sent_to, rank):  # type: ignore[no-untyped-def]  # noqa: N803
        with T.Kernel(others + workers, threads=threads + GROUP) as block:
            a_tile = T.alloc_shared((num_stages, block_m, block_k), dtype)
            b_tile = T.alloc_shared((num_stages, block_k, block_n), dtype)
            c_sum = T.alloc_fragment((block_m, block_n), "float32")
            full = T.alloc_barrier([1] * num_stages)
            free = T.alloc_barrier([threads // 32] * num_stages)
            if beside is not None:
                beside.act(A, sent_to, (a_tile, full), block)
            run((A, B, sent_to), (a_tile, b_tile, c_sum), (full, free), walk, (block, rank))
            # what it has sent is at the peers, and not only read
            T.tma_store_wait(0, read=False)

    return launch
