# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Small TileLang kernels in which loads wait for each other, or in which loops are kept."""

import tilelang.language as T


def rows_of_pages(checked, tiles=64, threads=128):
    """Two rows of each page go to shared memory; with `checked`, those of a page with a valid number."""

    @T.prim_func
    def main(
        Cache: T.Tensor((4096, 2, 128), "float32"),
        Pages: T.Tensor((256, tiles), "int32"),
        Starts: T.Tensor((256,), "int32"),
        Y: T.Tensor((256, 128), "float32"),
    ):
        with T.Kernel(256, threads=threads) as bx:
            rows = T.alloc_shared((2, 128), "float32")
            total = T.alloc_local((1,), "float32")
            tx = T.get_thread_binding()
            total[0] = 0.0
            start = Starts[bx]
            for tile in T.serial(tiles):
                T.sync_threads()
                for part in T.unroll(2):
                    rows[part, tx] = 0.0
                    if tile + tx // 8 >= start:
                        page = Pages[bx, tile]
                        if checked:
                            if page >= 0 and page < 4096:
                                rows[part, tx] = Cache[page, part, tx]
                        else:
                            rows[part, tx] = Cache[page, part, tx]
                T.sync_threads()
                total[0] += rows[0, 127 - tx] * rows[1, 127 - tx]
            Y[bx, tx] = total[0]

    return main


def sums_of_rows(by_atomics, rows=16, threads=128):
    """Rows that are added to, or stored as, the rows with given numbers, if these are valid."""

    @T.prim_func
    def main(
        X: T.Tensor((256 * rows, threads), "float32"),
        Rows: T.Tensor((256 * rows,), "int32"),
        Y: T.Tensor((4096, threads), "float32"),
    ):
        with T.Kernel(256, threads=threads) as bx:
            tx = T.get_thread_binding()
            for i in T.unroll(rows):
                row = Rows[bx * rows + i]
                value = X[bx * rows + i, tx]
                if row >= 0 and row < 4096:
                    if by_atomics:
                        T.atomic_add(Y[row, tx], value)
                    else:
                        Y[row, tx] = value

    return main


def chosen_numbers(chosen, steps=8, threads=128):
    """Numbers at loaded places, each with another one for places below zero if they are `chosen`."""

    @T.prim_func
    def main(
        X: T.Tensor((4096,), "float32"),
        Places: T.Tensor((256, steps, threads), "int32"),
        Y: T.Tensor((256, steps, threads), "float32"),
    ):
        with T.Kernel(256, threads=threads) as bx:
            tx = T.get_thread_binding()
            for i in T.unroll(steps):
                place = Places[bx, i, tx]
                if chosen:
                    Y[bx, i, tx] = T.if_then_else(place >= 0, X[place], -1.0)
                else:
                    Y[bx, i, tx] = X[place]

    return main


def places_of_places(steps, threads=128):
    """Numbers at places that are loaded from loaded places, one in each iteration."""

    @T.prim_func
    def main(
        X: T.Tensor((4096,), "float32"),
        Places: T.Tensor((4096,), "int32"),
        First: T.Tensor((256, steps, threads), "int32"),
        Y: T.Tensor((256, threads), "float32"),
    ):
        with T.Kernel(256, threads=threads) as bx:
            tx = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for i in T.serial(steps):
                total[0] += X[Places[First[bx, i, tx]]]
            Y[bx, tx] = total[0]

    return main


def steps_over_an_array(steps, work, threads=128):
    """A loop over a local array: sums of its elements, or choices between them."""

    @T.prim_func
    def main(X: T.Tensor((64, steps, threads), "float32"), Y: T.Tensor((64, steps, threads), "float32")):
        with T.Kernel(64, threads=threads) as bx:
            tx = T.get_thread_binding()
            held = T.alloc_local((steps,), "float32")
            total = T.alloc_local((1,), "float32")
            for i in T.unroll(steps):
                held[i] = X[bx, i, tx]
            total[0] = X[bx, 0, 0]
            for i in T.serial(steps):
                if work == "sums":
                    total[0] += held[i]
                else:
                    held[i] = T.if_then_else(
                        held[i] > total[0] and held[i] < 9.0, total[0], held[i] * total[0]
                    )
            for i in T.unroll(steps):
                Y[bx, i, tx] = held[i] + total[0]

    return main


def triangle_of_rows(rows, columns, quotient, threads=128):
    """Sums over a triangle of rows and columns, whose comparisons have a quotient of the column."""

    @T.prim_func
    def main(Y: T.Tensor((64, threads, 8), "float32")):
        with T.Kernel(64, threads=threads) as bx:
            tx = T.get_thread_binding()
            total = T.alloc_local((8,), "float32")
            T.clear(total)
            for i in T.unroll(rows):
                for j in T.unroll(columns):
                    if tx <= i * 8 + j // quotient:
                        total[j % 8] += 1.5
            for j in T.unroll(8):
                Y[bx, tx, j] = total[j]

    return main


