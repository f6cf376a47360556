"""The three operators in Helion's language, with static shapes; Helion chooses every config by itself.

`autotune_effort="none"` measures nothing: Helion takes the config that its heuristics for the chip promote,
or else its default config.
"""

import math
from collections.abc import Mapping
from typing import Any

import helion
import helion.language as hl
import torch

OPTIONS: dict[str, Any] = {"static_shapes": True, "autotune_effort": "none"}


@helion.kernel(**OPTIONS)
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """C[m, n] = A[m, k] B[k, n], accumulated in float32."""
    m, k = a.size()
    _, n = b.size()
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for rows, columns in hl.tile([m, n]):
        total = hl.zeros([rows, columns], dtype=torch.float32)
        for depth in hl.tile(k):
            total = torch.addmm(total, a[rows, depth], b[depth, columns])
        out[rows, columns] = total.to(out.dtype)
    return out


@helion.kernel(**OPTIONS)
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of q, k, v[batch * heads, seq_len, head_dim], with an online softmax."""
    items, length, width = q.size()
    width = hl.specialize(width)
    out = torch.empty_like(q)
    scale = width**-0.5 * math.log2(math.e)
    for item, queries in hl.tile([items, length]):
        highest = hl.full([item, queries], float("-inf"), dtype=torch.float32)
        weight_sum = hl.zeros([item, queries], dtype=torch.float32)
        result = hl.zeros([item, queries, width], dtype=torch.float32)
        query = q[item, queries, :]
        for keys in hl.tile(length):
            # Helion itself masks keys beyond the end in the maximum and in the sum
            scores = torch.bmm(query, k[item, keys, :].transpose(1, 2), torch.float32)
            top = torch.maximum(highest, torch.amax(scores, -1) * scale)
            weights = torch.exp2(scores * scale - top[:, :, None])
            rescale = torch.exp2(highest - top)
            weight_sum = weight_sum * rescale + torch.sum(weights, -1)
            result = result * rescale[:, :, None]
            result = torch.baddbmm(result, weights.to(v.dtype), v[item, keys, :])
            highest = top
        out[item, queries, :] = (result / weight_sum[:, :, None]).to(out.dtype)
    return out


@helion.kernel(**OPTIONS)
def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """`attention` in which a query sees the keys up to its own place; later tiles of keys are skipped."""
    items, length, width = q.size()
    width = hl.specialize(width)
    out = torch.empty_like(q)
    scale = width**-0.5 * math.log2(math.e)
    for item, queries in hl.tile([items, length]):
        highest = hl.full([item, queries], float("-inf"), dtype=torch.float32)
        weight_sum = hl.zeros([item, queries], dtype=torch.float32)
        result = hl.zeros([item, queries, width], dtype=torch.float32)
        query = q[item, queries, :]
        for keys in hl.tile(0, queries.end):
            scores = torch.bmm(query, k[item, keys, :].transpose(1, 2), torch.float32)
            seen = keys.index[None, None, :] <= queries.index[None, :, None]
            scores = torch.where(seen, scores, float("-inf"))
            top = torch.maximum(highest, torch.amax(scores, -1) * scale)
            weights = torch.exp2(scores * scale - top[:, :, None])
            rescale = torch.exp2(highest - top)
            weight_sum = weight_sum * rescale + torch.sum(weights, -1)
            result = result * rescale[:, :, None]
            result = torch.baddbmm(result, weights.to(v.dtype), v[item, keys, :])
            highest = top
        out[item, queries, :] = (result / weight_sum[:, :, None]).to(out.dtype)
    return out


@helion.kernel(**OPTIONS)
def causal_attention_all_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """`causal_attention` that goes over all keys, as Helion's own example does, for other block sizes."""
    items, length, width = q.size()
    width = hl.specialize(width)
    out = torch.empty_like(q)
    scale = width**-0.5 * math.log2(math.e)
    for item, queries in hl.tile([items, length]):
        highest = hl.full([item, queries], float("-inf"), dtype=torch.float32)
        weight_sum = hl.zeros([item, queries], dtype=torch.float32)
        result = hl.zeros([item, queries, width], dtype=torch.float32)
        query = q[item, queries, :]
        for keys in hl.tile(length):
            scores = torch.bmm(query, k[item, keys, :].transpose(1, 2), torch.float32)
            seen = keys.index[None, None, :] <= queries.index[None, :, None]
            scores = torch.where(seen, scores, float("-inf"))
            top = torch.maximum(highest, torch.amax(scores, -1) * scale)
            weights = torch.exp2(scores * scale - top[:, :, None])
            rescale = torch.exp2(highest - top)
            weight_sum = weight_sum * rescale + torch.sum(weights, -1)
            result = result * rescale[:, :, None]
            result = torch.baddbmm(result, weights.to(v.dtype), v[item, keys, :])
            highest = top
        out[item, queries, :] = (result / weight_sum[:, :, None]).to(out.dtype)
    return out


@helion.kernel(**OPTIONS)
def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """y = x / sqrt(mean(x^2) + 1e-6) * w for each row of x[m, n], in float32."""
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        row = x[rows, :].to(torch.float32)
        inverse = torch.rsqrt(torch.mean(row * row, dim=-1) + 1e-6)
        out[rows, :] = (row * inverse[:, None] * w[:].to(torch.float32)).to(out.dtype)
    return out


def kernel_for(operator: str, causal: bool, form: str) -> Any:
    """Helion's kernel for an operator of this project; `form` is "" or "all keys"."""
    forms = {"": causal_attention, "all keys": causal_attention_all_keys}
    return {
        "matmul": matmul,
        "flash_attention": forms[form] if causal else attention,
        "rms_norm": rms_norm,
    }[operator]


def shapes_for(operator: str, dims: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Shapes of the arguments of `kernel_for`."""
    if operator == "matmul":
        return [(dims["m"], dims["k"]), (dims["k"], dims["n"])]
    if operator == "rms_norm":
        return [(dims["m"], dims["n"]), (dims["n"],)]
    return [(dims["batch"] * dims["heads"], dims["seq_len"], dims["head_dim"])] * 3


def arguments_for(operator: str, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The arguments of `kernel_for`: attention takes contiguous copies of (batch * heads, seq_len, head_dim).

    The project's own tensors have the layout (batch, seq_len, heads, head_dim).
    """
    if operator != "flash_attention":
        return tuple(inputs.values())
    return tuple(tensor.transpose(1, 2).flatten(0, 1).contiguous() for tensor in inputs.values())


def result_of(operator: str, returned: torch.Tensor, batch: int) -> torch.Tensor:
    """The returned tensor in the layout of the project's reference."""
    if operator != "flash_attention":
        return returned
    return returned.unflatten(0, (batch, -1)).transpose(1, 2).contiguous()


def bind(operator: str, causal: bool, form: str, arguments: tuple[torch.Tensor, ...]) -> tuple[Any, Any]:
    """The kernel bound to the arguments, and the config that Helion chose without measuring."""
    bound = kernel_for(operator, causal, form).bind(arguments)
    return bound, bound.config_spec.default_config()
