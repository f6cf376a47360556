"""y = 2 x + 1 on vectors of 16 KB to 64 MB, x and y together: caches and memory."""

from typing import Any, ClassVar

import torch
from elementwise import FloatOperator

from tilesight import Config, KernelTemplate, Parameter, SearchSpace, Target, Workload


class Stream(FloatOperator):
    name, dims = "stream", ("n",)
    named: ClassVar = {"16K": {"n": 2**11}, "256K": {"n": 2**15}, "4M": {"n": 2**19}, "64M": {"n": 2**23}}
    default_names = tuple(named)
    flops_per_element = 2

    @staticmethod
    def function(x: torch.Tensor) -> torch.Tensor:
        return 2 * x + 1


OPERATOR = Stream()


class StreamCpu(KernelTemplate):
    """Blocks of neighbours, or (`stride`) blocks whose elements lie a whole pass apart."""

    operator, name = OPERATOR, "stream_cpu"
    target_kinds, dtypes = ("cpu",), ("float32",)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return SearchSpace(
            (
                Parameter("block", (8, 16, 32, 64, 128, 512, 2048), "elements of a block"),
                Parameter("order", ("rows", "columns"), "whether the elements of a block are neighbours"),
            ),
            (),
        )

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        n, block, rows = workload.dims["n"], config.int("block"), config["order"] == "rows"
        passes = n // block

        @T.prim_func
        def stream(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
            with T.Kernel(passes) as b:
                for i in T.serial(block):
                    place = b * block + i if rows else i * passes + b
                    Y[place] = T.float32(2) * X[place] + T.float32(1)

        return stream


TEMPLATES = (StreamCpu(),)
