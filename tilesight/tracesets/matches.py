"""Which definitions of FlashInfer-Bench are operators of TileSight, in both directions.

A definition is an operator only if a kernel of it computes just that: same layouts, same results.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from .. import kernels
from ..kernels.rms_norm import EPS
from ..problem.config import Value
from ..problem.operator import Operator
from .definition import DefinitionError, TraceDefinition, TraceTensor

LOG2_E = math.log2(math.e)

# why other definitions of the public data set are no operators here, by op_type
OTHERS: Mapping[str, str] = {
    "mla_paged": "it has the two parts of queries and keys in tensors of their own, and mla_decode has one; "
    "its page tables are lists of pages in one tensor with offsets",
    "dsa_paged": "it has the two parts of queries and keys in tensors of their own, and mla_decode has one",
    "gdn": "it computes gates and layouts of states that gated_delta_rule takes ready-made",
    "moe": "it routes tokens and computes all products of the experts",
    "rope": "it takes positions and a table of cosines and sines, and rope those of each token",
    "sampling": "no operator draws samples",
}


@dataclass(frozen=True, slots=True)
class KernelProblem:
    """What exported kernels compute, as far as a definition needs it.

    `fixed`: dimensions with one size; others are stated by calls.
    """

    operator: Operator
    dtype: str
    attrs: Mapping[str, Value]
    fixed: Mapping[str, int]

    def attribute(self, name: str) -> Value:
        return self.operator.attribute(self.attrs, name)


class TraceMatch(ABC):
    """Definitions of one op_type that one of TileSight's operators computes.

    Attributes:
        op_type: of the definitions.
        operator: the name of TileSight's operator.
        has_random_inputs: whether inputs may be random, so that a workload is its sizes.
        tensors: the operator's name of each tensor of a definition; the first one has the workload's dtype.
    """

    op_type: ClassVar[str]
    operator: ClassVar[str]
    has_random_inputs: ClassVar[bool] = True
    tensors: ClassVar[Mapping[str, str]]

    @abstractmethod
    def definition(self, problem: KernelProblem) -> TraceDefinition:
        """The definition that kernels of a problem compute. Raises `DefinitionError` if there is none."""

    @abstractmethod
    def axes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The variable axes of a workload, for sizes of the operator's dimensions."""

    @abstractmethod
    def run(self, problem: KernelProblem, module: str) -> str:
        """Python code of `run`, which takes inputs and outputs and calls the module of an export."""

    @abstractmethod
    def shape(
        self, definition: TraceDefinition, axes: Mapping[str, int], scalars: Mapping[str, float]
    ) -> dict[str, Value]:
        """Dimensions and attributes of a workload. Raises `DefinitionError` if the operator does not fit.

        Args:
            definition: of the workload.
            axes: the sizes that the workload states.
            scalars: its numbers.
        """

    def dtype(self, definition: TraceDefinition) -> str:
        """The dtype of the workloads of a definition that has the tensors."""
        return definition.inputs[next(iter(self.tensors))].dtype

    def check_dtypes(self, definition: TraceDefinition, shape: Mapping[str, Value]) -> None:
        """Raise `DefinitionError` unless the operator's tensors have the dtypes of the definition's."""
        operator, dtype = kernels.operator(self.operator), self.dtype(definition)
        others = operator.tensor_dtypes(dtype, operator.kept_attributes(shape))
        for name, tensor in (*definition.inputs.items(), *definition.outputs.items()):
            if tensor.axes is None:
                continue
            wanted = others.get(self.tensors[name], dtype)
            if tensor.dtype != wanted:
                raise DefinitionError(
                    f"its {name} is {tensor.dtype}, and that of {self.operator} {dtype} is {wanted}"
                )


def _constants(problem: KernelProblem, *names: str) -> list[int]:
    """The sizes of dimensions that a definition has as constants."""
    free = [name for name in names if name not in problem.fixed]
    if free:
        raise DefinitionError(f"{' and '.join(free)} must be fixed: its definition has constants there")
    return [problem.fixed[name] for name in names]


def _require(problem: KernelProblem, wanted: Mapping[str, Value]) -> None:
    for name, value in wanted.items():
        found = problem.attribute(name)
        if found != value:
            raise DefinitionError(
                f"its definition needs {_text(name, value)}, and these kernels have {_text(name, found)}"
            )


def _text(name: str, value: Value) -> str:
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


