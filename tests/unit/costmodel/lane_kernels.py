# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Small TileLang kernels in which some lanes are idle, or wait for each other in shared memory."""

import tilelang.language as T


def exponentials_of(lanes, threads=128):
    """The first lanes of a block compute a row of exponentials."""

    @T.prim_func
    def main(X: T.Tensor((1024, 8 * lanes), "float32"), Y: T.Tensor((1024, 8 * lanes), "float32")):
        with T.Kernel(1024, threads=threads) as bx:
            tx = T.get_thread_binding()
            if tx < lanes:
                for i in T.unroll(8):
                    Y[bx, i * lanes + tx] = T.exp2(X[bx, i * lanes + tx])

    return main


def sines_or_cosines(threads=128):
    """Even lanes take the sine, odd ones the cosine."""

    @T.prim_func
    def main(X: T.Tensor((1024 * 128,), "float32"), Y: T.Tensor((1024 * 128,), "float32")):
        with T.Kernel(1024, threads=threads) as bx:
            tx = T.get_thread_binding()
            x = X[bx * 128 + tx]
            Y[bx * 128 + tx] = T.if_then_else(tx % 2 == 0, T.exp2(x), T.exp2(-x))

    return main


def valid_rows(rows, parts, staged=False):
    """Rows of a table, each loaded if its number is valid: whole, or in two parts.

    With `staged` the numbers are in shared memory.
    """

    @T.prim_func
    def main(
        Table: T.Tensor((1 << 16, 192), "float32"),
        Rows: T.Tensor((1024, rows), "int32"),
        Y: T.Tensor((1024, rows, 192), "float32"),
    ):
        with T.Kernel(1024, threads=128) as bx:
            tile = T.alloc_shared((rows, 192), "float32")
            numbers = T.alloc_shared((128,), "int32")
            tx = T.get_thread_binding()
            if staged:
                numbers[tx] = Rows[bx, tx % rows]
                T.sync_threads()
            for i in T.serial(rows):
                row = numbers[i] if staged else Rows[bx, i]
                if row >= 0:
                    tile[i, tx] = Table[row, tx]
                    if parts > 1 and tx < 64:
                        tile[i, 128 + tx] = Table[row, 128 + tx]
            T.sync_threads()
            for i in T.unroll(rows):
                Y[bx, i, tx] = tile[i, 127 - tx]

    return main


