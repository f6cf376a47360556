"""Operands of float8 (e4m3) with scales, and how Hopper's matrix units add their products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..problem.rounding import ShortSums

if TYPE_CHECKING:
    import torch

FLOAT8 = "float8_e4m3fn"
LARGEST_FLOAT8 = 448  # of e4m3
BLOCK = 128  # elements of a row that share a scale with scales=block128
OUTPUTS: Mapping[str, str] = {FLOAT8: "bfloat16", "int8": "int32"}
# Hopper adds 32 products of float8 at a time, to sums of 14 digits (report on DeepSeek-V3, section 3.3.2),
# whose last one is cut off
FLOAT8_TERMS, FLOAT8_SUM_DIGITS = 32, 13


def short_sums(depth: int) -> ShortSums:
    """Of `depth` products."""
    return ShortSums(-(-depth // FLOAT8_TERMS), FLOAT8_SUM_DIGITS)


def largest(values: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """The largest magnitude of each block."""
    import torch

    rows, cols = values.shape
    padded = torch.nn.functional.pad(values, (0, -cols % block[1], 0, -rows % block[0]))
    return padded.view(-(-rows // block[0]), block[0], -1, block[1]).abs().amax((1, 3))


def spread(scale: torch.Tensor, block: tuple[int, int], rows: slice, cols: int) -> torch.Tensor:
    """The scale of each element of some rows, from a scale for each block."""
    import torch

    at = torch.arange(rows.start, rows.stop, device=scale.device) // block[0]
    return scale[at][:, torch.arange(cols, device=scale.device) // block[1]]
