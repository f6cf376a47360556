"""Compares two tensors as `@tilelang.autotune` does: all but a share of the elements must be close.

That share excuses no element that was never written, is not finite where the reference is, or is so far off
that it cannot come from rounding, and no tile of such elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runner.compare import compare, scale_of
from ..runner.error_bounds import GROSS, GROSS_NORM, gross_bound, tolerance_bound

if TYPE_CHECKING:
    import torch

_LARGEST = 1e30  # of a relative error: squares may overflow


def difference(
    got: torch.Tensor, wanted: torch.Tensor, rtol: float, atol: float, max_mismatched_ratio: float
) -> tuple[float, str]:
    """Compare a result, computed after `runner.compare.poison`, with its reference.

    Returns:
        ||got - wanted|| / ||wanted|| over elements that are finite in both (1 for an error without a norm),
        and the mismatch in words; "" if there is none.
    """
    if got.shape != wanted.shape:
        return 1.0, f"has the shape {list(got.shape)}, and the reference {list(wanted.shape)}"
    found = compare(got, wanted, tolerance_bound(rtol, atol))
    relative = 1.0 if found.relative_error == float("inf") else min(found.relative_error, _LARGEST)
    if fault := found.unusable():
        return relative, fault
    far, may = found.beyond + found.unlike, int(found.size * max_mismatched_ratio)
    if not far:
        return relative, ""
    tolerances = f"rtol={rtol:g}, atol={atol:g}"
    worst = f"; the worst: {found.element}" if found.beyond else ""
    if far > may:
        count = f"{far} of {found.size} elements differ by more than {tolerances}; {may} may"
        return relative, f"{count} (relative error {relative:.3g}){worst}"
    if found.norm_ratio > GROSS_NORM:
        return relative, (
            f"{far} of {found.size} elements are so far off that the relative error of the output is "
            f"{relative:.3g}: more than {GROSS_NORM:g} times what {tolerances} allow{worst}"
        )
    if not wanted.dtype.is_floating_point:
        return relative, ""  # whole numbers may name something, as an index does: no number is far off
    is_whole = bool((wanted.float().frac() == 0).all())
    gross = compare(got, wanted, gross_bound(rtol, atol, scale_of(wanted), is_whole))
    rule = f"more than {GROSS:g} times what {tolerances} allow at the scale of the output"
    if gross.beyond:
        count = f"{gross.beyond} of {found.size} elements are off by {rule}"
        return relative, f"{count}; {gross.element} (relative error {relative:.3g})"
    if gross.tile_ratio > 1:
        return relative, f"{gross.tile} is off by {rule} on average{worst} (relative error {relative:.3g})"
    return relative, ""
