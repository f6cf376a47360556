"""Calls of packages for products with packed weights: bitsandbytes and Marlin. Neither is a dependency.

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
MARLIN_GROUP, MARLIN_K, MARLIN_N = 128, 128, 256


def packed_products(
    a: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    weights: torch.Tensor,
    format_name: str,
    group: int,
) -> dict[str, Call]:
    """Calls of the packages that have this format.

    Args:
        a: (m, k).
        packed: codes of four bits as (n, bytes), the first one of a byte in its lowest bits.
        scales: (groups, n), without zero points.
        weights: dequantised in the dtype of `a`, (n, k).
        format_name: as `_packed` has it.
        group: neighbours along k that share a scale.
    """
    import torch

    (n, k), makers = weights.shape, dict[str, Callable[[], Call]]()
    if format_name == "nf4" and group in BLOCKS and k % group == 0:
        makers["bitsandbytes"] = partial(_bitsandbytes, a, packed, scales, (n, k), group)
    whole = n % MARLIN_N == 0 and k % MARLIN_K == 0 and group in (MARLIN_GROUP, k)
    if format_name == "int4" and whole and a.dtype == torch.float16:
        makers["Marlin"] = partial(_marlin, a, scales, weights, group)
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


def _marlin(a: torch.Tensor, scales: torch.Tensor, weights: torch.Tensor, group: int) -> Call:
    """Tiles of 16 x 64 weights in the order in which threads take them; its own function packs them."""
    import marlin
    import torch

    n, k = weights.shape
    linear = torch.nn.Linear(k, n, bias=False, dtype=weights.dtype, device="meta")
    linear.weight = torch.nn.Parameter(weights, requires_grad=False)
    layer = marlin.Layer(k, n, groupsize=-1 if group == k else group).to(a.device)
    layer.pack(linear, scales.T)
    out = torch.empty(a.shape[0], n, dtype=a.dtype, device=a.device)

    def product() -> object:
        marlin.mul(a, layer.B, out, layer.s, layer.workspace)
        return out

    return product
