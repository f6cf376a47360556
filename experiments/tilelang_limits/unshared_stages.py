"""A stage that a cluster fills together is free for the pipeline when one of its two blocks has used it.

The first block copies for both (`T.copy_cluster` with a mask). Before it overwrites a stage it must know that
the other block has used the stage, too. For that, threads report to the other block. Before the first copy,
both blocks must have made their barriers. The program looks for both in the generated source.
"""

import tilelang.language as T
from obstacle import lowered, report

from tilesight.builder.build import device_source
from tilesight.target.spec import load_target

ROWS, COLS, DEPTH, TILE, STEP = 256, 256, 512, 128, 64


@T.prim_func
def product(
    A: T.Tensor((ROWS, DEPTH), "bfloat16"),
    B: T.Tensor((DEPTH, COLS), "bfloat16"),
    C: T.Tensor((ROWS, COLS), "bfloat16"),
):
    with T.Kernel(COLS // TILE, ROWS // TILE, threads=256, cluster_dims=2) as (bx, by):
        a = T.alloc_shared((TILE, STEP), "bfloat16")
        b = T.alloc_shared((STEP, TILE), "bfloat16")
        c = T.alloc_fragment((TILE, TILE), "float32")
        T.clear(c)
        for step in T.Pipelined(DEPTH // STEP, num_stages=3):
            T.copy_cluster(A[by * TILE, step * STEP], a, cluster_mask=3)
            T.copy(B[step * STEP, bx * TILE], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * TILE, bx * TILE])


if __name__ == "__main__":
    code = device_source(lowered(product, "h100"), load_target("h100")).split('extern "C"')[-1]
    loads_together, meets = "tma_load_multicast" in code, "cluster_sync" in code or "cluster_wait" in code
    reports = any("arrive(" in line and "arrive()" not in line for line in code.splitlines())
    found = f"multicast: {loads_together}; blocks meet: {meets}; they report used stages: {reports}"
    report(loads_together and not (meets and reports), found)
