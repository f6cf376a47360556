"""A fragment of 16-bit numbers is written through a view of 32-bit words, and feeds wgmma.

The generated code has the words alone. Each instruction takes its operand at an offset that is counted in
16-bit numbers and added to a pointer to words, which is twice as far. The program compares the offset of the
last of the four instructions with the number of words.
"""

import re

import tilelang.language as T
from obstacle import lowered, report

from tilesight.builder.build import device_source
from tilesight.target.spec import load_target

ROWS, DEPTH, COLS = 64, 64, 64


@T.prim_func
def product(
    A: T.Tensor((ROWS, DEPTH), "uint8"),
    B: T.Tensor((DEPTH, COLS), "bfloat16"),
    C: T.Tensor((ROWS, COLS), "float32"),
):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((ROWS, DEPTH), "uint8")
        weights = T.alloc_fragment((ROWS, DEPTH), "bfloat16")
        b = T.alloc_shared((DEPTH, COLS), "bfloat16")
        c = T.alloc_fragment((ROWS, COLS), "float32")
        words = T.view(weights, (ROWS, DEPTH // 2), "uint32")
        T.copy(A, a)
        T.copy(B, b)
        for i, j in T.Parallel(ROWS, DEPTH // 2):
            words[i, j] = T.cast(a[i, 2 * j], "uint32") | (T.cast(a[i, 2 * j + 1], "uint32") << 16)
        T.gemm(weights, b, c, clear_accum=True)
        T.copy(c, C)


if __name__ == "__main__":
    code = device_source(lowered(product, "h100"), load_target("h100")).split('extern "C"')[-1]
    (size,) = re.findall(r"uint words\[(\d+)\]", code)
    (step,) = re.findall(r"wgmma_rs<.*?\(words \+ \(ki \* (\d+)\)\)", code)
    last = (DEPTH // 16 - 1) * int(step)
    report(last >= int(size), f"the last operand begins at word {last} of {size}")
