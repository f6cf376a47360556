"""A trained correction, ready to be applied: what the estimator leaves behind and a model's files hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .boosting import Array, Trained
from .gate import Gate
from .spread import Spread


@dataclass(frozen=True)
class Member:
    """Trees for the time, and, where `order` is given, trees that move the candidates of a case against each other."""

    time: Trained
    order: Trained | None = None

    def preference(self, features: Array) -> NDArray[np.float64]:
        """(n,) of rows (n, f): log of how much worse a candidate is than its time says; 0 without trees for the order."""
        return np.zeros(len(features)) if self.order is None else self.order.correction(features)


@dataclass(frozen=True)
class Corrected:
    """Of n rows. Each (n,)."""

    time: NDArray[np.float64]  # log(measured / analytical)
    sigma: NDArray[np.float64]  # its uncertainty, one sigma
    trust: NDArray[np.float64]  # share of the members' correction that the gate left
    order: NDArray[np.float64]  # added to the log time, what candidates are put in order by


@dataclass(frozen=True)
class Correction:
    """Plain values and boosters, without an estimator around them."""

    members: tuple[Member, ...]
    gate: Gate
    spread: Spread

    def apply(self, features: Array) -> Corrected:
        """What the members say together of rows (n, f)."""
        distance = self.gate.distance(features)
        left = self.gate.trust(distance)
        time = np.mean([member.time.correction(features) for member in self.members], axis=0)
        order = np.mean([member.preference(features) for member in self.members], axis=0)
        return Corrected(blend(time, left, self.gate.common), self.spread.sigma(features, distance), left, order)


def blend(raw: NDArray[np.float64], share: NDArray[np.float64], common: Any) -> NDArray[np.float64]:
    """`share` of the way from the common factor to the correction."""
    return np.asarray(common + share * (raw - common))
