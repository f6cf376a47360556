"""Sums of the tiles that all ranks have sent, by blocks of the product's kernel that compute nothing.

A tile leaves through TMA, and is complete at its rank when the next tile of its block is computed: then the
block raises a flag there. The number of flags is that of the last barrier, so they only grow. A few blocks of
each rank wait for its tiles from all ranks, in the order in which they come, and add them in float32, in the
order of the ranks. The last tile of a block has no flag. After a barrier, a kernel of its own adds those.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..dtypes import DTYPE_BYTES
from ..problem.group_operator import ANNOUNCE_TILE, AWAIT_TILE
from ._rank_tiles import RankTiles
from ._ranks import Tensor, announcement, chosen_pointer, on_each, on_rank, pointer_parameters

VECTOR_BYTES = 16  # of a lane's access
VECTORS = 16  # that a thread has in flight
LATE_ROWS, LATE_THREADS = 16, 128  # of a block that adds the last tiles


@dataclass(frozen=True)
class Sending:
    """The tensors of a product whose tiles go to ranks and are added there.

    Attributes:
        staging: tiles of all ranks at each rank, of shape (world, rows, columns).
        results: of each rank.
        flags: of barriers.
        arrived: of tiles.
        rank: which of them this one is.
    """

    staging: Sequence[Any]
    results: Sequence[Any]
    flags: Sequence[Any]
    arrived: Sequence[Any]
    rank: Any


@dataclass(frozen=True)
class TileSums:
    """Which tiles of its own a rank adds beside the product. Tiles of all ranks are computed in turns.

    Attributes:
        tiles: of the product; the own ones are the last ones of their turn.
        blocks: that add.
        to_all: whether sums go to all ranks, which have the rows of all.
    """

    tiles: RankTiles
    blocks: int
    to_all: bool

    @property
    def number(self) -> int:
        """Tiles of a rank."""
        return self.tiles.shard_tiles * self.tiles.tile_columns

    @property
    def workers(self) -> int:
        """Blocks that compute."""
        return self.tiles.workers(self.blocks)

    def place(self, index: Any, least: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
        """Column and row of tiles of the own one that is computed after `index` others.

        Args:
            index: the number of other tiles.
            least: the smaller one of two numbers, of Python or of a kernel.
        """
        columns = self.tiles.tile_columns
        panel = max(self.tiles.panel // self.tiles.world, 1)
        first = index // (panel * columns) * panel
        height = least(panel, self.tiles.shard_tiles - first)
        inner = index % (panel * columns)
        return inner // height, first + inner % height

    @cached_property
    def early(self) -> int:
        """Own tiles that have flags at all ranks: that are no block's last tile anywhere.

        Of a tile of this rank, no rank is later than this one.
        """
        end = self.tiles.tiles - self.workers
        places = (self.place(index, min) for index in range(self.number))
        return sum(self._position(column, row) < end for column, row in places)

    def _position(self, column: int, row: int) -> int:
        """The number of a tile of this rank among those of all ranks."""
        world, panel = self.tiles.world, self.tiles.panel
        rows = world * self.tiles.shard_tiles
        among_all = row * world + world - 1
        first = among_all // panel * panel
        return first * self.tiles.tile_columns + column * min(panel, rows - first) + among_all - first


def shape_of_tile_flags(sums: TileSums) -> Tensor:
    """Shape and dtype of the flags of tiles of a rank: those of each rank that they come from."""
    return (sums.tiles.world, sums.number), "int32"


def tile_functions(world: int, number: int) -> str:
    """The text of `ANNOUNCE_TILE` and `AWAIT_TILE`.

    One thread calls the former, for which bulk copies of a tile are complete, and not only read. All threads
    of a block call the latter before they read a tile of `rank`.
    """
    parameters = f"{pointer_parameters('flags', world)}, {pointer_parameters('arrived', world)}"
    return f"""
{announcement(world, number)}
#ifndef TILESIGHT_{AWAIT_TILE.upper()}
#define TILESIGHT_{AWAIT_TILE.upper()}
__device__ __forceinline__ void {AWAIT_TILE}(int rank, int tile, {parameters}) {{
  const int *own = {chosen_pointer("flags", "rank", world)};
  const int *here = {chosen_pointer("arrived", "rank", world)};
  if (threadIdx.x < {world}) {{
    const int number = read_flag(own + {world});
    const int *from = here + threadIdx.x * {number} + tile;
    while ((int)((unsigned int)read_flag(from) - (unsigned int)number) < 0) {{
    }}
  }}
  __syncthreads();
}}
#endif
"""


def sums_of_tiles(sums: TileSums) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Three macros of the product's kernel and of the one after it.

    `add(_, sending, stages, block)` is all that a block adds beside the product, nothing of blocks that
    compute. `report(sending, place)` raises the flag of a tile that the block has sent. `launch(sending)`
    launches the kernel that adds the other tiles.
    """
    import tilelang.language as T  # noqa: N812

    tiles, world = sums.tiles, sums.tiles.world
    block_m, block_n, dtype = tiles.block_m, tiles.block_n, tiles.dtype
    width = VECTOR_BYTES // DTYPE_BYTES[dtype]
    of_row = block_n // width  # words of a row of a tile
    words = max(VECTORS // world, 1)  # of a thread that are added together
    functions = tile_functions(world, sums.number)

    def all_flags(sending: Sending) -> list[Any]:
        return [
            *(T.access_ptr(one[0], "rw", world + 1) for one in sending.flags),
            *(T.access_ptr(one[0, 0], "rw", world, sums.number) for one in sending.arrived),
        ]

    def is_inside(word: Any, last: Any, row: Any, column: Any) -> Any:
        """Whether a word of a tile is one of those up to `last`, and in the tensor."""
        inside = row + word // of_row < tiles.rows, column + word % of_row * width < tiles.columns
        return T.And(word < last, T.And(*inside))

    @T.macro
    def fetch(parts, at, held, first, last, threads):  # type: ignore[no-untyped-def]
        row, column = at
        for i in T.unroll(words):
            word = first + i * threads + T.get_thread_binding()
            if is_inside(word, last, row, column):
                for source in T.unroll(world):
                    for lane in T.vectorized(width):
                        held[i, source, lane] = parts[
                            source, row + word // of_row, column + word % of_row * width + lane
                        ]

    @T.macro
    def store(result, at, held, first, last, threads):  # type: ignore[no-untyped-def]
        begin, row, column = at
        for i in T.unroll(words):
            word = first + i * threads + T.get_thread_binding()
            if is_inside(word, last, row, column):
                for lane in T.vectorized(width):
                    result[begin + row + word // of_row, column + word % of_row * width + lane] = held[
                        i, 0, lane
                    ]

    @T.macro
    def add_words(sending, at, first, last, threads, held):  # type: ignore[no-untyped-def]
        row, column = at
        rank = sending.rank
        on_rank(rank, sending.staging, lambda parts: fetch(parts, at, held, first, last, threads))
        for i in T.unroll(words):
            for lane in T.unroll(width):
                total = T.alloc_var("float32")
                total = T.cast(held[i, 0, lane], "float32")
                for source in T.unroll(1, world):
                    total = total + T.cast(held[i, source, lane], "float32")
                held[i, 0, lane] = T.cast(total, dtype)
        if sums.to_all:
            place = (rank * tiles.rows, row, column)
            on_each(sending.results, lambda c: store(c, place, held, first, last, threads))
        else:
            on_rank(rank, sending.results, lambda c: store(c, (0, row, column), held, first, last, threads))

    @T.macro
    def add_rows(sending, place, rows, threads, held):  # type: ignore[no-untyped-def]
        column, row, inner = place
        first, last = inner * of_row, (inner + rows) * of_row
        step = threads * words
        for part in T.serial((last - first + step - 1) // step):
            add_words(
                sending,
                (row * block_m, column * block_n),
                first + part * step,
                last,
                threads,
                held,
            )

    @T.macro
    def add(_, sending, stages, block):  # type: ignore[no-untyped-def]  # noqa: ARG001
        T.import_source(functions)
        T.annotate_restrict_buffers(*sending.staging)
        held = T.alloc_local((words, world, width), dtype)
        mine = (sums.early + sums.blocks - 1 - block) // sums.blocks
        for turn in T.serial(T.if_then_else(block < sums.blocks, mine, 0)):
            # the model evaluates turns that the last blocks do not have
            index = T.min(turn * sums.blocks + block, sums.early - 1)
            column, row = sums.place(index, T.min)
            tile = row * tiles.tile_columns + column
            T.call_extern("handle", AWAIT_TILE, sending.rank, tile, *all_flags(sending))
            add_rows(sending, (column, row, 0), block_m, tiles.threads, held)

    @T.macro
    def report(sending, place):  # type: ignore[no-untyped-def]
        column, shard, row = place
        if T.shuffle_elect(tiles.computing):
            # of the thread that has issued the copies of the last tile
            T.tma_store_wait(0, read=False)
            tile = row * tiles.tile_columns + column
            T.call_extern("handle", ANNOUNCE_TILE, sending.rank, shard, tile, *all_flags(sending))

    @T.macro
    def launch(sending):  # type: ignore[no-untyped-def]
        late = sums.number - sums.early
        with T.Kernel(block_m // LATE_ROWS, late, threads=LATE_THREADS) as (part, number):
            held = T.alloc_local((words, world, width), dtype)
            column, row = sums.place(sums.early + number, T.min)
            add_rows(sending, (column, row, part * LATE_ROWS), LATE_ROWS, LATE_THREADS, held)

    return add, report, launch
