"""Sigma of kernels that others wrote."""

from __future__ import annotations

import math

import pytest

from tests.unit.costmodel import sample_kernels as kernels
from tests.unit.costmodel.extract.reading import read
from tilesight.api.prediction import predict
from tilesight.costmodel import default_model, foreign_model
from tilesight.costmodel.foreign import FOREIGN_SIGMA
from tilesight.target.spec import load_target


@pytest.mark.parametrize("target", ["h200", "a100", "mi300x"])
def test_kernels_of_others_have_the_same_time_and_a_wider_sigma(target: str) -> None:
    chip, profiles = load_target(target), [read(kernels.scale(4096, 512), target)]
    own, foreign = (model.predict(profiles, chip) for model in (default_model(), foreign_model()))
    assert foreign.latency_us == own.latency_us
    sigmas = [math.log1p(found.uncertainty) for found in (own, foreign)]
    assert sigmas[1] ** 2 == pytest.approx(sigmas[0] ** 2 + FOREIGN_SIGMA**2)
    assert foreign_model().version == default_model().version


def test_predict_states_the_sigma_of_kernels_of_others() -> None:
    chip, kernel = load_target("h200"), kernels.scale(4096, 512)
    expected = foreign_model().predict([read(kernel)], chip)
    assert predict(kernel, "h200") == expected
