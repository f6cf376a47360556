"""Predictions corrected by measured neighbours, a simple baseline for the Gaussian process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...problem.space import Config
from ...search.select import config_codes


def corrected(
    predicted_us: Mapping[Config, float], measured: Sequence[tuple[Config, float, float]]
) -> dict[Config, float]:
    """Predictions scaled by the errors of the model on measured configs, weighted by similarity.

    The mean error of all measured configs moves every prediction; the rest of an error moves predictions of
    similar configs.

    Args:
        predicted_us: predictions in us by config.
        measured: config, predicted and measured time in us.
    """
    if not measured or not predicted_us:
        return dict(predicted_us)
    errors = np.log([actual / predicted for _, predicted, actual in measured])
    common = errors.mean()
    codes = config_codes([*predicted_us, *(config for config, _, _ in measured)])
    targets, observed = codes[: len(predicted_us)], codes[len(predicted_us) :]
    # each changed parameter halves the weight of a measured config
    weights = 0.5 ** np.array([(observed != row).sum(axis=1) for row in targets])
    # one virtual observation without error keeps distant configs near the common factor
    local = weights @ (errors - common) / (1.0 + weights.sum(axis=1))
    factors = np.exp(common + local)
    return {
        config: us * float(factor) for (config, us), factor in zip(predicted_us.items(), factors, strict=True)
    }
