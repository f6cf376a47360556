from __future__ import annotations

from tests.unit.fakes import AxpyTemplate
from tilesight.costmodel.headroom import Limits
from tilesight.costmodel.hybrid import CORRECTION
from tilesight.explanation import View, explain, find_steps
from tilesight.space import Config, Parameter, SearchSpace
from tilesight.target import load_target
from tilesight.trial import Prediction

SLOW, FAST = Config({"tile": 16}), Config({"tile": 64})
SPACE = SearchSpace([Parameter("tile", (16, 64), "rows")])


def predicted(latency_us: float, **terms_us: float) -> Prediction:
    return Prediction(latency_us, {"dram": 0.5}, "dram", {**terms_us, CORRECTION: latency_us - 60.0, "makespan": latency_us})


def test_the_learned_correction_is_no_reason() -> None:
    """It changes most here, and is negative on one side; the term that explains something is named alone."""
    slow, fast = predicted(100.0, dram=70.0, launch=2.0), predicted(30.0, dram=50.0, launch=2.0)
    workload = AxpyTemplate().operator.workload("X0")
    launch = {"blocks": 8.0}
    views = [View(config, prediction, None, launch, (), Limits((), (), None)) for config, prediction in ((SLOW, slow), (FAST, fast))]
    steps = find_steps((SLOW, slow), (FAST, fast), SPACE, lambda _: {}, {})
    found = explain(workload, load_target("h200"), views[0], views[1], steps)
    assert [d.name for d in found.differences if d.kind == "term"] == ["makespan", "dram"]
    assert [t.name for step in found.steps for t in step.terms] == ["dram"]
    assert CORRECTION in found.this.prediction.terms_us, "it is still shown among the terms"
