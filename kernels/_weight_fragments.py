"""What a warp computes with packed weights in its registers: their products with few rows of A, by mma.sync.

Lane 4 i + t has 16 bytes of each of two rows of W: codes of neighbours along k. Unpacked, they are the left
operand of m16n8k16 (int8: m16n8k32). An instruction may multiply any k, in any order, if both operands have
the same ones. So its k are those of a few codes of each of four lanes, in the order in which they are
unpacked; A is brought into this order in registers.

Codes become numbers by bit operations on a word: a code q of int4 becomes 16 + q, in the upper digits of a
significand. One more product, of ones with A, gives the sums of A, which are subtracted 16 plus the zero
point times. It serves all rows of a warp; an infinity in A gives NaN by it. Sums of a step of the matrix unit
are scaled and added in float32.

A column of the product is a row of A and a group of weights, of those that a step has: other groups are zeros
in it. So groups of 32 and 64 need no products of their own for one or two rows of A.

A lane reads the row of A that its column has. Lanes whose column has none keep zeros in their registers,
which are set once if all steps are whole.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..problem.space import Config
from ._packed import Packing, constant_of

LANE_WORDS = 4  # of 32 bits that a lane reads at once from a row of W
WORDS = 4  # of operands, from a word of codes
REPLICAS = 16  # of the table of pairs, so that few lanes meet in a bank
PAIR_SHIFT = 6  # a pair has 16 words of four bytes
ROWS, COLUMNS, WARP = 16, 8, 32  # of an instruction
TILE_WORDS = 32  # of a row of a tile that TMA swizzles
BATCH = 4  # units of A that a thread loads together
OF_A = LANE_WORDS * WORDS  # words of A, of a lane in a step


def step_of(packing: Packing) -> int:
    """Weights of a row that the four lanes of a row read at once."""
    return 4 * LANE_WORDS * (32 // packing.bits)


SIXTEEN: Mapping[str, tuple[int, int]] = {"float16": (6, 0x4C00), "bfloat16": (3, 0x4180)}


def operand_words(format_name: str, dtype: str) -> Callable[[Any, Any, Any], Any]:
    """A function of a word of codes, `j` < 4 and the bits of 16 in both halves of a word.

    The word of the result has the numbers of the codes at j, j + 4, ... (of four bits), as `dtype`.
    Those of int4 are 16 + q, those of fp4 divided by 2^14.
    """
    if format_name == "int2":
        return lambda word, j, _: word >> 2 * j & 0x03030303
    if format_name == "int4":
        place = SIXTEEN[dtype][0]
        return lambda word, j, sixteen: ((word >> 4 * j) << place) & (15 << place) * 0x10001 | sixteen
    # sign, exponent and significand in their places in float16
    return lambda word, j, _: ((word >> 4 * j) << 9) & 0x0E000E00 | ((word >> 4 * j) << 12) & 0x80008000


def interleaved(words: Any, at: Any, j: Any, bits: int) -> Any:
    """The elements j, j + 4, ... of the four words at `at`, of elements of `bits`."""
    if bits == 16:
        return words[at + j // 2] >> 16 * (j % 2) & 0xFFFF | (words[at + 2 + j // 2] >> 16 * (j % 2)) << 16
    byte = [(words[at + i] >> 8 * j & 0xFF) << 8 * i for i in range(4)]
    return byte[0] | byte[1] | byte[2] | byte[3]


@dataclass(frozen=True)
class Fragments:
    """The products of a warp that has `tiles` tiles of 16 rows of W.

    Attributes:
        packing: the format.
        format_name: its name.
        output: dtype of C.
        sizes: m, n and k.
        group: weights of a row that share a scale; -1: all.
        config: of the template.
        with_zeros: whether there are zero points.
    """

    packing: Packing
    format_name: str
    output: str
    sizes: tuple[Any, int, int]
    group: int
    config: Config
    with_zeros: bool

    @property
    def parts(self) -> int:
        """Warps that share rows of W."""
        return self.config.int("reduce_warps")

    @property
    def tiles(self) -> int:
        """Of 16 rows, of a warp."""
        warps = self.config.int("threads") // WARP
        return self.config.int("block_n") // ROWS // (warps // self.parts)

    @property
    def by_table(self) -> bool:
        return self.config["decode"] == "table"

    @property
    def in_integers(self) -> bool:
        return self.packing.activations == "int8"

    @property
    def dtype(self) -> str:
        """Of A."""
        return self.packing.activations or self.output

    @property
    def bits(self) -> int:
        """Of an element of A."""
        return 8 if self.in_integers else 16

    @property
    def accumulator(self) -> str:
        return "int32" if self.in_integers else "float32"

    @property
    def step(self) -> int:
        return step_of(self.packing)

    @property
    def groups(self) -> int:
        """Of weights, of a step."""
        return 1 if self.group == -1 else max(1, self.step // self.group)

    @property
    def tokens(self) -> int:
        """Rows of A, of a block."""
        m, block_m = self.sizes[0], self.config.int("block_m")
        return min(m, block_m) if isinstance(m, int) else block_m

    @property
    def columns(self) -> int:
        """Instructions along the columns."""
        return -(-self.tokens * self.groups // COLUMNS)

    @property
    def is_scaled_late(self) -> bool:
        return self.group == -1

    @property
    def has_sums(self) -> bool:
        """Whether operands are codes, not numbers."""
        return self.format_name in ("int4", "int2")

    def scale_of(self, raw: Any) -> Any:
        """A scale or a zero point, as float32."""
        import tilelang.language as T  # noqa: N812

        if raw.dtype == "uint8":  # a biased exponent
            return T.reinterpret(T.cast(raw, "uint32") << T.uint32(23), "float32")
        return T.cast(raw, "float32")

    def in_order(self, natural: Any, at: Any, j: Any) -> Any:
        """The `j`-th word of A that is multiplied by a word of codes, of the four words at `at`."""
        return natural[at + j] if self.by_table else interleaved(natural, at, j, self.bits)

    def exact(self, product: Any, total: Any, zero: Any) -> Any:
        """A sum of weights times A, of one of operands."""
        import tilelang.language as T  # noqa: N812

        if not self.has_sums:
            return product
        added = 16 if self.format_name == "int4" else 0
        offset = added + self.packing.zero
        too_much = zero + T.float32(added) if self.with_zeros else T.cast(offset, self.accumulator)
        return product - total * too_much

    def result(self, total: Any, late_scale: Any) -> Any:
        """An element of C."""
        import tilelang.language as T  # noqa: N812

        is_small = not self.by_table and self.format_name in ("fp4", "mxfp4")
        value = T.cast(total, "float32") * T.float32(2.0**14 if is_small else 1.0)
        return T.cast(value * self.scale_of(late_scale) if self.is_scaled_late else value, self.output)

    def registers(self, steps: int) -> dict[str, Any]:
        """Local arrays for `steps` steps whose weights are loaded together.

        `codes`, `factors` (scales) and `zeros` are of these steps. A of one step is `natural` as it is read,
        then `ordered`. `left` is an operand, and `one` that of ones. `products`, and `sums` of A, are of a
        step, `totals` of all.
        """
        import tilelang.language as T  # noqa: N812

        tiles, columns = self.tiles, self.columns
        return {
            "codes": T.alloc_local((steps * tiles * 2 * LANE_WORDS,), "uint32"),
            "factors": T.alloc_local((steps * tiles * 4,), "float32"),
            "zeros": T.alloc_local((steps * tiles * 4,), "float32"),
            "natural": T.alloc_local((OF_A,), "uint32"),
            "ordered": T.alloc_local((columns * OF_A,), "uint32"),
            "left": T.alloc_local((4,), "uint32"),
            "one": T.alloc_local((4,), "uint32"),
            "products": T.alloc_local((tiles * columns * 4,), self.accumulator),
            "sums": T.alloc_local((columns * 4,), self.accumulator),
            "totals": T.alloc_local((tiles * columns * 4,), self.accumulator),
            "sixteen": T.alloc_local((1,), "uint32"),
        }

    def tables(self) -> tuple[Any, Any]:
        """Shared memory for the numbers of all codes, and of all pairs; None for decoders but `table`."""
        import tilelang.language as T  # noqa: N812

        if not self.by_table:
            return None, None
        return T.alloc_shared((16,), self.dtype), T.alloc_shared((256 * REPLICAS,), "uint32")

    def begin(self, threads: int, barrier: tuple[int, ...] = ()) -> Any:
        """A macro `(registers, tables, thread)` that sets constants.

        Args:
            threads: that compute.
            barrier: its number and `threads` where the block has more of them.
        """
        import tilelang.language as T  # noqa: N812

        packing, dtype, by_table = self.packing, self.dtype, self.by_table
        ones = {"float16": 0x3C003C00, "bfloat16": 0x3F803F80, "int8": 0x01010101}[dtype]
        is_int4 = self.format_name == "int4"

        @T.macro
        def begin(registers, tables, thread):  # type: ignore[no-untyped-def]
            natural, one, sixteen = (registers[name] for name in ("natural", "one", "sixteen"))
            numbers, pairs = tables
            for i in T.unroll(4):
                one[i] = T.uint32(ones)
            # a constant that the compiler does not see: it would insert it and the mask by two instructions
            if is_int4:
                sixteen[0] = T.shfl_sync(
                    T.if_then_else(thread % WARP == 0, T.uint32(SIXTEEN[dtype][1] * 0x10001), T.uint32(0)), 0
                )
            for i in T.unroll(OF_A):
                natural[i] = T.uint32(0)
            if by_table:
                if thread < 16:
                    numbers[thread] = constant_of(packing.values, thread, dtype)
                T.sync_threads(*barrier)
                for i in T.serial(256 * REPLICAS // threads):
                    at = i * threads + thread
                    low = T.cast(T.reinterpret(numbers[at // REPLICAS % 16], "uint16"), "uint32")
                    high = T.cast(T.reinterpret(numbers[at // REPLICAS // 16], "uint16"), "uint32")
                    pairs[at] = low | high << T.uint32(16)
                T.sync_threads(*barrier)

        return begin

    def clear(self) -> Any:
        """A macro `(registers)` that begins the sums of a tile."""
        import tilelang.language as T  # noqa: N812

        tiles, columns = self.tiles, self.columns

        @T.macro
        def clear(registers):  # type: ignore[no-untyped-def]
            products, sums, totals = (registers[name] for name in ("products", "sums", "totals"))
            for i in T.unroll(tiles * columns * 4):
                totals[i] = 0
                products[i] = 0
            for i in T.unroll(columns * 4):
                sums[i] = 0

        return clear

    def read_a(self, is_whole: bool) -> Any:
        """A macro `(a_words, registers, lane, row, begin)`: a step's A from memory, in order.

        Args:
            is_whole: whether k has no step that ends beyond it.
        """
        import tilelang.language as T  # noqa: N812

        m, _, k = self.sizes
        step, bits, columns, in_order = self.step, self.bits, self.columns, self.in_order
        tokens, groups = self.tokens, self.groups

        @T.macro
        def read_a(a_words, registers, lane, row, begin):  # type: ignore[no-untyped-def]
            natural, ordered = registers["natural"], registers["ordered"]
            for c in T.unroll(columns):
                token, slot = (c * COLUMNS + lane // 4) // groups, (c * COLUMNS + lane // 4) % groups
                at = begin + lane % 4 * (step // 4)
                if not is_whole or columns > 1:
                    for i in T.unroll(OF_A):
                        natural[i] = T.uint32(0)
                if token < tokens and row + token < m and lane % 4 * groups // 4 == slot and at < k:
                    for q in T.unroll(LANE_WORDS):
                        for v in T.vectorized(WORDS):
                            natural[q * WORDS + v] = a_words[row + token, at // (32 // bits) + q * WORDS + v]
                for q in T.unroll(LANE_WORDS):
                    for j in T.unroll(WORDS):
                        ordered[c * OF_A + q * WORDS + j] = in_order(natural, q * WORDS, j)

        return read_a

    def kept_a(self, steps: int) -> Any:
        """Shared memory for A of `steps` steps, in order: lanes read neighbouring 16 bytes."""
        import tilelang.language as T  # noqa: N812

        return T.alloc_shared((steps * LANE_WORDS, self.tokens, 4, WORDS), "uint32")

    def keep_a(self, steps: int, threads: int) -> Any:
        """A macro `(a_words, kept, registers, thread)`: A of `steps` steps from memory to `kept_a`, in order.

        `threads` do it, and A's rows are those of one block. What is beyond k is 0.
        """
        import tilelang.language as T  # noqa: N812

        _, _, k = self.sizes
        step, bits, tokens, in_order = self.step, self.bits, self.tokens, self.in_order
        words, of_step = k // (32 // bits), step // (32 // bits)
        units = steps * tokens * 4 * LANE_WORDS  # of four words

        def place(unit: Any) -> tuple[Any, Any, Any, Any]:
            # neighbouring threads read neighbouring words; a lane's words of a step are `LANE_WORDS` units
            number, t, q = unit // (LANE_WORDS * 4), unit // LANE_WORDS % 4, unit % LANE_WORDS
            return number // tokens, number % tokens, t, q

        @T.macro
        def keep_a(a_words, kept, registers, thread):  # type: ignore[no-untyped-def]
            natural, ordered = registers["natural"], registers["ordered"]
            for turn in T.serial(-(-units // (threads * BATCH))):
                # loads precede their use, so that they are in flight together
                for i in T.unroll(BATCH):
                    unit = (turn * BATCH + i) * threads + thread
                    step_number, token, t, q = place(unit)
                    word = step_number * of_step + (t * LANE_WORDS + q) * WORDS
                    for v in T.unroll(WORDS):
                        natural[i * WORDS + v] = T.uint32(0)
                    if unit < units and word < words:
                        for v in T.vectorized(WORDS):
                            natural[i * WORDS + v] = a_words[token, word + v]
                for i in T.unroll(BATCH):
                    unit = (turn * BATCH + i) * threads + thread
                    step_number, token, t, q = place(unit)
                    for j in T.unroll(WORDS):
                        ordered[j] = in_order(natural, i * WORDS, j)
                    if unit < units:
                        for v in T.vectorized(WORDS):
                            kept[step_number * LANE_WORDS + q, token, t, v] = ordered[v]

        return keep_a

    def take_kept_a(self) -> Any:
        """A macro `(kept, registers, lane, number)`: A of the step `number` from `kept_a` to registers.

        Lanes that read nothing keep what `ordered` has.
        """
        import tilelang.language as T  # noqa: N812

        columns, tokens, groups = self.columns, self.tokens, self.groups

        @T.macro
        def take_kept_a(kept, registers, lane, number):  # type: ignore[no-untyped-def]
            ordered = registers["ordered"]
            for c in T.unroll(columns):
                token, slot = (c * COLUMNS + lane // 4) // groups, (c * COLUMNS + lane // 4) % groups
                if token < tokens and lane % 4 * groups // 4 == slot:
                    for q in T.unroll(LANE_WORDS):
                        for v in T.vectorized(WORDS):
                            ordered[c * OF_A + q * WORDS + v] = kept[
                                number * LANE_WORDS + q, token, lane % 4, v
                            ]

        return take_kept_a

    def take_staged_a(self) -> Any:
        """A macro `(a_tile, first, registers, lane, begin)`: A of a step from tiles with rows of 32 words.

        `first` is the tile of the first weight, and `begin` the step's first weight from there on. Rows
        beyond those of A are zeros. Lanes that read nothing keep what `ordered` has.
        """
        import tilelang.language as T  # noqa: N812

        columns, groups, step, bits = self.columns, self.groups, self.step, self.bits
        in_order = self.in_order

        @T.macro
        def take_staged_a(a_tile, first, registers, lane, begin):  # type: ignore[no-untyped-def]
            natural, ordered = registers["natural"], registers["ordered"]
            for c in T.unroll(columns):
                token, slot = (c * COLUMNS + lane // 4) // groups, (c * COLUMNS + lane // 4) % groups
                word = (begin + lane % 4 * (step // 4)) // (32 // bits)
                if lane % 4 * groups // 4 == slot:
                    for q in T.unroll(LANE_WORDS):
                        for v in T.vectorized(WORDS):
                            natural[q * WORDS + v] = a_tile[
                                first + word // TILE_WORDS, token, word % TILE_WORDS + q * WORDS + v
                            ]
                    for q in T.unroll(LANE_WORDS):
                        for j in T.unroll(WORDS):
                            ordered[c * OF_A + q * WORDS + j] = in_order(natural, q * WORDS, j)

        return take_staged_a

    def multiply(self) -> Any:
        """A macro `(registers, tables, lane, loaded)`: the products of a step, the `loaded`-th in `codes`."""
        import tilelang.language as T  # noqa: N812

        tiles, columns, by_table = self.tiles, self.columns, self.by_table
        in_integers, has_sums, is_scaled_late = self.in_integers, self.has_sums, self.is_scaled_late
        accumulator = self.accumulator
        shape = "m16n8k32" if in_integers else "m16n8k16"
        short = {"float16": "fp16", "bfloat16": "bf16", "int8": "int8"}[self.dtype]
        wide = {"int32": "int32", "float32": "fp32"}[accumulator]
        word: Any = None if by_table else operand_words(self.format_name, self.dtype)
        exact = self.exact

        def product(left: Any, right: Any, at: Any, total: Any, to: Any) -> Any:
            return T.ptx_mma(
                accumulator, shape, "row", "col", short, short, wide,
                left.data, 0, right.data, at, total.data, to, T.bool(False),
            )  # fmt: skip

        def operand(codes: Any, pairs: Any, code: Any, j: Any, lane: Any, sixteen: Any) -> Any:
            if by_table:
                # the address in bytes, which the compiler finds in two instructions
                byte = (codes[code] >> T.cast(8 * j, "uint32")) << T.uint32(PAIR_SHIFT) & T.uint32(
                    255 << PAIR_SHIFT
                )
                return pairs[T.cast((byte | T.cast(lane % REPLICAS * 4, "uint32")) >> T.uint32(2), "int32")]
            return word(codes[code], T.cast(j, "uint32"), sixteen)

        @T.macro
        def multiply(registers, tables, lane, loaded):  # type: ignore[no-untyped-def]
            codes, factors, zeros = (registers[name] for name in ("codes", "factors", "zeros"))
            ordered, left, one = (registers[name] for name in ("ordered", "left", "one"))
            products, sums, totals = (registers[name] for name in ("products", "sums", "totals"))
            sixteen = registers["sixteen"]
            if not in_integers:
                for i in T.unroll(tiles * columns * 4):
                    products[i] = 0
                for i in T.unroll(columns * 4):
                    sums[i] = 0
            for q in T.unroll(LANE_WORDS):
                for half in T.unroll(2):
                    if has_sums:
                        for c in T.unroll(columns):
                            product(one, ordered, c * OF_A + q * WORDS + half * 2, sums, c * 4)
                    for i in T.unroll(tiles):
                        for a in T.unroll(4):  # rows alternate, then the second half of k follows
                            code = ((loaded * tiles + i) * 2 + a % 2) * LANE_WORDS + q
                            left[a] = operand(codes, tables[1], code, half * 2 + a // 2, lane, sixteen[0])
                        for c in T.unroll(columns):
                            product(
                                left, ordered, c * OF_A + q * WORDS + half * 2,
                                products, (i * columns + c) * 4,
                            )  # fmt: skip
            if not in_integers:
                for i in T.unroll(tiles):
                    for c in T.unroll(columns):
                        for e in T.unroll(4):
                            at = (i * columns + c) * 4 + e
                            of_row = (loaded * tiles + i) * 4 + e
                            value = exact(products[at], sums[c * 4 + e], zeros[of_row])
                            totals[at] += value if is_scaled_late else value * factors[of_row]

        return multiply

    def total(self, registers: Mapping[str, Any], tile: Any, c: Any, e: Any) -> Any:
        """The sum of an element of a warp's tile."""
        products, sums, totals = (registers[name] for name in ("products", "sums", "totals"))
        at = (tile * self.columns + c) * 4 + e
        return self.exact(products[at], sums[c * 4 + e], None) if self.in_integers else totals[at]
