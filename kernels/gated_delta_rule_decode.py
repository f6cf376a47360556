"""gated_delta_rule_decode: one token of `gated_delta_rule` for each sequence, and its template for GPUs.

    S = exp(g) S
    S = S + k (beta (v - S^T k))^T
    o = head_k^-0.5 S^T q

The state S is float32, read from `state` and written to `new_state`: nearly all bytes are those.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..problem.axes import Axes
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs, whole_numbers
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import Workload
from ..search_spaces import gated_delta_rule_decode as search_space
from ..target.spec import Target
from ._mamba2 import log_decays
from ._vendor_calls import of_packages
from .gated_delta_rule import check_heads, one_token

if TYPE_CHECKING:
    import torch


class GatedDeltaRuleDecode(Operator):
    name = "gated_delta_rule_decode"
    dims = ("batch", "heads", "head_k", "head_v")
    axes: ClassVar[Axes] = {
        "q": ("batch", "heads", "head_k"),
        "k": ("batch", "heads", "head_k"),
        "v": ("batch", "heads", "head_v"),
        "g": ("batch", "heads"),
        "beta": ("batch", "heads"),
        "state": ("batch", "heads", "head_k", "head_v"),
        "o": ("batch", "heads", "head_v"),
        "new_state": ("batch", "heads", "head_k", "head_v"),
    }
    # Qwen3-Next-80B-A3B (32 heads of values), by sequences that decode together
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        f"QD{batch}": {"batch": batch, "heads": 32, "head_k": 128, "head_v": 128}
        for batch in (1, 16, 64, 256)
    }
    default_names = ("QD16", "QD256")  # a few blocks, and many

    def validate(self, workload: Workload) -> None:
        check_heads(self.name, workload)

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """q, k of length 1, v and the state ~ N(0, 1), beta = sigmoid(N(0, 1)), decays of a new layer."""
        import torch

        batch, heads, head_k, head_v = workload.dims.values()
        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)

        def normal(*last: int) -> "torch.Tensor":
            return torch.randn(batch, heads, *last, generator=generator, device=device)

        q, k = (torch.nn.functional.normalize(normal(head_k), dim=-1).to(dtype) for _ in range(2))
        return {
            "q": q,
            "k": k,
            "v": normal(head_v).to(dtype),
            "g": log_decays(batch, 1, heads, generator)[:, 0].contiguous(),
            "beta": normal().sigmoid_(),
            "state": normal(head_k, head_v),
        }

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return dict.fromkeys(("g", "beta", "state", "new_state"), "float32")

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        batch, heads, head_k, head_v = workload.dims.values()
        return {"o": (batch, heads, head_v), "new_state": (batch, heads, head_k, head_v)}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        q, k, v, g, beta, state = (inputs[name].float() for name in self.axes if name in inputs)
        o, new_state, _ = one_token(q, k, v, g, beta, state)
        return {"o": o, "new_state": new_state}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch, as no vendor's library has this operator; flash-linear-attention if it is installed."""
        q, k, v, g, beta, state = (inputs[name] for name in ("q", "k", "v", "g", "beta", "state"))

        def step() -> object:
            o, new_state, _ = one_token(q.float(), k.float(), v.float(), g, beta, state)
            return o.to(v.dtype), new_state

        def triton() -> Callable[[], object]:
            from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

            tokens = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
            given = {name: tensor[:, None] for name, tensor in tokens.items()}
            given["initial_state"] = state

            def one_token_each() -> object:
                o, new_state = fused_recurrent_gated_delta_rule(**given, output_final_state=True)
                return o[:, 0], new_state

            return one_token_each

        return {"torch": step, **of_packages(q, {"flash-linear-attention": triton})}

    def flops(self, workload: Workload) -> int:
        """Three products with the state: with the key, with the query, and the update."""
        return 6 * math.prod(workload.dims.values())

    def min_bytes(self, workload: Workload) -> int:
        batch, heads, head_k, head_v = workload.dims.values()
        rows = batch * heads
        floats = DTYPE_BYTES["float32"] * rows * (2 * head_k * head_v + 2)
        return 2 * rows * (head_k + head_v) * self.element_bytes(workload) + floats

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding o; the state has only errors of float32."""
        return {"bfloat16": 4e-3, "float16": 6e-4}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        """Sums over head_k, with the errors of a written value, which is itself such a sum."""
        return Rounding(4 * workload.dims["head_k"] + 2)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """Of the products that o is the sum of; and of the two parts of the new state.

        A written value is a difference: its errors are those of its terms.
        """
        q, k, v, g, beta, state = (inputs[name].float() for name in self.axes if name in inputs)
        kept = state * g.exp()[..., None, None]
        sums = (kept * k[..., None]).square().sum(-2)
        written = beta.square()[..., None] * (v.square() + sums)
        squares = kept.square() + k.square()[..., None] * written[..., None, :]
        o = (squares * q.square()[..., None]).sum(-2).sqrt() * q.shape[-1] ** -0.5
        return {"o": o, "new_state": squares.sqrt_()}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Whole numbers, beta of 0 and 1, no decay: the new state is exact, and o times head_k^0.5."""
        import torch

        batch, heads, head_k, head_v = workload.dims.values()
        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        q, k = (whole_numbers((batch, heads, head_k), 2, dtype, generator) for _ in range(2))
        return SecondInputs(
            {
                "q": q,
                "k": k,
                "v": whole_numbers((batch, heads, head_v), 2, dtype, generator),
                "g": torch.zeros(batch, heads, device=device),
                "beta": whole_numbers((batch, heads), 1, torch.float32, generator).abs_(),
                "state": whole_numbers((batch, heads, head_k, head_v), 2, torch.float32, generator),
            },
            is_exact=True,
        )


