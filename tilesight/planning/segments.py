"""From the times of the chosen kernels to segments of sizes: who serves which, in as few pieces as lose next to nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from .cover import Times, losses

AS_GOOD = 0.005  # a kernel that loses less than this to the best of a cell is as good there
FIRST_PRICE = 2e-5  # of one more segment, on the scale of the weighted loss: what gains less is not worth a line
MOST_SEGMENTS = 64  # a table is for people too


def cut(times: Times, weights: Sequence[float], most: int = MOST_SEGMENTS) -> list[tuple[int, int, int]]:
    """Segments (first cell, last cell, row of `times`) of least weighted loss; at most `most` of them.

    Losses below `AS_GOOD` count nothing, so segments that would gain no more than that are merged. Where there are still too
    many, the price of a segment is raised until there are not.
    """
    loss = np.minimum(losses(times), 1e3)
    weighted = np.where(loss < AS_GOOD, 0.0, loss) * np.asarray(weights)[None, :]
    # what is not as good costs more with its loss: between kernels that are as good, the better one
    weighted += 1e-7 * loss
    price = FIRST_PRICE
    path = _cheapest(weighted, price)
    while _pieces(path) > max(1, most):
        price *= 2
        path = _cheapest(weighted, price)
    found: list[tuple[int, int, int]] = []
    for place, row in enumerate(path):
        if found and found[-1][2] == row:
            found[-1] = (found[-1][0], place, row)
        else:
            found.append((place, place, row))
    return found


def _cheapest(weighted: Times, price: float) -> list[int]:
    """The row of each column on the path of least cost, where each change of row costs `price`."""
    rows, columns = weighted.shape
    total = weighted[:, 0].copy()
    came = np.zeros((columns, rows), dtype=np.intp)
    for column in range(1, columns):
        best = int(total.argmin())
        changed = total[best] + price < total
        came[column] = np.where(changed, best, np.arange(rows))
        total = np.where(changed, total[best] + price, total) + weighted[:, column]
    row = int(total.argmin())
    path = [row]
    for column in range(columns - 1, 0, -1):
        row = int(came[column, row])
        path.append(row)
    return path[::-1]


def _pieces(path: Sequence[int]) -> int:
    return 1 + sum(a != b for a, b in itertools.pairwise(path))