class GemmMatch(TraceMatch):
    """C[M, N] = A[M, K] B[N, K]^T, without scales."""

    op_type = "gemm"
    operator = "matmul"
    tensors: ClassVar[Mapping[str, str]] = {"A": "A", "B": "B", "C": "C"}

    def definition(self, problem: KernelProblem) -> TraceDefinition:
        _require(problem, {"layout": "nt", "accumulate": "float32", "scales": "none", "fuse": "none"})
        if problem.dtype not in ("bfloat16", "float16", "float32"):
            raise DefinitionError(f"its definition has no {problem.dtype} without scales")
        n, k = _constants(problem, "n", "k")
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
        return {"m": _size(size, "M"), "n": _size(size, "N"), "k": _size(size, "K"), "layout": "nt"}


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
        [n] = _constants(problem, "n")
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
        return {"m": _size(size, "batch_size"), "n": _size(size, "hidden_size"), "residual": is_fused}


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
        _require(problem, wanted)
        heads, head_dim = _constants(problem, "heads", "head_dim")
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
            f"{_scale_check(scale)}"
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
        ends_count = _size(size, "len_indptr")
        if ends_count < 2:
            raise DefinitionError(f"len_indptr={ends_count} must be at least 2, the ends of one item")
        return {
            "batch": ends_count - 1,
            "heads": heads,
            "tokens": _size(size, "total_q"),
            "head_dim": head_dim,
            "tokens_kv": _size(size, "total_kv"),
            "causal": True,
            "group": heads // kv_heads,
            "lse": True,
            "scale": _stated_scale(scalars, head_dim),
        }


