"""Effort build: the best predicted are built and predicted again, and nothing is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.fakes import FakeExecutor, FakeModel, Journal, request
from tests.unit.tuner.test_rerank import H200, SpillModel
from tilesight.errors import Failure, FailureKind
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.records.session import Effort, SessionState
from tilesight.records.trial import BuildResult, Status
from tilesight.tuner.build_queue import MOST_BUILDS
from tilesight.tuner.loop import Tuner
from tilesight.tuner.request import EFFORT_LIMITS

WANTED = EFFORT_LIMITS[Effort.BUILD].build


def tuner(executor: FakeExecutor, model: FakeModel, journal: Journal, **changes: Any) -> Tuner:
    wanted = replace(request(Effort.BUILD), target=H200, measures=False, **changes)
    return Tuner(wanted, model, executor, journal)


def test_the_best_predicted_are_built_and_none_is_measured() -> None:
    executor, journal = FakeExecutor(), Journal()
    result = tuner(executor, FakeModel(), journal).run()
    assert len(executor.done["build"]) == WANTED
    assert executor.done["measure"] == executor.done["compare"] == []
    assert [trial.status for trial in result.trials[:WANTED]] == [Status.BUILT] * WANTED
    assert result.state is SessionState.COMPLETE
    assert not result.is_measured
    assert "nothing is measured" in result.messages[-1]
    assert ("phase", "build") in journal.events


def test_builds_go_on_until_the_first_of_the_ranking_is_built() -> None:
    """The compiler's figures make the twenty candidates slowest that are predicted best."""

    class Spilling(FakeExecutor):
        def built(self, candidate: Candidate) -> BuildResult:
            spilled = 400 if len(self.done["build"]) < 20 else 0
            return replace(super().built(candidate), resources={"spill_bytes": spilled})

    executor = Spilling()
    result = tuner(executor, SpillModel(), Journal()).run()
    assert 20 < len(executor.done["build"]) <= MOST_BUILDS * WANTED
    assert result.best is not None
    assert result.best.build is not None
    assert result.best.build.resources["spill_bytes"] == 0
    spilled = [t for t in result.trials if t.build and t.build.resources["spill_bytes"]]
    assert len(spilled) == 20
    assert all("the compiler's figures" in t.prediction.notes[-1] for t in spilled if t.prediction)


def test_others_take_the_place_of_builds_that_fail() -> None:
    def refused(stage: str, config: Config) -> Failure | None:
        wrong = stage == "build" and config["block"] == 30
        return Failure(FailureKind.BUILD_ERROR, "refused") if wrong else None

    result = tuner(FakeExecutor(refused), FakeModel(), Journal()).run()
    built = [trial for trial in result.trials if trial.status is Status.BUILT]
    assert len(built) == WANTED
    assert all(trial.config["block"] != 30 for trial in built)
    assert {t.failure.message for t in result.trials if t.config["block"] == 30 and t.failure} == {"refused"}


def test_a_later_session_builds_nothing_again() -> None:
    first = FakeExecutor()
    known = tuner(first, FakeModel(), Journal()).run().trials
    executor = FakeExecutor()
    wanted = replace(request(Effort.BUILD), target=H200, measures=False)
    result = Tuner(wanted, FakeModel(), executor, Journal(), known).run()
    assert executor.done["build"] == []
    assert sum(trial.status is Status.BUILT for trial in result.trials) == WANTED


def test_code_objects_are_enough() -> None:
    class Seen(FakeExecutor):
        def event(self, job: Any) -> Any:
            if hasattr(job, "runnable"):
                assert not job.runnable
                self.runnable_seen = True
            return super().event(job)

        runnable_seen = False

    executor = Seen()
    tuner(executor, FakeModel(), Journal()).run()
    assert executor.runnable_seen


def test_a_spent_budget_ends_the_builds() -> None:
    class Slow(FakeExecutor):
        def built(self, candidate: Candidate) -> BuildResult:
            session.request = replace(session.request, budget_s=0.0)
            return super().built(candidate)

    executor = Slow()
    session = tuner(executor, FakeModel(), Journal())
    result = session.run()
    assert 0 < len(executor.done["build"]) < WANTED
    assert result.state is SessionState.INTERRUPTED
