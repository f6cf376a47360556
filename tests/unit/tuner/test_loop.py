"""The loop: how far it goes, what it keeps, what it survives."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from tests.support.fakes import (
    AxpyTemplate,
    FakeExecutor,
    FakeModel,
    Journal,
    failing,
    profile_of,
    request,
    true_us,
)
from tilesight.errors import Failure, FailureKind, NoCandidateError
from tilesight.executor.jobs import Job
from tilesight.executor.tasks import Profiled
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config, Constraint, SearchSpace
from tilesight.problem.workload import Workload
from tilesight.records.session import Effort, SessionState
from tilesight.records.trial import BuildResult, Measurement, Status, TrialRecord
from tilesight.target.spec import Target
from tilesight.tuner.loop import Tuner
from tilesight.tuner.request import EFFORT_LIMITS, EffortLimits

LEGAL = 40 * 2 * 3 - 20 * 2  # odd blocks have no stages=2
BEST = Config({"block": 30, "stages": 3, "swizzle": True})


@pytest.fixture(autouse=True)
def wide_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Efforts that see the whole of the small space."""
    monkeypatch.setattr(
        "tilesight.tuner.loop.EFFORT_LIMITS",
        {effort: replace(plan, explore=plan.explore and 300) for effort, plan in EFFORT_LIMITS.items()},
    )


