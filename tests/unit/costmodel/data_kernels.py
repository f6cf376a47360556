# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Kernels whose amount of work depends on integer tensors."""

import tilelang.language as T


def sequences(batch: int, total: int, dim: int = 128, block: int = 64):
    """Sums over the rows of sequences of different lengths, one sequence a block."""

    @T.prim_func
    def kernel(
        X: T.Tensor((total, dim), "float16"),
        Starts: T.Tensor((batch + 1,), "int32"),
        Out: T.Tensor((batch, dim), "float32"),
    ):
        with T.Kernel(batch, threads=128) as b:
            tile = T.alloc_shared((block, dim), "float16")
            sums = T.alloc_fragment((dim,), "float32")
            T.clear(sums)
            kv_len = Starts[b + 1] - Starts[b]
            for i in T.Pipelined(T.ceildiv(kv_len, block), num_stages=2):
                T.copy(X[Starts[b] + i * block, 0], tile)
                for j in T.Parallel(dim):
                    sums[j] += tile[0, j]
            T.copy(sums, Out[b, :])

    return kernel


def grouped(groups: int, rows: int, dim: int, block: int = 64):
    """A product whose right side is chosen by the group of the rows, which a loop over offsets finds."""

    @T.prim_func
    def kernel(
        A: T.Tensor((rows, dim), "float16"),
        B: T.Tensor((groups, dim, dim), "float16"),
        Ends: T.Tensor((groups,), "int32"),
        C: T.Tensor((rows, dim), "float16"),
    ):
        with T.Kernel(dim // block, rows // block, threads=128) as (bx, by):
            a = T.alloc_shared((block, block), "float16")
            b = T.alloc_shared((block, block), "float16")
            c = T.alloc_fragment((block, block), "float32")
            group = T.alloc_var("int32")
            group = 0
            for g in range(groups):
                if by * block >= Ends[g]:
                    group = g + 1
            T.clear(c)
            for k in T.Pipelined(dim // block, num_stages=2):
                T.copy(A[by * block, k * block], a)
                T.copy(B[group, k * block, bx * block], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block, bx * block])

    return kernel


def masked(rows: int, dim: int, block: int = 64):
    """A product of the tiles that a mask chooses."""

    @T.prim_func
    def kernel(
        A: T.Tensor((rows, dim), "float16"),
        B: T.Tensor((dim, dim), "float16"),
        Mask: T.Tensor((rows // block, dim // block), "int8"),
        C: T.Tensor((rows, dim), "float16"),
    ):
        with T.Kernel(dim // block, rows // block, threads=128) as (bx, by):
            a = T.alloc_shared((block, block), "float16")
            b = T.alloc_shared((block, block), "float16")
            c = T.alloc_fragment((block, block), "float32")
            T.clear(c)
            if Mask[by, bx] != 0:
                for k in T.Pipelined(dim // block, num_stages=2):
                    T.copy(A[by * block, k * block], a)
                    T.copy(B[k * block, bx * block], b)
                    T.gemm(a, b, c)
            T.copy(c, C[by * block, bx * block])

    return kernel


def scheduled(groups: int, rows: int, dim: int, blocks: int, turns: int, block: int = 64):
    """A grouped product by persistent blocks, which find their tiles in prefix sums by a binary search."""

    @T.prim_func
    def kernel(
        A: T.Tensor((rows, dim), "float16"),
        B: T.Tensor((groups, dim, block), "float16"),
        Sizes: T.Tensor((groups,), "int32"),
        C: T.Tensor((rows, block), "float16"),
    ):
        with T.Kernel(blocks, threads=128) as x:
            sums = T.alloc_shared((groups + 1,), "int32")
            a = T.alloc_shared((block, block), "float16")
            b = T.alloc_shared((block, block), "float16")
            c = T.alloc_fragment((block, block), "float32")
            low = T.alloc_var("int32")
            high = T.alloc_var("int32")
            tx = T.get_thread_binding()
            if tx == 0:
                sums[0] = 0
                for g in range(groups):
                    sums[g + 1] = sums[g] + T.ceildiv(Sizes[g], block)
            T.sync_threads()
            for turn in range(turns):
                if turn * blocks + x < sums[groups]:
                    low = 0
                    high = groups - 1
                    while low < high:
                        if sums[(low + high) // 2 + 1] <= turn * blocks + x:
                            low = (low + high) // 2 + 1
                        else:
                            high = (low + high) // 2
                    T.clear(c)
                    for k in T.Pipelined(dim // block, num_stages=2):
                        T.copy(A[(turn * blocks + x) * block, k * block], a)
                        T.copy(B[low, k * block, 0], b)
                        T.gemm(a, b, c)
                    T.copy(c, C[(turn * blocks + x) * block, 0])

    return kernel


def paged(batch: int, pages: int, most: int, dim: int = 64, block: int = 64):
    """Sums over the pages of each sequence; the page numbers go through shared memory."""

    @T.prim_func
    def kernel(
        X: T.Tensor((pages * block, dim), "float16"),
        Pages: T.Tensor((batch, most), "int32"),
        Counts: T.Tensor((batch,), "int32"),
        Out: T.Tensor((batch, dim), "float32"),
    ):
        with T.Kernel(batch, threads=128) as b:
            numbers = T.alloc_shared((most,), "int32")
            tile = T.alloc_shared((block, dim), "float16")
            sums = T.alloc_fragment((dim,), "float32")
            for i in T.Parallel(most):
                numbers[i] = Pages[b, i]
            T.clear(sums)
            for i in T.serial(Counts[b]):
                T.copy(X[numbers[i] * block, 0], tile)
                for j in T.Parallel(dim):
                    sums[j] += tile[0, j]
            T.copy(sums, Out[b, :])

    return kernel


def searched(batch: int, most: int, dim: int = 64, block: int = 64):
    """Sums over the pages of the sequence whose number a lane gives to the other threads of the block."""

    @T.prim_func
    def kernel(
        X: T.Tensor((batch * most * block, dim), "float16"),
        Order: T.Tensor((batch,), "int32"),
        Counts: T.Tensor((batch,), "int32"),
        Out: T.Tensor((batch, dim), "float32"),
    ):
        with T.Kernel(batch, threads=128) as b:
            numbers = T.alloc_shared((2,), "int32")
            tile = T.alloc_shared((block, dim), "float16")
            sums = T.alloc_fragment((dim,), "float32")
            thread = T.get_thread_binding()
            numbers[1] = T.shfl_sync(Order[b], 0)
            if thread == 0:
                numbers[0] = 0
            T.sync_threads()
            T.clear(sums)
            found = numbers[1]
            count = T.if_then_else(found >= 0 and found < batch, Counts[found], 0)
            for i in T.serial(T.min(count, found + count)):
                T.copy(X[(found * most + i) * block, 0], tile)
                for j in T.Parallel(dim):
                    sums[j] += tile[0, j]
            T.copy(sums, Out[b, :])

    return kernel


def one_of_two(blocks: int, known: int, dim: int, block: int = 64):
    """A product along one of two loops; the first `known` blocks take the first one, others by their data."""

    @T.prim_func
    def kernel(
        A: T.Tensor((blocks * block, dim), "float16"),
        B: T.Tensor((dim, block), "float16"),
        Flags: T.Tensor((blocks,), "int32"),
        C: T.Tensor((blocks * block, block), "float32"),
    ):
        with T.Kernel(blocks, threads=128) as b:
            a = T.alloc_shared((block, block), "float16")
            b_tile = T.alloc_shared((block, block), "float16")
            c = T.alloc_fragment((block, block), "float32")
            T.clear(c)
            if b < known or Flags[b] > 0:
                for k in T.serial(dim // block):
                    T.copy(A[b * block, k * block], a)
                    T.copy(B[k * block, 0], b_tile)
                    T.gemm(a, b_tile, c)
            else:
                for k in T.serial(dim // block):
                    T.copy(A[b * block, dim - (k + 1) * block], a)
                    T.copy(B[dim - (k + 1) * block, 0], b_tile)
                    T.gemm(a, b_tile, c)
            T.copy(c, C[b * block, 0])

    return kernel


def row_or_zeros(rows: int, columns: int, block: int = 512, *, zeros_first: bool = False):
    """Rows in reversed order times their weight; a row without weight gets zeros in a loop of its own."""

    @T.prim_func
    def kernel(
        X: T.Tensor((rows, columns), "float32"),
        Weights: T.Tensor((rows,), "float32"),
        Y: T.Tensor((rows, columns), "float32"),
    ):
        with T.Kernel(rows, threads=128) as b:
            x = T.alloc_shared((block,), "float32")
            if zeros_first:
                if Weights[b] == 0:
                    for k in T.serial(columns // block):
                        T.clear(x)
                        T.copy(x, Y[b, k * block])
                else:
                    for k in T.serial(columns // block):
                        T.copy(X[b, k * block], x)
                        for i in T.Parallel(block):
                            Y[b, k * block + i] = x[block - 1 - i] * Weights[b]
            else:
                if Weights[b] != 0:
                    for k in T.serial(columns // block):
                        T.copy(X[b, k * block], x)
                        for i in T.Parallel(block):
                            Y[b, k * block + i] = x[block - 1 - i] * Weights[b]
                else:
                    for k in T.serial(columns // block):
                        T.clear(x)
                        T.copy(x, Y[b, k * block])

    return kernel


def product_or_copy(blocks: int, dim: int, block: int = 64):
    """A tile times itself again and again, or a copy of another one, as the data of a block say."""

    @T.prim_func
    def kernel(
        A: T.Tensor((blocks * block, block), "float16"),
        Flags: T.Tensor((blocks,), "int32"),
        C: T.Tensor((blocks * block, block), "float32"),
    ):
        with T.Kernel(blocks, threads=128) as b:
            a = T.alloc_shared((block, block), "float16")
            c = T.alloc_fragment((block, block), "float32")
            T.clear(c)
            T.copy(A[b * block, 0], a)
            if Flags[b] > 0:
                for _ in T.serial(dim):
                    T.gemm(a, a, c)
                    T.sync_threads()
            else:
                for i, j in T.Parallel(block, block):
                    c[i, j] = T.Cast("float32", A[b * block + i, j])
            T.copy(c, C[b * block, 0])

    return kernel


def marked_blocks(rows: int, blocks: int, threads: int = 128, *, counted: bool = False):
    """Each block adds up the rows that are marked for it; if `counted`, those after its first mark.

    It stages each of them in shared memory.
    """

    @T.prim_func
    def kernel(
        X: T.Tensor((rows, threads), "float32"),
        Marks: T.Tensor((rows, blocks), "int32"),
        Y: T.Tensor((blocks, threads), "float32"),
    ):
        with T.Kernel(blocks, threads=threads) as b:
            i = T.get_thread_binding(0)
            staged = T.alloc_shared((threads,), "float32")
            total = T.alloc_local((1,), "float32")
            mark = T.alloc_local((1,), "int32")
            total[0] = 0
            mark[0] = 0
            for row in T.serial(rows):
                mark[0] = (mark[0] if counted else 0) + Marks[row, b]
                T.sync_threads()
                if mark[0] != 0:
                    staged[i] = X[row, i]
                T.sync_threads()
                if mark[0] != 0:
                    total[0] = total[0] + staged[threads - 1 - i]
            Y[b, i] = total[0]

    return kernel


def own_thread_variable(size: int):
    """A copy whose source binds another variable to the index of a thread."""

    @T.prim_func
    def kernel(X: T.Tensor((size,), "float32"), Out: T.Tensor((size,), "float32")):
        with T.Kernel(size // 128, threads=128) as b:
            own = T.thread_binding(0, 128, thread="threadIdx.x")
            if own < 64:
                Out[b * 128 + own] = X[b * 128 + own]

    return kernel


def persistent_rows(rows: int, dim: int, groups: int, blocks: int, threads: int = 128):
    """Blocks that copy row after row until they are behind the last group. Groups are padded to 128 rows."""

    @T.prim_func
    def kernel(
        X: T.Tensor((rows, dim), "float16"),
        Ends: T.Tensor((groups,), "int32"),
        Out: T.Tensor((rows, dim), "float16"),
    ):
        with T.Kernel(blocks, threads=threads) as b:
            t = T.get_thread_binding()
            row = T.alloc_var("int32")
            group = T.alloc_var("int32")
            row = b
            group = 0
            for _ in T.serial(rows):
                while group < groups and row >= Ends[group]:
                    row = row - Ends[group] + T.ceildiv(Ends[group], 128) * 128
                    group = group + 1
                if group >= groups:
                    T.loop_break()
                Out[row, t] = X[row, t]
                row = row + blocks

    return kernel


def strided(dim: int, threads: int = 128):
    """A copy of rows that lie apart, beside a tensor of a size that it does not use."""
    rows, stride, unused = T.dynamic("rows"), T.dynamic("stride"), T.dynamic("unused")

    @T.prim_func
    def kernel(
        X: T.StridedTensor((rows, dim), (stride, 1), "float16"),
        Spare: T.Tensor((unused,), "float32"),  # noqa: ARG001
        Out: T.Tensor((rows, dim), "float16"),
    ):
        with T.Kernel(rows, threads=threads) as b:
            for i in T.Parallel(dim):
                Out[b, i] = X[b, i]

    return kernel


def split_rows():
    """A row in parts, whose length follows from a number that is known at run time alone."""

    @T.prim_func
    def main(
        X: T.Tensor((1 << 10, 1 << 22), "float32"), Y: T.Tensor((1 << 10, 128), "float32"), parts: T.int32
    ):
        with T.Kernel(1 << 10, parts, threads=128) as (bx, by):
            total = T.alloc_local((1,), "float32")
            tx = T.get_thread_binding()
            total[0] = 0.0
            for i in T.unroll(4):
                total[0] += T.if_then_else(
                    by * ((1 << 22) // parts) + i * 128 + tx < (1 << 22),
                    X[bx, by * ((1 << 22) // parts) + i * 128 + tx],
                    0.0,
                )
            Y[bx, tx] = total[0]

    return main


def compressed(parts, threads=128):
    """Copies the parts of a row that a mask chooses, one after another, without a barrier."""

    @T.prim_func
    def main(
        X: T.Tensor((8, parts, threads), "float32"),
        Mask: T.Tensor((8, parts), "int8"),
        Y: T.Tensor((8, parts, threads), "float32"),
    ):
        with T.Kernel(8, threads=threads) as bx:
            tx = T.get_thread_binding()
            count = T.alloc_var("int32")
            count = 0
            for k in T.serial(parts):
                if Mask[bx, k] > 0:
                    Y[bx, count, tx] = T.if_then_else(count * 4 + tx // 32 < 4 * parts - 9, X[bx, k, tx], 0.0)
                    count = count + 1

    return main
