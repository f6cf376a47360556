"""Products of packed weights with few rows of A on NVIDIA's matrix units: W goes from memory to registers.

Lane 4 i + t of a warp reads 16 bytes of the rows i and i + 8 of W. `_weight_fragments.py` says what follows.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from typing import Any

from ._weight_fragments import COLUMNS, LANE_WORDS, ROWS, WARP, Fragments


def direct_product(of: Fragments) -> Any:
    """The tile program: a function of A, B, S, Z and C."""
    import tilelang.language as T  # noqa: N812

    config, (m, n, k), group, with_zeros = of.config, of.sizes, of.group, of.with_zeros
    block_m, block_n, num_stages = config.int("block_m"), config.int("block_n"), config.int("num_stages")
    threads, parts, step, tiles = config.int("threads"), of.parts, of.step, of.tiles
    tokens, groups, columns, is_scaled_late = of.tokens, of.groups, of.columns, of.is_scaled_late
    per_word = 32 // of.packing.bits
    trips = -(-k // (step * parts * num_stages))
    is_whole = k % (step * parts * num_stages) == 0
    begin_all, clear, read_a, multiply = of.begin(threads), of.clear(), of.read_a(is_whole), of.multiply()

    def loaded_scale(scales: Any, begin: Any, slot: Any, row: Any) -> Any:
        of_group = 0 if is_scaled_late else T.min(begin // group + slot, (k - 1) // group)
        return scales[of_group, T.min(row, n - 1)]

    @T.macro
    def program(A: Any, B: Any, S: Any, Z: Any, C: Any) -> None:  # noqa: N803
        a_words = T.view(A, (m, k // (32 // of.bits)), "uint32")
        b_words = T.view(B, (n, k // per_word), "uint32")
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
            thread = T.get_thread_binding()
            lane, warp = thread % WARP, thread // WARP
            row, t = lane // 4, lane % 4
            part, first_row = warp % parts, bx * block_n + warp // parts * tiles * ROWS
            registers, tables = of.registers(num_stages), of.tables()
            codes, factors, zeros = (registers[name] for name in ("codes", "factors", "zeros"))
            total = T.alloc_local((1,), of.accumulator)
            shared = T.alloc_shared((parts, block_n, columns * COLUMNS), of.accumulator)
            begin_all(registers, tables, thread)
            clear(registers)
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
                            factors[stage * tiles * 4 + i] = of.scale_of(
                                loaded_scale(S, begin, (2 * t + i % 2) % groups, first_row + i // 2 * 8 + row)
                            )
                        if with_zeros:
                            zeros[stage * tiles * 4 + i] = of.scale_of(
                                loaded_scale(Z, begin, (2 * t + i % 2) % groups, first_row + i // 2 * 8 + row)
                            )
                for stage in T.unroll(num_stages):
                    begin = ((trip * num_stages + stage) * parts + part) * step
                    read_a(a_words, registers, lane, by * block_m, begin)
                    multiply(registers, tables, lane, stage)
            for i in T.unroll(tiles):
                for c in T.unroll(columns):
                    for e in T.unroll(4):
                        place = warp // parts * tiles * ROWS + i * ROWS + e // 2 * 8 + row
                        shared[part, place, c * COLUMNS + 2 * t + e % 2] = of.total(registers, i, c, e)
            T.sync_threads()
            for i in T.serial((block_n * tokens + threads - 1) // threads):
                place = (i * threads + thread) % block_n
                token = (i * threads + thread) // block_n
                if token < tokens and by * block_m + token < m and bx * block_n + place < n:
                    total[0] = 0
                    for p in T.unroll(parts):
                        for slot in T.unroll(groups):
                            total[0] += shared[p, place, token * groups + slot]
                    C[by * block_m + token, bx * block_n + place] = of.result(
                        total[0], S[0, bx * block_n + place]
                    )

    return program
