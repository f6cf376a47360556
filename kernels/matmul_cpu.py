"""matmul in float32 for one CPU core, through TileLang's C backend.

The backend has neither fragments nor vector types. It translates loops over local arrays to C, and the C
compiler vectorises the innermost one. B and A are packed block by block, with zeros beyond their edges, so
that the micro-kernel reads both contiguously and needs no checks of edges.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from typing import Any

from ..problem.space import Config, SearchSpace
from ..problem.template import KernelTemplate
from ..problem.workload import Workload
from ..search_spaces import matmul as search_space
from ..target.spec import Target
from .matmul import OPERATOR


class MatmulCpu(KernelTemplate):
    """Packed blocks of A and B, and a micro-kernel with its tile of C in registers, in one thread."""

    operator = OPERATOR
    name = "matmul_cpu"
    target_kinds = ("cpu",)
    dtypes = ("float32",)
    dynamic_dims = ("m", "n", "k")

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """A wide micro-kernel (it suits AVX2 and AVX-512) on blocks that fit a core's cache."""
        space = self.space(workload, target)
        wanted = Config(
            {"block_m": 128, "block_n": 256, "block_k": 256, "tile_m": 4, "tile_n": 64, "unroll": 8}
        )
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812
        from tvm import tirx

        m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
        dtype = workload.dtype
        block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
        tile_m, tile_n, unroll = config.int("tile_m"), config.int("tile_n"), config.int("unroll")

        layout = self.operator.text(workload, "layout")
        a_axes = (k, m) if layout[0] == "t" else (m, k)
        b_axes = (n, k) if layout[1] == "t" else (k, n)

        def products(c: Any, a: Any, b: Any, row: Any, col: Any, step: Any, i: Any, j: Any) -> Any:
            # compilers keep `c` in memory across the loop over k: each load and store of it is for `unroll`
            # multiply-adds
            total = c[i, j]
            for u in range(unroll):
                total = total + a[row, step * unroll + u, i] * b[col, step * unroll + u, j]
            return total

        def at(tensor: Any, is_turned: bool, first: Any, second: Any) -> Any:
            return tensor[second, first] if is_turned else tensor[first, second]

        def parts(extent: int, block: int, index: Any, part: int) -> Any:
            # number of parts of the block within the extent; a Python number if all blocks are whole
            return (
                block // part
                if isinstance(extent, int) and extent % block == 0
                else T.ceildiv(T.min(block, extent - index * block), part)
            )

        @T.prim_func
        def matmul(A: T.Tensor(a_axes, dtype), B: T.Tensor(b_axes, dtype), C: T.Tensor((m, n), dtype)):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
            with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m)) as (bx, by):
                a_pack = T.alloc_local((block_m // tile_m, block_k, tile_m), dtype)
                b_pack = T.alloc_local((block_n // tile_n, block_k, tile_n), dtype)
                c_sum = T.alloc_local((tile_m, tile_n), dtype)
                for ko in T.serial(T.ceildiv(k, block_k)):
                    for col, step, u, j in T.grid(
                        parts(n, block_n, bx, tile_n), parts(k, block_k, ko, unroll), unroll, tile_n
                    ):
                        b_pack[col, step * unroll + u, j] = T.if_then_else(
                            tirx.all(
                                ko * block_k + step * unroll + u < k, bx * block_n + col * tile_n + j < n
                            ),
                            at(
                                B,
                                layout[1] == "t",
                                ko * block_k + step * unroll + u,
                                bx * block_n + col * tile_n + j,
                            ),
                            T.float32(0),
                        )
                    for row, i, step, u in T.grid(
                        parts(m, block_m, by, tile_m), tile_m, parts(k, block_k, ko, unroll), unroll
                    ):
                        a_pack[row, step * unroll + u, i] = T.if_then_else(
                            tirx.all(
                                by * block_m + row * tile_m + i < m, ko * block_k + step * unroll + u < k
                            ),
                            at(
                                A,
                                layout[0] == "t",
                                by * block_m + row * tile_m + i,
                                ko * block_k + step * unroll + u,
                            ),
                            T.float32(0),
                        )
                    for row, col in T.grid(parts(m, block_m, by, tile_m), parts(n, block_n, bx, tile_n)):
                        for i, j in T.grid(tile_m, tile_n):
                            c_sum[i, j] = T.float32(0)
                        for step in T.serial(parts(k, block_k, ko, unroll)):
                            for i, j in T.grid(tile_m, tile_n):
                                c_sum[i, j] = products(c_sum, a_pack, b_pack, row, col, step, i, j)
                        for i, j in T.grid(tile_m, tile_n):
                            if by * block_m + row * tile_m + i < m and bx * block_n + col * tile_n + j < n:
                                if ko == 0:
                                    C[by * block_m + row * tile_m + i, bx * block_n + col * tile_n + j] = (
                                        c_sum[i, j]
                                    )
                                else:
                                    C[by * block_m + row * tile_m + i, bx * block_n + col * tile_n + j] += (
                                        c_sum[i, j]
                                    )

        return matmul


TEMPLATES = (MatmulCpu(),)
