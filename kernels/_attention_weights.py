"""The softmax weights of attention in plain torch, for the references of its variants."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ..problem.space import Value
from ._exact_products import exact_products
from ._softmax_scale import softmax_scale

if TYPE_CHECKING:
    import torch

SCORE_BYTES = 1 << 28  # a panel of scores has at most this much


def heads_of(tensor: "torch.Tensor", group: int) -> "torch.Tensor":
    """Keys or values of one item as (heads, seq_len, head_dim), repeated for each query head, in float32."""
    return tensor.float().transpose(0, 1).repeat_interleave(group, 0)


def panels(
    q: "torch.Tensor",
    k: "torch.Tensor",
    hidden: "Callable[[int, slice], torch.Tensor | None]",
    lse: "torch.Tensor",
    is_known: bool,
    scale: float,
    *,
    softcap: int = 0,
    sink: "torch.Tensor | None" = None,
) -> "Iterator[tuple[int, slice, torch.Tensor, torch.Tensor | None]]":
    """The weights of panels of queries in float32 without TF32.

    Args:
        q, k: (batch, seq_len, heads, head_dim); k may have fewer heads.
        hidden: the keys that the queries of an item and of these rows do not see, or None.
        lse: (batch, heads, seq_len), logarithms of the sums of the exponentials; written if not `is_known`.
        is_known: whether `lse` is given.
        scale: factor of the scores.
        softcap: scores become softcap tanh(score / softcap), if it is not 0.
        sink: a logit of each head that takes part of the weight, or None.

    Yields:
        The item, the rows, the weights (heads, rows, keys), and with a softcap the slope of its scores there.
    """
    import torch

    batch, seq_len, heads, _ = q.shape
    panel = max(1, SCORE_BYTES // (4 * heads * k.shape[1]))
    with exact_products():
        for item in range(batch):
            keys = heads_of(k[item], heads // k.shape[2]).transpose(1, 2)
            for start in range(0, seq_len, panel):
                rows = slice(start, min(start + panel, seq_len))
                scores = q[item, rows].float().transpose(0, 1) @ keys * scale
                slopes = None
                if softcap:
                    scores.div_(softcap).tanh_()
                    slopes = 1 - scores.square()
                    scores.mul_(softcap)
                unseen = hidden(item, rows)
                if unseen is not None:
                    scores.masked_fill_(unseen, -torch.inf)
                if not is_known:
                    found = scores.logsumexp(-1)
                    lse[item, :, rows] = found if sink is None else found.logaddexp(sink[:, None])
                yield item, rows, scores.sub_(lse[item, :, rows, None]).exp_(), slopes


def masked_attention(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    hidden: "Callable[[int, slice], torch.Tensor | None]",
    scale: float,
    squared: bool,
) -> "torch.Tensor":
    """Attention to the keys that are not hidden, in float32 without TF32.

    Args:
        q, k, v: (batch, seq_len, heads, head_dim), with fewer heads of k and v where query heads share them.
        hidden: see `panels`.
        scale: factor of the scores.
        squared: whether to sum the squares of the terms (weight times value). Weights are at least the
            smallest normal number of the dtype: the rounding errors of smaller ones are those of that number.

    Returns:
        The output (batch, seq_len, heads, head_dim), zeros where a query sees no key.
    """
    import torch

    out = torch.empty_like(q, dtype=torch.float32)
    lse = torch.empty(q.shape[0], *q.shape[2:0:-1], device=q.device)
    least, group = torch.finfo(v.dtype).tiny, q.shape[2] // k.shape[2]
    for item, rows, weights, _ in panels(q, k, hidden, lse, is_known=False, scale=scale):
        values = heads_of(v[item], group)
        weights.nan_to_num_()  # of queries that see no key
        if squared:
            weights.clamp_(min=least).square_()
            values.square_()
        out[item, rows] = (weights @ values).transpose(0, 1)
    return out


def item_attention(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    attrs: Mapping[str, Value],
    sink: "torch.Tensor | None",
    squared: bool,
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Attention of one item with the attributes of flash_attention, in float32 without TF32.

    Args:
        q, k, v: (positions, heads, head_dim). The last query is at the position of the last key.
        attrs: causal, group, window, softcap and scale.
        sink: a logit of each head, or None.
        squared: whether to sum the squares of the terms (weight times value), and take the root. Weights are
            at least the smallest normal number of the dtype: the rounding errors of smaller ones are those of
            that number.

    Returns:
        The output (queries, heads, head_dim), zeros where a query sees no key, and the logarithms of the sums
        of weights (heads, queries).
    """
    import torch

    causal, (window, softcap) = bool(attrs["causal"]), (int(attrs.get(n, 0)) for n in ("window", "softcap"))
    (length, heads, head_dim), count, least = q.shape, k.shape[0], torch.finfo(v.dtype).tiny
    group, scale = heads // k.shape[1], softmax_scale(attrs, head_dim)
    keys, values = heads_of(k, group).transpose(1, 2), heads_of(v, group)
    values = values.square_() if squared else values
    out = torch.empty(length, heads, head_dim, device=q.device)
    lse = torch.empty(heads, length, device=q.device)
    panel = max(1, SCORE_BYTES // (4 * heads * max(1, count)))
    at = torch.arange(count - length, count, device=q.device)
    with exact_products():
        for start in range(0, length, panel):
            rows = slice(start, min(start + panel, length))
            scores = q[rows].float().transpose(0, 1) @ keys * scale
            if softcap:
                scores.div_(softcap).tanh_().mul_(softcap)
            distance = at[rows, None] - torch.arange(count, device=q.device)
            if causal:
                scores.masked_fill_(distance < 0, -torch.inf)
            if window:
                scores.masked_fill_(distance >= window, -torch.inf)
            if sink is not None:
                scores = torch.cat([scores, sink[:, None, None].expand(heads, scores.shape[1], 1)], -1)
            lse[:, rows] = scores.logsumexp(-1)
            weights = scores.softmax(-1)[..., :count]
            if count < length:
                weights = weights.nan_to_num()
            if squared:  # relative to the largest one, since squares of small numbers are zero
                weights = weights.clamp(min=least)
                largest = weights.amax(-1, keepdim=True)
                out[rows] = ((weights / largest).square_() @ values).sqrt_().mul_(largest).transpose(0, 1)
            else:
                out[rows] = (weights @ values).transpose(0, 1)
    return out, lse