class PagedMatch(TraceMatch):
    """Attention of one query of each item over a cache in pages of one key, with its log-sum-exp to base 2.

    A definition has the pages of all items in one list, with offsets. A kernel's table has a row for each
    item, which `run` makes from the list.
    """

    op_type = "gqa_paged"
    operator = "flash_decoding"
    has_random_inputs = False  # offsets must ascend, and pages must exist
    tensors: ClassVar[Mapping[str, str]] = {
        **{"q": "Q", "k_cache": "K", "v_cache": "V", "kv_indptr": "Lengths", "kv_indices": "Table"},
        **{"output": "O", "lse": "LSE"},
    }

    def definition(self, problem: KernelProblem) -> TraceDefinition:
        _require(problem, {"page": 1, "lse": True})
        heads, kv_heads, head_dim, _, q_len = _constants(
            problem, "heads", "kv_heads", "head_dim", "kv_len", "q_len"
        )
        if q_len != 1:
            raise DefinitionError(
                f"its definition has one query of each item, and these kernels have {q_len}"
            )
        dtype = problem.dtype
        inputs, outputs = self._axes()
        dtypes = {"kv_indptr": "int32", "kv_indices": "int32", "lse": "float32"}
        return TraceDefinition(
            f"gqa_paged_decode_h{heads}_kv{kv_heads}_d{head_dim}_ps1",
            self.op_type,
            {
                "num_qo_heads": heads,
                "num_kv_heads": kv_heads,
                "head_dim": head_dim,
                "page_size": 1,
                **dict.fromkeys(("batch_size", "num_pages", "len_indptr", "num_kv_indices")),
            },
            {
                **{name: TraceTensor(axes, dtypes.get(name, dtype)) for name, axes in inputs.items()},
                "sm_scale": TraceTensor(None, "float32"),
            },
            {name: TraceTensor(axes, dtypes.get(name, dtype)) for name, axes in outputs.items()},
            _PAGED_REFERENCE,
            "attention of one query of each item over pages of one key; lse is the log-sum-exp to base 2",
        )

    def axes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        batch = sizes["batch"]
        return {
            "batch_size": batch,
            "num_pages": sizes["pages"],
            "len_indptr": batch + 1,
            "num_kv_indices": batch * sizes["kv_len"],
        }

    def run(self, problem: KernelProblem, module: str) -> str:
        scale = float(problem.attribute("scale")) or problem.fixed["head_dim"] ** -0.5
        room = problem.fixed["kv_len"]
        return (
            "def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale, output, lse):\n"
            f"{_scale_check(scale)}"
            "    count = kv_indices.shape[0]\n"
            "    lengths = kv_indptr[1:] - kv_indptr[:-1]\n"
            f"    if count > {room} and int(lengths.max()) > {room}:\n"
            '        raise ValueError(f"an item has {int(lengths.max())} keys: "'
            f' "these kernels have room for {room}")\n'
            f"    places = kv_indptr[:-1, None] + torch.arange({room}, device=q.device)\n"
            "    known = kv_indices if count else kv_indices.new_zeros(1)\n"
            "    table = known[places.clamp_(max=max(count - 1, 0))]\n"
            "    natural = torch.empty_like(lse)\n"
            "    given = (one.contiguous() for one in (q[:, None], k_cache, v_cache, table, lengths))\n"
            f"    {module}.call(*given, out=(output[:, None], natural[:, None]))\n"
            f"    torch.mul(natural, {LOG2_E!r}, out=lse)\n"
        )

    def shape(
        self, definition: TraceDefinition, axes: Mapping[str, int], scalars: Mapping[str, float]
    ) -> dict[str, Value]:
        page = definition.constant("page_size")
        if page != 1:
            raise DefinitionError(f"page_size={page}: solutions read pages of one key alone so far")
        inputs, outputs = self._axes()
        if not definition.has(inputs, outputs, ("sm_scale",)):
            raise DefinitionError("it is not the attention of one query of each item over a cache in pages")
        names = ("num_qo_heads", "num_kv_heads", "head_dim")
        heads, kv_heads, head_dim = map(definition.constant, names)
        size = definition.sizes(axes)
        batch, keys = _size(size, "batch_size"), _size(size, "num_kv_indices")
        if keys < batch or batch < 1:
            raise DefinitionError(
                f"num_kv_indices={keys} must be at least batch_size={batch}: items have keys"
            )
        return {
            "batch": batch,
            "heads": heads,
            "kv_heads": kv_heads,
            "kv_len": -(-keys // batch),  # of the mean item
            "head_dim": head_dim,
            "pages": _size(size, "num_pages"),
            "page": 1,
            "lse": True,
            "scale": _stated_scale(scalars, head_dim),
        }

    @staticmethod
    def _axes() -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
        """Axes of the inputs and of the outputs."""
        rows = ("batch_size", "num_qo_heads")
        pool = ("num_pages", "page_size", "num_kv_heads", "head_dim")
        lists: dict[str, tuple[str, ...]] = {"kv_indptr": ("len_indptr",), "kv_indices": ("num_kv_indices",)}
        inputs = {"q": (*rows, "head_dim"), "k_cache": pool, "v_cache": pool, **lists}
        return inputs, {"output": (*rows, "head_dim"), "lse": rows}


MATCHES: tuple[TraceMatch, ...] = (GemmMatch(), NormMatch(), RaggedMatch(), PagedMatch())


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


def _size(sizes: Mapping[str, int], axis: str) -> int:
    size = sizes.get(axis)
    if size is None:
        raise DefinitionError(f"axis {axis} has no size")
    return size


def _stated_scale(scalars: Mapping[str, float], head_dim: int) -> float:
    """The attribute `scale` for the factor of scores that a workload states."""
    usual = head_dim**-0.5
    scale = scalars.get("sm_scale", usual)
    if not 0 < scale < math.inf:
        raise DefinitionError(f"sm_scale={scale} must be a number above 0")
    return 0.0 if abs(scale - usual) <= 1e-5 * usual else scale


def _scale_check(scale: float) -> str:
    """Lines of `run` that refuse another factor of scores."""
    return (
        f"    if abs(float(sm_scale) - {scale!r}) > 1e-5 * {scale!r}:\n"
        f'        raise ValueError(f"sm_scale={{float(sm_scale)}}: these kernels have {scale!r}")\n'
    )


_PAGED_REFERENCE = """\
import math

import torch


def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
    output = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float32, device=q.device)
    group = q.shape[1] // k_cache.shape[2]
    ends = kv_indptr.tolist()
    for item in range(len(ends) - 1):
        pages = kv_indices[ends[item] : ends[item + 1]].long()
        if len(pages) == 0:
            continue
        k, v = (cache[pages, 0].float().transpose(0, 1) for cache in (k_cache, v_cache))
        k, v = (one.repeat_interleave(group, dim=0) for one in (k, v))
        scores = (k @ q[item].float()[:, :, None])[:, :, 0] * sm_scale
        output[item] = (torch.softmax(scores, dim=-1)[:, None] @ v)[:, 0].to(q.dtype)
        lse[item] = torch.logsumexp(scores, dim=-1) / math.log(2)
    return output, lse
"""

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
