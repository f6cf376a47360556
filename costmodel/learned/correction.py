"""A trained correction as values and boosters: the result of training, and the content of a model's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .boosting import Array, Trained
from .gate import Gate
from .network import Network
from .spread import Spread


@dataclass(frozen=True)
class Member:
    """Trees and a network for the time of a candidate, and trees for the order of the candidates of a case.

    The correction of the time is the sum of both parts, whose weights are in their scales.
    """

    trees: Trained
    order: Trained | None = None
    network: Network | None = None

    def time(self, features: Array) -> NDArray[np.float64]:
        """Log corrections of the time, shape (n,), of rows of shape (n, f)."""
        found = self.trees.correction(features)
        return found if self.network is None else found + self.network.correction(features)

    def preference(self, features: Array) -> NDArray[np.float64]:
        """Log ranking penalty, shape (n,), of rows of shape (n, f); 0 without trees for the order."""
        return np.zeros(len(features)) if self.order is None else self.order.correction(features)


@dataclass(frozen=True)
class CorrectedRows:
    """Corrections of n rows, each of shape (n,)."""

    time: NDArray[np.float64]  # log(measured / analytical)
    sigma: NDArray[np.float64]  # uncertainty of `time`, one sigma
    trust: NDArray[np.float64]  # share of the members' correction that the gate keeps
    order: NDArray[np.float64]  # added to the log time for the ranking score


@dataclass(frozen=True)
class Correction:
    """The members of an ensemble, its gate and its spread."""

    members: tuple[Member, ...]
    gate: Gate
    spread: Spread

    def apply(self, features: Array) -> CorrectedRows:
        """The corrections of rows `features`, shape (n, f): means over the members."""
        distance = self.gate.distance(features)
        left = self.gate.trust(distance)
        time = np.mean([member.time(features) for member in self.members], axis=0)
        order = np.mean([member.preference(features) for member in self.members], axis=0)
        return CorrectedRows(
            blend(time, left, self.gate.common), self.spread.sigma(features, distance), left, order
        )


def blend(raw: NDArray[np.float64], share: NDArray[np.float64], common: Any) -> NDArray[np.float64]:
    """The value at `share` of the way from the common factor to the correction `raw`."""
    return np.asarray(common + share * (raw - common))
