"""Which definitions of FlashInfer-Bench are operators of TileSight, in both directions.

A definition is an operator only if a kernel of it computes just that: same layouts, same results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from ..kernels.rms_norm import EPS
from ..problem.config import Value
from .definition import DefinitionError, TraceDefinition, TraceTensor
from .match import KernelProblem, TraceMatch, constants, require, scale_check, size_of, stated_scale
from .paged import PagedLatentMatch, PagedMatch

LOG2_E = math.log2(math.e)

# why other definitions of the public data set are no operators here, by op_type
OTHERS: Mapping[str, str] = {
    "dsa_paged": "it has the two parts of queries and keys in tensors of their own, and mla_decode has one",
    "gdn": "it computes gates and layouts of states that gated_delta_rule takes ready-made",
    "moe": "it routes tokens and computes all products of the experts",
    "rope": "it takes positions and a table of cosines and sines, and rope those of each token",
    "sampling": "no operator draws samples",
}


class GemmMatch(TraceMatch):
    """C[M, N] = A[M, K] B[N, K]^T, without scales."""

    op_type = "gemm"
    operator = "matmul"
    tensors: ClassVar[Mapping[str, str]] = {"A": "A", "B": "B", "C": "C"}

    def definition(self, problem: KernelProblem) -> TraceDefinition:
        require(problem, {"layout": "nt", "accumulate": "float32", "scales": "none", "fuse": "none"})
        if problem.dtype not in ("bfloat16", "float16", "float32"):
            raise DefinitionError(f"its definition has no {problem.dtype} without scales")
        n, k = constants(problem, "n", "k")
        dtype = problem.dtype
        return TraceDefinition(
            f"gemm_n{n}_k{k}",
            self.op_type,
            {"M": None, "N": n, "K": k},
            {"A": TraceTensor(("M", "K"), dtype), "B": TraceTensor(("N", "K"), dtype)},
            {"C": TraceTensor(("M", "N"), dtype)},
            "import torch\n\n\ndef run(A, B):\n    return torch.matmul(A, B.T)\n",
            "C = A @ B.T",
        )

    def axes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        return {"M": sizes["m"]}

    def run(self, problem: KernelProblem, module: str) -> str:
        return f"def run(A, B, C):\n    {module}.call(A.contiguous(), B.contiguous(), out=C)\n"

    def shape(
        self, definition: TraceDefinition, axes: Mapping[str, int], scalars: Mapping[str, float]
    ) -> dict[str, Value]:
        if not definition.has({"A": ("M", "K"), "B": ("N", "K")}, {"C": ("M", "N")}):
            raise DefinitionError("it is not the plain product C[M, N] = A[M, K] B[N, K]^T")
        size = definition.sizes(axes)
        return {"m": size_of(size, "M"), "n": size_of(size, "N"), "k": size_of(size, "K"), "layout": "nt"}


class NormMatch(TraceMatch):
    """Rows divided by their root mean square, times weights; `fused_add_rmsnorm` adds a residual before."""

    op_type = "rmsnorm"
    operator = "rms_norm"
    tensors: ClassVar[Mapping[str, str]] = {
        "hidden_states": "x",
        "residual": "r",
        "weight": "w",
        "output": "y",
    }

    def definition(self, problem: KernelProblem) -> TraceDefinition:
        [n] = constants(problem, "n")
        is_fused, dtype = bool(problem.attribute("residual")), problem.dtype
        rows, weight = TraceTensor(("batch_size", "hidden_size"), dtype), TraceTensor(("hidden_size",), dtype)
        added = {"residual": rows} if is_fused else {}
        given = ", ".join(["hidden_states", *added, "weight"])
        sum_of_rows = "hidden_states.float()" + (" + residual.float()" if is_fused else "")
        reference = [
            "import torch\n\n",
            f"def run({given}):",
            f"    x = {sum_of_rows}",
            f"    y = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + {EPS}) * weight.float()",
            "    return y.to(hidden_states.dtype)\n",
        ]
        return TraceDefinition(
            f"{'fused_add_' if is_fused else ''}rmsnorm_h{n}",
            self.op_type,
            {"batch_size": None, "hidden_size": n},
            {"hidden_states": rows, **added, "weight": weight},
            {"output": rows},
            "\n".join(reference),
            f"root mean square normalisation{' of a sum' if is_fused else ''}, eps = {EPS}",
        )

    def axes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        return {"batch_size": sizes["m"]}

    def run(self, problem: KernelProblem, module: str) -> str:
        call = f"    {module}.call("
        if problem.attribute("residual"):
            return (
                "def run(hidden_states, residual, weight, output):\n"
                "    total = torch.empty_like(output)  # the sum, which the definition does not return\n"
                f"{call}hidden_states.contiguous(), residual.contiguous(), weight, out=(output, total))\n"
            )
        head = "def run(hidden_states, weight, output):\n"
        return f"{head}{call}hidden_states.contiguous(), weight, out=output)\n"

    def shape(
        self, definition: TraceDefinition, axes: Mapping[str, int], scalars: Mapping[str, float]
    ) -> dict[str, Value]:
        rows, weight = ("batch_size", "hidden_size"), ("hidden_size",)
        plain: dict[str, tuple[str, ...]] = {"hidden_states": rows, "weight": weight}
        is_fused = definition.has({**plain, "residual": rows}, {"output": rows}, ("eps",))
        if not is_fused and not definition.has(plain, {"output": rows}, ("eps",)):
            raise DefinitionError("it is not the norm of rows [batch_size, hidden_size]")
        size = definition.sizes(axes)
        return {"m": size_of(size, "batch_size"), "n": size_of(size, "hidden_size"), "residual": is_fused}


class RaggedMatch(TraceMatch):
    """Causal attention of items of different lengths, packed along one axis, with its log-sum-exp to base 2.

    A definition's scale is an argument; that of a kernel is a constant, which its calls are checked against.
    """

    op_type = "gqa_ragged"
    operator = "flash_attention_varlen"
    has_random_inputs = False  # offsets must ascend
    tensors: ClassVar[Mapping[str, str]] = {
        **{"q": "Q", "k": "K", "v": "V", "qo_indptr": "cu_seqlens_q", "kv_indptr": "cu_seqlens_k"},
        **{"output": "O", "lse": "LSE"},
    }

    def definition(self, problem: KernelProblem) -> TraceDefinition:
        wanted = {"causal": True, "window": 0, "softcap": 0, "sinks": False, "lse": True}
        require(problem, wanted)
        heads, head_dim = constants(problem, "heads", "head_dim")
        kv_heads, dtype = heads // int(problem.attribute("group")), problem.dtype
        queries = TraceTensor(("total_q", "num_qo_heads", "head_dim"), dtype)
        keys = TraceTensor(("total_kv", "num_kv_heads", "head_dim"), dtype)
        ends = TraceTensor(("len_indptr",), "int32")
        return TraceDefinition(
            f"gqa_ragged_prefill_causal_h{heads}_kv{kv_heads}_d{head_dim}",
            self.op_type,
            {
                "num_qo_heads": heads,
                "num_kv_heads": kv_heads,
                "head_dim": head_dim,
                **dict.fromkeys(("len_indptr", "total_q", "total_kv")),
            },
            {
                **{"q": queries, "k": keys, "v": keys, "qo_indptr": ends, "kv_indptr": ends},
                "sm_scale": TraceTensor(None, "float32"),
            },
            {"output": queries, "lse": TraceTensor(("total_q", "num_qo_heads"), "float32")},
            _RAGGED_REFERENCE,
            "causal attention of packed items; lse is the log-sum-exp to base 2",
        )

    def axes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        return {"len_indptr": sizes["batch"] + 1, "total_q": sizes["tokens"], "total_kv": sizes["tokens_kv"]}

    def run(self, problem: KernelProblem, module: str) -> str:
        scale = float(problem.attribute("scale")) or problem.fixed["head_dim"] ** -0.5
        return (
            "def run(q, k, v, qo_indptr, kv_indptr, sm_scale, output, lse):\n"
            f"{scale_check(scale)}"
            "    natural = torch.empty(lse.shape[::-1], dtype=lse.dtype, device=lse.device)\n"
            "    given = (one.contiguous() for one in (q, k, v, qo_indptr, kv_indptr))\n"
            f"    {module}.call(*given, out=(output, natural))\n"
            f"    torch.mul(natural.T, {LOG2_E!r}, out=lse)\n"
        )

    def shape(
        self, definition: TraceDefinition, axes: Mapping[str, int], scalars: Mapping[str, float]
    ) -> dict[str, Value]:
        queries, keys = ("total_q", "num_qo_heads", "head_dim"), ("total_kv", "num_kv_heads", "head_dim")
        ends: tuple[str, ...] = ("len_indptr",)
        inputs = {"q": queries, "k": keys, "v": keys, "qo_indptr": ends, "kv_indptr": ends}
        if not definition.has(inputs, {"output": queries, "lse": queries[:2]}, ("sm_scale",)):
            raise DefinitionError("it is not the attention of packed queries, keys and values")
        if "causal" not in definition.name.split("_"):
            raise DefinitionError("its name does not say that it is causal")
        heads, kv_heads, head_dim = map(definition.constant, ("num_qo_heads", "num_kv_heads", "head_dim"))
        if heads % kv_heads:
            raise DefinitionError(f"num_qo_heads={heads} is no multiple of num_kv_heads={kv_heads}")
        size = definition.sizes(axes)
        ends_count = size_of(size, "len_indptr")
        if ends_count < 2:
            raise DefinitionError(f"len_indptr={ends_count} must be at least 2, the ends of one item")
        return {
            "batch": ends_count - 1,
            "heads": heads,
            "tokens": size_of(size, "total_q"),
            "head_dim": head_dim,
            "tokens_kv": size_of(size, "total_kv"),
            "causal": True,
            "group": heads // kv_heads,
            "lse": True,
            "scale": stated_scale(scalars, head_dim),
        }


MATCHES: tuple[TraceMatch, ...] = (
    GemmMatch(),
    NormMatch(),
    RaggedMatch(),
    PagedMatch(),
    PagedLatentMatch(),
)


def match_of_operator(operator: str) -> TraceMatch:
    """The match of TileSight's operator. Raises `DefinitionError`, which names those that have one."""
    found = next((match for match in MATCHES if match.operator == operator), None)
    if found is None:
        known = ", ".join(f"{match.operator} ({match.op_type})" for match in MATCHES)
        raise DefinitionError(
            f"FlashInfer-Bench has no definition of just that; operators that have one: {known}"
        )
    return found


