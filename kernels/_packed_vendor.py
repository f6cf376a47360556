"""Calls of bitsandbytes, which is no dependency, for products with packed weights.

Weights and scales are brought into a package's layout before the calls, as when a model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ._vendor_calls import Call, of_packages

if TYPE_CHECKING:
    import torch

BLOCKS = (32, 64, 128, 256, 512, 1024)  # weights that share a scale in bitsandbytes


def packed_products(
    a: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    shape: tuple[int, int],
    format_name: str,
    group: int,
) -> dict[str, Call]:
    """Calls of the packages that have this format.

    Args:
        a: (m, k).
        packed: codes of four bits as (n, bytes), the first one of a byte in its lowest bits.
        scales: (groups, n), without zero points.
        shape: n and k.
        format_name: as `_packed` has it.
        group: neighbours along k that share a scale.
    """
    makers = dict[str, Callable[[], Call]]()
    if format_name == "nf4" and group in BLOCKS and shape[1] % group == 0:
        makers["bitsandbytes"] = partial(_bitsandbytes, a, packed, scales, shape, group)
    return of_packages(a, makers)


def _bitsandbytes(
    a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, shape: tuple[int, int], group: int
) -> Call:
    """The first weight of a byte in its highest bits, and scales in float32, row by row."""
    import bitsandbytes
    from bitsandbytes.functional import QuantState, get_4bit_type

    values = get_4bit_type("nf4", device=a.device)
    largest = scales.T.contiguous().flatten().float()
    state = QuantState(largest, shape, values, group, "nf4", a.dtype)
    turned = (packed << 4 | packed >> 4).view(-1, 1)
    return lambda: bitsandbytes.matmul_4bit(a, turned.t(), state)