OPERATOR = GatedDeltaRuleDecode()


class GatedDeltaRuleDecodeGpu(KernelTemplate):
    """A block has block_v columns of a head's state in registers: it reads them once and writes them once.

    A thread has `vector` columns of some rows; sums over rows are added over threads at the end.
    """

    operator = OPERATOR
    name = "gated_delta_rule_decode"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    scales: ClassVar[Mapping[str, Scale]] = {"batch": Scale(), "heads": Scale()}
    dynamic_dims = ("batch", "heads")
    static_reasons: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("head_k", "head_v"), "a block keeps whole columns of the state in registers"
    )

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Blocks of 32 columns, so that a few sequences fill the chip, and loads of 16 bytes."""
        space = self.space(workload, target)
        wanted = Config({"block_v": 32, "threads": 128, "vector": 4})
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, heads, head_k, head_v = workload.dims.values()
        dtype, accumulator = workload.dtype, "float32"
        block_v, threads, vector = config.int("block_v"), config.int("threads"), config.int("vector")

        lanes = block_v // vector  # threads that share a row of the state
        together = threads // lanes  # rows at a time
        rows = -(-head_k // together) * together
        scale = head_k**-0.5

        # neighbouring threads hold neighbouring vectors of a row
        def place(i: Any, j: Any) -> tuple[Any, Any]:
            return i % together * lanes + j // vector, i // together * vector + j % vector

        @T.prim_func
        def gated_delta_rule_decode(  # type: ignore[no-untyped-def]
            q: T.Tensor((batch, heads, head_k), dtype),  # type: ignore[valid-type]
            k: T.Tensor((batch, heads, head_k), dtype),  # type: ignore[valid-type]
            v: T.Tensor((batch, heads, head_v), dtype),  # type: ignore[valid-type]
            g: T.Tensor((batch, heads), accumulator),  # type: ignore[valid-type]
            beta: T.Tensor((batch, heads), accumulator),  # type: ignore[valid-type]
            state: T.Tensor((batch, heads, head_k, head_v), accumulator),  # type: ignore[valid-type]
            o: T.Tensor((batch, heads, head_v), dtype),  # type: ignore[valid-type]
            new_state: T.Tensor((batch, heads, head_k, head_v), accumulator),  # type: ignore[valid-type]
        ):
            with T.Kernel(T.ceildiv(head_v, block_v), heads, batch, threads=threads) as (bv, head, item):
                q_row = T.alloc_shared((rows,), accumulator)
                k_row = T.alloc_shared((rows,), accumulator)
                delta = T.alloc_shared((block_v,), accumulator)
                s = T.alloc_fragment((rows, block_v), accumulator)
                terms = T.alloc_fragment((rows, block_v), accumulator)
                total = T.alloc_fragment((block_v,), accumulator)
                T.annotate_layout(
                    {tile: T.Fragment((rows, block_v), forward_fn=place) for tile in (s, terms)}
                )

                # what lies beyond an edge is read as zeros, which add nothing, and is not written
                T.copy(state[item, head, 0:rows, bv * block_v : (bv + 1) * block_v], s)
                for i in T.Parallel(rows):
                    q_row[i] = T.if_then_else(i < head_k, q[item, head, i], 0)
                    k_row[i] = T.if_then_else(i < head_k, k[item, head, i], 0)
                for i, j in T.Parallel(rows, block_v):
                    s[i, j] *= T.exp(g[item, head])
                for i, j in T.Parallel(rows, block_v):
                    terms[i, j] = s[i, j] * k_row[i]
                T.reduce_sum(terms, total, dim=0)
                for j in T.Parallel(block_v):
                    col = bv * block_v + j
                    value = T.if_then_else(col < head_v, v[item, head, col], 0)
                    total[j] = beta[item, head] * (value - total[j])
                T.copy(total, delta)
                for i, j in T.Parallel(rows, block_v):
                    s[i, j] += k_row[i] * delta[j]
                T.copy(s, new_state[item, head, 0:rows, bv * block_v : (bv + 1) * block_v])
                for i, j in T.Parallel(rows, block_v):
                    terms[i, j] = s[i, j] * q_row[i]
                T.reduce_sum(terms, total, dim=0)
                for j in T.Parallel(block_v):
                    total[j] *= scale
                T.copy(total, o[item, head, bv * block_v : (bv + 1) * block_v])

        return gated_delta_rule_decode


TEMPLATES = (GatedDeltaRuleDecodeGpu(),)
