# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Small TileLang kernels that state a load or an exchange more or less often than machine code has it."""

import tilelang.language as T


def lane_sum(value):
    """The sum over a warp in its first lane, as a macro that repeats its argument in each step."""
    for distance in (16, 8, 4, 2, 1):
        value = value + T.tvm_warp_shuffle_down(T.tvm_warp_activemask(), value, distance, 32, 32)
    return value


def sums_over_lanes(warps, threads=128):
    """The sums over lanes of the first warps of a block; of all of them, they are no branch."""

    @T.prim_func
    def main(X: T.Tensor((64 * threads,), "float32"), Y: T.Tensor((64 * threads,), "float32")):
        with T.Kernel(64, threads=threads) as bx:
            i = T.get_thread_binding()
            value = T.alloc_local((1,), "float32")
            value[0] = X[bx * threads + i]
            if warps * 32 < threads:
                if i < warps * 32:
                    value[0] = lane_sum(value[0])
            else:
                value[0] = lane_sum(value[0])
            Y[bx * threads + i] = value[0]

    return main


def largest_by_one_thread(shared, threads=128):
    """The place of the largest value of a block, which its first thread searches.

    With `shared`, the largest value and its place are kept in shared memory, else in registers.
    """

    @T.prim_func
    def main(X: T.Tensor((64, threads), "float32"), Y: T.Tensor((64,), "int32")):
        with T.Kernel(64, threads=threads) as bx:
            i = T.get_thread_binding()
            values = T.alloc_shared((threads,), "float32")
            places = T.alloc_shared((threads,), "int32")
            best = T.alloc_shared((1,), "float32") if shared else T.alloc_local((1,), "float32")
            place = T.alloc_shared((1,), "int32") if shared else T.alloc_local((1,), "int32")
            values[i] = X[bx, i]
            places[i] = i
            T.sync_threads()
            if i == 0:
                best[0] = values[0]
                place[0] = places[0]
                for j in T.serial(1, threads):
                    if values[j] > best[0] or (values[j] == best[0] and places[j] < place[0]):
                        best[0] = values[j]
                        place[0] = places[j]
                Y[bx] = place[0]

    return main


