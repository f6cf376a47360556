"""Partial attention of ranks, each of which has a share of the keys: its exchange, and its combination.

A rank sends its result for some heads to their owner, in rows of the output's columns in float32 and the
logarithm of the sum of weights behind them, and each owner combines what it has of all ranks.

`exchange` does all of it in one kernel. Its first blocks combine the parts of a tile, which a kernel before
it has left, store the result at the tile's owner and raise a flag there. They wait for nothing. Its last
blocks, fewer than a device has cores, wait for the flags of a tile and combine what came. So all blocks that
wait leave room for those that do not, and every wait ends. No wait is needed before results of the next call
are sent: they go to other memory (`SLOTS`). The call after that may use the first memory again: a rank ends
a call after all its peers have sent in it, which they do when they have ended the call before.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from dataclasses import dataclass
from typing import Any

from ._rank_flags import WAITING, TileFlags
from ._ranks import Tensor, on_rank
from ._split_kv import COMBINE_ROWS, COMBINE_THREADS, combine, parts_of

PADDING = 4  # floats of a row for its logarithm, so that rows begin at whole 16 bytes
SLOTS = 2  # of results in turn


@dataclass(frozen=True)
class RankParts:
    """The results of one call, of all ranks.

    Attributes:
        batch, q_len: rows of one head.
        heads: of one rank's output; those of all ranks follow each other.
        columns: of the output.
        world: number of ranks.
    """

    batch: int
    q_len: int
    heads: int
    columns: int
    world: int

    @property
    def width(self) -> int:
        """Floats of a row."""
        return self.columns + PADDING

    @property
    def tiles(self) -> int:
        """Of one owner: heads of one query that a block combines."""
        return self.batch * self.q_len * self.head_tiles

    @property
    def head_tiles(self) -> int:
        return -(-self.heads // COMBINE_ROWS)

    def place(self, tile: Any) -> tuple[Any, Any, Any]:
        """Item, query and first head of a tile of one owner."""
        row, first = tile // self.head_tiles, tile % self.head_tiles * COMBINE_ROWS
        return row // self.q_len, row % self.q_len, first

    @property
    def staging(self) -> Tensor:
        """Of an owner: the results of each rank, in turn."""
        return (SLOTS, self.world, self.batch, self.q_len, self.heads, self.width), "float32"

    @property
    def flags(self) -> TileFlags:
        return TileFlags(self.world, self.tiles, self.tiles)

    @property
    def partial(self) -> Tensor:
        """The results of one rank, for all owners."""
        return (self.world, self.batch, self.q_len, self.heads, self.width), "float32"

    @property
    def gathered(self) -> Tensor:
        """The results of all ranks for all owners."""
        return (self.world, self.world, self.batch, self.q_len, self.heads, self.width), "float32"


def _own_result(parts: RankParts, split_k: int) -> Any:
    """A macro: the result of this rank for a tile of an owner.

    It takes the scratch of `_split_kv.partials`, the owner, the tile, a function that does something with the
    tensor that the result goes to, and the first index of an item there.
    """
    import tilelang.language as T  # noqa: N812

    sum_up = combine(split_k, parts.columns, is_last=False)

    @T.macro
    def write_lse(results, row, query, head, lse):  # type: ignore[no-untyped-def]
        for i in T.Parallel(COMBINE_ROWS):
            results[(*row, query, head + i, parts.columns)] = lse[i]

    @T.macro
    def send(scratch, owner, tile, choose, row_of):  # type: ignore[no-untyped-def]
        item, query, head = parts.place(tile)
        heads, columns = slice(head, head + COMBINE_ROWS), slice(0, parts.columns)
        read_lse, read = parts_of(
            scratch[0], scratch[1], item, query, owner * parts.heads + head, parts.columns
        )
        sum_up(
            read_lse,
            read,
            lambda o_sum: choose(lambda one: T.copy(o_sum, one[(*row_of(item), query, heads, columns)])),
            lambda lse: choose(lambda one: write_lse(one, row_of(item), query, head, lse)),
        )

    return send


def _result_of_all(parts: RankParts) -> Any:
    """A macro: the outputs of this rank for a tile.

    It takes the tile, a function that does something with the tensor that has the results of all ranks, the
    first index of an item of a rank there, O, and LSE or None.
    """
    import tilelang.language as T  # noqa: N812

    sum_up = combine(parts.world, parts.columns)

    @T.macro
    def read_lse(results, row, query, head, weight):  # type: ignore[no-untyped-def]
        for i in T.Parallel(COMBINE_ROWS):
            weight[i] = results[(*row, query, head + i, parts.columns)]

    @T.macro
    def merge(tile, choose, row_of, out, lse):  # type: ignore[no-untyped-def]
        item, query, head = parts.place(tile)
        heads, columns = slice(head, head + COMBINE_ROWS), slice(0, parts.columns)
        sum_up(
            lambda rank, weight: choose(lambda one: read_lse(one, row_of(rank, item), query, head, weight)),
            lambda rank, part: choose(
                lambda one: T.copy(one[(*row_of(rank, item), query, heads, columns)], part)
            ),
            lambda o_sum: T.copy(o_sum, out[item, query, heads, columns]),
            None if lse is None else lambda found: T.copy(found, lse[item, query, heads]),
        )

    return merge


def exchange(parts: RankParts, split_k: int) -> Any:
    """A function for a PrimFunc: the launch of the kernel that sends results, waits for those of all ranks,
    and combines them.

    It takes the scratch of `_split_kv.partials`, staging and flags of all ranks, O and LSE (or None), and the
    rank.
    """
    import tilelang.language as T  # noqa: N812

    world, tiles, of_tiles = parts.world, parts.tiles, parts.flags
    sending, waiting = world * tiles, min(tiles, WAITING)
    send, merge = _own_result(parts, split_k), _result_of_all(parts)

    def row(number: Any, source: Any, item: Any) -> Any:
        return T.bitwise_and(number, SLOTS - 1), source, item

    @T.macro
    def receive(tile, staging, number, outputs, rank):  # type: ignore[no-untyped-def]
        merge(
            tile,
            lambda act: on_rank(rank, staging, act),
            lambda source, item: row(number, source, item),
            *outputs,
        )

    @T.macro
    def launch(scratch, staging, flags, outputs, rank):  # type: ignore[no-untyped-def]
        with T.Kernel(sending + waiting, threads=COMBINE_THREADS) as block:
            T.import_source(of_tiles.functions())
            # peers write what is read here
            T.annotate_restrict_buffers(*staging, *flags)
            number = T.alloc_var("int32")
            if block < sending:
                # own tiles come last, since they need no way
                owner, tile = (block // tiles + rank + 1) % world, block % tiles
                number = of_tiles.number_of_sent(flags, rank, owner, tile)
                send(
                    scratch,
                    owner,
                    tile,
                    lambda act: on_rank(owner, staging, act),
                    lambda item: row(number, rank, item),
                )
                of_tiles.raise_tile(flags, rank, owner, tile, number)
            else:
                for turn in T.serial((tiles + waiting - 1 - (block - sending)) // waiting):
                    mine = turn * waiting + block - sending
                    number = of_tiles.number_of_read(flags, rank, mine)
                    of_tiles.await_tile(flags, rank, mine, number)
                    receive(mine, staging, number, outputs, rank)

    return launch


def before_gather(parts: RankParts, split_k: int) -> Any:
    """A function for a PrimFunc: the launch of the kernel whose results the library gathers.

    It takes the scratch of `_split_kv.partials`, and the tensor `RankParts.partial`.
    """
    import tilelang.language as T  # noqa: N812

    send = _own_result(parts, split_k)

    @T.macro
    def launch(scratch, partial):  # type: ignore[no-untyped-def]
        with T.Kernel(parts.tiles, parts.world, threads=COMBINE_THREADS) as (tile, owner):
            send(scratch, owner, tile, lambda act: act(partial), lambda item: (owner, item))

    return launch


def after_gather(parts: RankParts) -> Any:
    """A function for a PrimFunc: the launch of the kernel that combines what the library has gathered.

    It takes the tensor `RankParts.gathered`, O and LSE (or None), and the rank.
    """
    import tilelang.language as T  # noqa: N812

    merge = _result_of_all(parts)

    @T.macro
    def launch(gathered, outputs, rank):  # type: ignore[no-untyped-def]
        with T.Kernel(parts.tiles, threads=COMBINE_THREADS) as tile:
            merge(
                tile,
                lambda act: act(gathered),
                lambda source, item: (source, rank, item),
                *outputs,
            )

    return launch
