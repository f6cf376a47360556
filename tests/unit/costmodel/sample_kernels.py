# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Small TileLang kernels whose demands can be counted by hand."""

import tilelang.language as T


def matmul(m, n, k, block_m, block_n, block_k, stages, threads, swizzle=0, dtype="bfloat16"):
    @T.prim_func
    def main(A: T.Tensor((m, k), dtype), B: T.Tensor((k, n), dtype), C: T.Tensor((m, n), dtype)):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
            a = T.alloc_shared((block_m, block_k), dtype)
            b = T.alloc_shared((block_k, block_n), dtype)
            c = T.alloc_fragment((block_m, block_n), "float32")
            T.use_swizzle(swizzle, enable=swizzle > 0)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=stages):
                T.copy(A[by * block_m, ko * block_k], a)
                T.copy(B[ko * block_k, bx * block_n], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block_m, bx * block_n])

    return main


def renamed_matmul(rows, columns, depth, tile_r, tile_c, tile_d, buffers, lanes, dtype="bfloat16"):
    """The same kernel with every name changed."""

    @T.prim_func
    def other(
        X: T.Tensor((rows, depth), dtype),
        Y: T.Tensor((depth, columns), dtype),
        Z: T.Tensor((rows, columns), dtype),
    ):
        with T.Kernel(T.ceildiv(columns, tile_c), T.ceildiv(rows, tile_r), threads=lanes) as (p, q):
            left = T.alloc_shared((tile_r, tile_d), dtype)
            right = T.alloc_shared((tile_d, tile_c), dtype)
            total = T.alloc_fragment((tile_r, tile_c), "float32")
            T.clear(total)
            for step in T.Pipelined(T.ceildiv(depth, tile_d), num_stages=buffers):
                T.copy(X[q * tile_r, step * tile_d], left)
                T.copy(Y[step * tile_d, p * tile_c], right)
                T.gemm(left, right, total)
            T.copy(total, Z[q * tile_r, p * tile_c])

    return other


def causal_scores(seq, dim, block_m, block_n, threads=128, dtype="bfloat16"):
    """Q K^T over the keys up to a block's last row: the trip count depends on the block."""

    @T.prim_func
    def main(
        Q: T.Tensor((seq, dim), dtype),
        K: T.Tensor((seq, dim), dtype),
        O: T.Tensor((seq, block_n), "float32"),  # noqa: E741
    ):
        with T.Kernel(T.ceildiv(seq, block_m), threads=threads) as bx:
            q = T.alloc_shared((block_m, dim), dtype)
            k = T.alloc_shared((block_n, dim), dtype)
            s = T.alloc_fragment((block_m, block_n), "float32")
            T.copy(Q[bx * block_m, 0], q)
            T.clear(s)
            for step in T.Pipelined(T.ceildiv((bx + 1) * block_m, block_n), num_stages=1):
                T.copy(K[step * block_n, 0], k)
                T.gemm(q, k, s, transpose_B=True)
            T.copy(s, O[bx * block_m, 0])

    return main


def scale(n, block, threads=128, dtype="float32"):
    """y = 2 x: nothing but memory."""

    @T.prim_func
    def main(X: T.Tensor((n,), dtype), Y: T.Tensor((n,), dtype)):
        with T.Kernel(T.ceildiv(n, block), threads=threads) as bx:
            for i in T.Parallel(block):
                Y[bx * block + i] = X[bx * block + i] * 2.0

    return main


def strided_read(rows, threads=128, dtype="float32"):
    """Each lane reads from a row of its own: no two lanes share a sector."""

    @T.prim_func
    def main(X: T.Tensor((rows, 64), dtype), Y: T.Tensor((rows,), dtype)):
        with T.Kernel(T.ceildiv(rows, threads), threads=threads) as bx:
            i = T.get_thread_binding(0)
            Y[bx * threads + i] = X[bx * threads + i, 0]

    return main


