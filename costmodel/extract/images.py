"""Im2col copies: the pixels of an image that a bulk copy covers, and the share of padding among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .descriptors import Descriptor, Window
from .expressions import UnevaluableError
from .scenarios import Scenarios

MOST_ITERATIONS = 4096  # iterations of a phase that are evaluated


def inside_image(
    scope: Scenarios, descriptor: Descriptor, window: Window, origin: list[Any], offsets: list[Any]
) -> tuple[float, float]:
    """Share of an im2col copy that lies inside the image; the rest is padding.

    The copy covers consecutive positions of the window, columns first.

    Args:
        scope: the sampled blocks and iterations.
        descriptor: the tensor map of the copy.
        window: the window of `descriptor`.
        origin: the first position (channel, column, row, ..., image), as TIR expressions.
        offsets: the position within the filter that the copy fetches for.

    Returns:
        The mean share and the least share, each in 0 .. 1.
    """
    channels, *extents, images = descriptor.shape
    try:
        channel, *start = (np.asarray(scope.over_chance(c), dtype=np.int64)[..., None] for c in origin)
        shifts = [np.asarray(scope.over_chance(o), dtype=np.int64)[..., None] for o in offsets]
    except UnevaluableError:
        return 1.0, 1.0
    axes = list(zip(extents, window.lower, window.upper, window.steps, strict=True))
    counts = [max(1, (extent + upper - lower - 1) // step + 1) for extent, lower, upper, step in axes]
    position: Any = start[-1]
    for first, count, (_, lower, _, step) in reversed(list(zip(start[:-1], counts, axes, strict=True))):
        position = position * count + (first - lower) // step
    position = position + np.arange(descriptor.box[1])
    inside: Any = True
    for shift, count, (extent, lower, _, step) in zip(shifts, counts, axes, strict=True):
        place = position % count * step + lower + shift
        inside = inside & (place >= 0) & ((place < extent) if extent else True)
        position = position // count
    inside = inside & ((position < images) if images else True)
    whole = np.clip((channels - channel) / descriptor.box[0], 0.0, 1.0) if channels else 1.0
    share = (inside * whole).mean(axis=-1)
    return float(share.mean()), float(share.min())


def taps(scope: Scenarios, origin: list[Any]) -> float:
    """Number of iterations of the phase that start at the same pixels and channels.

    Each of them fetches the pixels for another position within the filter, shifted slightly, so it finds most
    of them in the cache.
    """
    try:
        starts = np.stack(np.broadcast_arrays(*(scope.over_phase(c, MOST_ITERATIONS) for c in origin)))
    except UnevaluableError:
        return 1.0
    return float(starts.shape[1] / np.unique(starts, axis=1).shape[1])
