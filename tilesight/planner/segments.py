"""Cuts the range into segments, each served by one kernel: as few as possible at nearly no loss."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from .cover import Times, losses

NEGLIGIBLE_LOSS = 0.005  # smaller losses in a cell do not count
SEGMENT_PRICE = 2e-5  # of one more segment, on the scale of the weighted loss
MOST_SEGMENTS = 64  # so that people can read a table


def cut(times: Times, weights: Sequence[float], most: int = MOST_SEGMENTS) -> list[tuple[int, int, int]]:
    """The segments of least weighted loss.

    Args:
        times: a row per kernel, a column per cell.
        weights: of the cells.
        most: number of segments. The price of a segment is raised until there are no more.

    Returns:
        First cell, last cell and row of `times` of each segment.
    """
    loss = np.minimum(losses(times), 1e3)
    weighted = np.where(loss < NEGLIGIBLE_LOSS, 0.0, loss) * np.asarray(weights)[None, :]
    # among kernels of negligible loss the best one
    weighted += 1e-7 * loss
    price = SEGMENT_PRICE
    path = _cheapest(weighted, price)
    while _pieces(path) > max(1, most):
        price *= 2
        path = _cheapest(weighted, price)
    found: list[tuple[int, int, int]] = []
    for column, row in enumerate(path):
        if found and found[-1][2] == row:
            found[-1] = (found[-1][0], column, row)
        else:
            found.append((column, column, row))
    return found


def _cheapest(weighted: Times, price: float) -> list[int]:
    """The row of each column on the path of least cost; a change of row costs `price`."""
    rows, columns = weighted.shape
    total = weighted[:, 0].copy()
    previous = np.zeros((columns, rows), dtype=np.intp)
    for column in range(1, columns):
        best = int(total.argmin())
        changed = total[best] + price < total
        previous[column] = np.where(changed, best, np.arange(rows))
        total = np.where(changed, total[best] + price, total) + weighted[:, column]
    row = int(total.argmin())
    path = [row]
    for column in range(columns - 1, 0, -1):
        row = int(previous[column, row])
        path.append(row)
    return path[::-1]


def _pieces(path: Sequence[int]) -> int:
    return 1 + sum(a != b for a, b in itertools.pairwise(path))
