"""Compares a result with its reference: element by element with a bound, and tile by tile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .error_bounds import ErrorBound, OutputScale, Part, tile_limit

if TYPE_CHECKING:
    import torch

# quiet NaNs that no arithmetic produces, by element size; an element that still has the value was never
# written
_POISON: Mapping[int, int] = {1: 0x7F, 2: 0x7FE5, 4: 0x7FE5A55A, 8: 0x7FFE5A55A55A5A5A}
_CHUNK = 1 << 24  # elements compared at a time; bounds the memory for wider copies
_TILE_SIDE = 64
_TILE_SIZE = _TILE_SIDE**2  # elements of a tile


@dataclass(frozen=True, slots=True)
class Worst:
    """The element with the largest |error| / bound."""

    index: tuple[int, ...]
    got: float
    wanted: float
    bound: float
    ratio: float

    def __str__(self) -> str:
        found = f"[{', '.join(map(str, self.index))}] is {self.got:.6g}, expected {self.wanted:.6g}"
        return f"{found} within {self.bound:.3g}" if self.bound else found


@dataclass(frozen=True, slots=True)
class WorstTile:
    """The tile with the largest root mean square of error / bound, relative to its limit.

    `index` is that of its first element. Its sides are along the last axis and all other axes taken as one.
    """

    index: tuple[int, ...]
    sides: tuple[int, int]
    ratio: float

    def __str__(self) -> str:
        sides = " x ".join(map(str, self.sides))
        return f"the tile of {sides} elements that begins at [{', '.join(map(str, self.index))}]"


@dataclass(frozen=True, slots=True)
class Deviation:
    """How a result differs from its reference.

    Attributes:
        size: number of elements.
        unwritten: elements that still have the value of `poison`.
        wild: other elements that are not finite where the reference is.
        unlike: elements that differ from a reference that is not finite.
        beyond: elements whose error is above their bound, if both numbers are finite.
        relative_error: ||error|| / ||reference||, over elements that are finite in both.
        norm_ratio: ||error|| / ||bound||, over the same elements.
        element: the worst one; None if no element has an error.
        tile: the worst one; None if no element has an error.
    """

    size: int
    unwritten: int = 0
    wild: int = 0
    unlike: int = 0
    beyond: int = 0
    relative_error: float = 0.0
    norm_ratio: float = 0.0
    element: Worst | None = None
    tile: WorstTile | None = None

    @property
    def element_ratio(self) -> float:
        return self.element.ratio if self.element else 0.0

    @property
    def tile_ratio(self) -> float:
        return self.tile.ratio if self.tile else 0.0

    def unusable(self) -> str:
        """The number of unwritten elements, else of those that are not finite, in words; "" if none are."""
        if self.unwritten:
            return f"{self.unwritten} of {self.size} elements were never written"
        if self.wild:
            return f"{self.wild} of {self.size} elements are NaN or infinite where the reference is finite"
        return ""


def poison(outputs: Mapping[str, torch.Tensor]) -> None:
    """Fill outputs with a known NaN pattern, by which unwritten elements are found."""
    for output in outputs.values():
        bits(output).fill_(_POISON[output.element_size()])


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers."""
    import torch

    return tensor.view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    )


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """A view with two axes: the last one, and all others as one."""
    return tensor.reshape(_sides(tensor.shape))


def scale_of(reference: torch.Tensor) -> OutputScale:
    """Root mean squares of the finite elements of a reference."""
    import torch

    matrix = as_matrix(reference)
    rows, columns = (matrix.new_zeros(side, dtype=torch.float64) for side in matrix.shape)
    for part in _parts(matrix.shape):
        values = _numbers(matrix[part])
        values = values.to(_wide(values.dtype)).nan_to_num(0.0, 0.0, 0.0)
        rows[part[0]] += _norm(values, 1).square()
        columns[part[1]] += _norm(values, 0).square()
    height, width = matrix.shape
    whole = math.sqrt(float(rows.sum()) / max(1, height * width))
    return OutputScale(whole, (rows / max(1, width)).sqrt(), (columns / max(1, height)).sqrt())


