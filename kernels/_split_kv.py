"""Attention of few queries over many keys: blocks take parts of the keys, and a second kernel combines them.

Each part leaves its normalised output in float32 and the logarithm (base 2) of its sum of weights. A part
without a key that is seen leaves zeros and -infinity, and so does the combination of such parts.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

LOWEST = -1e30  # what the largest score of a row begins with: below all scores, and minus itself it is 0
COMBINE_ROWS, COMBINE_THREADS = 4, 128  # a block of the second kernel

Reader = Callable[[Any, Any], Any]  # of a part, by its number, into a fragment


def partials(
    split_k: int, rows: tuple[int, ...], columns: int, *, always: bool = False
) -> Mapping[str, tuple[tuple[int, ...], str]]:
    """Scratch memory of the parts of outputs (*rows, columns); none if there is one part, unless `always`."""
    if split_k == 1 and not always:
        return {}
    return {"PartO": ((split_k, *rows, columns), "float32"), "PartLSE": ((split_k, *rows), "float32")}


def load_keys(keys: int, columns: int, page: int, by_row: bool, first_column: int = 0) -> Any:
    """A macro that copies a tile of consecutive keys of an item to shared memory.

    Args:
        keys: keys of the tile.
        columns: columns of the tile.
        page: keys of a page; 0 if the pool has one page for each item, and no table.
        by_row: whether each thread looks up the pages of its rows; else each page is copied as a whole.
        first_column: the tile's first column in the pool.

    Returns:
        A TileLang macro of the pool (pages, page, heads, columns of a head), the tile, the table (items,
        pages), the item, the head, the first key, and the last page of the item that has keys. Later entries
        of the table are not read, since a pipeline looks ahead and their values may be undefined.
    """
    import tilelang.language as T  # noqa: N812

    run = min(page or keys, keys)
    # TMA writes a part of a swizzled tile by panels of 128 bytes
    panel = columns if run == keys else math.gcd(columns, 64)
    # loops of Python, since a pipeline takes copies and no loops of copies
    pieces = [(row, column) for row in range(0, keys, run) for column in range(0, columns, panel)]

    def source(pool: Any, table: Any, item: Any, head: Any, key: Any, last: Any, column: int) -> Any:
        at = table[item, T.min(key // page, last)] if page else item
        start = key % page if page else key
        begin = first_column + column
        return pool[at, start : start + run, head, begin : begin + panel]

    @T.macro
    def load(  # type: ignore[no-untyped-def]
        pool: T.Buffer, tile: T.Buffer, table: Any, item: Any, head: Any, first: Any, last: Any
    ):
        if by_row:
            for i, j in T.Parallel(keys, columns):
                tile[i, j] = pool[
                    table[item, T.min((first + i) // page, last)], (first + i) % page, head, first_column + j
                ]
        else:
            for row, column in pieces:
                T.copy(
                    source(pool, table, item, head, first + row, last, column),
                    tile[row : row + run, column : column + panel],
                )

    return load


def normalise(rows: int, columns: int, scale: float) -> Any:
    """A macro that divides sums of weighted values by the sums of the weights.

    Args:
        rows: rows of the tile.
        columns: columns of its output.
        scale: factor of the scores times log2(e).

    Returns:
        A TileLang macro of float32 fragments: o_sum (rows, columns), which becomes the output; row_max, which
        becomes the logarithm of the sum of weights, and row_sum (rows). `row_max` began with `LOWEST`.
    """
    import tilelang.language as T  # noqa: N812

    @T.macro
    def divide(o_sum: T.Buffer, row_max: T.Buffer, row_sum: T.Buffer):  # type: ignore[no-untyped-def]
        for i in T.Parallel(rows):
            row_max[i] = row_max[i] * scale + T.log2(row_sum[i])
            row_sum[i] = T.if_then_else(row_sum[i] > 0, 1 / row_sum[i], 0)
        for i, j in T.Parallel(rows, columns):
            o_sum[i, j] *= row_sum[i]

    return divide


def combine(split_k: int, columns: int, is_last: bool = True) -> Any:
    """A macro for a block of the second kernel: the outputs of `COMBINE_ROWS` heads of one query.

    Args:
        split_k: number of parts.
        columns: columns of the output.
        is_last: whether the logarithm that is kept is the natural one; else that of a part.

    Returns:
        A TileLang macro of functions of fragments: `read_lse` and `read` copy the logarithms and the outputs
        of a part, `keep` and `keep_lse` (None if it is not wanted) take those of all parts.
    """
    import tilelang.language as T  # noqa: N812

    @T.macro
    def sum_up(read_lse, read, keep, keep_lse):  # type: ignore[no-untyped-def]
        o_sum = T.alloc_fragment((COMBINE_ROWS, columns), "float32")
        part = T.alloc_fragment((COMBINE_ROWS, columns), "float32")
        highest = T.alloc_fragment((COMBINE_ROWS,), "float32")
        weight = T.alloc_fragment((COMBINE_ROWS,), "float32")
        total = T.alloc_fragment((COMBINE_ROWS,), "float32")
        T.fill(o_sum, 0)
        T.fill(total, 0)
        T.fill(highest, LOWEST)
        for split in T.serial(split_k):
            read_lse(split, weight)
            for i in T.Parallel(COMBINE_ROWS):
                highest[i] = T.max(highest[i], weight[i])
        for split in T.serial(split_k):
            read_lse(split, weight)
            read(split, part)
            for i in T.Parallel(COMBINE_ROWS):
                weight[i] = T.exp2(weight[i] - highest[i])
                total[i] += weight[i]
            for i, j in T.Parallel(COMBINE_ROWS, columns):
                o_sum[i, j] += weight[i] * part[i, j]
        for i in T.Parallel(COMBINE_ROWS):
            weight[i] = T.if_then_else(total[i] > 0, 1 / total[i], 0)
        for i, j in T.Parallel(COMBINE_ROWS, columns):
            o_sum[i, j] *= weight[i]
        keep(o_sum)
        if keep_lse is not None:
            for i in T.Parallel(COMBINE_ROWS):
                if is_last:
                    highest[i] = (highest[i] + T.log2(total[i])) * math.log(2)
                else:
                    highest[i] = highest[i] + T.log2(total[i])
            keep_lse(highest)

    return sum_up


def parts_of(
    parts: Any, part_lse: Any, item: Any, query: Any, head: Any, columns: int
) -> tuple[Reader, Reader]:
    """What `combine` reads from the scratch of `partials`: logarithms and outputs of heads from `head` on."""
    import tilelang.language as T  # noqa: N812

    heads = slice(head, head + COMBINE_ROWS)
    return (
        lambda split, weight: T.copy(part_lse[split, item, query, heads], weight),
        lambda split, part: T.copy(parts[split, item, query, heads, 0:columns], part),
    )


def combination(split_k: int, batch: Any, q_len: int, heads: int, columns: int, natural: bool = True) -> Any:
    """A macro of the parts, their logarithms, the output and its logarithm (or None): the launch of the
    second kernel of one device. The logarithm is the `natural` one, or that to base 2.
    """
    import tilelang.language as T  # noqa: N812

    sum_up = combine(split_k, columns, is_last=natural)

    @T.macro
    def launch(parts, part_lse, out, lse):  # type: ignore[no-untyped-def]
        with T.Kernel(T.ceildiv(heads, COMBINE_ROWS), q_len, batch, threads=COMBINE_THREADS) as (
            tile, query, item,
        ):  # fmt: skip
            head = tile * COMBINE_ROWS
            read_lse, read = parts_of(parts, part_lse, item, query, head, columns)
            sum_up(
                read_lse,
                read,
                lambda o_sum: T.copy(o_sum, out[item, query, head : head + COMBINE_ROWS, 0:columns]),
                None
                if lse is None
                else lambda found: T.copy(found, lse[item, query, head : head + COMBINE_ROWS]),
            )

    return launch
