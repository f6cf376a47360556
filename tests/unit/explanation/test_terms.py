from __future__ import annotations

from tests.support.fakes import AxpyTemplate
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.analytical.headroom import Limits
from tilesight.costmodel.learned.hybrid import CORRECTION
from tilesight.explanation import CandidateView, explain, find_steps
from tilesight.problem.space import Config, Parameter, SearchSpace
from tilesight.profile.values import KernelProfile, Phase, Role, Trips, Work
from tilesight.records.trial import Prediction
from tilesight.target.spec import load_target

SLOW, FAST = Config({"tile": 16}), Config({"tile": 64})
SPACE = SearchSpace([Parameter("tile", (16, 64), "rows")])


def predicted(latency_us: float, **terms_us: float) -> Prediction:
    return Prediction(
        latency_us, {"dram": 0.5}, "dram", {**terms_us, CORRECTION: latency_us - 60.0, "makespan": latency_us}
    )


def seen(prediction: Prediction, config: Config = SLOW) -> CandidateView:
    return CandidateView(config, prediction, None, {"blocks": 8.0}, (), Limits((), (), None))


def test_terms_that_add_up_are_separate_from_those_that_overlap() -> None:
    prediction = predicted(100.0, launch=2.0, fill=1.0, dram=70.0, order=-5.0)
    found = seen(prediction)
    assert found.sum_us == {"launch": 2.0, "fill": 1.0, "cores and memory": 57.0, CORRECTION: 40.0}
    assert sum(found.sum_us.values()) == prediction.latency_us
    assert found.busy_us == {"dram": 70.0, "makespan": 100.0}
    bare = seen(Prediction(10.0, {}, "x", {"x": 4.0}))
    assert (bare.sum_us, bare.busy_us) == ({"cores and memory": 10.0}, {"x": 4.0})


def test_the_models_real_terms_add_up_to_its_time() -> None:
    work = Work(vector_ops=128 * 2000.0)
    role = Role("all", 128, (Phase(Trips((256.0,)), work, is_loop=True),))
    profile = KernelProfile("cuda", "sm_90a", (1056, 1, 1), 128, 1, 0, (role,), ())
    prediction = AnalyticalModel().predict([profile], load_target("h200"))
    found = seen(prediction)
    longest = max(prediction.terms_us["makespan"], prediction.terms_us["dram"])
    assert longest <= found.sum_us["cores and memory"] <= 1.05 * longest


def test_a_ranking_against_the_times_asks_for_a_measurement() -> None:
    workload, target = AxpyTemplate().operator.workload("X0"), load_target("h200")
    this, best = seen(predicted(99.0)), seen(predicted(100.0, order=-5.0), FAST)
    assert (
        "its ranking score is worse: only a measurement decides"
        in explain(workload, target, this, best).verdict
    )
    assert (
        "but it was not measured: measure it"
        in explain(workload, target, this, seen(predicted(100.0), FAST)).verdict
    )


def test_the_correction_and_the_ranking_term_are_no_reasons() -> None:
    """Both change most here and are negative on one side; only the term with a meaning is named."""
    slow = predicted(100.0, dram=70.0, launch=2.0, order=50.0)
    fast = predicted(30.0, dram=50.0, launch=2.0, order=-10.0)
    workload = AxpyTemplate().operator.workload("X0")
    views = [seen(slow), seen(fast, FAST)]
    steps = find_steps((SLOW, slow), (FAST, fast), SPACE, lambda _: {}, {})
    found = explain(workload, load_target("h200"), views[0], views[1], steps)
    assert [d.name for d in found.differences if d.kind == "term"] == ["makespan", "dram"]
    assert [t.name for step in found.steps for t in step.terms] == ["dram"]
    assert CORRECTION in found.this.prediction.terms_us, "it is still shown among the terms"
