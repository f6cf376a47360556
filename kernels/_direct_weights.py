"""Products of packed weights with few rows of A on NVIDIA's matrix units: W goes from memory to registers.

Lane 4 i + t of a warp reads 16 bytes of the rows i and i + 8 of W: codes of neighbours along k. Unpacked,
they are the left operand of m16n8k16 (int8: m16n8k32). Which k an instruction multiplies is free, as long as
both operands have the same. So its k are those of a few codes of each of four lanes, in the order in which
they are unpacked; A is brought into this order in registers.

Codes become numbers by bit operations on a word: of int4, 16 + q in the upper digits of a significand. A
further product, of ones, has the sums of A, from which follows what the 16 and the zero points are too much.
It serves all rows of a warp. Sums of a step of the matrix unit are scaled and added in float32.

A column of the product is a row of A and a group of weights, of those that a step has: other groups are zeros
in it. So groups of 32 and 64 need no products of their own for one or two rows of A.

A lane reads A's row of its column, and other lanes none: their zeros are set once if all steps are whole.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ..problem.space import Config
from ._packed import Packing, constant_of

LANE_WORDS = 4  # of 32 bits that a lane reads at once from a row of W
WORDS = 4  # of operands, from a word of codes
REPLICAS = 16  # of the table of pairs, so that few lanes meet in a bank
PAIR_SHIFT = 6  # a pair has 16 words of four bytes
ROWS, COLUMNS, WARP = 16, 8, 32  # of an instruction


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


def direct_product(
    packing: Packing,
    format_name: str,
    output: str,
    sizes: tuple[Any, int, int],
    group: int,
    config: Config,
    with_zeros: bool,
) -> Any:
    """The tile program: a function of A, B, S, Z and C.

    Args:
        packing: the format.
        format_name: its name.
        output: dtype of C.
        sizes: m, n and k.
        group: weights of a row that share a scale; -1: all.
        config: of the template.
        with_zeros: whether there are zero points.
    """
    import tilelang.language as T  # noqa: N812

    m, n, k = sizes
    dtype = packing.activations or output
    in_integers = dtype == "int8"
    accumulator, bits = ("int32", 8) if in_integers else ("float32", 16)
    block_n, threads, num_stages = config.int("block_n"), config.int("threads"), config.int("num_stages")
    parts, by_table = config.int("reduce_warps"), config["decode"] == "table"
    per_word, step = 32 // packing.bits, step_of(packing)
    tiles = block_n // ROWS // (threads // WARP // parts)  # of 16 rows, of a warp
    groups = 1 if group == -1 else max(1, step // group)  # of a step
    block_m = config.int("block_m")
    tokens = min(m, block_m) if isinstance(m, int) else block_m
    columns = -(-tokens * groups // COLUMNS)  # instructions along the columns
    is_scaled_late = group == -1
    word: Any = None if by_table else operand_words(format_name, dtype)
    added = 16 if format_name == "int4" else 0
    has_sums = format_name in ("int4", "int2")  # whose operands are codes, not numbers
    offset = added + packing.zero
    unit = 2.0**14 if not by_table and format_name in ("fp4", "mxfp4") else 1.0
    shape = "m16n8k32" if in_integers else "m16n8k16"
    short = {"float16": "fp16", "bfloat16": "bf16", "int8": "int8"}[dtype]
    wide = {"int32": "int32", "float32": "fp32"}[accumulator]
    ones = {"float16": 0x3C003C00, "bfloat16": 0x3F803F80, "int8": 0x01010101}[dtype]
    trips = -(-k // (step * parts * num_stages))
    is_whole = k % (step * parts * num_stages) == 0
    words = LANE_WORDS * WORDS  # of A, of a lane in a step

    def multiply(left: Any, right: Any, at: Any, total: Any, to: Any) -> Any:
        return T.ptx_mma(
            accumulator, shape, "row", "col", short, short, wide,
            left.data, 0, right.data, at, total.data, to, T.bool(False),
        )  # fmt: skip

    def scale_of(raw: Any) -> Any:
        if raw.dtype == "uint8":  # a biased exponent
            return T.reinterpret(T.cast(raw, "uint32") << T.uint32(23), "float32")
        return T.cast(raw, "float32")

    def table(shape: tuple[int, ...], dtype: str) -> Any:
        return T.alloc_shared(shape, dtype) if by_table else None

    def loaded_scale(scales: Any, begin: Any, slot: Any, row: Any) -> Any:
        of_group = 0 if is_scaled_late else T.min(begin // group + slot, (k - 1) // group)
        return scales[of_group, T.min(row, n - 1)]

    def operand(codes: Any, pairs: Any, code: Any, j: Any, lane: Any, sixteen: Any) -> Any:
        if by_table:
            # the address in bytes, which the compiler finds in two instructions
            byte = (codes[code] >> T.cast(8 * j, "uint32")) << T.uint32(PAIR_SHIFT) & T.uint32(
                255 << PAIR_SHIFT
            )
            return pairs[T.cast((byte | T.cast(lane % REPLICAS * 4, "uint32")) >> T.uint32(2), "int32")]
        return word(codes[code], T.cast(j, "uint32"), sixteen)

    def in_order(natural: Any, at: Any, j: Any) -> Any:
        return natural[at + j] if by_table else interleaved(natural, at, j, bits)

    def exact(product: Any, total: Any, zero: Any) -> Any:
        # a sum of weights times A, of one of operands
        if not has_sums:
            return product
        return product - total * (zero + T.float32(added) if with_zeros else T.cast(offset, accumulator))

    def result(total: Any, late_scale: Any) -> Any:
        value = T.cast(total, "float32") * T.float32(unit)
        return T.cast(value * scale_of(late_scale) if is_scaled_late else value, output)

    @T.macro
    def program(A: Any, B: Any, S: Any, Z: Any, C: Any) -> None:  # noqa: N803
        a_words = T.view(A, (m, k // (32 // bits)), "uint32")
        b_words = T.view(B, (n, k // per_word), "uint32")
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
            thread = T.get_thread_binding()
            lane, warp = thread % WARP, thread // WARP
            row, t = lane // 4, lane % 4
            part, first_row = warp % parts, bx * block_n + warp // parts * tiles * ROWS
            codes = T.alloc_local((num_stages * tiles * 2 * LANE_WORDS,), "uint32")
            factors = T.alloc_local((num_stages * tiles * 4,), "float32")
            zeros = T.alloc_local((num_stages * tiles * 4,), "float32")
            natural = T.alloc_local((words,), "uint32")
            ordered = T.alloc_local((columns * words,), "uint32")
            left, one = T.alloc_local((4,), "uint32"), T.alloc_local((4,), "uint32")
            products = T.alloc_local((tiles * columns * 4,), accumulator)
            sums = T.alloc_local((columns * 4,), accumulator)
            totals = T.alloc_local((tiles * columns * 4,), accumulator)
            total = T.alloc_local((1,), accumulator)
            shared = T.alloc_shared((parts, block_n, columns * COLUMNS), accumulator)
            numbers, pairs = table((16,), dtype), table((256 * REPLICAS,), "uint32")
            sixteen = T.alloc_local((1,), "uint32")
            for i in T.unroll(4):
                one[i] = T.uint32(ones)
            # a constant that the compiler does not see: it would insert it and the mask by two instructions
            if format_name == "int4":
                sixteen[0] = T.shfl_sync(
                    T.if_then_else(lane == 0, T.uint32(SIXTEEN[dtype][1] * 0x10001), T.uint32(0)), 0
                )
            for i in T.unroll(words):
                natural[i] = T.uint32(0)
            for i in T.unroll(tiles * columns * 4):
                totals[i] = 0
                products[i] = 0
            for i in T.unroll(columns * 4):
                sums[i] = 0
            if by_table:
                if thread < 16:
                    numbers[thread] = constant_of(packing.values, thread, dtype)
                T.sync_threads()
                for i in T.serial(256 * REPLICAS // threads):
                    at = i * threads + thread
                    low = T.cast(T.reinterpret(numbers[at // REPLICAS % 16], "uint16"), "uint32")
                    high = T.cast(T.reinterpret(numbers[at // REPLICAS // 16], "uint16"), "uint32")
                    pairs[at] = low | high << T.uint32(16)
                T.sync_threads()
            for trip in T.serial(trips):
                # all loads of weights precede their use, so that they are in flight together
                for stage in T.unroll(num_stages):
                    begin = ((trip * num_stages + stage) * parts + part) * step
                    # rows and weights beyond an edge repeat the last ones
                    at = (
                        begin + t * (step // 4) if is_whole else T.min(begin + t * (step // 4), k - step // 4)
                    )
                    for i in T.unroll(tiles * 2):
                        for v in T.vectorized(LANE_WORDS):
                            codes[(stage * tiles * 2 + i) * LANE_WORDS + v] = b_words[
                                T.min(first_row + i * 8 + row, n - 1), at // per_word + v
                            ]
                    for i in T.unroll(tiles * 4):
                        if not is_scaled_late:
                            factors[stage * tiles * 4 + i] = scale_of(
                                loaded_scale(S, begin, (2 * t + i % 2) % groups, first_row + i // 2 * 8 + row)
                            )
                        if with_zeros:
                            zeros[stage * tiles * 4 + i] = T.cast(
                                loaded_scale(
                                    Z, begin, (2 * t + i % 2) % groups, first_row + i // 2 * 8 + row
                                ),
                                "float32",
                            )
                for stage in T.unroll(num_stages):
                    begin = ((trip * num_stages + stage) * parts + part) * step
                    for c in T.unroll(columns):
                        token, slot = (c * COLUMNS + row) // groups, (c * COLUMNS + row) % groups
                        at = begin + t * (step // 4)
                        if not is_whole or columns > 1:
                            for i in T.unroll(words):
                                natural[i] = T.uint32(0)
                        if token < tokens and by * block_m + token < m and t * groups // 4 == slot and at < k:
                            for q in T.unroll(LANE_WORDS):
                                for v in T.vectorized(WORDS):
                                    natural[q * WORDS + v] = a_words[
                                        by * block_m + token, at // (32 // bits) + q * WORDS + v
                                    ]
                        for q in T.unroll(LANE_WORDS):
                            for j in T.unroll(WORDS):
                                ordered[c * words + q * WORDS + j] = in_order(natural, q * WORDS, j)
                    if not in_integers:
                        for i in T.unroll(tiles * columns * 4):
                            products[i] = 0
                        for i in T.unroll(columns * 4):
                            sums[i] = 0
                    for q in T.unroll(LANE_WORDS):
                        for half in T.unroll(2):
                            if has_sums:
                                for c in T.unroll(columns):
                                    multiply(one, ordered, c * words + q * WORDS + half * 2, sums, c * 4)
                            for i in T.unroll(tiles):
                                for a in T.unroll(4):  # rows alternate, then the second half of k follows
                                    code = ((stage * tiles + i) * 2 + a % 2) * LANE_WORDS + q
                                    left[a] = operand(codes, pairs, code, half * 2 + a // 2, lane, sixteen[0])
                                for c in T.unroll(columns):
                                    multiply(
                                        left, ordered, c * words + q * WORDS + half * 2,
                                        products, (i * columns + c) * 4,
                                    )  # fmt: skip
                    if not in_integers:
                        for i in T.unroll(tiles):
                            for c in T.unroll(columns):
                                for e in T.unroll(4):
                                    at = (i * columns + c) * 4 + e
                                    of_row = (stage * tiles + i) * 4 + e
                                    value = exact(products[at], sums[c * 4 + e], zeros[of_row])
                                    totals[at] += value if is_scaled_late else value * factors[of_row]
            for i in T.unroll(tiles):
                for c in T.unroll(columns):
                    for e in T.unroll(4):
                        at = (i * columns + c) * 4 + e
                        place = warp // parts * tiles * ROWS + i * ROWS + e // 2 * 8 + row
                        shared[part, place, c * COLUMNS + 2 * t + e % 2] = (
                            exact(products[at], sums[c * 4 + e], None) if in_integers else totals[at]
                        )
            T.sync_threads()
            for i in T.serial((block_n * tokens + threads - 1) // threads):
                place = (i * threads + thread) % block_n
                token = (i * threads + thread) // block_n
                if token < tokens and by * block_m + token < m and bx * block_n + place < n:
                    total[0] = 0
                    for p in T.unroll(parts):
                        for slot in T.unroll(groups):
                            total[0] += shared[p, place, token * groups + slot]
                    C[by * block_m + token, bx * block_n + place] = result(
                        total[0], S[0, bx * block_n + place]
                    )

    return program
