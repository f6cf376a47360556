# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Kernels that compute from floats how far their loops and branches go."""

import tilelang.language as T

LIST = 32  # numbers that a block stages at a time


def covered(rows: int, length: int, *, threads: int = 64):
    """Each thread adds up the exponentials of a list until its sum exceeds its own limit."""

    @T.prim_func
    def kernel(
        Limits: T.Tensor((rows,), "float32"),
        List: T.Tensor((length,), "float32"),
        Sums: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(rows // threads, threads=threads) as block:
            staged = T.alloc_shared((LIST,), "float32")
            total = T.alloc_var("float32", init=0.0)
            thread = T.get_thread_binding()
            for tile in T.serial(length // LIST):
                T.sync_threads()
                if thread < LIST:
                    staged[thread] = List[tile * LIST + thread]
                T.sync_threads()
                for i in T.serial(LIST):
                    if total > Limits[block * threads + thread]:
                        T.loop_break()
                    total = total + T.exp(staged[i])
            Sums[block * threads + thread] = total

    return kernel


def skipped(rows: int, length: int, *, threads: int = 64, voted: bool = False):
    """Each thread adds up exponentials of the numbers above its limit, or above one of its warp (`voted`)."""

    @T.prim_func
    def kernel(
        Limits: T.Tensor((rows,), "float32"),
        List: T.Tensor((length,), "float32"),
        Sums: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(rows // threads, threads=threads) as block:
            total = T.alloc_var("float32", init=0.0)
            limit = T.alloc_var("float32", init=0.0)
            wanted = T.alloc_var("int32", init=0)
            thread = T.get_thread_binding()
            limit = Limits[block * threads + thread]
            for i in T.serial(length):
                wanted = T.if_then_else(List[i] > limit, 1, 0)
                if voted:
                    wanted = T.warp_reduce_max(wanted)
                if wanted == 0:
                    T.continue_loop()
                total = total + T.exp(List[i])
            Sums[block * threads + thread] = total

    return kernel


def ended(rows: int, *, threads: int = 64):
    """Threads whose number is not above zero return; the others halve theirs until it is below one."""

    @T.prim_func
    def kernel(Numbers: T.Tensor((rows,), "float32"), Steps: T.Tensor((rows,), "float32")):
        with T.Kernel(rows // threads, threads=threads) as block:
            thread = T.get_thread_binding()
            left = T.alloc_var("float32", init=0.0)
            steps = T.alloc_var("float32", init=0.0)
            left = Numbers[block * threads + thread]
            if left <= 0.0:
                T.thread_return()
            while left >= 1.0:
                left = left * 0.5
                steps = steps + T.exp(left)
            Steps[block * threads + thread] = steps

    return kernel


def multiplied(size: int = 64):
    """A branch is decided by a product of tensor cores."""

    @T.prim_func
    def kernel(A: T.Tensor((size, size), "float16"), Out: T.Tensor((size, size), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((size, size), "float16")
            c = T.alloc_fragment((size, size), "float32")
            T.copy(A, a)
            T.clear(c)
            T.gemm(a, a, c)
            for i, j in T.Parallel(size, size):
                if c[i, j] > 0.0:
                    Out[i, j] = T.exp(c[i, j])

    return kernel


def block_sums(rows: int, size: int = 256, *, threads: int = 128):
    """A block leaves out rows whose sum is not above zero."""

    @T.prim_func
    def kernel(Rows: T.Tensor((rows, size), "float32"), Out: T.Tensor((rows, size), "float32")):
        with T.Kernel(rows, threads=threads) as row:
            own = T.alloc_fragment((size,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(Rows[row, :], own)
            T.reduce_sum(own, total, dim=0)
            if total[0] > 0.0:
                for i in T.Parallel(size):
                    Out[row, i] = T.exp(own[i])

    return kernel


def positive_in_turn(rows: int, *, threads: int = 64):
    """Each warp adds up its numbers by exchanges; warps whose sum is above zero compute exponentials.

    Whether it is above zero is read off the bits of the sum.
    """

    @T.prim_func
    def kernel(Numbers: T.Tensor((rows,), "float32"), Out: T.Tensor((rows,), "float32")):
        with T.Kernel(rows // threads, threads=threads) as block:
            thread = T.get_thread_binding()
            total = T.alloc_var("float32", init=0.0)
            total = Numbers[block * threads + thread]
            for step in T.unroll(5):
                total = total + T.shfl_xor(total, 1 << step)
            if T.reinterpret(total, "int32") > 0:
                Out[block * threads + thread] = T.exp(Numbers[block * threads + thread])

    return kernel


def block_marks(grid, *, threads: int = 128):
    """Blocks with a mark compute exponentials, and store one for each of their threads."""
    x, y = grid

    @T.prim_func
    def kernel(Marks: T.Tensor((y, x), "float32"), Out: T.Tensor((y, x, threads), "float32")):
        with T.Kernel(x, y, threads=threads) as (bx, by):
            thread = T.get_thread_binding()
            if Marks[by, bx] > 0.0:
                Out[by, bx, thread] = T.exp(Marks[by, bx])

    return kernel


def nested(rows: int, *, threads: int = 64):
    """Threads with a number above zero store, and once more if it is above one as well."""

    @T.prim_func
    def kernel(Numbers: T.Tensor((rows,), "float32"), Out: T.Tensor((rows,), "float32")):
        with T.Kernel(rows // threads, threads=threads) as block:
            thread = T.get_thread_binding()
            if Numbers[block * threads + thread] > 0.0:
                Out[block * threads + thread] = 0.0
                if Numbers[block * threads + thread] > 1.0:
                    Out[block * threads + thread] = 1.0

    return kernel


def returns_in_turn(rows: int, turns: int, *, threads: int = 64):
    """Each thread returns in the iteration that its number says."""

    @T.prim_func
    def kernel(Numbers: T.Tensor((rows,), "float32"), Out: T.Tensor((rows,), "float32")):
        with T.Kernel(rows // threads, threads=threads) as block:
            thread = T.get_thread_binding()
            total = T.alloc_var("float32", init=0.0)
            for i in T.serial(turns):
                if T.cast(i, "float32") >= Numbers[block * threads + thread]:
                    T.thread_return()
                total = total + T.exp(Numbers[block * threads + thread] + T.cast(i, "float32"))
                Out[block * threads + thread] = total

    return kernel


def doubled(rows: int, dtype: str = "float32", *, threads: int = 64):
    """Threads double a number until adding theirs changes it no more; a whole one until it is negative."""

    @T.prim_func
    def kernel(Numbers: T.Tensor((rows,), dtype), Out: T.Tensor((rows,), "float32")):
        with T.Kernel(rows // threads, threads=threads) as block:
            thread = T.get_thread_binding()
            number = T.alloc_var(dtype, init=1)
            steps = T.alloc_var("float32", init=0.0)
            number = Numbers[block * threads + thread]
            while number > 0 if dtype == "int32" else number + Numbers[block * threads + thread] > number:
                number = number * 2
                steps = steps + T.exp(steps)
            Out[block * threads + thread] = steps

    return kernel


def counted(rows: int, *, threads: int = 64):
    """Blocks claim a number by an atomic; who gets a large one computes exponentials."""

    @T.prim_func
    def kernel(Numbers: T.Tensor((rows,), "float32"), Out: T.Tensor((rows,), "float32")):
        with T.Kernel(rows // threads, threads=threads) as block:
            thread = T.get_thread_binding()
            claimed = T.alloc_shared((1,), "int32")
            before = T.atomic_add(claimed[0], 1, return_prev=True)
            Out[block * threads + thread] = T.cast(before, "float32")
            T.sync_threads()
            if Numbers[block * threads + thread] + T.cast(claimed[0], "float32") > 10.0:
                Out[block * threads + thread] = T.exp(Numbers[block * threads + thread])

    return kernel


def two_kernels(rows: int, *, threads: int = 64):
    """The second kernel computes exponentials where the first one stored what is above one."""

    @T.prim_func
    def kernel(
        Numbers: T.Tensor((rows,), "float32"),
        Twice: T.Tensor((rows,), "float32"),
        Out: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(rows // threads, threads=threads) as block:
            thread = T.get_thread_binding()
            Twice[block * threads + thread] = Numbers[block * threads + thread] * 2.0
        with T.Kernel(rows // threads, threads=threads) as block:
            thread = T.get_thread_binding()
            if Twice[block * threads + thread] > 1.0:
                Out[block * threads + thread] = T.exp(Twice[block * threads + thread])

    return kernel


def exchanged_by_name(rows: int, *, threads: int = 64):
    """Threads store if their neighbour's number is above zero, which CUDA's own function tells."""

    @T.prim_func
    def kernel(Numbers: T.Tensor((rows,), "float32"), Out: T.Tensor((rows,), "float32")):
        with T.Kernel(rows // threads, threads=threads) as block:
            thread = T.get_thread_binding()
            other = T.alloc_var("float32", init=0.0)
            other = T.call_extern(
                "float32", "__shfl_xor_sync", T.uint32(0xFFFFFFFF), Numbers[block * threads + thread], 1
            )
            if other > 0.0:
                Out[block * threads + thread] = 1.0

    return kernel


def generated(rows: int, steps: int, *, threads: int = 128):
    """Places in a table follow from a generator of whole numbers, which wrap around."""

    @T.prim_func
    def kernel(Table: T.Tensor((4096,), "float32"), Out: T.Tensor((rows,), "float32")):
        with T.Kernel(rows // threads, threads=threads) as block:
            thread = T.get_thread_binding()
            state = T.alloc_var("int32", init=3)
            total = T.alloc_var("float32", init=0.0)
            for _ in T.serial(steps):
                state = state * 1103515245 + 12345
                total = total + Table[T.bitwise_and(state, 4095)]
            Out[block * threads + thread] = total + Table[T.bitwise_and(state, 4095)]

    return kernel
