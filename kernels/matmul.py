"""matmul: C[m, n] = A[m, k] B[k, n], row-major, accumulated in float32; and its template for GPUs.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes
from ..problem.operator import Operator, Tensors
from ..problem.rasterization import Rasterization
from ..problem.rounding import Rounding, SecondInputs, whole_numbers
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import matmul as search_space
from ..target.spec import Target

if TYPE_CHECKING:
    import torch


class Matmul(Operator):
    name = "matmul"
    dims = ("m", "n", "k")
    dtypes = ("bfloat16", "float16", "float32")
    axes: ClassVar[Axes] = {"A": ("m", "k"), "B": ("k", "n"), "C": ("m", "n")}
    # M0 .. M7: TileLang paper, appendix A. S512 and S1024 are small enough for one CPU core
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "M0": {"m": 4096, "n": 1024, "k": 8192},
        "M1": {"m": 4096, "n": 8192, "k": 8192},
        "M2": {"m": 4096, "n": 28672, "k": 8192},
        "M3": {"m": 4096, "n": 8192, "k": 28672},
        "M4": {"m": 8192, "n": 1024, "k": 8192},
        "M5": {"m": 8192, "n": 8192, "k": 8192},
        "M6": {"m": 8192, "n": 28672, "k": 8192},
        "M7": {"m": 8192, "n": 8192, "k": 28672},
        "S512": {"m": 512, "n": 512, "k": 512},
        "S1024": {"m": 1024, "n": 1024, "k": 1024},
    }
    default_names = ("M0", "M1", "M7")
    cpu_default_names: ClassVar[tuple[str, ...]] = ("S512", "S1024")

    def default_workloads(self, dtype: str | None = None) -> list[Workload]:
        workloads = super().default_workloads(dtype)
        if workloads[0].dtype != "float32":
            return workloads
        # only CPU targets compute in float32, where the published shapes take minutes
        return [self.workload(name, dtype) for name in self.cpu_default_names]

    def validate(self, workload: Workload) -> None:
        m, n, k = (workload.dims[d] for d in self.dims)
        for name, rows, cols, extents in (("A", m, k, "m*k"), ("B", k, n, "k*n"), ("C", m, n, "m*n")):
            if rows * cols > MAX_DIMENSION:
                raise WorkloadError(
                    f"matmul: {name} would have {extents}={rows * cols} elements, and the kernels index at "
                    f"most {MAX_DIMENSION}; "
                    "split the product along its largest dimension"
                )

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """A ~ N(0, 1) and B ~ N(0, 1/k), so that C ~ N(0, 1) for every k."""
        import torch

        m, n, k = (workload.dims[d] for d in self.dims)
        dtype = getattr(torch, workload.dtype)
        generator = torch.Generator(device).manual_seed(seed)
        a = torch.randn(m, k, generator=generator, device=device, dtype=dtype)
        b = torch.randn(k, n, generator=generator, device=device, dtype=dtype).mul_(k**-0.5)
        return {"A": a, "B": b}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"C": (workload.dims["m"], workload.dims["n"])}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """In float32 without TF32, by panels of rows that keep the float32 copies small."""
        import torch

        a, b = inputs["A"], inputs["B"].float()
        allowed = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            return {"C": torch.cat([panel.float() @ b for panel in a.split(4096)])}
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch.matmul into a separate output, under the name of the library behind it."""
        import torch

        a, b = inputs["A"], inputs["B"]
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)

        def product() -> object:
            return torch.matmul(a, b, out=out)

        if a.device.type != "cpu":
            return {"hipBLAS" if torch.version.hip else "cuBLAS": product}
        library = "MKL" if torch.backends.mkl.is_available() else "its CPU library"
        threads = torch.get_num_threads()

        def product_on_one_core() -> object:
            torch.set_num_threads(1)
            try:
                return torch.matmul(a, b, out=out)
            finally:
                torch.set_num_threads(threads)

        # kernels of TileLang's C backend run in one thread, so that one is the fair comparison
        one_core = {f"torch ({library}, 1 thread)": product_on_one_core}
        return one_core if threads == 1 else {**one_core, f"torch ({library}, {threads} threads)": product}

    def flops(self, workload: Workload) -> int:
        return 2 * workload.dims["m"] * workload.dims["n"] * workload.dims["k"]

    def min_bytes(self, workload: Workload) -> int:
        m, n, k = (workload.dims[d] for d in self.dims)
        return (m * k + k * n + m * n) * self.element_bytes(workload)

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding C; detects one missing term of 28672 in bfloat16."""
        return {"bfloat16": 4e-3, "float16": 6e-4, "float32": 2e-5}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        return Rounding(workload.dims["k"], cuts=True)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        import torch

        squares = {name: tensor.to(torch.bfloat16).square() for name, tensor in inputs.items()}
        return {"C": self.reference(workload, squares)["C"].sqrt_()}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """A and B of whole numbers -2 .. 2: C is a whole number below 2^24."""
        import torch

        m, n, k = (workload.dims[d] for d in self.dims)
        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        a, b = whole_numbers((m, k), 2, dtype, generator), whole_numbers((k, n), 2, dtype, generator)
        return SecondInputs({"A": a, "B": b}, is_exact=True)


OPERATOR = Matmul()

# Rows beyond the edge of A cost time: their copies access memory as well, and blocks that share columns of B
# get out of step. So the last tile of rows begins early enough to be whole, and rows of two tiles are
# computed twice, with equal results. For tiles of up to this many columns this saves up to 43 % of the time
# and costs at most 3 %; wider tiles lose more than they gain (experiments/partial_tiles).
MOVED_COLUMNS = 128


class MatmulGpu(KernelTemplate):
    """One output tile per block: operands and C pass through shared memory, in a pipelined loop over k."""

    operator = OPERATOR
    name = "matmul"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    scales: ClassVar[Mapping[str, Scale]] = {
        "m": Scale(("block_m",), search_space.GPU_TILES),
        "n": Scale(("block_n",), search_space.GPU_TILES),
        "k": Scale(("block_k",), search_space.GPU_DEPTHS),
    }
    dynamic_dims = ("m",)
    static_reasons: ClassVar[Mapping[str, str]] = {
        "n": ("rows of B and C are n elements apart, and the copies need rows that start at whole 16 bytes"),
        "k": ("rows of A are k elements apart, and the copies need rows that start at whole 16 bytes"),
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def reordered(self, config: Config) -> tuple[Config, Rasterization] | None:
        panel = config.int("swizzle")
        return (Config({**config, "swizzle": 0}), Rasterization("row", panel)) if panel else None

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """The largest of a few tried tiles with a block for most cores; else the nearest legal config."""
        space = self.space(workload, target)
        m, n = workload.dims["m"], workload.dims["n"]
        cores = target.int("core.count")
        legal = []
        for block_m, block_n, threads in ((256, 128, 256), (128, 128, 256), (64, 128, 128), (64, 64, 128)):
            for swizzle in (8, 0):
                wanted = Config(
                    {
                        "block_m": block_m,
                        "block_n": block_n,
                        "block_k": 64,
                        "num_stages": 1 if target.kind == "hip" else 4,
                        "threads": threads,
                        "policy": "square",
                        "epilogue": "shared",
                        "swizzle": swizzle,
                    }
                )
                if wanted in space:
                    legal.append(wanted)
                    if -(-m // block_m) * -(-n // block_n) >= 0.9 * cores:
                        return wanted
                    break
        return legal[-1] if legal else next(iter(space.nearest(wanted, 1)), None)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
        dtype, accumulator = workload.dtype, "float32"
        block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
        num_stages, threads, swizzle = config.int("num_stages"), config.int("threads"), config.int("swizzle")
        through_shared = config["epilogue"] == "shared"
        is_whole = isinstance(m, int) and (m % block_m == 0 or m < block_m)
        is_moved = block_n <= MOVED_COLUMNS and not is_whole
        policy = {
            "square": T.GemmWarpPolicy.Square,
            "full_row": T.GemmWarpPolicy.FullRow,
            "full_col": T.GemmWarpPolicy.FullCol,
        }[config.str("policy")]

        @T.prim_func
        def matmul(A: T.Tensor((m, k), dtype), B: T.Tensor((k, n), dtype), C: T.Tensor((m, n), dtype)):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
            with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
                a_tile = T.alloc_shared((block_m, block_k), dtype)
                b_tile = T.alloc_shared((block_k, block_n), dtype)
                c_sum = T.alloc_fragment((block_m, block_n), accumulator)
                T.use_swizzle(swizzle, enable=swizzle > 0)
                T.clear(c_sum)
                row = T.min(by * block_m, T.max(m - block_m, 0)) if is_moved else by * block_m
                # copies beyond an edge read zeros, which add nothing, and write nothing
                for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=num_stages):
                    T.copy(A[row, ko * block_k], a_tile)
                    T.copy(B[ko * block_k, bx * block_n], b_tile)
                    T.gemm(a_tile, b_tile, c_sum, policy=policy)
                if through_shared:
                    c_tile = T.alloc_shared((block_m, block_n), dtype)
                    T.copy(c_sum, c_tile)
                    T.copy(c_tile, C[row, bx * block_n])
                else:
                    T.copy(c_sum, C[row, bx * block_n])

        return matmul


TEMPLATES = (MatmulGpu(),)
