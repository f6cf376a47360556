"""Tiles of scores of attention: which are visited, which have keys that are not seen, and the cap of scores.

Kernels have a block of `block_m` queries and visit tiles of `block_n` keys in ascending order.
"""

import math
from dataclasses import dataclass
from typing import Any

# the first row_max of rows whose first tile may have no key that is seen: -infinity minus itself is no number
LOWEST_SCORE = -1e30


@dataclass(frozen=True)
class Sight:
    """Which keys a query sees: those before `length`, or with `causal` those up to its own position, and with
    `window` > 0 only the last ones of these. Arguments are expressions of TileLang.
    """

    block_m: int
    block_n: int
    causal: bool
    window: int

    def end(self, query: Any, length: Any) -> Any:
        """The first key that `query` does not see any more."""
        return query + 1 if self.causal else length

    def seen(self, query: Any, key: Any, length: Any) -> Any:
        import tilelang.language as T  # noqa: N812

        before = key < self.end(query, length)
        return T.And(before, key > query - self.window) if self.window else before

    def is_edge(self, row: Any, tile: Any, length: Any) -> Any:
        """Whether a tile has keys that some query of the block at `row` does not see."""
        import tilelang.language as T  # noqa: N812

        late = (tile + 1) * self.block_n > self.end(row, length)
        early = tile * self.block_n < row + self.block_m - self.window
        return T.Or(late, early) if self.window else late

    def first_tile(self, row: Any) -> Any:
        import tilelang.language as T  # noqa: N812

        return T.max(0, row + 1 - self.window) // self.block_n if self.window else 0

    def end_tile(self, row: Any, tiles: Any) -> Any:
        """The first tile after those that the block at `row` needs; `tiles`: number of tiles of its item."""
        import tilelang.language as T  # noqa: N812

        return T.min(tiles, T.ceildiv(row + self.block_m, self.block_n)) if self.causal else tiles


def scale_of(head_dim: int, softcap: int) -> float:
    """Factor of the scores times log2(e), since weights are powers of two; the scores may be capped."""
    return (softcap or head_dim**-0.5) * math.log2(math.e)


def cap(rows: int, keys: int, head_dim: int, softcap: int) -> Any:
    """A macro that turns products s of queries and keys into tanh(s / sqrt(head_dim) / softcap).

    tanh(x) = 1 - 2 / (exp(2x) + 1): as accurate as exp2. The instruction tanh.approx has an error of 2^-11,
    which a softcap of 50 makes an error of 2 % of a weight.
    """
    import tilelang.language as T  # noqa: N812

    double = 2 * math.log2(math.e) * head_dim**-0.5 / max(1, softcap)

    @T.macro
    def capped(scores: T.Buffer):  # type: ignore[no-untyped-def]
        if softcap:
            for i, j in T.Parallel(rows, keys):
                scores[i, j] = 1 - 2 / (T.exp2(scores[i, j] * double) + 1)

    return capped
