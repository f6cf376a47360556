"""retention: linear attention whose heads forget at fixed rates, as in RetNet; and its template for GPUs.

o[i] = head_k^-0.5 sum over j <= i of gamma^(i - j) (q[i] . k[j]) v[j]

gamma = 1 - 2^(-5 - h) belongs to head h: the first one forgets within tens of tokens, the last ones hardly.
Tensors have the layout (batch, seq_len, heads, width of a head). The template works on chunks, and keeps the
sum of gamma^age k v^T over all earlier tokens.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..problem.axes import Axes
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.workload import Workload
from ..search_spaces import retention as search_space
from ..target.spec import Target
from ._exact_products import exact_products
from ._vendor_calls import of_packages
from .gated_delta_rule import StateTemplate, check_heads, scales_of

if TYPE_CHECKING:
    import torch

SCORE_BYTES = 1 << 28  # the reference holds at most this much of the weights of an item at once
FASTEST = 5  # the first head forgets 2^-5 of its state with each token


class Retention(Operator):
    name = "retention"
    dims = ("batch", "seq_len", "heads", "head_k", "head_v")
    axes: ClassVar[Axes] = {
        **dict.fromkeys(("q", "k"), ("batch", "seq_len", "heads", "head_k")),
        **dict.fromkeys(("v", "o"), ("batch", "seq_len", "heads", "head_v")),
    }
    # RetNet-6.7B (16 heads) and RetNet-1.3B (8 heads)
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "RN2K": {"batch": 4, "seq_len": 2048, "heads": 16, "head_k": 256, "head_v": 512},
        "RN8K": {"batch": 1, "seq_len": 8192, "heads": 16, "head_k": 256, "head_v": 512},
        "RS2K": {"batch": 1, "seq_len": 2048, "heads": 8, "head_k": 256, "head_v": 512},
    }
    default_names = ("RN2K", "RS2K")  # many blocks, and few

    def validate(self, workload: Workload) -> None:
        check_heads(self.name, workload)

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """q, k, v ~ N(0, 1): weights of the newest tokens have unit variance."""
        import torch

        batch, seq_len, heads, head_k, head_v = workload.dims.values()
        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        return {
            name: torch.randn(batch, seq_len, heads, width, generator=generator, device=device, dtype=dtype)
            for name, width in (("q", head_k), ("k", head_k), ("v", head_v))
        }

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        batch, seq_len, heads, _, head_v = workload.dims.values()
        return {"o": (batch, seq_len, heads, head_v)}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """All pairs of tokens, in float32 without TF32, by items of the batch and panels of queries."""
        return {"o": _all_pairs(inputs, squared=False)}

    def rounding(self, workload: Workload) -> Rounding:
        """Weights and the state are rounded to the dtype before their products."""
        return Rounding(workload.dims["seq_len"], inner=workload.dtype, cuts=True)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        return {"o": _all_pairs(inputs, squared=True).sqrt_()}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """q and k are positive, and so are all weights: none is small by chance."""
        tensors = self.inputs(workload, device, seed + 1)
        return SecondInputs({**tensors, "q": tensors["q"].abs_(), "k": tensors["k"].abs_()})

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch in the dtype, as no vendor's library has it, and flash-linear-attention if installed."""
        import torch

        q, k, v = (inputs[name] for name in ("q", "k", "v"))
        heads, scale = q.shape[2], q.shape[-1] ** -0.5
        positions = torch.arange(q.shape[1], device=q.device)
        ages = (positions[:, None] - positions).float()
        decays = (_log_gamma(heads, q.device)[:, None, None] * ages).exp_().tril_().mul_(scale).to(q.dtype)
        q_heads, k_heads, v_heads = (tensor.transpose(1, 2) for tensor in (q, k, v))

        def all_pairs() -> object:
            return (q_heads @ k_heads.transpose(2, 3) * decays @ v_heads).transpose(1, 2)

        def triton() -> Callable[[], object]:
            # what its chunk_retention calls, which computes the rates in each call
            from fla.ops.simple_gla import chunk_simple_gla

            rates = _log_gamma(heads, q.device).float()
            return lambda: chunk_simple_gla(q=q, k=k, v=v, scale=scale, g_gamma=rates)[0]

        return {"torch (all pairs)": all_pairs, **of_packages(q, {"flash-linear-attention": triton})}

    def flops(self, workload: Workload) -> int:
        """Two products with the state for each token: the update, and with its query."""
        return 4 * math.prod(workload.dims.values())

    def min_bytes(self, workload: Workload) -> int:
        batch, seq_len, heads, head_k, head_v = workload.dims.values()
        return 2 * batch * seq_len * heads * (head_k + head_v) * self.element_bytes(workload)

    def max_relative_error(self, workload: Workload) -> float:
        """Two to three times the error of rounding the weights, the state, the values and the output."""
        return {"bfloat16": 8e-3, "float16": 1e-3}[workload.dtype]


def _log_gamma(heads: int, device: "torch.device") -> "torch.Tensor":
    import torch

    powers = torch.arange(heads, dtype=torch.float64, device=device).add_(FASTEST).neg_().exp2_()
    return powers.neg_().log1p_().float()


