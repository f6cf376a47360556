"""Tiles of groups of rows, for blocks that stay: group by group, column by column, in turns.

A block knows how many tiles the groups before each group have, and finds the group of a tile by a binary
search.
"""

from dataclasses import dataclass
from typing import Any

from ._grouped_tensors import GroupedTensors


@dataclass(frozen=True)
class GroupTiles:
    """The tiles of a product, and which of them a block has.

    Attributes:
        of: the layout of the tensors.
        groups: number of groups.
        block_m: rows of a tile.
        block_n: columns of a tile.
        columns: tiles side by side.
        depths: iterations of a tile.
        blocks: number of blocks.
    """

    of: GroupedTensors
    groups: int
    block_m: int
    block_n: int
    columns: int
    depths: int
    blocks: int

    def count(self) -> Any:
        """A macro `(ends, tiles)` of one thread that writes the number of tiles of the groups before each
        group, and at last of all groups.
        """
        import tilelang.language as T  # noqa: N812

        of, groups, block_m, columns = self.of, self.groups, self.block_m, self.columns

        @T.macro
        def count_tiles(ends, tiles):  # type: ignore[no-untyped-def]
            tiles[0] = 0
            for group in T.serial(groups):
                rows = of.end_of(ends, group) - of.begin_of(ends, group)
                tiles[group + 1] = tiles[group] + (rows + block_m - 1) // block_m * columns

        return count_tiles

    def walk(self) -> Any:
        """A macro `(role, tensors, buffers, barriers, block)`, as `scheduled_tiles` needs it.

        `ends` and `tiles` are the last two of `tensors`. A tile's place is its group, its first row and
        column, and the row after the group's last one.
        """
        import tilelang.language as T  # noqa: N812

        of, groups, blocks, depths = self.of, self.groups, self.blocks, self.depths
        columns = self.columns
        block_m, block_n, steps = self.block_m, self.block_n, (self.groups - 1).bit_length()

        @T.macro
        def find(tiles, tile, found: T.Ref):  # type: ignore[no-untyped-def]
            # the last group whose tiles begin at `tile` or before; groups without tiles come before it
            for step in T.unroll(steps):
                later = T.min(found + (1 << (steps - 1 - step)), groups - 1)
                if tiles[later] <= tile:
                    found = later

        @T.macro
        def walk(role, tensors, buffers, barriers, block):  # type: ignore[no-untyped-def]
            ends, tiles = tensors[-2:]
            total, found = T.alloc_var("int32"), T.alloc_var("int32")
            first, across = T.alloc_var("int32"), T.alloc_var("int32")
            total = tiles[groups]
            for turn in T.serial(T.truncdiv(total - block + blocks - 1, blocks)):
                tile = turn * blocks + block
                found = 0
                find(tiles, tile, found)
                # names, which TileLang does not repeat wherever they are used, and what it knows of them
                group = found + 0
                T.assume(group >= 0)
                T.assume(group < groups)
                begin = of.begin_of(ends, group)
                end = of.end_of(ends, group)
                # the model evaluates turns that a block does not have, in groups without rows
                height = T.max((end - begin + block_m - 1) // block_m, 1)
                inner = tile - tiles[group]
                first = begin + T.truncmod(inner, height) * block_m
                across = T.truncdiv(inner, height)
                row, column = first + 0, across + 0
                T.assume(row >= 0)
                T.assume(column >= 0)
                T.assume(column < columns)
                place = (group, row, column * block_n, end)
                role(tensors, buffers, barriers, place, (0, depths), turn * depths, None)

        return walk
