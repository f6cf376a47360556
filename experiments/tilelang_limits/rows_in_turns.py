"""The rows of a wgmma's left operand in registers are not those of the product that it is multiplied into.

Two warpgroups have 128 rows each, two instructions. The layout of the operand gives 64 rows to the first
warpgroup, 64 to the second one, and so on in turns; that of the product gives 128 neighbours to each. The
program asks the generated source which rows of the operand a thread loads and which rows of the product it
stores.
"""

import re

import tilelang.language as T
from obstacle import lowered, report

from tilesight.builder.build import device_source
from tilesight.target.spec import load_target

ROWS, DEPTH, COLS = 256, 64, 64


@T.prim_func
def product(
    A: T.Tensor((ROWS, DEPTH), "bfloat16"),
    B: T.Tensor((DEPTH, COLS), "bfloat16"),
    C: T.Tensor((ROWS, COLS), "float32"),
):
    with T.Kernel(1, threads=256):
        a = T.alloc_fragment((ROWS, DEPTH), "bfloat16")
        b = T.alloc_shared((DEPTH, COLS), "bfloat16")
        c = T.alloc_fragment((ROWS, COLS), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
        T.copy(c, C)


def rows_of(code: str, tensor: str, width: int) -> set[int]:
    """The rows of `tensor` that the first thread of the second warpgroup touches."""
    loop, index = re.findall(rf"for \(int (\w+) = 0.*\n.*\({tensor} \+ \((.*?)\)\)(?: =|;)", code)[0]
    python = index.replace("((int)threadIdx.x)", "thread")
    return {eval(python, {"thread": 128, loop: step}) // width for step in range(32)}


if __name__ == "__main__":
    code = device_source(lowered(product, "h100"), load_target("h100")).split('extern "C"')[-1]
    loaded, stored = rows_of(code, "A", DEPTH), rows_of(code, "C", COLS)
    report(loaded != stored, f"the second warpgroup loads rows {sorted(loaded)} and stores {sorted(stored)}")
