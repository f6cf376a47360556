"""The loops of attention: the serial one for any GPU, and the choice between it and those of Hopper."""

from collections.abc import Callable, Mapping
from typing import Any

from ..problem.space import Config
from ._attention_tiles import AttentionTiles
from ._online_softmax import online_softmax
from ._overlapped_attention import Others, overlapped_attention

# of a tile of queries: its first query, head, head of keys, item and its length
Place = Callable[[Mapping[str, Any], Any, Any, Any], tuple[Any, Any, Any, Any, Any]]


def tiles_of_queries(
    sizes: tuple[Any, Any, Any], group: int, config: Config, causal: bool
) -> tuple[tuple[Any, Any, Any], Place]:
    """The grid of blocks, and the function `place(tensors, i0, i1, i2)` of its positions.

    Args:
        sizes: batch, query heads, and queries of an item and head.
        group: query heads that share a head of keys.
        config: has block_m and block_order.
        causal: whether the last queries see most keys.
    """
    batch, heads, queries = sizes
    block_m, by_length = config.int("block_m"), config["block_order"] == "by_length"
    query_blocks = (queries + block_m - 1) // block_m
    # the last axis is slowest; causal blocks of the last queries take longest and must not start last
    grid = (heads, batch, query_blocks) if by_length else (query_blocks, heads, batch)

    def place(tensors: Mapping[str, Any], i0: Any, i1: Any, i2: Any) -> tuple[Any, Any, Any, Any, Any]:
        head, item, in_order = (i0, i1, i2) if by_length else (i1, i2, i0)
        row = (query_blocks - 1 - in_order if causal else in_order) * block_m
        length = None if tensors["length"] is None else tensors["length"][item]
        return row, head, head // group if group > 1 else head, item, length

    return grid, place


def scheduled_attention(
    tiles: AttentionTiles, config: Config, known: bool, others: Others | None = None
) -> Any:
    """The macro `attention(tensors, grid, place)` of a config: the whole kernel; see `overlapped_attention`.

    Args:
        tiles: the tiles of a block.
        config: has num_stages and threads, and on Hopper what overlapped schedules need.
        known: whether all sizes are known.
        others: blocks that compute no attention, among the `persistent` ones of overlapped schedules.
    """
    num_stages, threads = config.int("num_stages"), config.int("threads")
    if (schedule := config.str("schedule", "serial")) == "serial":
        return _serial_attention(tiles, num_stages, threads)
    # TileLang cannot prove the barriers of blocks that stay where the number of tiles is unknown
    stay = config.int("persistent", 0) if known else 0
    stay -= others.blocks if others else 0
    return overlapped_attention(tiles, num_stages, threads, schedule == "ping_pong", stay, others)


def _serial_attention(tiles: AttentionTiles, num_stages: int, threads: int) -> Any:
    """The macro of `overlapped_attention`, for any GPU: TileLang makes the pipeline of copies, and the
    softmax waits for the product before it.
    """
    import tilelang.language as T  # noqa: N812

    block_m, block_n, width, dtype = tiles.block_m, tiles.block_n, tiles.width, tiles.dtype
    policy = T.GemmWarpPolicy.FullRow  # the softmax of a row is computed within one warp
    begin, look, finish = tiles.macros()
    write = tiles.writer()
    update = online_softmax(block_m, block_n, tiles.scale, from_finite=tiles.from_finite)

    @T.macro
    def attention(tensors, grid, place):  # type: ignore[no-untyped-def]
        with T.Kernel(*grid, threads=threads) as (i0, i1, i2):
            where = place(tensors, i0, i1, i2)
            row, head, _, item, length = where

            q_tile = T.alloc_shared((block_m, width), dtype)
            k_tile = T.alloc_shared((block_n, width), dtype)
            v_tile = T.alloc_shared((block_n, width), dtype)
            o_tile = T.alloc_shared((block_m, width), dtype)
            scores = T.alloc_fragment((block_m, block_n), "float32")
            weights = T.alloc_fragment((block_m, block_n), dtype)
            o_sum = T.alloc_fragment((block_m, width), "float32")
            row_max = T.alloc_fragment((block_m,), "float32")
            old_max = T.alloc_fragment((block_m,), "float32")
            rescale = T.alloc_fragment((block_m,), "float32")
            tile_sum = T.alloc_fragment((block_m,), "float32")
            row_sum = T.alloc_fragment((block_m,), "float32")

            # copies beyond an edge read zeros and write nothing
            T.copy(tiles.queries(tensors["Q"], where), q_tile)
            begin(o_sum, row_max, row_sum, tensors["sink"], head)
            for step in T.Pipelined(tiles.count(row, length), num_stages=num_stages):
                ko = tiles.first(row) + step
                T.copy(tiles.keys(tensors["K"], where, ko * block_n), k_tile)
                T.gemm(q_tile, k_tile, scores, transpose_B=True, policy=policy, clear_accum=True)
                look(scores, row, ko, length)

                update(scores, row_max, old_max, rescale, tile_sum, row_sum)
                T.copy(scores, weights)
                for i, j in T.Parallel(block_m, width):
                    o_sum[i, j] *= rescale[i]

                T.copy(tiles.keys(tensors["V"], where, ko * block_n), v_tile)
                T.gemm(weights, v_tile, o_sum, policy=policy)

            finish(o_sum, row_max, row_sum, row, length, tensors["LSE"], item, head)
            T.copy(o_sum, o_tile)
            write(o_tile, tensors["O"], where)

    return attention
