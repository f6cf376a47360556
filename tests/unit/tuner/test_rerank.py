"""Between predicting and measuring: what the compiler says moves predictions, and keeps slow candidates off
the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.support.fakes import FakeExecutor, FakeModel, Journal, profile_of, request, true_us
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.records.session import Effort
from tilesight.records.trial import BuildResult, Prediction, Status
from tilesight.target.spec import Target, load_target
from tilesight.tuner.loop import Tuner
from tilesight.tuner.rerank import MOST_REMEMBERED, Reranker, clearly_worse

H200 = load_target("h200")


def spills(config: Config) -> int:
    return 400 if config["stages"] == 3 else 0


class Compiling(FakeExecutor):
    """Its compiler spills where there are three stages."""

    def built(self, candidate: Candidate) -> BuildResult:
        figures = {"registers": 128, "spill_bytes": spills(candidate.config), "stack_bytes": 8}
        return replace(super().built(candidate), resources=figures)


class SpillModel(FakeModel):
    """Ten times slower where the compiler spilled."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Mapping[str, int]] = []

    def predict(
        self, kernels: Sequence[Any], target: Target, built: Mapping[str, int] | None = None
    ) -> Prediction:
        found = super().predict(kernels, target)
        if built is None:
            return found
        self.told.append(built)
        return replace(found, latency_us=found.latency_us * (10 if built["spill_bytes"] else 1))


def config(block: int, stages: int = 1) -> Config:
    return Config({"block": block, "stages": stages, "swizzle": False})


def tune(effort: Effort, model: FakeModel, executor: FakeExecutor, journal: Journal) -> Any:
    return Tuner(replace(request(effort), target=H200), model, executor, journal).run()


def test_spilling_candidates_are_built_and_not_measured() -> None:
    model, executor, journal = SpillModel(), Compiling(), Journal()
    result = tune(Effort.QUICK, model, executor, journal)
    assert len(executor.done["build"]) > 16  # a few spare
    assert len(executor.done["measure"]) == 16
    assert {c["stages"] for c in executor.done["measure"]} <= {1, 2}
    dropped = [t for t in result.trials if t.status is Status.BUILT]
    assert any(c["stages"] == 3 for c in (t.config for t in dropped))
    assert any(name == "message" and "registers and spills" in text for name, text in journal.events)
    assert all(
        set(figures) == {"registers", "spill_bytes"} for figures in model.told
    )  # what the model has a use for


def test_the_corrected_prediction_is_the_one_on_record() -> None:
    journal = Journal()
    tune(Effort.QUICK, SpillModel(), Compiling(), journal)
    seen = [r for c, r in journal.records.items() if r.build and c["stages"] == 3]
    assert seen
    for record in seen:
        assert record.prediction is not None
        plain = 3 * true_us(Config({**record.config, "swizzle": True}))
        assert record.prediction.latency_us == 10 * plain
        assert f"predicted {plain:.4g} us before the build" in record.prediction.notes[-1]
        assert "spill bytes 400" in record.prediction.notes[-1]


def test_a_whole_space_is_measured_whatever_the_compiler_says() -> None:
    executor = Compiling()
    tune(Effort.EXHAUSTIVE, SpillModel(), executor, Journal())
    assert any(c["stages"] == 3 for c in executor.done["measure"])
    assert len(executor.done["measure"]) == len(executor.done["build"])


def test_nothing_is_built_twice() -> None:
    executor = Compiling()
    tune(Effort.FULL, SpillModel(), executor, Journal())
    assert len(set(executor.done["build"])) == len(executor.done["build"])


def test_a_compiler_without_figures_changes_nothing() -> None:
    model = SpillModel()
    result = tune(Effort.QUICK, model, FakeExecutor(), Journal())
    assert model.told == []
    assert sum(t.measurement is not None for t in result.trials) == 16


def test_only_the_best_predicted_are_remembered() -> None:
    look = Reranker(SpillModel(), H200)
    for block in range(1, MOST_REMEMBERED + 2):
        look.remember(config(block), (profile_of(config(20)),), float(block))
    built = BuildResult("/cache/x.so", resources={"spill_bytes": 8})
    before = Prediction(5.0, {}, "vector")
    assert look.predict(config(1), built, before) is not before
    assert look.predict(config(MOST_REMEMBERED + 1), built, before) is before


def test_a_model_that_refuses_the_figures_leaves_the_prediction() -> None:
    class Refusing(SpillModel):
        def predict(
            self, kernels: Sequence[Any], target: Target, built: Mapping[str, int] | None = None
        ) -> Prediction:
            raise ValueError("does not fit")

    look = Reranker(Refusing(), H200)
    look.remember(config(1), (profile_of(config(1)),), 1.0)
    before = Prediction(5.0, {}, "vector")
    assert look.predict(config(1), BuildResult("/cache/x.so", resources={"registers": 8}), before) is before


def test_worse_means_moved_and_beyond_the_uncertainty() -> None:
    def at(us: float) -> Prediction:
        return Prediction(us, {}, "vector", uncertainty=0.2)

    chosen_slow, little, much = config(1), config(2), config(3)
    before = {chosen_slow: at(20), little: at(10), much: at(10)}
    after = {chosen_slow: at(20), little: at(11), much: at(13)}
    assert clearly_worse(before, after, {c: p.latency_us for c, p in after.items()}, 10.0) == [much]
