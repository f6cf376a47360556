"""Online softmax: a tile of scores joins the running softmax of its rows, as in every attention kernel.

A block keeps for each row the largest score so far (`row_max`) and the sum of the weights so far (`row_sum`).
Where a tile brings a larger score, what was summed before must be scaled down, by `rescale`.

Any number near the largest score serves as well as that score. So a lazy softmax goes on with the old one
until weights would exceed a limit, and scales few sums down.
"""

from typing import Any

COLUMNS = 8  # of a tile, of which a thread has two: the unit in which polynomials take their turns
LEAST_EXPONENT = -126.0  # of a normal number
# between 2^23 and 2^24: what is added to it becomes a whole number, in its lowest 9 bits, which are 0
ROUND = 12582400.0
# 2^x for -1/2 <= x <= 1/2 with a relative error of at most 8e-5, a sixth of that of a float16
POLYNOMIAL = (0.99992806, 0.69326097, 0.24261113, 0.05517167)


def online_softmax(
    rows: int,
    keys: int,
    scale: float,
    lazy: int = 0,
    polynomial: int = 0,
    *,
    from_finite: bool = False,
    shares_rows: bool = False,
) -> Any:
    """A macro that turns a tile of scores into weights and updates its rows.

    Args:
        rows: rows of the tile.
        keys: columns of the tile.
        scale: factor of the scores times log2(e), since weights are powers of two.
        lazy: rows keep their largest score as long as weights are at most 2 to the power of it; the caller
            then uses `scale_down`. 0: they never do.
        polynomial: one weight of so many is computed by multiply-adds, since a core of a GPU has few units
            for powers of two. 0: none is.
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

    def power(exponent: Any) -> Any:
        """2^exponent by multiply-adds: a polynomial of the fraction, to whose exponent the rest is added."""
        exponent = T.max(exponent, LEAST_EXPONENT)
        shifted = exponent + ROUND
        whole = T.reinterpret(shifted, "int32")
        fraction = exponent - (T.reinterpret(whole, "float32") - ROUND)
        found: Any = POLYNOMIAL[-1]
        for coefficient in POLYNOMIAL[-2::-1]:
            found = found * fraction + coefficient
        bits = T.reinterpret(found, "int32") + (whole << 23)
        return T.reinterpret(bits, "float32")

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
        if lazy:
            for i in T.Parallel(rows):
                row_max[i] = T.if_then_else(row_max[i] - old_max[i] > lazy / scale, row_max[i], old_max[i])
        for i in T.Parallel(rows):
            if from_finite:  # of two equal large numbers, products differ if one is rounded and one is not
                rescale[i] = T.exp2((old_max[i] - row_max[i]) * scale)
            else:
                rescale[i] = T.exp2(old_max[i] * scale - row_max[i] * scale)
        for i, j in T.Parallel(rows, keys):
            if polynomial:
                exponent = scores[i, j] * scale - row_max[i] * scale
                scores[i, j] = T.if_then_else(
                    j // COLUMNS % polynomial == 0, power(exponent), T.exp2(exponent)
                )
            else:
                scores[i, j] = T.exp2(scores[i, j] * scale - row_max[i] * scale)
        T.reduce_sum(scores, tile_sum, dim=1)
        for i in T.Parallel(rows):
            row_sum[i] = row_sum[i] * rescale[i] + tile_sum[i]
        # Sums of a row over several warps pass through shared memory. TileLang may put the weights there as
        # well, and does not see that some warps still read sums when others write weights
        if shares_rows:
            T.sync_threads()

    return update


def scale_down(rows: int, width: int, lazy: int = 0) -> Any:
    """A macro `scale_sums(sums, rescale)` that multiplies the rows of sums (rows, width) by `rescale`.

    With `lazy`, warps without a row that must be scaled do nothing.
    """
    import tilelang.language as T  # noqa: N812

    @T.macro
    def scale_sums(sums: T.Buffer, rescale: T.Buffer):  # type: ignore[no-untyped-def]
        if lazy:
            rises = T.alloc_var("int32")
            rises = 0
            for i in T.Parallel(rows):
                if rescale[i] != 1:
                    rises = 1
            if T.any_sync(rises != 0) != 0:
                for i, j in T.Parallel(rows, width):
                    sums[i, j] *= rescale[i]
        else:
            for i, j in T.Parallel(rows, width):
                sums[i, j] *= rescale[i]

    return scale_sums
