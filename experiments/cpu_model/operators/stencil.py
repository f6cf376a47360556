"""The mean of each element's four neighbours, of an input with a border of one element: overlapping reads."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from elementwise import FloatOperator

from tilesight import Config, KernelTemplate, Parameter, SearchSpace, Target, Workload


class Stencil(FloatOperator):
    name, dims = "stencil", ("m", "n")
    named: ClassVar = {"1024x1024": {"m": 1024, "n": 1024}}
    default_names = tuple(named)
    flops_per_element = 4

    @staticmethod
    def function(x: torch.Tensor) -> torch.Tensor:
        return 0.25 * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])

    def inputs(self, workload: Workload, device: str, seed: int) -> Mapping[str, Any]:
        generator = torch.Generator(device).manual_seed(seed)
        m, n = workload.dims["m"], workload.dims["n"]
        return {"x": torch.randn(m + 2, n + 2, generator=generator, device=device)}


OPERATOR = Stencil()


class StencilCpu(KernelTemplate):
    """Blocks of `block_m` rows and `block_n` columns, walked along rows or along columns."""

    operator, name = OPERATOR, "stencil_cpu"
    target_kinds, dtypes = ("cpu",), ("float32",)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return SearchSpace(
            (
                Parameter("block_m", (1, 8, 64), "rows of a block"),
                Parameter("block_n", (8, 64, 256, 1024), "columns of a block"),
                Parameter("order", ("rows", "columns"), "which of the two the inner loop walks along"),
            ),
            (),
        )

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, n = workload.dims["m"], workload.dims["n"]
        block_m, block_n, rows = config.int("block_m"), config.int("block_n"), config["order"] == "rows"
        outer, inner = (block_m, block_n) if rows else (block_n, block_m)

        @T.prim_func
        def stencil(X: T.Tensor((m + 2, n + 2), "float32"), Y: T.Tensor((m, n), "float32")):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
            with T.Kernel(n // block_n, m // block_m) as (bx, by):
                for p, q in T.grid(outer, inner):
                    i = by * block_m + (p if rows else q)
                    j = bx * block_n + (q if rows else p)
                    Y[i, j] = T.float32(0.25) * (
                        (X[i, j + 1] + X[i + 2, j + 1]) + (X[i + 1, j] + X[i + 1, j + 2])
                    )

        return stencil


TEMPLATES = (StencilCpu(),)