def match_of_definition(definition: TraceDefinition) -> TraceMatch:
    """The match of a definition. Raises `DefinitionError` with the reason if there is none."""
    found = next((match for match in MATCHES if match.op_type == definition.op_type), None)
    if found is None:
        reason = OTHERS.get(definition.op_type, "no operator is known for it")
        raise DefinitionError(f"op_type {definition.op_type}: {reason}")
    return found


_RAGGED_REFERENCE = """\
import math

import torch


def run(q, k, v, qo_indptr, kv_indptr, sm_scale):
    output = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float32, device=q.device)
    group = q.shape[1] // k.shape[1]
    q_ends, kv_ends = qo_indptr.tolist(), kv_indptr.tolist()
    for item in range(len(q_ends) - 1):
        rows, keys = slice(q_ends[item], q_ends[item + 1]), slice(kv_ends[item], kv_ends[item + 1])
        queries = q[rows].float().transpose(0, 1)
        k_item = k[keys].float().transpose(0, 1).repeat_interleave(group, dim=0)
        v_item = v[keys].float().transpose(0, 1).repeat_interleave(group, dim=0)
        scores = queries @ k_item.transpose(1, 2) * sm_scale
        # the last query is at the position of the last key
        count, total = scores.shape[1:]
        seen = torch.ones(count, total, dtype=torch.bool, device=q.device).tril(total - count)
        scores = scores.masked_fill(~seen, -math.inf)
        weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
        output[rows] = (weights @ v_item).transpose(0, 1).to(q.dtype)
        lse[rows] = torch.logsumexp(scores, dim=-1).transpose(0, 1) / math.log(2)
    return output, lse
"""
