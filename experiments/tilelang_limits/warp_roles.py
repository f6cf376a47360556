"""Two branches of `T.ws` that wait for each other have a barrier of the whole block between them.

Threads of the first branch copy a tile into a stage when it is free; those of the second one use it and
report that it is free again. A barrier between the branches keeps the second one from running until the
first one has ended, and the first one waits for the second one before its second tile. The program looks
for the barrier in the source.
"""

import re

import tilelang.language as T
from obstacle import lowered, report

from tilesight.builder.build import device_source
from tilesight.target.spec import load_target

STEPS, ROWS, COLS = 8, 64, 64


@T.prim_func
def summed(A: T.Tensor((STEPS, ROWS, COLS), "float32"), B: T.Tensor((ROWS, COLS), "float32")):
    with T.Kernel(1, threads=256):
        stage = T.alloc_shared((ROWS, COLS), "float32")
        total = T.alloc_fragment((ROWS, COLS), "float32")
        full = T.alloc_barrier(128)
        free = T.alloc_barrier(128)
        with T.ws(0):
            for step in T.serial(STEPS):
                T.mbarrier_wait_parity(free, (step + 1) % 2)
                for i, j in T.Parallel(ROWS, COLS):
                    stage[i, j] = A[step, i, j]
                T.mbarrier_arrive(full)
        with T.ws(1):
            T.clear(total)
            for step in T.serial(STEPS):
                T.mbarrier_wait_parity(full, step % 2)
                for i, j in T.Parallel(ROWS, COLS):
                    total[i, j] += stage[i, j]
                T.mbarrier_arrive(free)
            T.copy(total, B)


if __name__ == "__main__":
    code = device_source(lowered(summed, "h100"), load_target("h100")).split('extern "C"')[-1]
    first, last = code.index("free[0].wait("), code.index("full[0].wait(")
    between = re.findall(r"__syncthreads\(\)|\bnamed_barrier\w*", code[first:last])
    report(bool(between), f"between the branches: {', '.join(between) or 'no barrier'}")
