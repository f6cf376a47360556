"""Bounds of the error of each element of a result, and all limits of the check in one place.

The unit roundoff u of a dtype is half the distance from 1 to the next number: 2^-8 for bfloat16, 2^-11 for
float16, 2^-24 for float32. With r the reference and s the root of the sum of the terms' squares
(`Operator.magnitude`), an element of a sum of k terms may be off by

    FAITHFUL u(output) |r| + (INNER u(inner) + (SUMMED sqrt(k) + CUT k) u(float32)) s

Sums of float8 products add (SUMMED sqrt(a) + CUT a) 2^-d s: a additions that keep d digits each.

Where the roundings of an operator are not known, u(inner) and k are not known either, and s is not: the bound
is then

    FAITHFUL u(output) |r| + SPREAD limit scale

with the operator's `max_relative_error` as limit, and a scale from the norms of the reference, of its rows
and of its columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..problem.rounding import Rounding

if TYPE_CHECKING:
    import torch

# The output may be either neighbour of the exact number, so that kernels may round in any direction.
FAITHFUL = 2.0
# Roundings of independent factors add as their squares do: their sum has a standard deviation of less than
# 0.5 u(inner) s, and is above 4 u(inner) s with a probability of less than 2 exp(-8 ** 2 / 2) = 3e-14.
INNER = 4.0
# Roundings of partial sums add alike: with k terms in any order, less than 0.5 sqrt(k) u(float32) s.
SUMMED = 8.0
# Matrix units cut digits off after every 4 (V100), 8 (A100) or 16 (H100) terms, towards zero: these errors do
# not cancel. Of 8 terms at a time, with random signs, 0.05 k u(float32) s is the standard deviation.
CUT = 0.5
# Tile by tile, the root mean square of error / bound. Rounding to nearest gives 0.21, cutting off 0.42.
TILE = 0.5
# Few elements scatter: the square of a tile's limit grows by this over the root of the number of elements.
SCATTER = 2.0
# Without known roundings: an element may be off by this many times the error that all may have on average.
SPREAD = 16.0
# For a user's tolerances, which a share of elements may exceed: the norm of all errors may be this many times
# that of the tolerances.
GROSS_NORM = 10.0
# No element may exceed its tolerance at the scale of the output by this factor. With the usual rtol, numbers
# of four bits that round to the other neighbour stay within it.
GROSS = 50.0
# Of an output of whole numbers: one may round otherwise, or have the other sign.
GROSS_STEP = 2.0

Part = tuple[slice, slice]
# the largest accepted |error| of the elements of a part of the result as a matrix, from the reference's part
ErrorBound = Callable[["torch.Tensor", Part], "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class OutputScale:
    """Root mean squares of a matrix: of all of it, of each row and of each column."""

    whole: float
    rows: torch.Tensor
    columns: torch.Tensor

    def at(self, part: Part) -> torch.Tensor:
        """A scale for each element: exact for noise times a factor of the row and one of the column."""
        rows, columns = self.rows[part[0], None], self.columns[None, part[1]]
        crossed = rows * columns / self.whole if self.whole else rows * columns
        return rows.maximum(columns).maximum(crossed).clamp(min=self.whole)


def rounding_bound(rounding: Rounding, dtype: torch.dtype, magnitude: torch.Tensor | None) -> ErrorBound:
    """The bound for known roundings.

    Args:
        rounding: how right kernels round.
        dtype: of the output.
        magnitude: of the output's elements as a matrix; None: that of the reference.
    """
    import torch

    inner = INNER * unit_roundoff(getattr(torch, rounding.inner)) if rounding.inner else 0.0
    cut = CUT * rounding.terms if rounding.cuts else 0.0
    summed = (SUMMED * math.sqrt(rounding.terms) + cut) * unit_roundoff(torch.float32)
    if short := rounding.short_sums:
        summed += (SUMMED * math.sqrt(short.additions) + CUT * short.additions) * 2.0**-short.digits
    relative, floor = FAITHFUL * unit_roundoff(dtype), smallest(dtype)

    def bound(wanted: torch.Tensor, part: Part) -> torch.Tensor:
        size = wanted.abs()
        scale = size if magnitude is None else magnitude[part].to(size.dtype)
        return relative * size + ((inner + summed) * scale + floor)

    return bound


def limit_bound(limit: float, dtype: torch.dtype, output: OutputScale) -> ErrorBound:
    """The bound that follows from the limit of the relative error of the whole output."""
    relative, floor = FAITHFUL * unit_roundoff(dtype), smallest(dtype)

    def bound(wanted: torch.Tensor, part: Part) -> torch.Tensor:
        return relative * wanted.abs() + (SPREAD * limit * output.at(part).to(wanted.dtype) + floor)

    return bound


def exact_bound() -> ErrorBound:
    """No error at all."""
    return lambda wanted, _: wanted.new_zeros(()).expand_as(wanted)


def tolerance_bound(rtol: float, atol: float) -> ErrorBound:
    """The tolerances of `torch.isclose`."""
    return lambda wanted, _: atol + rtol * wanted.abs()


def gross_bound(rtol: float, atol: float, output: OutputScale, is_whole: bool) -> ErrorBound:
    """What no element may exceed, if a share of them may exceed the tolerances.

    Args:
        rtol: relative tolerance.
        atol: absolute tolerance.
        output: scale of the reference.
        is_whole: whether the reference has whole numbers only.
    """

    def bound(wanted: torch.Tensor, part: Part) -> torch.Tensor:
        scale = wanted.abs() + output.at(part).to(wanted.dtype)
        return (GROSS * (atol + rtol * scale)).clamp(min=GROSS_STEP if is_whole else 0.0)

    return bound


def tile_limit(elements: torch.Tensor) -> torch.Tensor:
    """The limit of a tile's root mean square of error / bound, by the number of its elements."""
    return (TILE**2 + SCATTER / elements.sqrt()).sqrt()


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number; 0 for whole numbers, whose distance does not grow."""
    import torch

    return float(torch.finfo(dtype).eps) / 2 if dtype.is_floating_point else 0.0


def smallest(dtype: torch.dtype) -> float:
    """An error that is accepted everywhere: a unit in the last place of the smallest numbers."""
    import torch

    if not dtype.is_floating_point:
        return 1.0
    info = torch.finfo(dtype)
    # GPUs may replace float32 numbers below the smallest normal one by zero
    return max(float(info.eps * info.tiny), float(torch.finfo(torch.float32).tiny))