def _all_pairs(inputs: Tensors, squared: bool) -> "torch.Tensor":
    """The output, or the sum of the squares of its terms (weight times value), in float32."""
    import torch

    q, k, v = (inputs[name].float().transpose(1, 2) for name in ("q", "k", "v"))
    batch, heads, seq_len, head_k = q.shape
    v = v.square() if squared else v
    o = torch.empty_like(inputs["v"], dtype=torch.float32)
    log_gamma = _log_gamma(heads, q.device)[:, None, None]
    positions = torch.arange(seq_len, device=q.device)
    panel = max(1, SCORE_BYTES // (4 * heads * seq_len))
    with exact_products():
        for b in range(batch):
            for first in range(0, seq_len, panel):
                last = min(first + panel, seq_len)
                ages = (positions[first:last, None] - positions[:last]).float()
                weights = q[b, :, first:last] @ k[b, :, :last].transpose(1, 2) * head_k**-0.5
                weights *= (log_gamma * ages).exp_().masked_fill_(ages < 0, 0)
                weights = weights.square_() if squared else weights
                o[b, first:last] = (weights @ v[b, :, :last]).transpose(0, 1)
    return o


OPERATOR = Retention()


class RetentionGpu(StateTemplate):
    """A block has some columns of a head's state in registers, and loops over the chunks of its sequence.

    Without fast mathematics: the logarithm of a gamma near 1 must have a small relative error.
    """

    operator = OPERATOR
    name = "retention"
    scales = scales_of(search_space.CHUNKS)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Chunks of 64 tokens and 32 columns of the state, which fit into the registers of one warpgroup."""
        space = self.space(workload, target)
        stages = 1 if target.kind == "hip" else 2
        wanted = Config(
            {"chunk": 64, "block_v": 32, "num_stages": stages, "threads": 128, "epilogue": "shared"}
        )
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, seq_len, heads, head_k, head_v = workload.dims.values()
        dtype, accumulator = workload.dtype, "float32"
        chunk, block_v = config.int("chunk"), config.int("block_v")
        num_stages, threads = config.int("num_stages"), config.int("threads")
        is_direct = config["epilogue"] == "direct"
        width = -(-head_k // 16) * 16  # a matrix instruction takes 16 elements of a row at once
        scale = head_k**-0.5

        @T.prim_func
        def retention(  # type: ignore[no-untyped-def]
            q: T.Tensor((batch, seq_len, heads, head_k), dtype),  # type: ignore[valid-type]
            k: T.Tensor((batch, seq_len, heads, head_k), dtype),  # type: ignore[valid-type]
            v: T.Tensor((batch, seq_len, heads, head_v), dtype),  # type: ignore[valid-type]
            o: T.Tensor((batch, seq_len, heads, head_v), dtype),  # type: ignore[valid-type]
        ):
            with T.Kernel(T.ceildiv(head_v, block_v), heads, batch, threads=threads) as (bv, head, item):
                q_tile = T.alloc_shared((chunk, width), dtype)
                k_tile = T.alloc_shared((chunk, width), dtype)
                v_tile = T.alloc_shared((chunk, block_v), dtype)
                faded = T.alloc_shared((chunk, block_v), dtype)
                weights = T.alloc_shared((chunk, chunk), dtype)
                s_tile = T.alloc_shared((width, block_v), dtype)
                powers = T.alloc_shared((chunk + 1,), accumulator)
                scores = T.alloc_fragment((chunk, chunk), accumulator)
                out = T.alloc_fragment((chunk, block_v), accumulator)
                s = T.alloc_fragment((width, block_v), accumulator)

                for i in T.Parallel(chunk + 1):
                    powers[i] = T.exp2(i * T.log2(1 - T.exp2(T.cast(-FASTEST - head, accumulator))))
                T.clear(s)
                T.clear(s_tile)
                # tokens beyond the end are read as zeros, and nothing is written there
                for c in T.Pipelined(T.ceildiv(seq_len, chunk), num_stages=num_stages):
                    t, col = c * chunk, bv * block_v
                    T.copy(q[item, t : t + chunk, head, 0:width], q_tile, disable_tma=True)
                    T.copy(k[item, t : t + chunk, head, 0:width], k_tile, disable_tma=True)
                    T.copy(v[item, t : t + chunk, head, col : col + block_v], v_tile, disable_tma=True)

                    # outputs from the state before the chunk, and from the chunk
                    T.gemm(q_tile, k_tile, scores, transpose_B=True, clear_accum=True)
                    for i, j in T.Parallel(chunk, chunk):
                        weights[i, j] = T.if_then_else(j <= i, scores[i, j] * powers[T.max(i - j, 0)], 0)
                    T.gemm(q_tile, s_tile, out, clear_accum=True)
                    for i, j in T.Parallel(chunk, block_v):
                        out[i, j] *= powers[i + 1]
                    T.gemm(weights, v_tile, out)
                    for i, j in T.Parallel(chunk, block_v):
                        out[i, j] *= scale
                    if is_direct:
                        T.copy(out, o[item, t : t + chunk, head, col : col + block_v], disable_tma=True)
                    else:
                        o_tile = T.alloc_shared((chunk, block_v), dtype)
                        T.copy(out, o_tile)
                        T.copy(o_tile, o[item, t : t + chunk, head, col : col + block_v], disable_tma=True)

                    # the state after the chunk
                    for i, j in T.Parallel(chunk, block_v):
                        faded[i, j] = v_tile[i, j] * powers[chunk - 1 - i]
                    for i, j in T.Parallel(width, block_v):
                        s[i, j] *= powers[chunk]
                    T.gemm(k_tile, faded, s, transpose_A=True)
                    T.copy(s, s_tile)

        return retention


TEMPLATES = (RetentionGpu(),)
