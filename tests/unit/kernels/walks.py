"""Programs that write down which tiles blocks have.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from typing import Any

import tilelang.language as T  # noqa: N812

from tilesight.kernels._group_tiles import GroupTiles

MOST = 64  # tiles of a block


def places(tiles: GroupTiles, ends_size: int) -> Any:
    """A program of `ends` and `out`, the places (group, row, column, end) of the tiles of each block."""
    count, walk, groups = tiles.count(), tiles.walk(), tiles.groups

    @T.macro
    def note(tensors, _buffers, _barriers, place, part, done, _target):  # type: ignore[no-untyped-def]
        out, block = tensors[:2]
        out[block, done // part[1], 0] = place[0]
        out[block, done // part[1], 1] = place[1]
        out[block, done // part[1], 2] = place[2]
        out[block, done // part[1], 3] = place[3]

    @T.prim_func
    def program(  # type: ignore[no-untyped-def]
        ends: T.Tensor((ends_size,), "int32"),  # type: ignore[valid-type]
        out: T.Tensor((tiles.blocks, MOST, 4), "int32"),  # type: ignore[valid-type]
    ):
        with T.Kernel(tiles.blocks, threads=32) as block:
            before = T.alloc_shared((groups + 1,), "int32")
            count(ends, before)
            walk(note, (out, block, ends, before), None, None, block)

    return program
