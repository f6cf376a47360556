"""Softmax of each row: reductions and exponentials."""

from typing import Any, ClassVar

import torch
from elementwise import FloatOperator

from tilesight import Config, KernelTemplate, Parameter, SearchSpace, Target, Workload


class RowSoftmax(FloatOperator):
    name, dims = "row_softmax", ("m", "n")
    named: ClassVar = {"256x1024": {"m": 256, "n": 1024}}
    default_names = tuple(named)
    flops_per_element = 5

    @staticmethod
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1)


OPERATOR = RowSoftmax()


class RowSoftmaxCpu(KernelTemplate):
    """Maximum and sum in `width` parts; the exponentials are kept (`kept`) or computed twice."""

    operator, name = OPERATOR, "row_softmax_cpu"
    target_kinds, dtypes = ("cpu",), ("float32",)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return SearchSpace(
            (
                Parameter("width", (1, 8, 16, 32, 64, 128), "partial maxima and sums"),
                Parameter("kept", (0, 1), "whether the exponentials are kept"),
            ),
            (),
        )

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, n, width, kept = workload.dims["m"], workload.dims["n"], config.int("width"), config.int("kept")

        @T.prim_func
        def row_softmax(X: T.Tensor((m, n), "float32"), Y: T.Tensor((m, n), "float32")):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
            with T.Kernel(m) as row:
                parts = T.alloc_local((width,), "float32")
                total = T.alloc_local((1,), "float32")
                largest = T.alloc_local((1,), "float32")
                for i in T.serial(width):
                    parts[i] = X[row, i]
                for step, i in T.grid(n // width, width):
                    parts[i] = T.max(parts[i], X[row, step * width + i])
                largest[0] = parts[0]
                for i in T.serial(width):
                    largest[0] = T.max(largest[0], parts[i])
                for i in T.serial(width):
                    parts[i] = T.float32(0)
                if kept:
                    for i in T.serial(n):
                        Y[row, i] = T.exp(X[row, i] - largest[0])
                    for step, i in T.grid(n // width, width):
                        parts[i] = parts[i] + Y[row, step * width + i]
                else:
                    for step, i in T.grid(n // width, width):
                        parts[i] = parts[i] + T.exp(X[row, step * width + i] - largest[0])
                total[0] = T.float32(0)
                for i in T.serial(width):
                    total[0] = total[0] + parts[i]
                total[0] = T.float32(1) / total[0]
                for i in T.serial(n):
                    if kept:
                        Y[row, i] = Y[row, i] * total[0]
                    else:
                        Y[row, i] = T.exp(X[row, i] - largest[0]) * total[0]

        return row_softmax


TEMPLATES = (RowSoftmaxCpu(),)
