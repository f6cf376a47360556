"""Tiles of attention whose keys are spread over ranks: which ones a tile of queries visits, in which order.

Without a causal mask each rank has a contiguous share of the positions. With it, positions are cut into
2 world parts of equal length, and rank r has part r and after it part 2 world - 1 - r (zigzag), so that each
rank has as much to compute: a query in one of its late positions sees as many more keys as one in its early
positions sees fewer.

A rank begins with its own keys, where alone a query may see a part of a tile. Then it takes those of the rank
after it, of the next one, and so on: the order in which `_rank_chunks` brings them. Of the parts of a peer, a
tile of queries sees all keys or none.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._attention_tiles import AttentionTiles
from ._ranks import on_rank


@dataclass(frozen=True)
class RankAttentionTiles(AttentionTiles):
    """Tiles of one rank's queries, and of the keys of all ranks.

    `seq_len` are the positions of a rank, whose parts are whole tiles. Queries have the axes of attention.
    Keys and values of all ranks have the axes (rank, position of all items, element of all heads).

    Attributes:
        world: number of ranks.
        rank: which of them this one is.
    """

    world: int = 2
    rank: Any = 0

    @property
    def part_tiles(self) -> int:
        """Tiles of keys of a part."""
        return int(self.seq_len) // (2 if self.causal else 1) // self.block_n

    def _own(self, row: Any) -> Any:
        """Tiles of the rank's own keys that a tile of queries sees: they are in the order of positions."""
        import tilelang.language as T  # noqa: N812

        return T.ceildiv(row + self.block_m, self.block_n) if self.causal else self.part_tiles

    def _after(self, row: Any) -> Any:
        """Parts of the ranks after this one that a tile of queries sees: late ones see both, early ones none.

        A product, with which TileLang's passes take half of the time that they take with a condition.
        """
        return row // (self.seq_len // 2) * (2 * (self.world - 1 - self.rank))

    def count(self, row: Any, length: Any) -> Any:
        """All tiles that are visited: with a mask, also the early parts of the ranks before this one."""
        if not self.causal:
            return self.world * self.part_tiles
        return self._own(row) + (self._after(row) + self.rank) * self.part_tiles

    def place(self, row: Any, tile: Any) -> tuple[Any, Any]:
        """Of a visited tile of keys, by its number: its rank, and which tile of that rank it is."""
        import tilelang.language as T  # noqa: N812

        is_own = tile < self._own(row)
        shard, there = self.place_of_peer(row, tile)
        return T.if_then_else(is_own, self.rank, shard), T.if_then_else(is_own, tile, there)

    def place_of_peer(self, row: Any, tile: Any) -> tuple[Any, Any]:
        """As `place`, of a tile that is not the rank's own."""
        import tilelang.language as T  # noqa: N812

        part, rank = self.part_tiles, self.rank
        if not self.causal:
            return (rank + tile // part) % self.world, tile % part
        after, other = self._after(row), tile - self._own(row)
        visited = other // part  # parts of peers
        shard = T.if_then_else(visited < after, rank + 1 + visited // 2, visited - after)
        late = T.if_then_else(visited < after, visited % 2, 0)
        return shard, late * part + other % part

    def keys(self, tensor: Any, where: tuple[Any, ...], key: Any) -> Any:
        row, _, head, item, _ = where
        shard, tile = self.place(row, key // self.block_n)
        return tensor[(shard, *self._at(item, tile, head))]

    def _at(self, item: Any, tile: Any, head: Any) -> tuple[slice, slice]:
        """Rows and columns of a tile of keys in the tensor of its rank."""
        first = item * self.seq_len + tile * self.block_n
        return slice(first, first + self.block_n), slice(head * self.width, (head + 1) * self.width)

    def macros(self) -> tuple[Any, Any, Any]:
        """As of one device; a mask cuts tiles of the own keys only."""
        import tilelang.language as T  # noqa: N812

        begin, look, finish = super().macros()

        @T.macro
        def look_at_own(scores, row, ko, length):  # type: ignore[no-untyped-def]
            if self.causal:  # noqa: SIM102  # known when the kernel is built
                if ko < self._own(row):
                    look(scores, row, ko, length)

        return begin, look_at_own, finish


@dataclass(frozen=True, kw_only=True)
class ArrivingTiles(RankAttentionTiles):
    """Tiles of keys that other ranks send meanwhile.

    A source of keys or values is a `Gathering`, and which of its tensors it is: the first one are the keys,
    with which the values of the same positions come.

    Attributes:
        chunk: keys that come together. Parts are whole chunks, and chunks are whole tiles.
        wait: a macro `(gathering, shard, first, count)` for one warp: returns when these rows are there.
    """

    chunk: int
    wait: Callable[[Any, Any, Any, Any], Any]

    def read(self, tensor: Any, where: tuple[Any, ...], key: Any, copy: Callable[[Any], Any]) -> None:
        import tilelang.language as T  # noqa: N812

        gathering, which = tensor
        own, gathered = gathering.pairs[which]

        @T.macro
        def choose(where, tile, rank):  # type: ignore[no-untyped-def]
            row, _, head, item, _ = where
            if tile < self._own(row):
                copy(own[0][self._at(item, tile, head)])
            else:
                shard, there = self.place_of_peer(row, tile)
                if which == 0:  # noqa: SIM102  # known when the kernel is built
                    if there * self.block_n % self.chunk == 0:
                        self.wait(gathering, shard, self._at(item, there, head)[0].start, self.chunk)
                on_rank(rank, gathered, lambda one: copy(one[(shard, *self._at(item, there, head))]))

        choose(where, key // self.block_n, gathering.rank)