def halves_of_bytes(elements=1024, threads=128):
    """Each thread adds up a row of numbers of four bits, two of which share a byte in shared memory."""

    @T.prim_func
    def main(X: T.Tensor((elements // 2, threads), "uint8"), Y: T.Tensor((threads,), "int32")):
        with T.Kernel(1, threads=threads):
            i = T.get_thread_binding()
            packed = T.alloc_shared((elements // 2, threads), "uint8")
            total = T.alloc_local((1,), "int32")
            T.copy(X, packed)
            total[0] = 0
            for k in T.serial(elements):
                total[0] += T.Cast("int32", (packed[k // 2, i] >> T.Cast("uint8", k % 2 * 4)) & 15)
            Y[i] = total[0]

    return main


def words_of_codes(apart, each=16, rows=4096, threads=128):
    """Each thread takes codes of 3 bits out of the words of its row; `apart`: half of them a bit later."""

    @T.prim_func
    def main(Words: T.Tensor((rows, 4), "int32"), Y: T.Tensor((each, rows), "int32")):
        with T.Kernel(rows // threads, threads=threads) as bx:
            i = T.get_thread_binding()
            row = bx * threads + i
            for k in T.unroll(each):
                bit = k * 3 + (i // 64 if apart else 0)
                Y[k, row] = (Words[row, bit // 16] >> (bit % 16)) & 7

    return main


def first_largest(n=4096, each=32, threads=128):
    """Each thread searches its elements in device memory: the condition and the branch load the same one."""

    @T.prim_func
    def main(X: T.Tensor((n, each), "float32"), Y: T.Tensor((n,), "float32"), Z: T.Tensor((n,), "int32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding()
            best = T.alloc_local((1,), "float32")
            place = T.alloc_local((1,), "int32")
            best[0] = 0.0
            place[0] = 0
            for j in T.serial(each):
                if X[bx * threads + i, j] > best[0]:
                    best[0] = X[bx * threads + i, j]
                    place[0] = j
            Y[bx * threads + i] = best[0]
            Z[bx * threads + i] = place[0]

    return main


def products_of_rows(rows, depth=4096, threads=128):
    """Products of a column with several rows: each product loads the column's element anew."""

    @T.prim_func
    def main(
        X: T.Tensor((rows, depth), "float32"),
        W: T.Tensor((depth, 4096), "float32"),
        Y: T.Tensor((rows, 4096), "float32"),
    ):
        with T.Kernel(4096 // threads, threads=threads) as bx:
            i = T.get_thread_binding()
            total = T.alloc_local((rows,), "float32")
            for r in T.unroll(rows):
                total[r] = 0.0
            for k in T.serial(depth):
                for r in T.unroll(rows):
                    total[r] += W[k, bx * threads + i] * X[r, k]
            for r in T.unroll(rows):
                Y[r, bx * threads + i] = total[r]

    return main


def sums_in_shared_memory(kept, copies=4, depth=256, threads=128):
    """Products of one element with several others; `kept` says where their sums are: "shared" or "local"."""

    @T.prim_func
    def main(
        X: T.Tensor((depth, threads), "float32"),
        W: T.Tensor((depth, copies), "float32"),
        Y: T.Tensor((copies, threads), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            i = T.get_thread_binding()
            x = T.alloc_shared((depth, threads), "float32")
            w = T.alloc_shared((depth, copies), "float32")
            total = (
                T.alloc_shared((copies, threads), "float32")
                if kept == "shared"
                else T.alloc_local((copies, 1), "float32")
            )
            own = i if kept == "shared" else 0
            T.copy(X, x)
            T.copy(W, w)
            for c in T.unroll(copies):
                total[c, own] = 0.0
            for k in T.serial(depth):
                for c in T.unroll(copies):
                    total[c, own] += x[k, i] * w[k, c]
            for c in T.unroll(copies):
                Y[c, i] = total[c, own]

    return main


def turned_pairs(in_place, n=4000, each=16, threads=128):
    """Pairs of elements that a rotation reads and writes, in place or to another tensor, under a bound."""

    @T.prim_func
    def main(X: T.Tensor((n, 2), "float32"), Y: T.Tensor((n, 2), "float32")):
        with T.Kernel(T.ceildiv(n, threads * each), threads=threads) as bx:
            i = T.get_thread_binding()
            low = T.alloc_local((1,), "float32")
            high = T.alloc_local((1,), "float32")
            for j in T.serial(each):
                row = (bx * each + j) * threads + i
                if row < n:
                    low[0] = X[row, 0]
                    high[0] = X[row, 1]
                    if in_place:
                        X[row, 0] = low[0] - high[0]
                        X[row, 1] = low[0] + high[0]
                    else:
                        Y[row, 0] = low[0] - high[0]
                        Y[row, 1] = low[0] + high[0]

    return main


def looked_up(values, n=65536, each=64, threads=128):
    """Values of a table in device memory at places that a tensor of numbers chooses."""

    @T.prim_func
    def main(
        X: T.Tensor((n, each), "int32"), V: T.Tensor((values,), "float32"), Y: T.Tensor((n,), "float32")
    ):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for j in T.serial(each):
                total[0] += V[X[bx * threads + i, j]]
            Y[bx * threads + i] = total[0]

    return main


def scattered_in_shared_memory(n=4096, places=8192, threads=128):
    """Numbers that each thread stores to a place of shared memory that data chooses."""

    @T.prim_func
    def main(X: T.Tensor((n,), "int32"), Y: T.Tensor((n,), "int32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding()
            held = T.alloc_shared((places,), "int32")
            held[X[bx * threads + i]] = i
            T.sync_threads()
            Y[bx * threads + i] = held[i]

    return main


def voted(steps=32, threads=128):
    """Squares that a block adds up in those steps in which one of its threads has a positive element."""

    @T.prim_func
    def main(X: T.Tensor((64, steps, threads), "float32"), Y: T.Tensor((64, threads), "float32")):
        with T.Kernel(64, threads=threads) as bx:
            i = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for j in T.serial(steps):
                if T.syncthreads_or(X[bx, j, i] > 0.0) != 0:
                    for _ in T.serial(64):
                        total[0] = total[0] * total[0] + 1.0
            Y[bx, i] = total[0]

    return main


def halves_of_sums(count, threads=128):
    """The first threads of a block add the sum of another thread to their own, in shared memory."""

    @T.prim_func
    def main(X: T.Tensor((64, threads), "float32"), Y: T.Tensor((64, threads), "float32")):
        with T.Kernel(64, threads=threads) as bx:
            i = T.get_thread_binding()
            held = T.alloc_shared((2 * threads,), "float32")
            held[i] = X[bx, i]
            held[threads + i] = X[bx, i]
            T.sync_threads()
            if i < count:
                held[i] = held[i] + held[i + count]
            T.sync_threads()
            Y[bx, i] = held[i]

    return main


def scaled_by_deviation(each=16, threads=128):
    """Elements that a thread scales by the root of its sum, stated for each of them."""

    @T.prim_func
    def main(X: T.Tensor((64, threads, each), "float32"), Y: T.Tensor((64, threads, each), "float32")):
        with T.Kernel(64, threads=threads) as bx:
            i = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for j in T.unroll(each):
                total[0] += X[bx, i, j]
            for j in T.unroll(each):
                Y[bx, i, j] = X[bx, i, j] * T.sqrt(total[0])

    return main


def chosen_rows(parts, each=4, rows=4096, threads=128):
    """Parts of the rows of a table that loaded numbers choose, if these are valid.

    TVM states the place of the number in 32 bits for the condition, and in 64 bits for the address of a row.
    """

    @T.prim_func
    def main(
        Place: T.Tensor((rows,), "int32"),
        V: T.Tensor((rows, 1280), "float16"),
        Y: T.Tensor((parts * rows // each, each * threads), "float16"),
    ):
        with T.Kernel(parts * rows // each, threads=threads) as bx:
            i = T.get_thread_binding()
            for j in T.unroll(each):
                row = (bx * each + j) // parts
                Y[bx, j * threads + i] = T.if_then_else(Place[row] >= 0, V[Place[row], i], T.float16(0))

    return main


def transposed(tokens=65536, channels=48, threads=128):
    """A transposition without shared memory: lanes load from rows of their own, and store side by side."""
    tile = 64

    @T.prim_func
    def main(X: T.Tensor((channels, tokens), "float16"), Y: T.Tensor((tokens, channels), "float16")):
        with T.Kernel(tokens // tile, threads=threads) as bx:
            i = T.get_thread_binding()
            for j in T.unroll(tile * channels // threads):
                place = j * threads + i
                Y[bx * tile + place // channels, place % channels] = X[
                    place % channels, bx * tile + place // channels
                ]

    return main


def edges(reflected, frames=4096, channels=64, tile=32, threads=128):
    """Tiles of frames before and behind a signal, which are zero or, with `reflected`, those at its edge."""

    @T.prim_func
    def main(X: T.Tensor((frames, channels), "float16"), Y: T.Tensor((frames, channels), "float16")):
        with T.Kernel(frames // tile, threads=threads) as bx:
            held = T.alloc_shared((tile, channels), "float16")
            for i, j in T.Parallel(tile, channels):
                frame = bx * tile + i * 3 - 48
                place = T.if_then_else(frame < 0, 0 - frame, frame) if reflected else frame
                held[i, j] = T.if_then_else(
                    (frame > -40) and (frame < frames), X[place // 3, j], T.Cast("float16", 0)
                )
            for i, j in T.Parallel(tile, channels):
                Y[bx * tile + i, j] = held[i, j] * T.Cast("float16", 2)

    return main


def more_than_the_registers(words, threads=128):
    """Values that a thread loads, then scales by their sum."""

    @T.prim_func
    def main(X: T.Tensor((64, words, threads), "float32"), Y: T.Tensor((64, words, threads), "float32")):
        with T.Kernel(64, threads=threads) as bx:
            i = T.get_thread_binding()
            held = T.alloc_local((words,), "float32")
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for _ in T.serial(2):
                for part in T.serial(words // 8):
                    for w in T.unroll(8):
                        held[part * 8 + w] = X[bx, part * 8 + w, i]
                        total[0] += held[part * 8 + w]
                for part in T.serial(words // 8):
                    for w in T.unroll(8):
                        Y[bx, part * 8 + w, i] = held[part * 8 + w] * total[0]

    return main
