"""Checks of index tensors: values by which a kernel would read or write memory that is not its own.

Each function returns what is wrong with the first such value, or None. They wait for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def outside(
    name: str,
    values: torch.Tensor,
    least: int | None,
    most: int,
    rule: str,
    *,
    where: torch.Tensor | None = None,
) -> str | None:
    """What is wrong with the first value that is not `least` .. `most`.

    Args:
        name: of the tensor.
        values: the tensor.
        least: smallest legal value; None: there is none.
        most: largest legal value.
        rule: what the values are, for the message.
        where: the elements that kernels read; None: all.
    """
    wrong = values > most if least is None else (values < least) | (values > most)
    if where is not None:
        wrong &= where
    if not wrong.any():
        return None
    place = wrong.nonzero()[0].tolist()
    value = values[tuple(place)].item()
    legal = f"at most {most}" if least is None else f"{least} to {most}"
    return f"{name}{place} is {value} and must be {legal}: {rule}"


def not_rising(name: str, ends: torch.Tensor, rows: int, of: str, counted: str = "rows") -> str | None:
    """What is wrong with the ends of neighbouring parts of `rows` rows, of which the first one is 0.

    Args:
        name: of the tensor.
        ends: one number more than there are parts.
        rows: number of all rows.
        of: what the parts are, for the message.
        counted: what the rows are, for the message.
    """
    import torch

    if int(ends[0]) != 0:
        return f"{name}[0] is {int(ends[0])} and must be 0, where the first of the {of} begins"
    falls = ends[1:] < ends[:-1]
    if falls.any():
        at = int(torch.nonzero(falls)[0]) + 1
        return (
            f"{name}[{at}] is {int(ends[at])}, less than the {int(ends[at - 1])} before it, and must not be: "
            f"the {of} follow each other"
        )
    if int(ends[-1]) > rows:
        return (
            f"{name}[{len(ends) - 1}] is {int(ends[-1])} and must be at most {rows}, the number of {counted}"
        )
    return None
