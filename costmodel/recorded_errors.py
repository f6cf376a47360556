"""Uncertainty from the errors of earlier predictions, where times of the same device are on record.

The `cpu` target has the figures of a typical core, so the errors of predictions depend on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .restated import RestatedModel

PRIOR_ERRORS = 8.0  # errors that the model's own uncertainty counts as
ONE_SIGMA = 0.68


def sigma_with_errors(prior: float, errors: Sequence[float]) -> float:
    """One sigma, relative, from the model's own one and from recorded |log(measured / predicted)|.

    The more errors are on record, the less the model's own uncertainty counts.
    """
    if not errors:
        return prior
    ordered = sorted(errors)
    seen = math.expm1(ordered[min(len(ordered) - 1, int(ONE_SIGMA * len(ordered)))])
    weight = len(errors) / (len(errors) + PRIOR_ERRORS)
    return math.sqrt((1 - weight) * prior**2 + weight * seen**2)


@dataclass(frozen=True)
class RecordedErrorsModel(RestatedModel):
    """A model whose uncertainty follows from recorded errors."""

    errors: tuple[float, ...]

    def restated(self, uncertainty: float) -> float:
        return sigma_with_errors(uncertainty, self.errors)
