# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Small TileLang kernels whose statements the device compiler turns into other code than they seem to be."""

import tilelang.language as T


def products_of_rows(dtype, function, rows=128, columns=64):
    """Each thread adds up a function of two rows of tiles in shared memory, element by element."""

    @T.prim_func
    def main(
        A: T.Tensor((rows, 1024), dtype), B: T.Tensor((rows, 1024), dtype), Y: T.Tensor((rows,), "float32")
    ):
        with T.Kernel(1, threads=rows):
            a = T.alloc_shared((rows, columns), dtype)
            b = T.alloc_shared((rows, columns), dtype)
            total = T.alloc_fragment((rows,), "float32")
            T.clear(total)
            for step in T.Pipelined(1024 // columns, num_stages=2):
                T.copy(A[0, step * columns], a)
                T.copy(B[0, step * columns], b)
                for i, j in T.Parallel(rows, columns):
                    total[i] += function(T.Cast("float32", a[i, j]), T.Cast("float32", b[i, j]))
            T.copy(total, Y)

    return main


def sums_of_channels(used, channels=32, threads=128):
    """A sum over channels, which the result contains if it is `used`."""

    @T.prim_func
    def main(X: T.Tensor((1024, channels, threads), "float32"), Y: T.Tensor((1024, threads), "float32")):
        with T.Kernel(1024, threads=threads) as bx:
            tx = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for c in T.serial(channels):
                total[0] += X[bx, c, tx]
            mean = total[0] / channels
            Y[bx, tx] = mean if used else T.Cast("float32", bx)

    return main


def windows_of_an_image(width, tile_rows, edge):
    """The rows of windows of an image, which a producer puts into shared memory for a product.

    The elements beyond those of a window are zero, and with `edge` so are the rows beyond the last window.
    """
    inner = width - 2
    windows = 8 * inner * inner

    @T.prim_func
    def main(
        X: T.Tensor((8, width, width, 3), "float16"),
        W: T.Tensor((32, 64), "float16"),
        Y: T.Tensor((windows, 64), "float16"),
    ):
        with T.Kernel(T.ceildiv(windows, tile_rows), threads=128) as bx:
            a = T.alloc_shared((tile_rows, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((tile_rows, 64), "float32")
            T.clear(c)
            for step in T.Pipelined(1, num_stages=2):
                for i, j in T.Parallel(tile_rows, 32):
                    m = bx * tile_rows + i
                    if ((m < windows) and (j < 27)) if edge else j < 27:
                        a[i, j] = X[
                            m // (inner * inner),
                            m % (inner * inner) // inner + j // 9,
                            m % inner + j // 3 % 3,
                            j % 3,
                        ]
                    else:
                        a[i, j] = T.Cast("float16", 0)
                T.copy(W[step * 32, 0], b)
                T.gemm(a, b, c)
            T.copy(c, Y[bx * tile_rows, 0])

    return main


def scaled_channels(divided, groups=2, channels=96, threads=128):
    """Channels of a few groups, each divided by its scale or multiplied with it, one after another."""

    @T.prim_func
    def main(
        X: T.Tensor((256, groups, channels, threads), "float32"),
        S: T.Tensor((channels,), "float32"),
        Y: T.Tensor((256, groups, threads), "float32"),
    ):
        with T.Kernel(256, threads=threads) as bx:
            tx = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            for g in T.serial(groups):
                total[0] = 0.0
                for c in T.serial(channels):
                    if divided:
                        total[0] += X[bx, g, c, tx] / S[c]
                    else:
                        total[0] += X[bx, g, c, tx] * S[c]
                Y[bx, g, tx] = total[0]

    return main


def leaky(threads=128):
    """An element that is compared and then used, in one expression."""

    @T.prim_func
    def main(X: T.Tensor((1024, threads), "float32"), Y: T.Tensor((1024, threads), "float32")):
        with T.Kernel(1024, threads=threads) as bx:
            tx = T.get_thread_binding()
            Y[bx, tx] = T.if_then_else(X[bx, tx] > 0.0, X[bx, tx], X[bx, tx] * 0.1)

    return main


def counted(used, threads=128):
    """Each block takes a number from a counter, and may write it."""

    @T.prim_func
    def main(N: T.Tensor((1,), "int32"), Y: T.Tensor((1024,), "int32")):
        with T.Kernel(1024, threads=threads) as bx:
            number = T.alloc_local((1,), "int32")
            number[0] = T.atomic_add(N[0], 1, return_prev=True)
            Y[bx] = number[0] if used else 0

    return main


def added_up(dtype, places, shared, threads=128):
    """Each thread adds one to one of the numbers of its block, in device memory or in shared memory."""

    @T.prim_func
    def main(Y: T.Tensor((1024, places), dtype)):
        with T.Kernel(1024, threads=threads) as bx:
            i = T.get_thread_binding()
            sums = T.alloc_shared((places,), dtype)
            if shared:
                T.atomic_add(sums[i % places], T.Cast(dtype, 1))
                T.sync_threads()
                if i < places:
                    Y[bx, i] = sums[i]
            else:
                T.atomic_add(Y[bx, i % places], T.Cast(dtype, 1))

    return main


def added_where_data_say(threads=128):
    """Every third thread adds one to a number in shared memory that its datum chooses."""

    @T.prim_func
    def main(Places: T.Tensor((threads,), "int32"), Y: T.Tensor((1024, 64), "float32")):
        with T.Kernel(1024, threads=threads) as bx:
            i = T.get_thread_binding()
            sums = T.alloc_shared((64,), "float32")
            if i % 3 == 0:
                T.atomic_add(sums[Places[i]], 1.0)
            T.sync_threads()
            if i < 64:
                Y[bx, i] = sums[i]

    return main


def largest_element(written):
    """Each of 128 threads searches 16 elements for the largest one.

    `written` says how: "maximum" by an expression; "branch" by storing the value and its place to registers;
    "memory" by storing the value to device memory, which makes no selection.
    """

    @T.prim_func
    def main(X: T.Tensor((128, 16), "float32"), Y: T.Tensor((128,), "float32"), Z: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            part = T.alloc_local((16,), "float32")
            best = T.alloc_local((1,), "float32")
            place = T.alloc_local((1,), "int32")
            best[0] = 0.0
            place[0] = 0
            for j in T.unroll(16):
                part[j] = X[tx, j]
            for j in T.unroll(16):
                if written == "maximum":
                    best[0] = T.max(best[0], part[j])
                elif written == "branch":
                    if part[j] > best[0]:
                        best[0] = part[j]
                        place[0] = j
                else:
                    if part[j] > best[0]:
                        Y[tx] = part[j]
            Y[tx] = best[0]
            Z[tx] = place[0]

    return main


def windows_under_a_selection(width, steps=3, rows=64):
    """The rows of padded windows of an image for a product, each element loaded under a selection."""
    windows = 8 * width * width

    @T.prim_func
    def main(
        X: T.Tensor((8, width, width, 3), "float16"),
        W: T.Tensor((steps * 32, 64), "float16"),
        Y: T.Tensor((windows, 64), "float16"),
    ):
        with T.Kernel(T.ceildiv(windows, rows), threads=128) as bx:
            a = T.alloc_shared((rows, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((rows, 64), "float32")
            T.clear(c)
            for step in T.serial(steps):
                for i, j in T.Parallel(rows, 32):
                    m = bx * rows + i
                    k = step * 32 + j
                    h = m % (width * width) // width + k // 15 - 2
                    w = m % width + k // 3 % 5 - 2
                    inside = (h >= 0) and (w >= 0) and (h < width) and (w < width)
                    a[i, j] = T.if_then_else(
                        inside, X[m // (width * width), h, w, k % 3], T.Cast("float16", 0)
                    )
                T.copy(W[step * 32, 0], b)
                T.gemm(a, b, c)
            T.copy(c, Y[bx * rows, 0])

    return main


def products_without_matrix_units(rows=64, depth=32):
    """Products of tiles in shared memory by multiply-adds; each thread has a column and half of the rows."""

    @T.prim_func
    def main(
        A: T.Tensor((rows, depth), "float16"),
        B: T.Tensor((rows, depth), "float16"),
        Y: T.Tensor((rows, rows), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((rows, depth), "float16")
            b = T.alloc_shared((rows, depth), "float16")
            c = T.alloc_fragment((rows, rows), "float32")
            T.clear(c)
            T.copy(A, a)
            T.copy(B, b)
            for k in T.serial(depth):
                for i, j in T.Parallel(rows, rows):
                    c[i, j] += T.Cast("float32", a[i, k]) * T.Cast("float32", b[j, k])
            T.copy(c, Y)

    return main


def sums_of_shared_rows(columns, rows=64):
    """Each thread adds up a row of a tile in shared memory."""

    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), Y: T.Tensor((rows,), "float32")):
        with T.Kernel(1, threads=rows):
            a = T.alloc_shared((rows, columns), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.clear(total)
            T.copy(A, a)
            for j in T.serial(columns):
                for i in T.Parallel(rows):
                    total[i] += a[i, j]
            T.copy(total, Y)

    return main


def sums_of_rows_by_a_thread_each(columns, dtype="float16", threads=32):
    """Each thread adds up a row of a tensor."""

    @T.prim_func
    def main(X: T.Tensor((1024, columns), dtype), Y: T.Tensor((1024,), "float32")):
        with T.Kernel(1024 // threads, threads=threads) as bx:
            row = bx * threads + T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for j in T.serial(columns):
                total[0] += T.Cast("float32", X[row, j])
            Y[row] = total[0]

    return main


def quotients(function, n=4096, threads=128):
    """Exact functions of float32: `divide`, `sigmoid` (a division by an exponential), `sqrt`, or `exp`."""

    @T.prim_func
    def main(X: T.Tensor((n, 4), "float32"), Y: T.Tensor((n, 4), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            for j in T.vectorized(4):
                if function == "divide":
                    Y[bx * threads + i, j] = 3.0 / X[bx * threads + i, j]
                elif function == "sigmoid":
                    Y[bx * threads + i, j] = 1.0 / (1.0 + T.exp(-X[bx * threads + i, j]))
                elif function == "sqrt":
                    Y[bx * threads + i, j] = T.sqrt(X[bx * threads + i, j])
                else:
                    Y[bx * threads + i, j] = T.exp(X[bx * threads + i, j])

    return main


def steps_that_a_mask_chooses(steps, twice, n=4096, threads=128):
    """One or two statements in a loop, each under a condition on an element of an array in local memory."""

    @T.prim_func
    def main(X: T.Tensor((n, steps), "int8"), Z: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            mask = T.alloc_local((steps,), "int8")
            total = T.alloc_local((1,), "float32")
            total[0] = 0
            for step in T.serial(steps):
                mask[step] = X[bx * threads + i, step]
            for step in T.serial(steps):
                if mask[step] != 0:
                    total[0] = total[0] * 0.5 + Z[bx * threads + i]
                if twice:  # noqa: SIM102 (one condition of the program)
                    if mask[step] != 0:
                        total[0] = T.exp(total[0])
            Y[bx * threads + i] = total[0]

    return main


def fields_of_records(n=4096, threads=128):
    """The sum of the four float32 fields of each thread's record, loaded by a statement each."""

    @T.prim_func
    def main(X: T.Tensor((n, 4), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            total[0] = X[bx * threads + i, 0]
            total[0] = total[0] * 0.5 + X[bx * threads + i, 1]
            total[0] = total[0] * 0.5 + X[bx * threads + i, 2]
            total[0] = total[0] * 0.5 + X[bx * threads + i, 3]
            Y[bx * threads + i] = total[0]

    return main


def products_of_columns(rows=512, copies=4, threads=128):
    """A sum over the rows of a column, once for each factor: the loop over the factors is unrolled, that over
    the rows is not."""

    @T.prim_func
    def main(
        X: T.Tensor((rows, 4096), "float32"),
        F: T.Tensor((rows, copies), "float32"),
        Y: T.Tensor((copies, 4096), "float32"),
    ):
        with T.Kernel(4096 // threads, threads=threads) as bx:
            i = T.get_thread_binding()
            total = T.alloc_local((copies,), "float32")
            for j in T.unroll(copies):
                total[j] = 0.0
                for k in T.serial(rows):
                    total[j] += X[k, bx * threads + i] * F[k, j]
            for j in T.unroll(copies):
                Y[j, bx * threads + i] = total[j]

    return main


def strided_taps(excluded, taps=4, n=4096, threads=128):
    """The sum of the elements that the taps of a transposed convolution with a stride of 4 reach.

    With `excluded`, an element belongs to one of four taps; otherwise to all of them.
    """

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((4 * n,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for tap in T.unroll(taps):
                if not excluded or (i + tap) % taps == 0:
                    total[0] += X[bx * threads + (i + tap) // taps]
            Y[bx * threads + i] = total[0]

    return main


def guarded_elements(converted, n=4000, each=16, threads=128):
    """Elements of a thread, loaded and maybe computed with under a condition of their own."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((64 * 2048,), "float16")):
        with T.Kernel(64, threads=threads) as bx:
            i = T.get_thread_binding()
            kept = T.alloc_local((each,), "float32")
            for j in T.unroll(each):
                place = bx * 2048 + j * threads + i
                if converted:
                    kept[j] = T.if_then_else(place < n, X[place] * 2.0 + 1.0, 0.0)
                else:
                    kept[j] = T.if_then_else(place < n, X[place], 0.0)
            for j in T.unroll(each):
                Y[bx * 2048 + j * threads + i] = T.Cast("float16", kept[j])

    return main


def first_threads(count, function, n=4096, threads=128):
    """A value that the first threads of a block compute anew, in one statement with a function of it."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            total[0] = X[bx * threads + i]
            if i < count:
                total[0] = function(total[0]) * 0.5 + 1.0
            Y[bx * threads + i] = total[0]

    return main


def first_copies(count, copies=16, n=4096, threads=128):
    """A value that the first copies of an unrolled loop compute anew."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            total[0] = X[bx * threads + i]
            for copy in T.unroll(copies):
                if copy < count:
                    total[0] = total[0] * total[0]
            Y[bx * threads + i] = total[0]

    return main


def chosen_elements(chooses, n=4096, each=8, threads=128):
    """Each thread stores its elements in another order, which data choose or the number of the element."""

    @T.prim_func
    def main(
        X: T.Tensor((n, each), "float32"),
        Order: T.Tensor((n, each), "int8"),
        Y: T.Tensor((n, each), "float32"),
    ):
        with T.Kernel(n // threads, threads=threads) as bx:
            row = bx * threads + T.get_thread_binding()
            values = T.alloc_local((each,), "float32")
            place = T.alloc_var("int32")
            for i in T.serial(each):
                values[i] = X[row, i]
            for i in T.serial(each):
                place = each - 1 - i
                if chooses:
                    place = T.if_then_else(Order[row, i] > 0, i, place)
                Y[row, i] = values[place]

    return main


def tiles_below_the_diagonal(tiles, tile=128):
    """Sums of two rows of tiles each; a loop finds the row and the column of a block by its number."""

    @T.prim_func
    def main(X: T.Tensor((tiles, tile), "float32"), Y: T.Tensor((tiles, tiles, tile), "float32")):
        with T.Kernel(tiles * (tiles + 1) // 2, threads=tile) as bx:
            tx = T.get_thread_binding()
            row = T.alloc_var("int32")
            column = T.alloc_var("int32")
            row = 0
            column = bx
            for r in T.serial(tiles):
                if column > r:
                    column = column - r - 1
                    row = row + 1
            Y[row, column, tx] = X[row, tx] + X[column, tx]

    return main


def largest_of_columns(dtype, smallest=False, rows=64, threads=128):
    """Each block takes the extremes of columns over several rows, in device memory."""

    @T.prim_func
    def main(X: T.Tensor((rows, threads), dtype), Y: T.Tensor((threads,), dtype)):
        with T.Kernel(rows // 4, threads=threads) as bx:
            tx = T.get_thread_binding()
            for i in T.unroll(4):
                if smallest:
                    T.atomic_min(Y[tx], X[bx * 4 + i, tx])
                else:
                    T.atomic_max(Y[tx], X[bx * 4 + i, tx])

    return main


def steps_with_quotients(divisions, late, steps=128, n=4096, threads=128):
    """A chain of steps that divide; the second number of a step is used at its end if it is `late`."""

    @T.prim_func
    def main(
        X: T.Tensor((steps, n), "float32"), Z: T.Tensor((steps, n), "float32"), Y: T.Tensor((n,), "float32")
    ):
        with T.Kernel(n // threads, threads=threads) as bx:
            at = bx * threads + T.get_thread_binding()
            state = T.alloc_local((1,), "float32")
            second = T.alloc_local((1,), "float32")
            state[0] = 1.0
            for step in T.serial(steps):
                second[0] = Z[step, at]
                state[0] = state[0] + X[step, at]
                if not late:
                    state[0] = state[0] + second[0]
                for _ in T.unroll(divisions):
                    state[0] = T.exp(state[0]) / (state[0] + 2.0)
                if late:
                    state[0] = state[0] + second[0]
            Y[at] = state[0]

    return main


def shares_of_the_largest(divided, n=4096, each=16, threads=128):
    """Each thread divides among its largest elements: a number, an element of an array, or none."""

    @T.prim_func
    def main(X: T.Tensor((n, each), "float32"), Y: T.Tensor((n, each), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            row = bx * threads + T.get_thread_binding()
            values = T.alloc_local((each,), "float32")
            most = T.alloc_local((1,), "float32")
            most[0] = 0.0
            for i in T.unroll(each):
                values[i] = X[row, i]
                most[0] = T.max(most[0], values[i])
            for i in T.unroll(each):
                if values[i] == most[0]:
                    if divided == "number":
                        Y[row, i] = 1.0 / most[0]
                    elif divided == "element":
                        Y[row, i] = values[0] / most[0]
                    else:
                        Y[row, i] = T.sqrt(most[0])

    return main


def filtered(bound, taps=11, n=4096, threads=128):
    """Sums of products over a window, whose factors are bound to a variable or stand in the sums."""

    @T.prim_func
    def main(X: T.Tensor((n + taps, taps), "float32"), Y: T.Tensor((n, 5), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            at = bx * threads + T.get_thread_binding()
            sums = T.alloc_local((5,), "float32")
            for s in T.unroll(5):
                sums[s] = 0.0
            for ky in T.serial(taps):
                for kx in T.serial(taps):
                    if bound:
                        factor = X[at + ky, kx]
                        for s in T.unroll(5):
                            sums[s] = sums[s] * 0.5 + factor
                    else:
                        for s in T.unroll(5):
                            sums[s] = sums[s] * 0.5 + X[at + ky, kx]
            for s in T.unroll(5):
                Y[at, s] = sums[s]

    return main
