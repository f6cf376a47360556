"""Online softmax: a tile of scores joins the running softmax of its rows, as in every attention kernel.

A block keeps for each row the largest score so far (`row_max`) and the sum of the weights so far (`row_sum`).
Where a tile brings a larger score, what was summed before must be scaled down, by `rescale`.
"""

from typing import Any


def online_softmax(
    rows: int,
    keys: int,
    scale: float,
    *,
    from_finite: bool = False,
    shares_rows: bool = False,
) -> Any:
    """A macro that turns a tile of scores into weights and updates its rows.

    Args:
        rows: rows of the tile.
        keys: columns of the tile.
        scale: factor of the scores times log2(e), since weights are powers of two.
        from_finite: whether row_max starts with a finite number, which stays where no key of a tile is seen.
        shares_rows: whether several warps have parts of a row, whose weights go to shared memory.

    Returns:
        A TileLang macro of float32 fragments: scores (rows, keys), which become weights; row_max, old_max,
        rescale, tile_sum, row_sum (rows). The caller starts row_max with -infinity and row_sum with 0, and
        multiplies its sums of weighted values by `rescale` afterwards. The first tile of a row must have a
        key that is seen: -infinity minus itself is no number. Where it may have none, the caller starts
        row_max with a finite number below all scores, and says so by `from_finite`.
    """
    import tilelang.language as T  # noqa: N812

    @T.macro
    def update(  # type: ignore[no-untyped-def]
        scores: T.Buffer,
        row_max: T.Buffer,
        old_max: T.Buffer,
        rescale: T.Buffer,
        tile_sum: T.Buffer,
        row_sum: T.Buffer,
    ):
        T.copy(row_max, old_max)
        T.reduce_max(scores, row_max, dim=1, clear=False)
        for i in T.Parallel(rows):
            if from_finite:  # of two equal large numbers, products differ if one is rounded and one is not
                rescale[i] = T.exp2((old_max[i] - row_max[i]) * scale)
            else:
                rescale[i] = T.exp2(old_max[i] * scale - row_max[i] * scale)
        for i, j in T.Parallel(rows, keys):
            scores[i, j] = T.exp2(scores[i, j] * scale - row_max[i] * scale)
        T.reduce_sum(scores, tile_sum, dim=1)
        for i in T.Parallel(rows):
            row_sum[i] = row_sum[i] * rescale[i] + tile_sum[i]
        # Sums of a row over several warps pass through shared memory. TileLang may put the weights there as
        # well, and does not see that some warps still read sums when others write weights
        if shares_rows:
            T.sync_threads()

    return update


def scale_down(rows: int, width: int) -> Any:
    """A macro `scale_sums(sums, rescale)` that multiplies the rows of sums (rows, width) by `rescale`.

    Warps whose rows keep their scale do nothing.
    """
    import tilelang.language as T  # noqa: N812

    @T.macro
    def scale_sums(sums: T.Buffer, rescale: T.Buffer):  # type: ignore[no-untyped-def]
        rises = T.alloc_var("int32")
        rises = 0
        for i in T.Parallel(rows):
            if rescale[i] != 1:
                rises = 1
        if T.any_sync(rises != 0) != 0:
            for i, j in T.Parallel(rows, width):
                sums[i, j] *= rescale[i]

    return scale_sums