def compare(result: torch.Tensor, reference: torch.Tensor, bound: ErrorBound) -> Deviation:
    """Compare a result, computed after `poison`, with a reference of the same shape.

    Raises:
        ValueError: the shapes differ.
    """
    import torch

    if result.shape != reference.shape:
        raise ValueError(
            f"an output of shape {tuple(result.shape)} has a reference of shape {tuple(reference.shape)}"
        )
    got, wanted = as_matrix(result), as_matrix(reference)
    counts = torch.zeros(4, dtype=torch.int64, device=result.device)
    squares = torch.zeros(3, dtype=torch.float64, device=result.device)
    element: Worst | None = None
    tile: WorstTile | None = None
    for part in _parts(got.shape):
        ours, theirs = _numbers(got[part]), _numbers(wanted[part]).to(result.device)
        wide = _wide(ours.dtype, theirs.dtype)
        ours, theirs = ours.to(wide), theirs.to(wide)
        error = (ours - theirs).abs_()
        both = None
        if not bool(error.isfinite().all()):
            counts[:3] += _not_finite(got[part], ours, theirs)
            both = ours.isfinite() & theirs.isfinite()
            error, theirs = torch.where(both, error, 0.0), torch.where(both, theirs, 0.0)
        accepted = bound(theirs, part)
        ratio = (error / accepted).nan_to_num_(0.0, math.inf)  # no error within a bound of 0 is 0 / 0
        allowed = accepted if both is None else torch.where(both, accepted, 0.0)
        squares += torch.stack([_norm(values).square() for values in (error, theirs, allowed)])
        worst, place = ratio.flatten().max(0)
        if float(worst) > 1:
            is_beyond = ratio > 1
            blank = _unwritten(got[part]) & is_beyond  # of a dtype without NaN
            counts[0] += blank.sum()
            counts[3] += (is_beyond & ~blank).sum()
        if float(worst) > (element.ratio if element else 0.0):
            row, column = divmod(int(place), ratio.shape[1])
            element = Worst(
                _index(result.shape, part[0].start + row, part[1].start + column),
                float(ours[row, column]),
                float(theirs[row, column]),
                float(accepted[row, column]),
                float(worst),
            )
        tile = _worst_tile(ratio, result.shape, part, tile)
    unwritten, wild, unlike, beyond = counts.tolist()
    squared, squared_reference, squared_bound = squares.tolist()
    return Deviation(
        result.numel(),
        unwritten,
        wild,
        unlike,
        beyond,
        relative_error=_quotient(squared, squared_reference),
        norm_ratio=_quotient(squared, squared_bound),
        element=element,
        tile=tile,
    )


def _not_finite(part: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Numbers of elements: unwritten; not finite where the reference is; unlike a reference that is not."""
    import torch

    expects = theirs.isfinite()
    missing = expects & ~ours.isfinite()
    blank = missing & _unwritten(part)
    unlike = ~expects & (ours != theirs) & ~(ours.isnan() & theirs.isnan())
    return torch.stack([blank.sum(), (missing & ~blank).sum(), unlike.sum()])


def _unwritten(part: torch.Tensor) -> torch.Tensor:
    return bits(part.contiguous()) == _POISON[part.element_size()]


def _worst_tile(
    ratio: torch.Tensor, shape: Sequence[int], part: Part, worst: WorstTile | None
) -> WorstTile | None:
    """The worst tile of a part, or `worst` if that is worse."""
    import torch

    height, width = _tile_sides(_sides(shape))
    rows, columns = ratio.shape
    down, across = -(-rows // height), -(-columns // width)
    padded = torch.nn.functional.pad(ratio.square(), (0, across * width - columns, 0, down * height - rows))
    totals = padded.view(down, height, across, width).sum((1, 3)).double()
    heights = (rows - height * torch.arange(down, device=ratio.device)).clamp(max=height)
    widths = (columns - width * torch.arange(across, device=ratio.device)).clamp(max=width)
    counts = (heights[:, None] * widths[None, :]).double()
    highest, place = ((totals / counts).sqrt() / tile_limit(counts)).flatten().max(0)
    if float(highest) <= (worst.ratio if worst else 0.0):
        return worst
    row, column = divmod(int(place), across)
    return WorstTile(
        _index(shape, part[0].start + row * height, part[1].start + column * width),
        (int(heights[row]), int(widths[column])),
        float(highest),
    )


def _quotient(squared: float, by: float) -> float:
    """The root of a quotient; infinite for an error without a norm."""
    return math.sqrt(squared / by) if by else (math.inf if squared else 0.0)


def _norm(values: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    """The norm, in float64 without a copy in float64."""
    import torch

    return torch.linalg.vector_norm(values, dim=axis, dtype=torch.float64)


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Truth values as bytes: a poisoned one is neither 0 nor 1."""
    import torch

    return tensor.contiguous().view(torch.uint8) if tensor.dtype is torch.bool else tensor


def _wide(*dtypes: torch.dtype) -> torch.dtype:
    """float32 if it holds the numbers of all these dtypes, else float64."""
    import torch

    short = all(d.itemsize < 4 or d is torch.float32 for d in dtypes)
    return torch.float32 if short else torch.float64


def _sides(shape: Sequence[int]) -> tuple[int, int]:
    return (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def _tile_sides(sides: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a tile: as many elements as others if the matrix is narrow."""
    rows, columns = (max(1, side) for side in sides)
    height = min(rows, _TILE_SIZE // min(_TILE_SIDE, columns))
    return height, min(columns, _TILE_SIZE // height)


def _parts(sides: Sequence[int]) -> Iterator[Part]:
    """The matrix in parts of about `_CHUNK` elements, at most, that consist of whole tiles."""
    if not all(sides):
        return
    height, width = _tile_sides(sides)
    columns = min(sides[1], max(1, _CHUNK // (height * width)) * width)
    rows = max(1, _CHUNK // (height * columns)) * height
    for row in range(0, sides[0], rows):
        for column in range(0, sides[1], columns):
            yield slice(row, min(row + rows, sides[0])), slice(column, min(column + columns, sides[1]))


def _index(shape: Sequence[int], row: int, column: int) -> tuple[int, ...]:
    """The index in a tensor of an element of its matrix."""
    index = [column] if shape else []
    for size in reversed(shape[:-1]):
        row, last = divmod(row, size)
        index.append(last)
    return tuple(reversed(index))
