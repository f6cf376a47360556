"""rope: rotary embedding of x[tokens, heads, head_dim], by angles whose cosines and sines are given.

The halves of each head are the coordinates of its pairs (as in GPT-NeoX and Llama), in float32:
y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin. cos and sin[tokens, head_dim / 2] belong to the tokens' positions.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes, Parts
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs, whole_numbers
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import rope as search_space
from ..target.spec import Target
from ._row_tiles import with_compiled

if TYPE_CHECKING:
    import torch

BASE = 500000.0  # rope_theta of Llama 3.1
MAX_POSITION = 8192


class Rope(Operator):
    name = "rope"
    dims = ("tokens", "heads", "head_dim")
    axes: ClassVar[Axes] = {
        "x": ("tokens", "heads", "head_dim"),
        "cos": ("tokens", Parts("head_dim", 2)),
        "sin": ("tokens", Parts("head_dim", 2)),
        "y": ("tokens", "heads", "head_dim"),
    }
    # heads: num_attention_heads + num_key_value_heads in the public config.json of the model
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "P0": {"tokens": 4096, "heads": 40, "head_dim": 128},  # Llama 3.1 8B
        "P1": {"tokens": 8192, "heads": 72, "head_dim": 128},  # Llama 3.1 70B
        "P2": {"tokens": 4096, "heads": 128, "head_dim": 64},  # DeepSeek-V3: the queries' part with angles
        "P3": {"tokens": 16384, "heads": 72, "head_dim": 64},  # gpt-oss
        "P4": {"tokens": 8192, "heads": 64, "head_dim": 96},  # Phi-3 mini, queries and keys
        "P5": {"tokens": 64, "heads": 40, "head_dim": 128},  # Llama 3.1 8B, decoding 64 sequences
    }
    default_names = ("P0", "P2", "P5")  # usual, short heads, few tokens

    def validate(self, workload: Workload) -> None:
        elements, head_dim = math.prod(workload.dims.values()), workload.dims["head_dim"]
        if elements > MAX_DIMENSION:
            raise WorkloadError(
                f"rope: x would have {elements} elements, and the kernels index at most {MAX_DIMENSION}; "
                "split the tokens"
            )
        if head_dim % 2 or head_dim > search_space.MOST_HEAD_DIM:
            raise WorkloadError(
                f"rope: head_dim={head_dim} must be even and at most {search_space.MOST_HEAD_DIM}, since a "
                "head has two halves that a few threads keep; nearest legal value: "
                f"{min(head_dim + head_dim % 2, search_space.MOST_HEAD_DIM)}"
            )

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """x ~ N(0, 1); cos and sin of neighbouring positions from a random one on."""
        import torch

        tokens, _, head_dim = workload.dims.values()
        generator, dtype = torch.Generator(device).manual_seed(seed), getattr(torch, workload.dtype)
        x = torch.randn(*workload.dims.values(), generator=generator, device=device, dtype=dtype)
        first = torch.randint(0, MAX_POSITION, (1,), generator=generator, device=device)
        positions = (first + torch.arange(tokens, device=device)) % (2 * MAX_POSITION)
        pairs = torch.arange(0, head_dim, 2, device=device, dtype=torch.float64)
        angles = positions[:, None] * BASE ** (-pairs / head_dim)
        return {"x": x, "cos": angles.cos().float(), "sin": angles.sin().float()}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {"cos": "float32", "sin": "float32"}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"y": tuple(workload.dims.values())}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """The two products and their sum in float32."""
        return {"y": _rotated(inputs["x"].float(), inputs["cos"], inputs["sin"])}

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        x, cos, sin = (inputs[name].float().square() for name in ("x", "cos", "sin"))
        return {"y": _rotated(x, cos, sin, sign=1).sqrt_()}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """Kernels of torch, and the one that its compiler makes."""
        x, cos, sin = inputs.values()
        return with_compiled("torch rotation", lambda: _rotated(x.float(), cos, sin).to(x.dtype), x)

    def flops(self, workload: Workload) -> int:
        """Three operations per element: two multiplications and a sum."""
        return 3 * math.prod(workload.dims.values())

    def min_bytes(self, workload: Workload) -> int:
        tokens, _, head_dim = workload.dims.values()
        return 2 * math.prod(workload.dims.values()) * self.element_bytes(workload) + 4 * tokens * head_dim

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding y to the dtype; all else is float32."""
        return {"bfloat16": 4e-3, "float16": 6e-4}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        """Two terms, which may cancel."""
        return Rounding(2)

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """x of whole numbers -8 .. 8, cos and sin of -2 .. 2: sums are exact."""
        import torch

        tokens, _, head_dim = workload.dims.values()
        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        x = whole_numbers(tuple(workload.dims.values()), 8, dtype, generator)
        cos, sin = (whole_numbers((tokens, head_dim // 2), 2, torch.float32, generator) for _ in range(2))
        return SecondInputs({"x": x, "cos": cos, "sin": sin}, is_exact=True)


def _rotated(x: "torch.Tensor", cos: "torch.Tensor", sin: "torch.Tensor", sign: int = -1) -> "torch.Tensor":
    import torch

    first, second = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos + sign * (second * sin), second * cos + first * sin], -1)


OPERATOR = Rope()


class RopeGpu(KernelTemplate):
    """Each thread has the same pairs of a token's heads, so that it reads their cosines and sines once."""

    operator = OPERATOR
    name = "rope"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    scales: ClassVar[Mapping[str, Scale]] = {"tokens": Scale(("block_m",), search_space.TOKENS)}
    dynamic_dims = ("tokens",)
    static_reasons: ClassVar[Mapping[str, str]] = {
        "heads": "a thread loops over heads without checks where they divide evenly",
        "head_dim": "threads divide a head among them",
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """A pair of vectors for each thread and of each of four heads; else the nearest config."""
        space = self.space(workload, target)
        wanted = Config({"block_m": 16, "block_h": 4, "threads": 128, "vector": 8})
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        tokens, heads, head_dim = workload.dims.values()
        dtype, accumulator, half = workload.dtype, "float32", head_dim // 2
        rows, each, threads, vector = (
            config.int(name) for name in ("block_m", "block_h", "threads", "vector")
        )
        lanes = 1 << (half // vector - 1).bit_length()  # those beyond the half have nothing to do
        groups, width = threads // lanes, lanes * vector
        shape, tile, table = (tokens, heads, head_dim), (each, rows, width), (rows, width)

        def place(u: Any, i: Any, j: Any) -> tuple[Any, Any]:
            return i % groups * lanes + j // vector, (
                u * (rows // groups) + i // groups
            ) * vector + j % vector

        def table_place(i: Any, j: Any) -> tuple[Any, Any]:
            return place(0, i, j)

        @T.prim_func
        def rope(  # type: ignore[no-untyped-def]
            x: T.Tensor(shape, dtype),  # type: ignore[valid-type]
            cos: T.Tensor((tokens, half), accumulator),  # type: ignore[valid-type]
            sin: T.Tensor((tokens, half), accumulator),  # type: ignore[valid-type]
            y: T.Tensor(shape, dtype),  # type: ignore[valid-type]
        ):
            with T.Kernel(T.ceildiv(heads, each) * T.ceildiv(tokens, rows), threads=threads) as b:
                first = T.alloc_fragment(tile, dtype)
                second = T.alloc_fragment(tile, dtype)
                cosine = T.alloc_fragment(table, accumulator)
                sine = T.alloc_fragment(table, accumulator)
                T.annotate_layout(
                    {
                        first: T.Fragment(tile, forward_fn=place),
                        second: T.Fragment(tile, forward_fn=place),
                        cosine: T.Fragment(table, forward_fn=table_place),
                        sine: T.Fragment(table, forward_fn=table_place),
                    }
                )
                # neighbouring blocks have neighbouring heads
                token, head = b // T.ceildiv(heads, each) * rows, b % T.ceildiv(heads, each) * each
                # what lies beyond the tokens or the heads is read as zeros and not written
                for i, j in T.Parallel(rows, width):
                    if j < half:
                        cosine[i, j] = cos[token + i, j]
                for i, j in T.Parallel(rows, width):
                    if j < half:
                        sine[i, j] = sin[token + i, j]
                for u in T.unroll(each):
                    for i, j in T.Parallel(rows, width):
                        if j < half:
                            first[u, i, j] = x[token + i, head + u, j]
                    for i, j in T.Parallel(rows, width):
                        if j < half:
                            second[u, i, j] = x[token + i, head + u, half + j]
                for u in T.unroll(each):
                    for i, j in T.Parallel(rows, width):
                        if j < half:
                            y[token + i, head + u, j] = T.cast(
                                T.cast(first[u, i, j], accumulator) * cosine[i, j]
                                - T.cast(second[u, i, j], accumulator) * sine[i, j],
                                dtype,
                            )
                    for i, j in T.Parallel(rows, width):
                        if j < half:
                            y[token + i, head + u, half + j] = T.cast(
                                T.cast(second[u, i, j], accumulator) * cosine[i, j]
                                + T.cast(first[u, i, j], accumulator) * sine[i, j],
                                dtype,
                            )

        return rope


TEMPLATES = (RopeGpu(),)
