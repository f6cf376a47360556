"""The softmax weights of attention in plain torch, for the references of its variants."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ._exact_products import exact_products

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
) -> "Iterator[tuple[int, slice, torch.Tensor]]":
    """The weights of panels of queries in float32 without TF32.

    Args:
        q, k: (batch, seq_len, heads, head_dim); k may have fewer heads.
        hidden: the keys that the queries of an item and of these rows do not see, or None.
        lse: (batch, heads, seq_len), logarithms of the sums of the exponentials; written if not `is_known`.
        is_known: whether `lse` is given.
        scale: factor of the scores.

    Yields:
        The item, the rows, and the weights (heads, rows, keys).
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
                unseen = hidden(item, rows)
                if unseen is not None:
                    scores.masked_fill_(unseen, -torch.inf)
                if not is_known:
                    lse[item, :, rows] = scores.logsumexp(-1)
                yield item, rows, scores.sub_(lse[item, :, rows, None]).exp_()
