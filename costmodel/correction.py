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
class Correction:
    """Plain values and boosters, without an estimator around them."""

    members: tuple[Trained, ...]
    gate: Gate
    spread: Spread

    def apply(self, features: Array) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """For rows (n, f): log(measured / analytical), its uncertainty of one sigma, and the share of the members'
        correction that the gate left. Each (n,)."""
        distance = self.gate.distance(features)
        left = self.gate.trust(distance)
        raw = np.mean([member.correction(features) for member in self.members], axis=0)
        return blend(raw, left, self.gate.common), self.spread.sigma(features, distance), left


def blend(raw: NDArray[np.float64], share: NDArray[np.float64], common: Any) -> NDArray[np.float64]:
    """`share` of the way from the common factor to the correction."""
    return np.asarray(common + share * (raw - common))
