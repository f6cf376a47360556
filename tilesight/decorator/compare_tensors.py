"""Compares two tensors as `@tilelang.autotune` does: all but a share of the elements must be close.

That share does not excuse elements that were never written, or are not finite where the reference is, or are
so far off that they outweigh the tolerances of all elements together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..runner.verify import unwritten

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 24  # elements compared at a time: double precision takes memory
_NORM_FACTOR = 10  # ||got - wanted|| may be this times what elements at the edge of their tolerances give


def difference(
    got: torch.Tensor, wanted: torch.Tensor, rtol: float, atol: float, max_mismatched_ratio: float
) -> tuple[float, str]:
    """Compare a result, computed after `runner.verify.poison`, with its reference.

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
    sums = torch.zeros(6, dtype=torch.float64, device=got.device)
    for start in range(0, flat.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        ours, theirs = flat[part].double(), flat_wanted[part].to(got.device).double()
        far = ~torch.isclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
        blank = far & unwritten(flat[part])
        wild = far & torch.isfinite(theirs) & ~torch.isfinite(ours) & ~blank
        both = torch.isfinite(ours) & torch.isfinite(theirs) & ~blank
        error, norm = torch.where(both, ours - theirs, 0.0), torch.where(both, theirs, 0.0)
        allowed = atol + rtol * norm.abs()
        squares = [values.square().sum() for values in (error, norm, allowed)]
        sums += torch.stack([count.sum().double() for count in (far, blank, wild)] + squares)
    far_count, blank_count, wild_count, squared_error, squared_norm, squared_allowed = sums.tolist()
    relative = math.sqrt(squared_error / squared_norm) if squared_norm else float(squared_error > 0)
    relative = min(relative, 1e30)  # squares may overflow
    size = got.numel()
    if blank_count:
        return relative, f"{int(blank_count)} of {size} elements were never written"
    if wild_count:
        return relative, (
            f"{int(wild_count)} of {size} elements are NaN or infinite where the reference is finite"
        )
    may = int(size * max_mismatched_ratio)
    tolerances = f"rtol={rtol:g}, atol={atol:g}"
    if far_count > may:
        text = f"{int(far_count)} of {size} elements differ by more than {tolerances}"
        return relative, f"{text}; {may} may (relative error {relative:.3g})"
    if squared_error > _NORM_FACTOR**2 * squared_allowed:
        return relative, (
            f"{int(far_count)} of {size} elements are so far off that the relative error of the output is "
            f"{relative:.3g}: more than {_NORM_FACTOR} times what {tolerances} allow"
        )
    return relative, ""


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Truth values as bytes: a poisoned one is neither 0 nor 1."""
    import torch

    return tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor
