"""What blocks of attention have in common: the keys that a query sees, scores before and rows after a loop.

A block has `block_m` queries and visits tiles of `block_n` keys in ascending order.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# the first row_max of rows whose first tile may have no key that is seen: -infinity minus itself is no number
LOWEST_SCORE = -1e30


@dataclass(frozen=True)
class AttentionTiles:
    """The tiles of a block, and macros on them.

    A query sees the keys before the end of its item, or with `causal` those up to its own position, and with
    `window` > 0 only the last ones of these. The arguments of methods are expressions of TileLang, where
    `row` is the first query of the block, and `length` the number of positions of its item, or None if that
    is seq_len: TileLang gives a variable that it binds another name, and that of a size must stay.

    `where` is what a block computes: its first query, head, head of keys, item and length. Tensors have the
    axes (item, position, head, element). Those of `packed` items have no first axis; an item is then a pair,
    what must be added to a position of its queries and of its keys, and its queries end where its keys do.

    Attributes:
        block_m: queries of a block.
        block_n: keys of a tile.
        seq_len: positions of the tensors.
        head_dim: elements of a row.
        causal: see above.
        window: see above.
        softcap: scores are softcap tanh(score / softcap) if it is not 0.
        dtype: of the tensors.
        factor: of the scores before the softmax.
        packed: whether items follow each other along one axis; a query may then see no key.
    """

    block_m: int
    block_n: int
    seq_len: Any
    head_dim: int
    causal: bool
    window: int
    softcap: int
    dtype: str
    factor: float
    packed: bool = False

    @property
    def width(self) -> int:
        """Elements of a row with padding: a matrix instruction takes 16 of them at once."""
        return -(-self.head_dim // 16) * 16

    @property
    def scale(self) -> float:
        """Factor of the scores times log2(e), since weights are powers of two."""
        return (self.softcap or self.factor) * math.log2(math.e)

    @property
    def from_finite(self) -> bool:
        """Whether the first tile of a row may have no key that it sees; see `online_softmax`."""
        return self.window > 0 or self.packed

    def first(self, row: Any) -> Any:
        """The first tile that a query of the block sees."""
        import tilelang.language as T  # noqa: N812

        return T.max(0, row + 1 - self.window) // self.block_n if self.window else 0

    def count(self, row: Any, length: Any) -> Any:
        """The number of tiles of the block."""
        import tilelang.language as T  # noqa: N812

        tiles = (self._end(length) + self.block_n - 1) // self.block_n
        last = T.min(tiles, T.ceildiv(row + self.block_m, self.block_n)) if self.causal else tiles
        # a loop without iterations would not wait for the queries, whose memory the output takes
        count = last - self.first(row) if length is None else T.max(1, last - self.first(row))
        # some blocks of packed items have no query
        return T.if_then_else(row < length, count, 1) if self.packed else count

    def _end(self, length: Any) -> Any:
        return self.seq_len if length is None else length

    def queries(self, tensor: Any, where: tuple[Any, ...]) -> Any:
        """The rows of queries or of outputs; copies beyond an edge read zeros and write nothing."""
        row, head, _, item, _ = where
        if self.packed:
            return tensor[item[0] + row : item[0] + row + self.block_m, head, 0 : self.width]
        return tensor[item, row : row + self.block_m, head, 0 : self.width]

    def keys(self, tensor: Any, where: tuple[Any, ...], key: Any) -> Any:
        """The rows of keys or values from the position `key` on."""
        _, _, head, item, _ = where
        if self.packed:
            return tensor[item[1] + key : item[1] + key + self.block_n, head, 0 : self.width]
        return tensor[item, key : key + self.block_n, head, 0 : self.width]

    def read(self, tensor: Any, where: tuple[Any, ...], key: Any, copy: Callable[[Any], Any]) -> Any:
        """Calls `copy` with the rows of `keys`, for one warp that copies them."""
        return copy(self.keys(tensor, where, key))

    def writer(self) -> Any:
        """A macro `write(o_tile, O, where)` that copies a tile of the output to memory."""
        import tilelang.language as T  # noqa: N812

        rows, width, head_dim = self.block_m, self.width, self.head_dim

        @T.macro
        def write(o_tile, out, where):  # type: ignore[no-untyped-def]
            row, head, _, item, length = where
            if not self.packed or row + rows <= length:
                T.copy(o_tile, self.queries(out, where))
            else:  # the next rows are those of another item
                for i, j in T.Parallel(rows, width):
                    if row + i < length and j < head_dim:
                        out[item[0] + row + i, head, j] = o_tile[i, j]

        return write

    def macros(self) -> tuple[Any, Any, Any]:
        """Macros for what comes before the first tile, between the products of a tile, and after the last.

        Returns:
            `begin(o_sum, row_max, row_sum, sink, head)`, which starts the sums of each row;
            `look(scores, row, ko, length)`, which caps and masks the scores of tile ko; and
            `finish(o_sum, row_max, row_sum, row, length, LSE, item, head)`, which divides o_sum and writes
            the logarithms. `sink` and `LSE` may be None.
        """
        import tilelang.language as T  # noqa: N812

        rows, keys, width = self.block_m, self.block_n, self.width
        double = 2 * math.log2(math.e) * self.factor / max(1, self.softcap)
        infinity = T.infinity("float32")

        def limit(query: Any, length: Any) -> Any:
            return query + 1 if self.causal else self._end(length)

        def is_edge(row: Any, tile: Any, length: Any) -> Any:
            late = (tile + 1) * keys > limit(row, length)
            return T.Or(late, tile * keys < row + rows - self.window) if self.window else late

        def is_seen(query: Any, key: Any, length: Any) -> Any:
            before = key < limit(query, length)
            return T.And(before, key > query - self.window) if self.window else before

        @T.macro
        def begin(o_sum: T.Buffer, row_max: T.Buffer, row_sum: T.Buffer, sink: Any, head: Any):  # type: ignore[no-untyped-def]
            T.fill(o_sum, 0)
            if sink is not None:  # the first score of each row
                T.fill(row_sum, 1)
                T.fill(row_max, sink[head] * (math.log2(math.e) / self.scale))
            else:
                T.fill(row_sum, 0)
                T.fill(row_max, LOWEST_SCORE if self.from_finite else -infinity)

        @T.macro
        def look(scores: T.Buffer, row: Any, ko: Any, length: Any):  # type: ignore[no-untyped-def]
            # tanh(x) = 1 - 2 / (exp(2x) + 1) is as accurate as exp2. The instruction tanh.approx has an error
            # of 2^-11, and a softcap of 50 makes that 2 % of a weight
            if self.softcap:
                for i, j in T.Parallel(rows, keys):
                    scores[i, j] = 1 - 2 / (T.exp2(scores[i, j] * double) + 1)
            # only tiles at an edge have masked keys; this is checked at run time
            whole = length is None and isinstance(self.seq_len, int) and self.seq_len % keys == 0
            if self.causal or not whole:  # noqa: SIM102
                if is_edge(row, ko, length):
                    for i, j in T.Parallel(rows, keys):
                        seen = is_seen(row + i, ko * keys + j, length)
                        scores[i, j] = T.if_then_else(seen, scores[i, j], -infinity)

        @T.macro
        def finish(  # type: ignore[no-untyped-def]
            o_sum: T.Buffer,
            row_max: T.Buffer,
            row_sum: T.Buffer,
            row: Any,
            length: Any,
            logarithms: Any,
            item: Any,
            head: Any,
        ):
            if logarithms is not None:
                for i in T.Parallel(rows):
                    if row + i < (length if self.packed else self.seq_len):
                        found = (row_max[i] * self.scale + T.log2(row_sum[i])) * math.log(2)
                        if self.packed:
                            seen = row_max[i] > LOWEST_SCORE
                            logarithms[head, item[0] + row + i] = T.if_then_else(seen, found, -infinity)
                        elif length is None:
                            logarithms[item, head, row + i] = found
                        else:
                            logarithms[item, head, row + i] = T.if_then_else(row + i < length, found, 0)
            for i in T.Parallel(rows):
                if self.packed:
                    row_sum[i] = T.if_then_else(row_max[i] > LOWEST_SCORE, 1 / row_sum[i], 0)
                else:
                    row_sum[i] = 1 / row_sum[i]
            for i, j in T.Parallel(rows, width):
                if length is None or self.packed:
                    o_sum[i, j] *= row_sum[i]
                else:
                    o_sum[i, j] = T.if_then_else(row + i < length, o_sum[i, j] * row_sum[i], 0)

        return begin, look, finish