def rows_of_numbers(rows, staged, gathered, steps=1, most=1 << 20, threads=128):
    """Sums of the rows whose numbers are valid.

    Args:
        rows: of the table.
        staged: the numbers that decide are in shared memory.
        gathered: the numbers are those of the rows; TileLang tests as well whether the row exists.
        steps: neighbours that a thread adds up of each row.
        most: numbers from this one on are not valid.
        threads: threads of a block.
    """

    @T.prim_func
    def main(
        Table: T.Tensor((1 << 16, threads * steps), "float32"),
        Numbers: T.Tensor((1024, rows), "int32"),
        Y: T.Tensor((1024, threads), "float32"),
    ):
        with T.Kernel(1024, threads=threads) as bx:
            numbers = T.alloc_shared((rows,), "int32")
            total = T.alloc_local((1,), "float32")
            row = T.alloc_local((1,), "int32")
            tx = T.get_thread_binding()
            for i in T.serial(rows // threads):
                numbers[i * threads + tx] = Numbers[bx, i * threads + tx]
            T.sync_threads()
            total[0] = 0
            for i in T.serial(rows):
                row[0] = numbers[i] if staged else Numbers[bx, i]
                if row[0] >= 0 and row[0] < most:
                    for step in T.serial(steps):
                        total[0] = total[0] + Table[row[0] if gathered else i, tx * steps + step]
            Y[bx, tx] = total[0]

    return main


def marked_rows(rows):
    """Stores to the rows whose numbers are valid, in two parts."""

    @T.prim_func
    def main(Rows: T.Tensor((1024, rows), "int32"), Y: T.Tensor((1 << 16, 192), "float32")):
        with T.Kernel(1024, threads=128) as bx:
            tx = T.get_thread_binding()
            for i in T.serial(rows):
                row = Rows[bx, i]
                if row >= 0:
                    Y[row, tx] = 1.0
                    if tx < 64:
                        Y[row, 128 + tx] = 1.0

    return main


def normalised_rows(rows, columns, inside, changed=False, threads=128):
    """Rows divided by the root of a number each, which the loop over the row states or the code before it.

    The loop may change the number.
    """

    @T.prim_func
    def main(
        X: T.Tensor((rows, columns), "float32"),
        Squares: T.Tensor((rows,), "float32"),
        Y: T.Tensor((rows, columns), "float32"),
    ):
        with T.Kernel(rows, threads=threads) as bx:
            i = T.get_thread_binding(0)
            square = T.alloc_local((1,), "float32")
            inverse = T.alloc_local((1,), "float32")
            square[0] = Squares[bx]
            inverse[0] = T.rsqrt(square[0])
            for step in T.serial(columns // threads):
                if changed:
                    square[0] = square[0] * 0.5
                if inside:
                    Y[bx, step * threads + i] = X[bx, step * threads + i] * T.rsqrt(square[0])
                else:
                    Y[bx, step * threads + i] = X[bx, step * threads + i] * inverse[0]

    return main


def gathered_rows(rows, staged, threads=128):
    """Rows of a table whose numbers come from shared memory, or from a tensor."""

    @T.prim_func
    def main(
        Table: T.Tensor((1 << 16, 128), "float32"),
        Rows: T.Tensor((1024, rows), "int32"),
        Y: T.Tensor((1024, rows, 128), "float32"),
    ):
        with T.Kernel(1024, threads=threads) as bx:
            numbers = T.alloc_shared((rows,), "int32")
            tile = T.alloc_shared((rows, 128), "float32")
            tx = T.get_thread_binding()
            if tx < rows:
                numbers[tx] = Rows[bx, tx]
            T.sync_threads()
            for i in T.unroll(rows):
                if staged:
                    tile[i, tx] = Table[numbers[i], tx]
                else:
                    tile[i, tx] = Table[Rows[bx, i], tx]
            T.sync_threads()
            for i in T.unroll(rows):
                Y[bx, i, tx] = tile[i, 127 - tx]

    return main


def shifted(steps, together, threads=128):
    """Values of one buffer in shared memory go to another: one by one, or all after all were loaded."""

    @T.prim_func
    def main(X: T.Tensor((1024, steps, 128), "float32"), Y: T.Tensor((1024, steps, 128), "float32")):
        with T.Kernel(1024, threads=threads) as bx:
            a = T.alloc_shared((steps, 128), "float32")
            b = T.alloc_shared((steps, 128), "float32")
            held = T.alloc_local((steps,), "float32")
            tx = T.get_thread_binding()
            for i in T.unroll(steps):
                a[i, tx] = X[bx, i, tx]
            T.sync_threads()
            if together:
                for i in T.unroll(steps):
                    held[i] = a[i, 127 - tx]
                for i in T.unroll(steps):
                    b[i, tx] = held[i] * 2.0
            else:
                for i in T.unroll(steps):
                    b[i, tx] = a[i, 127 - tx] * 2.0
            T.sync_threads()
            for i in T.unroll(steps):
                Y[bx, i, tx] = b[i, 127 - tx]

    return main


def maximum_and_sum(trips, guard, stored_between=False, threads=128):
    """The largest of a row's elements and their sum, in two loops that convert the same registers.

    `guard`: "loop" and "thread" give elements beyond an edge another value, which depends on the iteration
    alone or on the thread as well; "" takes all of them.
    """

    @T.prim_func
    def main(X: T.Tensor((1024, trips, 128, 8), "bfloat16"), Y: T.Tensor((1024, 128, 2), "float32")):
        with T.Kernel(1024, threads=threads) as bx:
            tx = T.get_thread_binding()
            part = T.alloc_local((8,), "bfloat16")
            found = T.alloc_local((2,), "float32")
            found[0] = 0.0
            found[1] = 0.0
            for trip in T.serial(trips):
                for v in T.vectorized(8):
                    part[v] = X[bx, trip, tx, v]
                for v in T.unroll(8):
                    if guard == "loop":
                        found[0] = T.max(
                            found[0],
                            T.if_then_else(trip * 2 < 2 * trips - 3, T.cast(part[v], "float32"), -1.0),
                        )
                    elif guard == "thread":
                        found[0] = T.max(
                            found[0],
                            T.if_then_else(
                                trip * 128 + tx < trips * 128 - 1, T.cast(part[v], "float32"), -1.0
                            ),
                        )
                    else:
                        found[0] = T.max(found[0], T.cast(part[v], "float32"))
                if stored_between:
                    for v in T.vectorized(8):
                        part[v] = X[bx, trip, 127 - tx, v]
                for v in T.unroll(8):
                    if guard == "loop":
                        found[1] += T.if_then_else(trip * 2 < 2 * trips - 3, T.cast(part[v], "float32"), 0.0)
                    elif guard == "thread":
                        found[1] += T.if_then_else(
                            trip * 128 + tx < trips * 128 - 1, T.cast(part[v], "float32"), 0.0
                        )
                    else:
                        found[1] += T.cast(part[v], "float32")
            for v in T.vectorized(2):
                Y[bx, tx, v] = found[v]

    return main


def looked_up(values, threads=128, copies=1):
    """Each thread takes the element of a table in shared memory whose number it loads.

    The table has `copies` side by side, and neighbours take different ones.
    """

    @T.prim_func
    def main(X: T.Tensor((1024, 128), "int32"), Y: T.Tensor((1024, 128), "float32")):
        with T.Kernel(1024, threads=threads) as bx:
            tx = T.get_thread_binding()
            table = T.alloc_shared((values * copies,), "float32")
            for i in T.serial(T.ceildiv(values * copies, threads)):
                if i * threads + tx < values * copies:
                    table[i * threads + tx] = T.cast(i, "float32")
            T.sync_threads()
            Y[bx, tx] = table[X[bx, tx] * copies + tx % copies]

    return main


def sum_of_first(threads=128):
    """The sum of as many of eight values as a tensor says."""

    @T.prim_func
    def main(
        X: T.Tensor((1024, 8, 128), "float32"),
        N: T.Tensor((1,), "int32"),
        Y: T.Tensor((1024, 128), "float32"),
    ):
        with T.Kernel(1024, threads=threads) as bx:
            tx = T.get_thread_binding()
            found = T.alloc_local((1,), "float32")
            found[0] = 0.0
            count = N[0]
            for v in T.unroll(8):
                found[0] += T.if_then_else(v < count, X[bx, v, tx], 0.0)
            Y[bx, tx] = found[0]

    return main


def sum_in_while(trips, threads=128):
    """The sum of a row whose elements a while loop loads and converts, all but the last few."""

    @T.prim_func
    def main(X: T.Tensor((1024, trips, 128, 8), "bfloat16"), Y: T.Tensor((1024, 128), "float32")):
        with T.Kernel(1024, threads=threads) as bx:
            tx = T.get_thread_binding()
            part = T.alloc_local((8,), "bfloat16")
            found = T.alloc_local((1,), "float32")
            trip = T.alloc_local((1,), "int32")
            trip[0] = 0
            found[0] = 0.0
            while trip[0] < trips:
                for v in T.vectorized(8):
                    part[v] = X[bx, trip[0], tx, v]
                for v in T.unroll(8):
                    found[0] += T.if_then_else(trip[0] < trips - 3, T.cast(part[v], "float32"), 0.0)
                trip[0] = trip[0] + 1
            Y[bx, tx] = found[0]

    return main


def converted_in_branches(both, threads=128):
    """Half of the blocks convert the values that they loaded, and so do the others if `both` is given."""

    @T.prim_func
    def main(X: T.Tensor((1024, 128, 8), "bfloat16"), Y: T.Tensor((1024, 128, 8), "float32")):
        with T.Kernel(1024, threads=threads) as bx:
            tx = T.get_thread_binding()
            part = T.alloc_local((8,), "bfloat16")
            for v in T.vectorized(8):
                part[v] = X[bx, tx, v]
            if bx < 512:
                for v in T.unroll(8):
                    Y[bx, tx, v] = T.cast(part[v], "float32") * 2.0
            else:
                for v in T.unroll(8):
                    Y[bx, tx, v] = T.cast(part[v], "float32") * 3.0 if both else 3.0

    return main


def stated_twice(same, threads=128):
    """A product of an exponential and of a difference that holds the same one, or that of another tensor."""

    @T.prim_func
    def main(
        X: T.Tensor((1024, 128), "float32"),
        Z: T.Tensor((1024, 128), "float32"),
        Y: T.Tensor((1024, 128), "float32"),
    ):
        with T.Kernel(1024, threads=threads) as bx:
            tx = T.get_thread_binding()
            if same:
                Y[bx, tx] = T.exp2(X[bx, tx]) * (1.0 - T.exp2(X[bx, tx]))
            else:
                Y[bx, tx] = T.exp2(X[bx, tx]) * (1.0 - T.exp2(Z[bx, tx]))

    return main


def products_of_pairs(threads=128):
    """A sum of the products of all pairs of rows: two loads whose indices differ in their variables alone."""

    @T.prim_func
    def main(X: T.Tensor((16, 128), "float32"), Y: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for i in T.serial(16):
                for j in T.serial(16):
                    total[0] += X[i, tx] * X[j, tx]
            Y[tx] = total[0]

    return main


def from_codebook(code, threads=128):
    """Each thread takes the element of a large table whose number it loads."""

    @T.prim_func
    def main(
        Table: T.Tensor((65536,), "float32"),
        X: T.Tensor((1024, 128), code),
        Y: T.Tensor((1024, 128), "float32"),
    ):
        with T.Kernel(1024, threads=threads) as bx:
            tx = T.get_thread_binding()
            Y[bx, tx] = Table[X[bx, tx]]

    return main