@pytest.fixture
def small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Efforts that do not see the whole of the small space."""
    small = {
        Effort.PREDICT: EffortLimits(60, 0),
        Effort.QUICK: EffortLimits(60, 8, patience=24),
        Effort.FULL: EffortLimits(80, 24, patience=24),
    }
    monkeypatch.setattr("tilesight.tuner.loop.EFFORT_LIMITS", {**EFFORT_LIMITS, **small})


def test_predict_builds_nothing() -> None:
    executor = FakeExecutor()
    result = Tuner(request(Effort.PREDICT), FakeModel(), executor, Journal()).run()
    assert len(executor.done["lower"]) == LEGAL
    assert executor.done["build"] == executor.done["measure"] == []
    assert result.state is SessionState.COMPLETE
    assert not result.is_measured
    assert {t.status for t in result.trials} == {Status.PREDICTED, Status.FAILED}


def test_nothing_is_measured_without_a_device() -> None:
    executor = FakeExecutor()
    result = Tuner(request(Effort.EXHAUSTIVE, measures=False), FakeModel(), executor, Journal()).run()
    assert executor.done["build"] == []
    assert not result.is_measured
    assert result.baselines == ()


def test_quick_measures_the_best_predicted_and_compares() -> None:
    executor = FakeExecutor()
    result = Tuner(request(Effort.QUICK), FakeModel(), executor, Journal()).run()
    assert len(executor.done["measure"]) == 16
    assert result.best is not None
    assert result.best.config == BEST
    assert result.best.status is Status.VERIFIED
    assert [b.name for b in result.baselines] == ["vendor"]
    assert executor.done["compare"][0] == BEST
    statuses = [t.status for t in result.trials]
    assert statuses[:16] == [Status.VERIFIED] * 16
    assert result.flops == 2048


@pytest.mark.usefixtures("small_plans")
def test_explores_a_part_of_a_large_space_and_finds_its_best() -> None:
    executor = FakeExecutor()
    result = Tuner(request(Effort.FULL), FakeModel(), executor, Journal()).run()
    assert 80 <= len(executor.done["lower"]) < LEGAL
    assert len(executor.done["measure"]) <= 24
    assert result.best is not None
    assert result.best.measured_us is not None
    assert result.best.measured_us <= 1.1 * true_us(BEST)
    assert len(set(executor.done["lower"])) == len(executor.done["lower"])


def test_exhaustive_measures_all_that_work() -> None:
    executor = FakeExecutor()
    result = Tuner(request(Effort.EXHAUSTIVE), FakeModel(), executor, Journal()).run()
    refused = sum(
        c["block"] == 13 for c in AxpyTemplate().space(request().workload, request().target).configs()
    )
    assert len(executor.done["measure"]) == LEGAL - refused
    assert result.best is not None
    assert result.best.config == BEST


@pytest.mark.usefixtures("small_plans")
def test_same_seed_same_questions_whatever_the_order_of_answers() -> None:
    class Backwards(FakeExecutor):
        def in_order(self, jobs: list[Job]) -> list[Job]:
            return jobs[::-1]

    asked = []
    for executor in (FakeExecutor(), Backwards()):
        Tuner(request(Effort.PREDICT, seed=5), FakeModel(), executor, Journal()).run()
        asked.append(executor.done["lower"])
    assert asked[0] != asked[1]
    assert set(asked[0]) == set(asked[1])


@pytest.mark.usefixtures("small_plans")
def test_candidates_whose_profiles_are_kept_are_predicted_first_and_all() -> None:
    class Keeping(FakeExecutor):
        def cached(self, candidates):  # type: ignore[no-untyped-def]
            return ((c, FakeExecutor().lowered(c)) for c in candidates if c.config["block"] <= 30)

    executor, journal = Keeping(), Journal()
    result = Tuner(request(Effort.PREDICT), FakeModel(), executor, journal).run()
    known = [
        c for c in AxpyTemplate().space(request().workload, request().target).configs() if c["block"] <= 30
    ]
    assert set(known) <= set(journal.records)
    assert not executor.done["lower"]  # more than the effort would have explored
    assert len(result.trials) == len(known)


@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize("works", [True, False])
def test_kept_profiles_are_predicted_together_or_where_that_fails_one_by_one(
    works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilesight.tuner.predict.TOGETHER", 64)

    class Keeping(FakeExecutor):
        def cached(self, candidates):  # type: ignore[no-untyped-def]
            return ((c, FakeExecutor().lowered(c)) for c in candidates)

    class Batching(FakeModel):
        batches: tuple[int, ...] = ()

        def predict_many(self, candidates, target):  # type: ignore[no-untyped-def]
            self.batches = (*self.batches, len(candidates))
            if not works:
                raise RuntimeError("one of them is odd")
            return [
                ValueError("thirteen") if '"block":13,' in k[0].notes[0] else self.predict(k, target)
                for k in candidates
            ]

    model, journal = Batching(), Journal()
    Tuner(request(Effort.PREDICT), model, Keeping(), journal).run()
    assert model.batches == (64, 64, 64, LEGAL - 3 * 64)
    for config, record in journal.records.items():
        if config["block"] == 13:
            assert record.failure is not None
            assert record.failure.kind is FailureKind.PROFILE_ERROR
            assert "thirteen" in record.failure.message
        else:
            assert record.predicted_us == 3 * true_us(Config({**config, "swizzle": True}))
    assert {c["block"] for c in journal.records} >= {12, 13, 14}


@pytest.mark.usefixtures("small_plans")
def test_a_few_kept_profiles_leave_the_search_its_share() -> None:
    class Keeping(FakeExecutor):
        def cached(self, candidates):  # type: ignore[no-untyped-def]
            return ((c, FakeExecutor().lowered(c)) for c in candidates if c.config["block"] == 1)

    executor, journal = Keeping(), Journal()
    Tuner(request(Effort.PREDICT), FakeModel(), executor, journal).run()
    assert executor.done["lower"]
    assert all(c["block"] != 1 for c in executor.done["lower"])
    assert {c["block"] for c in journal.records} > {1}


def test_model_that_refuses_a_profile_fails_that_candidate_only() -> None:
    journal = Journal()
    Tuner(request(Effort.PREDICT), FakeModel(), FakeExecutor(), journal).run()
    refused = [r for c, r in journal.records.items() if c["block"] == 13]
    assert refused
    assert all(
        r.failure and r.failure.kind is FailureKind.PROFILE_ERROR and "thirteen" in r.failure.message
        for r in refused
    )


def test_faults_of_candidates_are_recorded_and_the_run_goes_on() -> None:
    kinds = {
        "lower": FailureKind.LOWER_CRASH,
        "build": FailureKind.BUILD_ERROR,
        "measure": FailureKind.WRONG_RESULT,
    }
    bad = {"lower": 1, "build": 30, "measure": 29}
    journal = Journal()

    def fault(stage: str, config: Config) -> Failure | None:
        return Failure(kinds[stage], "injected") if config["block"] == bad.get(stage) else None

    result = Tuner(request(Effort.QUICK), FakeModel(), FakeExecutor(fault), journal).run()
    for stage, block in bad.items():
        found = {r.failure.kind for c, r in journal.records.items() if c["block"] == block and r.failure}
        assert found == {kinds[stage]}
    assert result.best is not None
    assert result.best.config["block"] not in bad.values()
    assert sum(r.measurement is not None for r in journal.records.values()) == 16


def test_candidates_of_the_same_code_are_measured_once() -> None:
    class Same(FakeExecutor):
        def lowered(self, candidate: Candidate) -> Profiled | Failure:
            found = super().lowered(candidate)
            assert isinstance(found, Profiled)
            return replace(found, fingerprint=str(candidate.config["block"]))

    executor, journal = Same(), Journal()
    Tuner(request(Effort.EXHAUSTIVE), FakeModel(), executor, journal).run()
    blocks = [c["block"] for c in executor.done["measure"]]
    assert sorted(blocks) == [b for b in range(1, 41) if b != 13]
    duplicate = next(
        r for r in journal.records.values() if r.failure and r.failure.kind is FailureKind.DUPLICATE
    )
    assert duplicate.prediction is not None
    assert f"block={duplicate.config['block']}" in duplicate.failure.message  # type: ignore[union-attr]


@pytest.mark.parametrize(("stage", "after"), [("lower", 40), ("build", 3), ("measure", 5), ("compare", 1)])
def test_resumes_after_an_interrupt_without_repeating_work(stage: str, after: int) -> None:
    counter = itertools.count(1)

    def interrupt(at: str, _config: Config) -> Failure | None:
        if at == stage and next(counter) == after:
            raise KeyboardInterrupt
        return None

    journal, first = Journal(), FakeExecutor(interrupt)
    with pytest.raises(KeyboardInterrupt):
        Tuner(request(), FakeModel(), first, journal).run()
    last = journal.events[-1]
    assert last[0] == "finished"
    assert last[1].state is SessionState.INTERRUPTED
    assert len(last[1].trials) == len(journal.records)

    second = FakeExecutor()
    result = Tuner(request(), FakeModel(), second, Journal(), known=journal.records.values()).run()
    assert len(second.done["lower"]) == LEGAL - len(first.done["lower"])
    assert set(second.done["lower"]).isdisjoint(first.done["lower"])
    assert set(second.done["measure"]).isdisjoint(first.done["measure"])
    assert len(first.done["measure"]) + len(second.done["measure"]) == 16
    assert result.best is not None
    assert result.best.config == BEST
    assert result.state is SessionState.COMPLETE


def test_higher_effort_goes_on_from_a_lower_one() -> None:
    journal = Journal()
    Tuner(request(Effort.PREDICT), FakeModel(), FakeExecutor(), journal).run()
    executor, model = FakeExecutor(), FakeModel()
    result = Tuner(request(Effort.QUICK), model, executor, Journal(), known=journal.records.values()).run()
    assert executor.done["lower"] == []
    assert model.calls == 0
    assert len(executor.done["measure"]) == 16
    assert result.is_measured


def test_known_records_outside_the_space_are_left_out() -> None:
    journal = Journal()
    Tuner(request(Effort.PREDICT), FakeModel(), FakeExecutor(), journal).run()
    stray = replace(
        next(iter(journal.records.values())), config=Config({"block": 1000, "stages": 1, "swizzle": True})
    )
    result = Tuner(request(Effort.PREDICT), FakeModel(), FakeExecutor(), Journal(), known=[stray]).run()
    assert stray.config not in {t.config for t in result.trials}


def test_known_without_a_prediction_of_this_model_is_predicted_again() -> None:
    best = BuildResult("/cache/best.so", entry="f")
    executor = FakeExecutor()
    result = Tuner(
        request(), FakeModel(), executor, Journal(), known=[TrialRecord(BEST, Status.BUILT, build=best)]
    ).run()
    assert BEST in executor.done["lower"]
    assert result.best is not None
    assert result.best.config == BEST


def test_known_measurement_stands_without_a_prediction() -> None:
    known = TrialRecord(BEST, Status.VERIFIED, measurement=Measurement((9.0,), relative_error=0.0))
    executor = FakeExecutor()
    Tuner(request(), FakeModel(), executor, Journal(), known=[known]).run()
    assert BEST not in executor.done["lower"]
    assert BEST not in executor.done["measure"]
    assert len(executor.done["measure"]) == 15
    assert BEST in executor.done["compare"]


def test_known_measurement_is_predicted_from_a_cached_profile() -> None:
    known = TrialRecord(BEST, Status.VERIFIED, measurement=Measurement((9.0,), relative_error=0.0))

    class Cached(FakeExecutor):
        def cached(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]:
            kernels = (profile_of(BEST),)
            return ((c, Profiled(kernels, "code", 0.0)) for c in candidates if c.config == BEST)

    result = Tuner(request(), FakeModel(), Cached(), Journal(), known=[known]).run()
    (again,) = [trial for trial in result.trials if trial.config == BEST]
    assert again.status is Status.VERIFIED
    assert again.prediction is not None


def test_budget_stops_asking_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 1)  # a second passes at each look
    monkeypatch.setattr("tilesight.tuner.loop.time.monotonic", lambda: float(next(clock)))
    executor, journal = FakeExecutor(), Journal()
    result = Tuner(request(budget_s=100.0), FakeModel(), executor, journal).run()
    assert 0 < len(executor.done["lower"]) < 100
    assert executor.done["measure"]  # a part of the time is kept for it
    assert result.state is SessionState.INTERRUPTED  # so that the same call goes on
    assert any("time budget ended" in text for text in result.messages)
    assert ("message", result.messages[-1]) in journal.events


def test_budget_too_small_for_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 10)
    monkeypatch.setattr("tilesight.tuner.loop.time.monotonic", lambda: float(next(clock)))
    with pytest.raises(NoCandidateError, match="time budget ended before any candidate"):
        Tuner(request(budget_s=1.0), FakeModel(), FakeExecutor(), Journal()).run()


def test_nothing_legal_says_what_forbids_it() -> None:
    class Hopeless(AxpyTemplate):
        def space(self, workload: Workload, target: Target) -> SearchSpace:
            found = super().space(workload, target)
            return SearchSpace(
                found.parameters,
                [Constraint("never", lambda config: f"block={config['block']} is never right")],
            )

    with pytest.raises(
        NoCandidateError, match=r"of 240 configs 240 break 'never' \(e\.g\. block=1 is never right\)"
    ):
        Tuner(request(template=Hopeless()), FakeModel(), FakeExecutor(), Journal()).run()


def test_nothing_works_says_the_most_common_reasons() -> None:
    journal = Journal()
    executor = FakeExecutor(failing(FailureKind.LOWER_ERROR, "lower"))
    with pytest.raises(
        NoCandidateError, match=f"none of {LEGAL} candidates .* {LEGAL} lower_error: lower failed"
    ):
        Tuner(request(), FakeModel(), executor, journal).run()
    assert len(journal.records) == LEGAL


def test_the_output_of_the_first_failure_is_a_note_of_the_error() -> None:
    executor = FakeExecutor(failing(FailureKind.LOWER_ERROR, "lower", detail="Traceback: here"))
    with pytest.raises(NoCandidateError, match="shown with --debug") as raised:
        Tuner(request(), FakeModel(), executor, Journal()).run()
    assert raised.value.__notes__ == ["lower_error: lower failed\nTraceback: here"]


def test_all_builds_failing_is_no_success() -> None:
    executor = FakeExecutor(failing(FailureKind.BUILD_ERROR, "build"))
    result = Tuner(request(), FakeModel(), executor, Journal()).run()
    # what was not built still stands as predicted: the run gives up after as many as its patience allows
    assert len(executor.done["build"]) == EFFORT_LIMITS[Effort.QUICK].patience
    assert result.best is not None
    assert result.best.status is Status.PREDICTED
    assert any("no candidate could be measured" in text for text in result.messages)


def test_failed_comparison_costs_only_the_vendor_line() -> None:
    executor = FakeExecutor(failing(FailureKind.RUN_CRASH, "compare"))
    result = Tuner(request(), FakeModel(), executor, Journal()).run()
    assert result.is_measured
    assert result.baselines == ()
    assert any("compare failed" in text for text in result.messages)


def test_the_default_config_is_measured_first_whatever_is_predicted() -> None:
    """A model that is wrong about a kind of kernel cannot make a session worse than its template's choice."""
    slow = Config({"block": 1, "stages": 1, "swizzle": False})

    class Wrong(AxpyTemplate):
        def default_config(self, workload: Workload, target: Target) -> Config | None:
            return slow

    for target in ("cpu", "h200"):
        executor = FakeExecutor()
        result = Tuner(
            request(Effort.QUICK, template=Wrong(), target=target), FakeModel(), executor, Journal()
        )
        assert result.run().best is not None
        assert true_us(slow) == max(map(true_us, executor.done["measure"]))
        assert executor.done["measure"][0] == slow
        assert len(executor.done["measure"]) == 16
