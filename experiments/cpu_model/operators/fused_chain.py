"""A chain of three steps on 1 M elements, in one loop or through a block that stays in the cache."""

from typing import Any, ClassVar

import torch
from elementwise import FloatOperator

from tilesight import Config, KernelTemplate, Parameter, SearchSpace, Target, Workload


class FusedChain(FloatOperator):
    name, dims = "fused_chain", ("n",)
    named: ClassVar = {"1M": {"n": 2**20}}
    default_names = tuple(named)
    flops_per_element = 5

    @staticmethod
    def function(x: torch.Tensor) -> torch.Tensor:
        return (3 * x + 1).relu().square() + x


OPERATOR = FusedChain()


class FusedChainCpu(KernelTemplate):
    """Each block in one loop (`fused`), or in three loops with a local buffer between them."""

    operator, name = OPERATOR, "fused_chain_cpu"
    target_kinds, dtypes = ("cpu",), ("float32",)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return SearchSpace(
            (
                Parameter("block", (8, 32, 128, 1024, 8192, 65536), "elements of a block"),
                Parameter("fused", (0, 1), "whether the steps share a loop"),
            ),
            (),
        )

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        n, block, fused = workload.dims["n"], config.int("block"), config.int("fused")

        @T.prim_func
        def fused_chain(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
            with T.Kernel(n // block) as b:
                if fused:
                    for i in T.serial(block):
                        step = T.max(T.float32(3) * X[b * block + i] + T.float32(1), T.float32(0))
                        Y[b * block + i] = step * step + X[b * block + i]
                else:
                    part = T.alloc_local((block,), "float32")
                    for i in T.serial(block):
                        part[i] = T.float32(3) * X[b * block + i] + T.float32(1)
                    for i in T.serial(block):
                        part[i] = T.max(part[i], T.float32(0))
                    for i in T.serial(block):
                        Y[b * block + i] = part[i] * part[i] + X[b * block + i]

        return fused_chain


TEMPLATES = (FusedChainCpu(),)
