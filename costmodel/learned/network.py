"""Small neural networks that correct a log time: their values and their predictions, by numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .boosting import Array

# a feature beyond the training data is taken for one at its edge
FARTHEST = 4.0  # standard deviations


@dataclass(frozen=True)
class Network:
    """A trained network. Its correction is `scale` times its last layer plus `intercept`.

    Attributes:
        centre: subtracted from the features, shape (f,).
        spread: divides them, shape (f,).
        layers: weights, shape (inputs, outputs), and biases, shape (outputs,), of each layer. SiLU follows
            each layer but the last one.
        scale: factor of the last layer.
        intercept: correction where the last layer is 0.
    """

    centre: NDArray[np.float32]
    spread: NDArray[np.float32]
    layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]
    scale: float
    intercept: float

    def correction(self, features: Array) -> NDArray[np.float64]:
        """Corrections of the log time, shape (n,), of rows `features`, shape (n, f)."""
        values = (np.asarray(features, dtype=np.float32) - self.centre) / self.spread
        values = np.clip(values, -FARTHEST, FARTHEST)
        for number, (weights, biases) in enumerate(self.layers, 1):
            values = values @ weights + biases
            if number < len(self.layers):
                # SiLU, x times the logistic function of x; tanh does not overflow
                values *= 0.5 + 0.5 * np.tanh(0.5 * values)
        return np.asarray(self.intercept + self.scale * values[:, 0].astype(np.float64))

    def times(self, share: float) -> Network:
        """The network whose correction is `share` times that of this one."""
        return replace(self, scale=share * self.scale, intercept=share * self.intercept)

    @property
    def widths(self) -> list[int]:
        """The number of features and the widths of all layers."""
        return [len(self.centre), *(len(biases) for _, biases in self.layers)]

    @property
    def values(self) -> NDArray[np.float16]:
        """All arrays one after another, in half precision, which changes corrections by less than 0.1 %."""
        arrays = [self.centre, self.spread, *(array for layer in self.layers for array in layer)]
        return np.concatenate([array.ravel() for array in arrays]).astype("<f2")


def network_of(values: NDArray[Any], widths: Sequence[int], scale: float, intercept: float) -> Network:
    """The network with these `Network.values` and `Network.widths`.

    Raises:
        ValueError: they do not fit each other, or are not finite.
    """
    found = np.asarray(values, dtype=np.float32)
    shapes: list[tuple[int, ...]] = [(widths[0],), (widths[0],)]
    for inputs, outputs in pairwise(widths):
        shapes += [(inputs, outputs), (outputs,)]
    sizes = [int(np.prod(shape)) for shape in shapes]
    if found.shape != (sum(sizes),) or not np.isfinite(found).all():
        raise ValueError(f"a network of widths {list(widths)} has {sum(sizes)} finite numbers")
    parts = np.split(found, np.cumsum(sizes)[:-1])
    centre, spread, *layers = (part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
    if not (spread > 0).all():
        raise ValueError("the spreads of a network's features must be above 0")
    return Network(
        centre, spread, tuple(zip(layers[::2], layers[1::2], strict=True)), float(scale), float(intercept)
    )
