"""im2col copies: which pixels of an image a bulk copy goes through, and how many of them are padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from .descriptors import Descriptor, Window
from .expressions import UnevaluableError
from .scenarios import Scenarios

MOST_ITERATIONS = 4096  # of a phase, looked at one by one


def inside_image(scope: Scenarios, descriptor: Descriptor, window: Window, origin: list[Any], offsets: list[Any]) -> tuple[float, float]:
    """Share of a copy that lies inside the image, on average and where it is least; what does not is padding.

    `origin` is where the copy starts (channel, column, row, ..., image), `offsets` the tap of the filter that it is for. From
    the start on it goes through the window's positions, columns first.
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
    """How many iterations of the phase start at the same pixels and channels: each brings them for another tap of the filter,
    shifted by a little, and finds in the cache what the first one fetched."""
    try:
        seen = np.stack(np.broadcast_arrays(*(scope.over_phase(c, MOST_ITERATIONS) for c in origin)))
    except UnevaluableError:
        return 1.0
    return float(seen.shape[1] / np.unique(seen, axis=1).shape[1])