def larger_ones(counted, steps=64, threads=128):
    """How many of a row's numbers are larger than a thread's: ones are added up, or the numbers."""

    @T.prim_func
    def main(X: T.Tensor((64, steps), "int32"), Y: T.Tensor((64, threads), "int32")):
        with T.Kernel(64, threads=threads) as bx:
            tx = T.get_thread_binding()
            total = T.alloc_local((1,), "int32")
            total[0] = 0
            for i in T.serial(steps):
                total[0] += T.if_then_else(X[bx, i] > tx, 1 if counted else X[bx, i], 0)
            Y[bx, tx] = total[0]

    return main


def first_copies(first, steps=8, threads=128):
    """Numbers that are exchanged for larger ones in the first copies of an unrolled loop, or in all."""

    @T.prim_func
    def main(X: T.Tensor((64, steps, threads), "float32"), Y: T.Tensor((64, steps, threads), "float32")):
        with T.Kernel(64, threads=threads) as bx:
            tx = T.get_thread_binding()
            held = T.alloc_local((steps,), "float32")
            for i in T.unroll(steps):
                held[i] = X[bx, i, tx]
            for i in T.unroll(steps):
                held[i] = T.if_then_else(i < first and held[i] < held[0], held[0], held[i])
            for i in T.unroll(steps):
                Y[bx, i, tx] = held[i]

    return main


def quotients_of_rows(in_loop, steps=64, threads=128):
    """Exact quotients: one in each iteration of a loop, or the sum of two of each thread."""

    @T.prim_func
    def looped(X: T.Tensor((64, steps, threads), "float32"), Y: T.Tensor((64, steps, threads), "float32")):
        with T.Kernel(64, threads=threads) as bx:
            tx = T.get_thread_binding()
            for i in T.serial(steps):
                Y[bx, i, tx] = 1.0 / (X[bx, i, tx] + 2.0)

    @T.prim_func
    def once(
        A: T.Tensor((64, threads), "float32"),
        B: T.Tensor((64, threads), "float32"),
        Y: T.Tensor((64, threads), "float32"),
    ):
        with T.Kernel(64, threads=threads) as bx:
            tx = T.get_thread_binding()
            Y[bx, tx] = 1.0 / (A[bx, tx] + 2.0) + 1.0 / (B[bx, tx] + 2.0)

    return looped if in_loop else once


def bounds_reached(count, threads=128):
    """The last of the bounds that a thread reaches."""

    @T.prim_func
    def main(Bounds: T.Tensor((count + 1,), "int32"), Y: T.Tensor((64, threads), "int32")):
        with T.Kernel(64, threads=threads) as bx:
            tx = T.get_thread_binding()
            last = T.alloc_local((1,), "int32")
            last[0] = 0
            for b in T.serial(count):
                if Bounds[b] <= bx * threads + tx and bx * threads + tx < Bounds[b + 1]:
                    last[0] = b
            Y[bx, tx] = last[0]

    return main


def rows_in_shared_memory(depth, threads=32):
    """Products of a row in shared memory for each thread with a vector in device memory."""

    @T.prim_func
    def main(
        X: T.Tensor((64, threads, depth), "float32"),
        W: T.Tensor((depth,), "float32"),
        Y: T.Tensor((64, threads), "float32"),
    ):
        with T.Kernel(64, threads=threads) as bx:
            tile = T.alloc_shared((threads, depth), "float32")
            total = T.alloc_local((1,), "float32")
            tx = T.get_thread_binding()
            T.copy(X[bx, 0, 0], tile)
            total[0] = 0.0
            for k in T.serial(depth):
                total[0] += tile[tx, k] * W[k]
            Y[bx, tx] = total[0]

    return main


def sum_of_all(dtype, n=1 << 20, threads=128):
    """One sum to which each block adds a number."""

    @T.prim_func
    def main(X: T.Tensor((n,), dtype), Y: T.Tensor((1,), dtype)):
        with T.Kernel(n // threads, threads=threads) as bx:
            tx = T.get_thread_binding()
            if tx == 0:
                T.atomic_add(Y[0], X[bx * threads])

    return main


def extremes_of_rows(along, rows=256, columns=16, threads=128):
    """The largest and smallest numbers of a tile's rows, or of its diagonals, in arrays of each thread."""

    @T.prim_func
    def main(X: T.Tensor((64, rows, columns), "float32"), Y: T.Tensor((64, rows, threads), "float32")):
        with T.Kernel(64, threads=threads) as bx:
            tile = T.alloc_shared((rows, columns), "float32")
            largest = T.alloc_local((rows + columns,), "float32")
            smallest = T.alloc_local((rows + columns,), "float32")
            tx = T.get_thread_binding()
            T.copy(X[bx, 0, 0], tile)
            for row in T.serial(rows):
                largest[row] = tile[row, 0]
                smallest[row] = tile[row, 0]
            for row in T.serial(rows):
                for column in T.serial(columns):
                    place = row if along == "rows" else row + column
                    largest[place] = T.max(largest[place], tile[row, column])
                    smallest[place] = T.min(smallest[place], tile[row, column])
            for row in T.serial(rows):
                Y[bx, row, tx] = largest[row] - smallest[row]

    return main
