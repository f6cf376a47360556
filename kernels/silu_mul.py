"""silu_mul: y = gate * sigmoid(gate) * up, in float32, on x[m, 2, n] with gate = x[:, 0] and up = x[:, 1].

x is what one product with both weights of a gated MLP writes: [m, 2 n], seen with three axes.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import silu_mul as search_space
from ..target.spec import Target
from ._row_tiles import LOG2_E, by_panels, with_compiled

if TYPE_CHECKING:
    import torch


class SiluMul(Operator):
    name = "silu_mul"
    dims = ("m", "n")
    axes: ClassVar[Axes] = {"x": ("m", 2, "n"), "y": ("m", "n")}
    # n: intermediate_size (or that of an expert) in the public config.json of the model; m: tokens
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "U0": {"m": 4096, "n": 14336},  # Llama 3.1 8B, 4096 tokens
        "U1": {"m": 4096, "n": 28672},  # Llama 3.1 70B, 4096 tokens
        "U2": {"m": 8192, "n": 3584},  # Llama 3.1 70B on 8 GPUs, 8192 tokens
        "U3": {"m": 32768, "n": 2048},  # DeepSeek-V3, 4096 tokens for 8 experts each
        "U4": {"m": 65536, "n": 768},  # Qwen3 30B A3B, 8192 tokens for 8 experts each
        "U5": {"m": 64, "n": 14336},  # Llama 3.1 8B, decoding 64 sequences
    }
    default_names = ("U0", "U3", "U5")  # usual, many short rows, few rows

    def validate(self, workload: Workload) -> None:
        m, n = workload.dims["m"], workload.dims["n"]
        if 2 * m * n > MAX_DIMENSION:
            raise WorkloadError(
                f"silu_mul: x would have 2*m*n={2 * m * n} elements, and the kernels index at most "
                f"{MAX_DIMENSION}; split the rows"
            )

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """x ~ N(0, 4): gates that are closed, half open and open."""
        import torch

        m, n = workload.dims["m"], workload.dims["n"]
        generator, dtype = torch.Generator(device).manual_seed(seed), getattr(torch, workload.dtype)
        return {"x": torch.randn(m, 2, n, generator=generator, device=device, dtype=dtype).mul_(2)}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"y": (workload.dims["m"], workload.dims["n"])}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """torch's silu in float32, times up."""
        return {"y": by_panels(inputs["x"], _silu_mul)}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """Two kernels of torch, and the one that its compiler makes."""
        x = inputs["x"]
        return with_compiled("torch silu, mul", lambda: _silu_mul(x), x)

    def flops(self, workload: Workload) -> int:
        """Four operations per element: add 1, divide, multiply twice. The exponential is not counted."""
        return 4 * workload.dims["m"] * workload.dims["n"]

    def min_bytes(self, workload: Workload) -> int:
        return 3 * workload.dims["m"] * workload.dims["n"] * self.element_bytes(workload)

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding y once; torch's eager kernels round silu, too."""
        return {"bfloat16": 4e-3, "float16": 6e-4}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        """y has one term. Its exponential is off by few units in the last place of float32."""
        return Rounding(1)

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Gates are 32 times as large, and very small ones 320 times: there exp(-gate) exceeds float32.

        None lies between: a sigmoid below 2^-126 is zero for the divisions of a GPU.
        """
        x = self.inputs(workload, device, seed)["x"]
        gate = x[:, 0].mul_(32)
        gate[gate < -80] *= 10
        return SecondInputs({"x": x})


def _silu_mul(x: "torch.Tensor") -> "torch.Tensor":
    import torch

    return torch.nn.functional.silu(x[:, 0]) * x[:, 1]


OPERATOR = SiluMul()


class SiluMulGpu(KernelTemplate):
    """A block has a tile of gates and the tile of the same place of the other half."""

    operator = OPERATOR
    name = "silu_mul"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    # exp2 and the division as single instructions; infinities remain correct
    compile_flags: ClassVar[Mapping[str, tuple[str, ...]]] = {"cuda": ("--use_fast_math",)}
    scales: ClassVar[Mapping[str, Scale]] = {"m": Scale(("block_m",), search_space.ROWS)}
    dynamic_dims = ("m",)
    static_reasons: ClassVar[Mapping[str, str]] = {"n": "whole vectors of a row depend on n"}

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Rows of 2048 columns, one vector for each of 256 threads; else the nearest config."""
        space = self.space(workload, target)
        wanted = Config({"block_m": 1, "block_n": 2048, "threads": 256, "vector": 8})
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, n, dtype, accumulator = workload.dims["m"], workload.dims["n"], workload.dtype, "float32"
        rows, cols, threads, vector = (
            config.int(name) for name in ("block_m", "block_n", "threads", "vector")
        )
        tile = (rows, cols)
        # neighbouring threads have neighbouring vectors of a row, then of the next row
        runs = cols // vector

        def place(i: Any, j: Any) -> tuple[Any, Any]:
            at = i * runs + j // vector
            return at % threads, at // threads * vector + j % vector

        @T.prim_func
        def silu_mul(x: T.Tensor((m, 2, n), dtype), y: T.Tensor((m, n), dtype)):  # type: ignore[no-untyped-def, valid-type]
            with T.Kernel(T.ceildiv(n, cols) * T.ceildiv(m, rows), threads=threads) as b:
                gate = T.alloc_fragment(tile, dtype)
                up = T.alloc_fragment(tile, dtype)
                T.annotate_layout(
                    {gate: T.Fragment(tile, forward_fn=place), up: T.Fragment(tile, forward_fn=place)}
                )
                # neighbouring blocks have neighbouring columns
                row, col = b // T.ceildiv(n, cols) * rows, b % T.ceildiv(n, cols) * cols
                T.copy(x[row : row + rows, 0, col : col + cols], gate)
                T.copy(x[row : row + rows, 1, col : col + cols], up)
                for i, j in T.Parallel(rows, cols):
                    up[i, j] = T.cast(
                        T.cast(gate[i, j], accumulator)
                        / (1 + T.exp2(T.cast(gate[i, j], accumulator) * -LOG2_E))
                        * T.cast(up[i, j], accumulator),
                        dtype,
                    )
                T.copy(up, y[row : row + rows, col : col + cols])

        return silu_mul


TEMPLATES = (SiluMulGpu(),)