def transpose(m, n, block, pad, threads=256, dtype="float32"):
    """Through shared memory, read by columns: conflict-free only with a padded row."""

    @T.prim_func
    def main(X: T.Tensor((m, n), dtype), Y: T.Tensor((n, m), dtype)):
        with T.Kernel(T.ceildiv(n, block), T.ceildiv(m, block), threads=threads) as (bx, by):
            tile = T.alloc_shared((block, block + pad), dtype)
            tx = T.get_thread_binding(0)
            for r in T.serial(block * block // threads):
                tile[(r * threads + tx) // block, (r * threads + tx) % block] = X[
                    by * block + (r * threads + tx) // block, bx * block + (r * threads + tx) % block
                ]
            T.sync_threads()
            for r in T.serial(block * block // threads):
                Y[bx * block + (r * threads + tx) // block, by * block + (r * threads + tx) % block] = tile[
                    (r * threads + tx) % block, (r * threads + tx) // block
                ]

    return main


def exponentials(n, block, threads=128):
    """One exp2 an element."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=threads) as bx:
            for i in T.Parallel(block):
                Y[bx * block + i] = T.exp2(X[bx * block + i])

    return main


def opaque_call(n, threads=128):
    """A device function that nobody has told us about."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, threads), threads=threads) as bx:
            i = T.get_thread_binding(0)
            Y[bx * threads + i] = T.call_extern("float32", "somebodys_function", X[bx * threads + i])

    return main


def sliding_rows(rows, columns, window):
    """Each block sums rows of its own: the loop starts where the block does."""

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((rows // window, columns), "float32")):
        with T.Kernel(rows // window, threads=columns) as bx:
            i = T.get_thread_binding(0)
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for row in T.serial(bx * window, bx * window + window):
                total[0] += X[row, i]
            Y[bx, i] = total[0]

    return main


def thread_quarters(n, threads=128):
    """A chain of conditions that sends each warp its own way."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            if i < 32:
                Y[bx * threads + i] = X[bx * threads + i]
            else:
                if i < 64:
                    Y[bx * threads + i] = X[bx * threads + i] * 2.0
                else:
                    Y[bx * threads + i] = X[bx * threads + i] * 3.0

    return main


def counter(n, threads=128):
    """Every element adds to one word."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            T.atomic_add(Y[0], X[bx * threads + i])

    return main


def any_rows(columns=128):
    """A shape that is known only at run time."""
    rows = T.dynamic("rows")

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((rows, columns), "float32")):
        with T.Kernel(rows):
            for j in T.serial(columns):
                Y[0, j] = X[0, j] * 2.0

    return main


def packed_halves(n, reinterpreted, threads=128):
    """Bits of an integer taken for a float, or converted to one."""

    @T.prim_func
    def main(X: T.Tensor((n,), "uint16"), Y: T.Tensor((n,), "float16")):
        with T.Kernel(n // threads, threads=threads) as bx:
            for i in T.Parallel(threads):
                if reinterpreted:
                    Y[bx * threads + i] = T.reinterpret(
                        (X[bx * threads + i] >> T.uint16(3)) & T.uint16(15), "float16"
                    )
                else:
                    Y[bx * threads + i] = T.cast(
                        (X[bx * threads + i] >> T.uint16(3)) & T.uint16(15), "float16"
                    )

    return main


def persistent_matmul(m, n, k, block, block_k, stages, cores, threads=256, dtype="bfloat16"):
    """A block computes one tile after another, as long as there are any."""
    across, tiles = n // block, (m // block) * (n // block)

    @T.prim_func
    def main(A: T.Tensor((m, k), dtype), B: T.Tensor((k, n), dtype), C: T.Tensor((m, n), dtype)):
        with T.Kernel(cores, threads=threads) as bx:
            a = T.alloc_shared((block, block_k), dtype)
            b = T.alloc_shared((block_k, block), dtype)
            c = T.alloc_fragment((block, block), "float32")
            for turn in T.serial(T.ceildiv(tiles, cores)):
                tile = turn * cores + bx
                if tile < tiles:
                    T.clear(c)
                    for ko in T.Pipelined(k // block_k, num_stages=stages):
                        T.copy(A[tile // across * block, ko * block_k], a)
                        T.copy(B[ko * block_k, tile % across * block], b)
                        T.gemm(a, b, c)
                    T.copy(c, C[tile // across * block, tile % across * block])

    return main


def multicast(rows, cols, block, clusters):
    """Two blocks side by side load the same tile, and each a tile of its own."""

    @T.prim_func
    def main(
        A: T.Tensor((rows, cols), "bfloat16"),
        B: T.Tensor((rows, cols), "bfloat16"),
        C: T.Tensor((rows, cols), "bfloat16"),
    ):
        with T.Kernel(2 * clusters, threads=128, cluster_dims=2) as bx:
            common = T.alloc_shared((block, cols), "bfloat16")
            own = T.alloc_shared((block, cols), "bfloat16")
            loaded = T.alloc_barrier(1)
            first, second = bx // 2 * block, bx * block
            T.tma_copy(A[first : first + block, 0:cols], common, barrier=loaded, cluster_mask=3)
            T.tma_copy(B[second : second + block, 0:cols], own, barrier=loaded)
            if T.get_thread_binding() == 0:
                T.mbarrier_arrive(loaded)
            T.mbarrier_wait_parity(loaded, 0)
            for i, j in T.Parallel(block, cols):
                C[second + i, j] = common[i, j] + own[i, j]

    return main


def chosen_weights(m, n, k, experts, block, block_k, stages, threads=128, dtype="bfloat16"):
    """Each row of blocks multiplies by weights of its own choice."""

    @T.prim_func
    def main(
        A: T.Tensor((m, k), dtype),
        W: T.Tensor((experts, k, n), dtype),
        E: T.Tensor((m // block,), "int32"),
        C: T.Tensor((m, n), dtype),
    ):
        with T.Kernel(n // block, m // block, threads=threads) as (bx, by):
            a = T.alloc_shared((block, block_k), dtype)
            w = T.alloc_shared((block_k, block), dtype)
            c = T.alloc_fragment((block, block), "float32")
            T.clear(c)
            expert = E[by]
            for ko in T.Pipelined(k // block_k, num_stages=stages):
                T.copy(A[by * block, ko * block_k], a)
                T.copy(W[expert, ko * block_k, bx * block], w)
                T.gemm(a, w, c)
            T.copy(c, C[by * block, bx * block])

    return main


def masked_matmul(m, n, k, block, block_k, stages, threads=128, dtype="bfloat16"):
    """Steps that a mask in memory leaves out."""

    @T.prim_func
    def main(
        A: T.Tensor((m, k), dtype),
        B: T.Tensor((k, n), dtype),
        M: T.Tensor((m // block, k // block_k), "bool"),
        C: T.Tensor((m, n), dtype),
    ):
        with T.Kernel(n // block, m // block, threads=threads) as (bx, by):
            a = T.alloc_shared((block, block_k), dtype)
            b = T.alloc_shared((block_k, block), dtype)
            c = T.alloc_fragment((block, block), "float32")
            T.clear(c)
            for ko in T.Pipelined(k // block_k, num_stages=stages):
                if M[by, ko]:
                    T.copy(A[by * block, ko * block_k], a)
                    T.copy(B[ko * block_k, bx * block], b)
                    T.gemm(a, b, c)
            T.copy(c, C[by * block, bx * block])

    return main


def thread_sums(n, steps, unrolled, threads=128):
    """Each thread sums words that lie apart."""
    span = steps * threads

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n // steps,), "float32")):
        with T.Kernel(n // span, threads=threads) as bx:
            i = T.get_thread_binding(0)
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            if unrolled:
                for step in T.unroll(steps):
                    total[0] += X[bx * span + step * threads + i]
            else:
                for step in T.serial(steps):
                    total[0] += X[bx * span + step * threads + i]
            Y[bx * threads + i] = total[0]

    return main


def late_iterations(blocks, turns, first, threads=128):
    """A thread adds a row to its sum from iteration `first` on, of 16 b + t + 1 in block b and turn t."""

    @T.prim_func
    def main(
        X: T.Tensor((16 * blocks + turns, threads), "float32"), Y: T.Tensor((blocks, threads), "float32")
    ):
        with T.Kernel(blocks, threads=threads) as bx:
            tx = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for t in T.serial(turns):
                for k in T.serial(16 * bx + t + 1):
                    if k >= first:
                        total[0] += X[k, tx]
            Y[bx, tx] = total[0]

    return main


def row_sums(m, n, lanes, unroll, threads=64):
    """Rows summed by `lanes` threads each, in steps of 8; elements beyond a row are read as zeros."""
    step, groups = 8 * lanes, threads // lanes if lanes < threads else 1
    threads = max(threads, lanes)

    def place(u, i, j):
        return i % groups * lanes + j // 8, u * 8 + j % 8

    @T.prim_func
    def main(X: T.Tensor((m, n), "bfloat16"), Y: T.Tensor((m,), "float32")):
        with T.Kernel(m // groups, threads=threads) as bx:
            part = T.alloc_fragment((unroll, groups, step), "bfloat16")
            sums = T.alloc_fragment((groups, step), "float32")
            total = T.alloc_fragment((groups,), "float32")
            T.annotate_layout(
                {
                    part: T.Fragment((unroll, groups, step), forward_fn=place),
                    sums: T.Fragment((groups, step), forward_fn=lambda i, j: place(0, i, j)),
                }
            )
            T.clear(sums)
            for k in T.serial(T.ceildiv(n, step * unroll)):
                for u in T.unroll(unroll):
                    T.copy(
                        X[
                            bx * groups : bx * groups + groups,
                            (k * unroll + u) * step : (k * unroll + u) * step + step,
                        ],
                        part[u, :, :],
                    )
                for u in T.unroll(unroll):
                    for i, j in T.Parallel(groups, step):
                        sums[i, j] += T.cast(part[u, i, j], "float32")
            T.reduce_sum(sums, total, dim=1)
            T.copy(total, Y[bx * groups])

    return main


def ragged_tiles(m, n, rows, columns, threads=64):
    """Tiles that hang over both edges, through shared memory."""

    @T.prim_func
    def main(X: T.Tensor((m, n), "bfloat16"), Y: T.Tensor((m, n), "bfloat16")):
        with T.Kernel(T.ceildiv(m, rows), threads=threads) as bx:
            tile = T.alloc_shared((rows, columns), "bfloat16")
            T.copy(X[bx * rows, 0], tile, disable_tma=True)
            T.copy(tile, Y[bx * rows, 0], disable_tma=True)

    return main


def first_threads(n, active, threads=128):
    """Only some threads of each block store."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            if i < active:
                Y[bx * threads + i] = X[bx * threads + i]

    return main


def products_of_bytes(rows=512, cols=512, depth=1024, tile=16, step=64):
    """A product of int8 matrices by integer instructions: a thread has four columns of a row."""

    @T.prim_func
    def main(
        A: T.Tensor((rows, depth), "int8"),
        B: T.Tensor((cols, depth), "int8"),
        C: T.Tensor((rows, cols), "int32"),
    ):
        with T.Kernel(cols // tile, rows // tile, threads=tile * tile // 4) as (bx, by):
            i = T.get_thread_binding()
            a = T.alloc_shared((tile, step), "int8")
            b = T.alloc_shared((tile, step), "int8")
            left = T.alloc_local((4,), "int8")
            right = T.alloc_local((4,), "int8")
            total = T.alloc_local((4,), "int32")
            T.clear(total)
            for k in T.Pipelined(depth // step, num_stages=2):
                T.copy(A[by * tile, k * step], a)
                T.copy(B[bx * tile, k * step], b)
                for s in T.serial(step // 4):
                    for e in T.vectorized(4):
                        left[e] = a[i // 4, s * 4 + e]
                    for j in T.serial(4):
                        for e in T.vectorized(4):
                            right[e] = b[i % 4 * 4 + j, s * 4 + e]
                        T.dp4a(left[0], right[0], total[j])
            for j in T.serial(4):
                C[by * tile + i // 4, bx * tile + i % 4 * 4 + j] = total[j]

    return main


def long_iterations(steps, each, *, unrolled, n=1 << 14, threads=128):
    """Each iteration loads a number, and in each of so many steps multiplies and adds `each` times."""
    inner = T.unroll if unrolled else T.serial

    @T.prim_func
    def main(X: T.Tensor((64, n), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for k in T.serial(64):
                for _ in inner(steps):
                    for _ in T.unroll(each):
                        total[0] = total[0] * 1.5 + X[k, bx * threads + i]
            Y[bx * threads + i] = total[0]

    return main


def ranks(n=4096, threads=128):
    """How many numbers are larger than that of a thread: each comparison loads one of them."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "int32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            own = T.alloc_local((1,), "float32")
            count = T.alloc_local((1,), "int32")
            own[0] = X[bx * threads + i]
            count[0] = 0
            for j in T.serial(n):
                count[0] += T.if_then_else(own[0] < X[j], 1, 0)
            Y[bx * threads + i] = count[0]

    return main


def gather(n, table, threads=128):
    """One word by an index that is itself in memory, added to a place of that index's own."""

    @T.prim_func
    def main(
        I: T.Tensor((n,), "int32"),  # noqa: E741
        X: T.Tensor((table,), "float32"),
        Y: T.Tensor((table,), "float32"),
    ):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            T.atomic_add(Y[I[bx * threads + i]], X[I[bx * threads + i]])

    return main


def running_sums(rows, columns, block, threads=128):
    """Cumulative sums along the rows of a tile in shared memory."""

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((rows, columns), "float32")):
        with T.Kernel(rows // block, threads=threads) as bx:
            tile = T.alloc_shared((block, columns), "float32")
            T.copy(X[bx * block, 0], tile)
            T.cumsum(src=tile, dim=1)
            T.copy(tile, Y[bx * block, 0])

    return main


def tick(n, ring, threads=128):
    """A counter in a local scalar chooses the slot of a ring, turn after turn of a loop within a loop."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n // threads,), "float32")):
        with T.Kernel(1, threads=threads):
            i = T.get_thread_binding(0)
            slots = T.alloc_shared((ring, threads), "float32")
            count = T.alloc_local((1,), "int32")
            count[0] = 0
            for _outer in T.serial(8):
                for step in T.serial(n // threads):
                    slots[count[0] % ring, i] = X[step * threads + i]
                    T.sync_threads()
                    count[0] = count[0] + 1
            Y[0] = slots[0, 0]

    return main


def product_in_groups(m, n, k, tile, step, group):
    """A matrix product on a 1-D grid that walks groups of `group` rows of tiles (0: a 2-D grid)."""
    rows, columns = m // tile, n // tile

    if not group:

        @T.prim_func
        def plain(
            A: T.Tensor((m, k), "float16"), B: T.Tensor((k, n), "float16"), C: T.Tensor((m, n), "float16")
        ):
            with T.Kernel(columns, rows, threads=128) as (bx, by):
                a = T.alloc_shared((tile, step), "float16")
                b = T.alloc_shared((step, tile), "float16")
                c = T.alloc_fragment((tile, tile), "float32")
                T.clear(c)
                for i in T.Pipelined(k // step, num_stages=2):
                    T.copy(A[by * tile, i * step], a)
                    T.copy(B[i * step, bx * tile], b)
                    T.gemm(a, b, c)
                T.copy(c, C[by * tile, bx * tile])

        return plain

    @T.prim_func
    def grouped(
        A: T.Tensor((m, k), "float16"), B: T.Tensor((k, n), "float16"), C: T.Tensor((m, n), "float16")
    ):
        with T.Kernel(columns * rows, threads=128) as bx:
            a = T.alloc_shared((tile, step), "float16")
            b = T.alloc_shared((step, tile), "float16")
            c = T.alloc_fragment((tile, tile), "float32")
            T.clear(c)
            for i in T.Pipelined(k // step, num_stages=2):
                T.copy(A[(bx // (group * columns) * group + bx % group) * tile, i * step], a)
                T.copy(B[i * step, bx % (group * columns) // group * tile], b)
                T.gemm(a, b, c)
            T.copy(
                c,
                C[
                    (bx // (group * columns) * group + bx % group) * tile,
                    bx % (group * columns) // group * tile,
                ],
            )

    return grouped


def row_read_twice(rows, columns, threads=128):
    """Each block reads its row twice."""

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((rows, columns), "float32")):
        with T.Kernel(rows, threads=threads) as bx:
            total = T.alloc_fragment((1,), "float32")
            part = T.alloc_fragment((columns,), "float32")
            T.copy(X[bx, 0:columns], part)
            T.reduce_sum(part, total, dim=0)
            for i in T.Parallel(columns):
                Y[bx, i] = X[bx, i] * total[0]

    return main


def added_to_one_row(rows, columns, threads=128):
    """All blocks add to the same row."""

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((columns,), "float32")):
        with T.Kernel(rows, threads=threads) as bx:
            for i in T.Parallel(columns):
                T.atomic_add(Y[i], X[bx, i])

    return main


def scaled_columns(rows, columns, repeats, threads=128):
    """One scale for all columns of a thread's stretch."""

    @T.prim_func
    def main(
        X: T.Tensor((rows, columns), "float32"),
        S: T.Tensor((threads,), "float32"),
        Y: T.Tensor((rows, columns), "float32"),
    ):
        with T.Kernel(rows, threads=threads) as bx:
            t = T.get_thread_binding(0)
            for i in T.unroll(repeats):
                Y[bx, i * threads + t] = X[bx, i * threads + t] * S[t]

    return main


def staged_steps(n, steps, *, in_place, threads=32):
    """A loop in which threads exchange values between barriers; with `in_place` it also stores X."""

    @T.prim_func
    def main(X: T.Tensor((steps, n), "float16"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            staged = T.alloc_shared((threads,), "float16")
            total = T.alloc_local((1,), "float32")
            total[0] = 0
            for step in T.serial(steps):
                T.sync_threads()
                staged[i] = X[step, bx * threads + i]
                T.sync_threads()
                total[0] = total[0] + T.cast(staged[threads - 1 - i], "float32")
                if in_place:
                    X[step, bx * threads + i] = staged[threads - 1 - i]
            Y[bx * threads + i] = total[0]

    return main


def held_steps(n, steps, threads=32):
    """Each thread loads `steps` values one after another and keeps them in registers."""

    @T.prim_func
    def main(X: T.Tensor((steps, n), "float16"), Y: T.Tensor((steps, n), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            held = T.alloc_local((steps,), "float32")
            total = T.alloc_local((1,), "float32")
            total[0] = 0
            for step in T.serial(steps):
                held[step] = T.cast(X[step, bx * threads + i], "float32")
                total[0] = total[0] + held[step]
            for step in T.serial(steps):
                Y[step, bx * threads + i] = held[step] / total[0]

    return main


def sums_by_remainder(n, steps, slots, threads=32):
    """Each thread adds to `slots` sums in turn."""

    @T.prim_func
    def main(X: T.Tensor((slots, n), "float32"), Y: T.Tensor((slots, n), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            held = T.alloc_local((slots,), "float32")
            sums = T.alloc_local((slots,), "float32")
            for slot in T.unroll(slots):
                held[slot] = X[slot, bx * threads + i]
                sums[slot] = 0
            for step in T.serial(steps):
                sums[step % slots] = sums[step % slots] * 0.5 + held[step % slots]
            for slot in T.unroll(slots):
                Y[slot, bx * threads + i] = sums[slot]

    return main


def held_rows(n, outer, inner, threads=32):
    """Each thread keeps a row that two loops index together."""

    @T.prim_func
    def main(X: T.Tensor((outer * inner, n), "float32"), Y: T.Tensor((outer * inner, n), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            held = T.alloc_local((outer * inner,), "float32")
            for row in T.serial(outer):
                for step in T.serial(inner):
                    held[row * inner + step] = X[row * inner + step, bx * threads + i]
            for row in T.serial(outer):
                for step in T.serial(inner):
                    Y[row * inner + step, bx * threads + i] = held[row * inner + step]

    return main


def unrolled_products(n, rows, columns, carried=False, again=False, threads=128):
    """Each thread multiplies rows of a tile by its own numbers, then adds up the columns.

    Args:
        n: columns of the tensors.
        rows, columns: of the tile.
        carried: the products are added to those of the tile before.
        again: each product is needed once more, beside the sum of its column.
        threads: threads of a block.
    """

    @T.prim_func
    def main(X: T.Tensor((64 * rows * columns,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            tile = T.alloc_shared((rows * columns,), "float32")
            own = T.alloc_local((rows,), "float32")
            product = T.alloc_local((rows * columns,), "float32")
            total = T.alloc_local((columns,), "float32")
            for row in T.unroll(rows):
                own[row] = Y[bx * threads + i] * row
            for part in T.serial(64):
                T.copy(X[part * rows * columns], tile)
                for row in T.unroll(rows):
                    for step in T.serial(4):
                        for column in T.unroll(columns // 4):
                            at = row * columns + step * (columns // 4) + column
                            if carried:
                                product[at] = product[at] * own[row] + tile[at]
                            else:
                                product[at] = own[row] * tile[at]
                for column in T.unroll(columns):
                    for row in T.unroll(rows):
                        total[column] = total[column] + product[row * columns + column]
                    if again:
                        for row in T.unroll(rows):
                            total[column] = T.max(
                                total[column], product[row * columns + column] / total[column]
                            )
            for column in T.unroll(columns):
                Y[bx * threads + i] = total[column]

    return main


def serial_rows(rows, columns, guarded, threads=128):
    """Each thread goes over a copy of the whole row, and stores all of it, or its part."""

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((rows, columns), "float32")):
        with T.Kernel(rows, threads=threads) as bx:
            i = T.get_thread_binding(0)
            row = T.alloc_local((columns,), "float32")
            out = T.alloc_local((columns,), "float32")
            part = T.alloc_local((8,), "float32")
            for step in T.unroll(columns):
                row[step] = X[bx, step]
            for step in T.serial(columns):
                if guarded:
                    if i <= step // 8:
                        part[step // 1024 * 4 + step % 4] = T.max(row[step], 0.0)
                else:
                    out[step] = T.max(row[step], 0.0)
            for step in T.unroll(8):
                Y[bx, i * 8 + step] = part[step] if guarded else out[step]

    return main


def rows_scaled(rows, columns, threads=128):
    """Each thread scales several elements of a few rows, and each row has one scale."""

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float32"), S: T.Tensor((rows,), "float32")):
        with T.Kernel(1, threads=threads):
            i = T.get_thread_binding(0)
            for e in T.unroll(16):
                X[i // 8 * 2 + e // 8, i % 8 * 8 + e % 8] = S[i // 8 * 2 + e // 8]

    return main


def narrow_rows(n, threads=64):
    """Each thread copies eight halves of its row to shared memory and back, one by one."""

    @T.prim_func
    def main(X: T.Tensor((n, 8), "float16"), Y: T.Tensor((n, 8), "float16")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            staged = T.alloc_shared((threads, 8), "float16")
            for e in T.unroll(8):
                staged[i, e] = X[bx * threads + i, e]
            T.sync_threads()
            for e in T.unroll(8):
                Y[bx * threads + i, e] = staged[i, e]

    return main


def values_of(n, dtype, function, threads=128):
    """Each thread computes a function of one number of the type and adds the number to it."""

    @T.prim_func
    def main(X: T.Tensor((n,), dtype), Y: T.Tensor((n,), dtype)):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            at = bx * threads + i
            Y[at] = function(X[at]) + X[at]

    return main


def logarithms(n, steps, each=32, threads=32):
    """Each thread takes `steps` times `each` logarithms and adds them up afterwards."""

    @T.prim_func
    def main(Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            held = T.alloc_local((steps * each,), "float32")
            total = T.alloc_local((1,), "float32")
            total[0] = 0
            for step in T.serial(steps):
                for e in T.unroll(each):
                    held[step * each + e] = T.log(T.cast(i + step * each + e, "float32"))
            for e in T.unroll(steps * each):
                total[0] = total[0] + held[e]
            Y[bx * threads + i] = total[0]

    return main


def divided(n, divisor, dtype="int32", threads=128):
    """Each thread stores the quotient of its number, and twice an element at the quotient."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((2, n), "float32"), Z: T.Tensor((n,), dtype)):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            for copy in T.unroll(2):
                Y[copy, bx * threads + i] = X[(bx * threads + i) // divisor]
            Z[bx * threads + i] = T.cast(bx * threads + i, dtype) // divisor

    return main


def padded_rows(n, inside, threads=128, nested=False):
    """Each thread copies eight elements to shared memory, row by row, within a branch for whole tiles."""

    @T.prim_func
    def main(X: T.Tensor((8, n), "float16"), Y: T.Tensor((8, n), "float16")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            staged = T.alloc_shared((8, threads), "float16")
            for a in T.unroll(2 if nested else 1):
                for b in T.unroll(4 if nested else 8):
                    if bx < inside:
                        staged[a * 4 + b, i] = X[a * 4 + b, bx * threads + i]
                    else:
                        staged[a * 4 + b, i] = T.if_then_else(
                            bx * threads + i < n - 5, X[a * 4 + b, bx * threads + i], T.float16(0)
                        )
            T.sync_threads()
            for row in T.unroll(8):
                Y[row, bx * threads + i] = staged[row, threads - 1 - i]

    return main


def prefix_sums(n, steps, in_place, threads=32):
    """Each thread stores the sums of its elements so far."""

    @T.prim_func
    def main(X: T.Tensor((steps, n), "float16"), Y: T.Tensor((steps, n), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            total = T.alloc_local((1,), "float32")
            total[0] = 0
            for step in T.serial(steps):
                total[0] = total[0] + T.cast(X[step, bx * threads + i], "float32")
                Y[step, bx * threads + i] = total[0]
            if in_place:
                X[0, bx * threads + i] = T.float16(0)

    return main


def transposed(n, lanes, threads=32):
    """Each group of `lanes` neighbouring threads stores contiguous elements of a row of its own."""

    @T.prim_func
    def main(X: T.Tensor((threads,), "float32"), Y: T.Tensor((threads // lanes, n), "float32")):
        with T.Kernel(n // lanes, threads=threads) as bx:
            i = T.get_thread_binding(0)
            Y[i // lanes, bx * lanes + i % lanes] = X[i]

    return main


def stripes(rows, columns, block_rows, block_columns, down):
    """A copy by tiles. Blocks that start together share a stripe of columns (`down`) or rows."""
    grid = (rows // block_rows, columns // block_columns)

    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(*(grid if down else grid[::-1]), threads=128) as (x, y):
            for i, j in T.Parallel(block_rows, block_columns):
                B[(x if down else y) * block_rows + i, (y if down else x) * block_columns + j] = A[
                    (x if down else y) * block_rows + i, (y if down else x) * block_columns + j
                ]

    return main


def exchanged_halves(rows, columns, block_rows, apart):
    """Both halves of each row by a statement each, exchanged; `apart`: those of a matrix twice as wide."""
    half, width = columns // 2, columns * apart

    @T.prim_func
    def main(A: T.Tensor((rows, width), "float32"), B: T.Tensor((rows, width), "float32")):
        with T.Kernel(rows // block_rows, threads=128) as b:
            for i, j in T.Parallel(block_rows, half):
                B[b * block_rows + i, j] = A[b * block_rows + i, half * apart + j]
            for i, j in T.Parallel(block_rows, half):
                B[b * block_rows + i, half * apart + j] = A[b * block_rows + i, j]

    return main


def narrowed(size, dtype):
    """A conversion to a narrower float format and back."""

    @T.prim_func
    def main(A: T.Tensor((size,), "float32"), B: T.Tensor((size,), "float32")):
        with T.Kernel(size // 512, threads=128) as b:
            narrow = T.alloc_fragment((512,), dtype)
            for i in T.Parallel(512):
                narrow[i] = T.cast(A[b * 512 + i], dtype)
            for i in T.Parallel(512):
                B[b * 512 + i] = T.cast(narrow[i], "float32")

    return main


def warp_sums(rows, columns, turns):
    """Sums over the rows of a tile, `turns` of them one after another; each is a reduction over a warp."""

    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, turns), "float32")):
        with T.Kernel(rows, threads=32) as b:
            part = T.alloc_fragment((columns // turns,), "float32")
            total = T.alloc_fragment((1,), "float32")
            for k in T.serial(turns):
                T.copy(A[b, k * (columns // turns)], part)
                T.reduce_sum(part, total)
                B[b, k] = total[0]

    return main


def shared_loop(ahead, threads=128):
    """A product whose producer and consumer share a loop, in which TileLang has all threads meet.

    The producer copies `ahead` iterations before the consumer needs it, into two buffers.
    """

    @T.prim_func
    def main(
        A: T.Tensor((1024, 4096), "float16"),
        B: T.Tensor((4096, 1024), "float16"),
        C: T.Tensor((1024, 1024), "float16"),
    ):
        with T.Kernel(8, 8, threads=2 * threads) as (bx, by):
            a = T.alloc_shared((2, 128, 64), "float16")
            b = T.alloc_shared((2, 64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            full, free = T.alloc_barrier([threads] * 2), T.alloc_barrier([threads] * 2)
            with T.ws(0):
                T.clear(c)
            for i in range(64):
                with T.ws(1):
                    T.mbarrier_wait_parity(free[(i + ahead) % 2], ((i + ahead) // 2 % 2) ^ 1)
                    T.tma_copy(
                        A[by * 128 : by * 128 + 128, (i + ahead) * 64 : (i + ahead) * 64 + 64],
                        a[(i + ahead) % 2, :, :],
                        barrier=full[(i + ahead) % 2],
                    )
                    T.tma_copy(
                        B[(i + ahead) * 64 : (i + ahead) * 64 + 64, bx * 128 : bx * 128 + 128],
                        b[(i + ahead) % 2, :, :],
                        barrier=full[(i + ahead) % 2],
                    )
                    T.mbarrier_arrive(full[(i + ahead) % 2])
                with T.ws(0):
                    T.mbarrier_wait_parity(full[i % 2], i // 2 % 2)
                    T.gemm(a[i % 2, :, :], b[i % 2, :, :], c)
                    T.mbarrier_arrive(free[i % 2])
            with T.ws(0):
                T.copy(c, C[by * 128, bx * 128])

    return main


def two_products(steps, stages, blocks_per_core=1, dtype="float16"):
    """Scores of a row of tiles times another one: each product waits for a tile of its own."""

    @T.prim_func
    def main(
        Q: T.Tensor((64, 64), dtype),
        K: T.Tensor((steps * 64, 64), dtype),
        V: T.Tensor((steps * 64, 64), dtype),
        R: T.Tensor((64, 64), dtype),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_min_blocks_per_sm(blocks_per_core)
            q, k = T.alloc_shared((64, 64), dtype), T.alloc_shared((64, 64), dtype)
            v, p = T.alloc_shared((64, 64), dtype), T.alloc_shared((64, 64), dtype)
            s, o = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
            T.copy(Q, q)
            T.clear(o)
            for i in T.Pipelined(steps, num_stages=stages):
                T.copy(K[i * 64 : (i + 1) * 64, :], k)
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True)
                T.copy(s, p)
                T.copy(V[i * 64 : (i + 1) * 64, :], v)
                T.gemm(p, v, o)
            T.copy(o, R)

    return main


def tiles_in_turn(rows, columns, depths, blocks, tile=64):
    """A product by blocks that stay, with one pipelined loop over the iterations of all tiles of a block."""
    count = rows * columns

    @T.prim_func
    def kernel(
        A: T.Tensor((rows * tile, depths * tile), "float16"),
        B: T.Tensor((depths * tile, columns * tile), "float16"),
        C: T.Tensor((rows * tile, columns * tile), "float16"),
    ):
        with T.Kernel(blocks, threads=128) as x:
            a = T.alloc_shared((tile, tile), "float16")
            b = T.alloc_shared((tile, tile), "float16")
            c = T.alloc_fragment((tile, tile), "float32")
            T.clear(c)
            for step in T.Pipelined(T.truncdiv(count - x + blocks - 1, blocks) * depths, num_stages=2):
                number = step // depths * blocks + x
                T.copy(A[number // columns * tile, step % depths * tile], a)
                T.copy(B[step % depths * tile, number % columns * tile], b)
                T.gemm(a, b, c)
                if step % depths == depths - 1:
                    T.copy(c, C[number // columns * tile, number % columns * tile])
                    T.clear(c)

    return kernel


def chosen_rows(rows, most, columns=128):
    """Blocks with unequal lists of rows in an array of each thread, which a condition alone reads."""

    @T.prim_func
    def kernel(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(most, threads=columns) as x:
            allowed = T.alloc_local((most,), "int32")
            tx = T.get_thread_binding()
            for later in range(x):
                at = x - 1 - later
                allowed[at] = later * 3
            for step in range(x):
                if allowed[step] < rows - step:
                    B[x, tx] = B[x, tx] + A[step, tx]

    return kernel
