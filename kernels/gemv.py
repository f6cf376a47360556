"""gemv: y[n] = W[n, k] x[k], accumulated in float32 (the matmul of one token); and its template for GPUs.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs, whole_numbers
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import gemv as search_space
from ..target.spec import Target
from ._exact_products import exact_products

if TYPE_CHECKING:
    import torch


class Gemv(Operator):
    name = "gemv"
    dims = ("n", "k")
    axes: ClassVar[Axes] = {"W": ("n", "k"), "x": ("k",), "y": ("n",)}
    # TileLang paper, appendix A: the matmuls with m = 1
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "V0": {"n": 16384, "k": 16384},
        "V1": {"n": 43008, "k": 14336},
        "V2": {"n": 14336, "k": 14336},
        "V3": {"n": 57344, "k": 14336},
        "V4": {"n": 14336, "k": 57344},
        "V5": {"n": 9216, "k": 9216},
        "V6": {"n": 36864, "k": 9216},
        "V7": {"n": 9216, "k": 36864},
    }
    default_names = ("V0", "V5", "V7")  # large, small, and long rows

    def validate(self, workload: Workload) -> None:
        n, k = (workload.dims[d] for d in self.dims)
        if n * k > MAX_DIMENSION:
            raise WorkloadError(
                f"gemv: W would have n*k={n * k} elements, and the kernels index at most {MAX_DIMENSION}; "
                "split the rows of W"
            )

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """W ~ N(0, 1/k) and x ~ N(0, 1), so that y ~ N(0, 1) for every k."""
        import torch

        n, k = (workload.dims[d] for d in self.dims)
        dtype = getattr(torch, workload.dtype)
        generator = torch.Generator(device).manual_seed(seed)
        w = torch.randn(n, k, generator=generator, device=device, dtype=dtype).mul_(k**-0.5)
        x = torch.randn(k, generator=generator, device=device, dtype=dtype)
        return {"W": w, "x": x}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"y": (workload.dims["n"],)}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """In float32 without TF32, by panels of rows that keep the float32 copies small."""
        import torch

        w, x = inputs["W"], inputs["x"].float()
        with exact_products():
            return {"y": torch.cat([panel.float() @ x for panel in w.split(4096)])}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """Both calls of the vendor's library: matrix times vector, and matmul of one row as in decoding."""
        import torch

        w, x = inputs["W"], inputs["x"]
        out = torch.empty(w.shape[0], dtype=w.dtype, device=w.device)
        x_row, w_columns, out_row = x[None, :], w.t(), out[None, :]

        def matrix_times_vector() -> object:
            return torch.mv(w, x, out=out)

        def row_times_matrix() -> object:
            torch.mm(x_row, w_columns, out=out_row)
            return out

        library = (
            "torch on the CPU" if w.device.type == "cpu" else "hipBLAS" if torch.version.hip else "cuBLAS"
        )
        return {f"{library} (mv)": matrix_times_vector, f"{library} (mm)": row_times_matrix}

    def flops(self, workload: Workload) -> int:
        return 2 * workload.dims["n"] * workload.dims["k"]

    def min_bytes(self, workload: Workload) -> int:
        n, k = (workload.dims[d] for d in self.dims)
        return (n * k + k + n) * self.element_bytes(workload)

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding y; detects one missing term of the 57344 of V4."""
        return {"bfloat16": 4e-3, "float16": 6e-4}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        return Rounding(workload.dims["k"])

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        import torch

        squares = {name: tensor.to(torch.bfloat16).square() for name, tensor in inputs.items()}
        return {"y": self.reference(workload, squares)["y"].sqrt_()}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """W and x of whole numbers -2 .. 2: y is a whole number below 2^24."""
        import torch

        n, k = (workload.dims[d] for d in self.dims)
        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        w, x = whole_numbers((n, k), 2, dtype, generator), whole_numbers((k,), 2, dtype, generator)
        return SecondInputs({"W": w, "x": x}, is_exact=True)


OPERATOR = Gemv()


class GemvGpu(KernelTemplate):
    """`reduce_threads` neighbouring threads share a row; each has float32 sums, which are added at the end.

    W is loaded to registers (num_stages=0), or passes through shared memory in a pipelined loop.
    """

    operator = OPERATOR
    name = "gemv"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    # k is no scale: its loop is often short enough to be unrolled, and few of its many steps divide k
    scales: ClassVar[Mapping[str, Scale]] = {"n": Scale(("block_n",), search_space.ROWS)}
    dynamic_dims = ("n",)
    static_reasons: ClassVar[Mapping[str, str]] = {
        "k": "rows of W are k elements apart, and the loads need rows that start at whole vectors"
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """A warp per row, two rows per thread, two 16-byte loads in flight; else the nearest legal config."""
        space = self.space(workload, target)
        wanted = Config(
            {"block_n": 8, "threads": 128, "reduce_threads": 32, "vector": 8, "unroll": 2, "num_stages": 0}
        )
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        return (_through_shared if config.int("num_stages") else _through_registers)(workload, config)


def _through_registers(workload: Workload, config: Config) -> Any:
    import tilelang.language as T  # noqa: N812

    n, k, dtype, accumulator = workload.dims["n"], workload.dims["k"], workload.dtype, "float32"
    block_n, threads, lanes = config.int("block_n"), config.int("threads"), config.int("reduce_threads")
    vector, unroll = config.int("vector"), config.int("unroll")
    groups = threads // lanes  # rows that the block works on at the same time
    rows = block_n // groups  # of one thread
    step = lanes * vector

    # (thread, register) of each element: neighbouring lanes hold neighbouring vectors of a row
    def w_place(u: Any, i: Any, j: Any) -> tuple[Any, Any]:
        return i % groups * lanes + j // vector, (u * rows + i // groups) * vector + j % vector

    def sum_place(i: Any, j: Any) -> tuple[Any, Any]:
        return i % groups * lanes + j // vector, i // groups * vector + j % vector

    def x_place(u: Any, j: Any, group: Any = 0) -> tuple[Any, Any]:
        return group * lanes + j // vector, u * vector + j % vector

    @T.prim_func
    def gemv(W: T.Tensor((n, k), dtype), x: T.Tensor((k,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
        with T.Kernel(T.ceildiv(n, block_n), threads=threads) as b:
            w_part = T.alloc_fragment((unroll, block_n, step), dtype)
            x_part = T.alloc_fragment((unroll, step), dtype)
            sums = T.alloc_fragment((block_n, step), accumulator)
            total = T.alloc_fragment((block_n,), accumulator)
            T.annotate_layout(
                {
                    w_part: T.Fragment((unroll, block_n, step), forward_fn=w_place),
                    x_part: T.Fragment((unroll, step), forward_fn=x_place, replicate=groups),
                    sums: T.Fragment((block_n, step), forward_fn=sum_place),
                }
            )
            T.clear(sums)
            # elements beyond an edge are read as zeros, which add nothing, and are not written
            for ko in T.serial(T.ceildiv(k, step * unroll)):
                # all loads precede their first use, so that they are in flight together
                for u in T.unroll(unroll):
                    col = (ko * unroll + u) * step
                    T.copy(x[col : col + step], x_part[u, :])
                    T.copy(W[b * block_n : b * block_n + block_n, col : col + step], w_part[u, :, :])
                for u in T.unroll(unroll):
                    for i, j in T.Parallel(block_n, step):
                        sums[i, j] += T.cast(w_part[u, i, j], accumulator) * T.cast(x_part[u, j], accumulator)
            T.reduce_sum(sums, total, dim=1)
            T.copy(total, y[b * block_n])

    return gemv


def _through_shared(workload: Workload, config: Config) -> Any:
    import tilelang.language as T  # noqa: N812

    n, k, dtype, accumulator = workload.dims["n"], workload.dims["k"], workload.dtype, "float32"
    block_n, threads, num_stages = config.int("block_n"), config.int("threads"), config.int("num_stages")
    unroll, step = config.int("unroll"), config.int("reduce_threads") * config.int("vector")
    block_k = step * unroll

    # No layouts are annotated: TileLang 0.1.15 does not shift them past the threads that only copy, and omits
    # rows. It infers the same layout from 16-byte reads of the tiles.
    @T.prim_func
    def gemv(W: T.Tensor((n, k), dtype), x: T.Tensor((k,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
        with T.Kernel(T.ceildiv(n, block_n), threads=threads) as b:
            w_tile = T.alloc_shared((block_n, block_k), dtype)
            x_tile = T.alloc_shared((block_k,), dtype)
            sums = T.alloc_fragment((block_n, step), accumulator)
            total = T.alloc_fragment((block_n,), accumulator)
            T.clear(sums)
            for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=num_stages):
                T.copy(x[ko * block_k], x_tile)
                T.copy(W[b * block_n, ko * block_k], w_tile)
                for u in T.unroll(unroll):
                    for i, j in T.Parallel(block_n, step):
                        sums[i, j] += T.cast(w_tile[i, u * step + j], accumulator) * T.cast(
                            x_tile[u * step + j], accumulator
                        )
            T.reduce_sum(sums, total, dim=1)
            T.copy(total, y[b * block_n])

    return gemv


TEMPLATES = (GemvGpu(),)
