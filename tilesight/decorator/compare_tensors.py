"""Compares two tensors as `@tilelang.autotune` does: all but a share of the elements must be close."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 24  # elements compared at a time: double precision takes memory


def difference(
    got: torch.Tensor, wanted: torch.Tensor, rtol: float, atol: float, max_mismatched_ratio: float
) -> tuple[float, str]:
    """Compare a result with its reference.

    Returns:
        ||got - wanted|| / ||wanted|| over elements that are finite in both, and the mismatch in words; "" if
        there is none.
    """
    import torch

    if got.shape != wanted.shape:
        return 1.0, f"has the shape {list(got.shape)}, and the reference {list(wanted.shape)}"
    if got.numel() == 0:
        return 0.0, ""
    flat, flat_wanted = _numbers(got).reshape(-1), _numbers(wanted).reshape(-1)
    sums = torch.zeros(3, dtype=torch.float64, device=got.device)
    for start in range(0, flat.numel(), _CHUNK):
        ours, theirs = (
            flat[start : start + _CHUNK].double(),
            flat_wanted[start : start + _CHUNK].to(got.device).double(),
        )
        far = ~torch.isclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
        both = torch.isfinite(ours) & torch.isfinite(theirs)
        error, norm = torch.where(both, ours - theirs, 0.0), torch.where(both, theirs, 0.0)
        sums += torch.stack([far.sum().double(), error.square().sum(), norm.square().sum()])
    far_count, squared_error, squared_norm = sums.tolist()
    relative = math.sqrt(squared_error / squared_norm) if squared_norm else float(squared_error > 0)
    relative = min(relative, 1e30)  # squares may overflow
    allowed = int(got.numel() * max_mismatched_ratio)
    if far_count <= allowed:
        return relative, ""
    text = f"{int(far_count)} of {got.numel()} elements differ by more than rtol={rtol:g}, atol={atol:g}"
    return relative, f"{text}; {allowed} may (relative error {relative:.3g})"


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Truth values as bytes: a poisoned one is neither 0 nor 1."""
    import torch

    return tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor
