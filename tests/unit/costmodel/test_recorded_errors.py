from __future__ import annotations

import math

import pytest

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.recorded_errors import RecordedErrorsModel, sigma_with_errors
from tilesight.profile.values import Access, KernelProfile, Phase, Role, Space, Trips, Work
from tilesight.target.spec import load_target


def cpu_stream_profile() -> KernelProfile:
    levels = ((1024.0, 256.0), (1.0, 262144.0))
    store = Access(Space.GLOBAL, "y", True, "st", 256.0, 64, 8, 256, levels=levels)
    phase = Phase(Trips((1024.0,)), Work(accesses=(store,), vector_ops=64.0), is_loop=True)
    return KernelProfile("cpu", "native", (1, 1, 1), 1, 1, 0, (Role("all", 1, (phase,)),), ())


def test_without_errors_the_model_has_its_own_uncertainty() -> None:
    assert sigma_with_errors(0.3, ()) == 0.3


def test_many_errors_replace_the_models_own_uncertainty() -> None:
    errors = [math.log(1 + 0.02 * i) for i in range(1000)]  # up to twenty times
    within = math.expm1(sorted(errors)[680])
    assert sigma_with_errors(0.3, errors) == pytest.approx(within, rel=0.02)


def test_a_few_errors_move_it_a_part_of_the_way() -> None:
    few, more = sigma_with_errors(0.3, [math.log(2.0)] * 2), sigma_with_errors(0.3, [math.log(2.0)] * 20)
    assert 0.3 < few < more < 1.0


def test_predicted_times_stay() -> None:
    cpu, model = load_target("cpu"), AnalyticalModel()
    plain = model.predict([cpu_stream_profile()], cpu)
    learned = RecordedErrorsModel(model, (math.log(3.0),) * 50)
    found = learned.predict([cpu_stream_profile()], cpu)
    assert found.latency_us == plain.latency_us
    assert found.uncertainty > 1.5
    assert [p.uncertainty for p in learned.predict_many([[cpu_stream_profile()]], cpu)] == [found.uncertainty]  # type: ignore[union-attr]
    assert learned.version == model.version
