"""Corrects predictions by measurements: a Gaussian process on the errors of the cost model.

The error of a prediction (log of measured over predicted time) is modelled as a sum of a constant for the
whole space, a part that similar configs share, and noise. Measurements determine both parts near the measured
configs and leave uncertainty elsewhere. The value of a config is its expected time less a part of that
uncertainty, so of two equal configs the one that reveals more is tried first. The constants were chosen by
replays of held-out predictions (experiments/replay).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..problem.space import Config
from .config_similarity import ConfigSimilarity
from .gaussian_process import GaussianProcess

# standard deviations in log time
COMMON_SIGMA = 0.3  # of the constant factor between model and device
LOCAL_SIGMA = 0.1  # of the part that similar configs share
NOISE_SIGMA = 0.02  # of the part that they do not share
EXPLORATION = 0.4  # standard deviations of uncertainty by which the value of a config is lowered


def corrected(
    predicted_us: Mapping[Config, float], measured: Sequence[tuple[Config, float, float]]
) -> dict[Config, float]:
    """Correct predicted times by measurements. `select.choose` takes the result.

    Args:
        predicted_us: predicted time of each config that may be measured next, in microseconds.
        measured: (config, predicted time, measured time) of measured configs; without any, predictions stay.

    Returns:
        The value of trying each config of `predicted_us`: a time in microseconds on the scale of the measured
        times.
    """
    if not measured or not predicted_us:
        return dict(predicted_us)
    similarity = ConfigSimilarity([*predicted_us, *(config for config, _, _ in measured)])
    unmeasured, known = slice(0, len(predicted_us)), slice(len(predicted_us), None)
    errors = np.log([actual / predicted for _, predicted, actual in measured])
    common, local = COMMON_SIGMA**2, LOCAL_SIGMA**2
    process = GaussianProcess(common + local * similarity.matrix(known, known), errors, NOISE_SIGMA)
    mean, sigma = process.predict(common + local * similarity.matrix(unmeasured, known), common + local)
    factors = np.exp(mean - EXPLORATION * sigma)
    return {
        config: us * float(factor) for (config, us), factor in zip(predicted_us.items(), factors, strict=True)
    }
