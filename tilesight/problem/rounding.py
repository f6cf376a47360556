"""How right kernels of an operator round, and inputs that are checked after the random ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ShortSums:
    """Sums that a matrix unit keeps with fewer digits than float32 has, as Hopper's does for float8.

    Attributes:
        additions: of one such sum; each cuts off digits.
        digits: binary digits that are kept.
    """

    additions: int
    digits: int


@dataclass(frozen=True, slots=True)
class Rounding:
    """The roundings of right kernels: each output element is a sum of terms in float32, rounded to its dtype.

    Attributes:
        terms: number of terms of the longest sum.
        inner: dtype to which a factor of each term is rounded before the sum; "" if no factor is rounded.
        cuts: whether matrix units may add the terms. They cut off digits where other units round.
        short_sums: the sums of fewer digits from which the terms may be added; None if there are none.
    """

    terms: int
    inner: str = ""
    cuts: bool = False
    short_sums: ShortSums | None = None


@dataclass(frozen=True, slots=True)
class SecondInputs:
    """Inputs by name on which a kernel is checked once, after the random ones.

    Attributes:
        tensors: the inputs, in the order of the kernel's arguments.
        is_exact: whether each sum is exact in float32 on these inputs, in any order. An output element must
            then be equal to the reference, rounded to the nearest number of its dtype.
    """

    tensors: Mapping[str, torch.Tensor]
    is_exact: bool = False


def whole_numbers(
    shape: tuple[int, ...], most: int, dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    """Random whole numbers of -`most` .. `most`: in sums of their products nothing is rounded."""
    import torch

    drawn = torch.randint(
        -most, most + 1, shape, generator=generator, device=generator.device, dtype=torch.int8
    )
    return drawn.to(dtype)
