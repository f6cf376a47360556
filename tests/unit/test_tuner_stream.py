"""The tuner as a source of jobs: what overlaps what, what shares a lowering, who is measured and who wins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest

from tests.unit.fakes import AxpyTemplate, FakeExecutor, FakeModel, Journal, measured, request, true_us
from tilesight.candidate import Candidate
from tilesight.contenders import AHEAD
from tilesight.errors import Failure, FailureKind
from tilesight.jobs import Profiled
from tilesight.profile import Rasterization
from tilesight.request import PLANS
from tilesight.session import Decision, Effort, SessionResult
from tilesight.space import Config
from tilesight.trial import BuildResult, Measurement, Status
from tilesight.tuner import EARLY_AFTER, Tuner
from tilesight.work import Comparison, Event, Job, Lane, Measure, Source


class Watched(FakeExecutor):
    """Keeps the jobs in the order in which they were handed out."""

    widths: ClassVar = {Lane.PREPARE: 4, Lane.DEVICE: 2}

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []

    def event(self, job: Job) -> Event:
        self.jobs.append(job)
        return super().event(job)

    def positions(self, kind: type) -> list[int]:
        return [position for position, job in enumerate(self.jobs) if isinstance(job, kind)]


def run(effort: Effort = Effort.QUICK, executor: FakeExecutor | None = None, **changes: object) -> tuple[SessionResult, Journal]:
    journal = Journal()
    result = Tuner(request(effort, **changes), FakeModel(), executor or FakeExecutor(), journal).run()  # type: ignore[arg-type]
    return result, journal


def test_on_a_gpu_the_first_candidates_are_measured_while_others_are_explored() -> None:
    executor = Watched()
    run(Effort.FULL, executor, target="h200")
    lowered = [p for p, job in enumerate(executor.jobs) if type(job).__name__ == "Lower"]
    first, second = executor.positions(Measure)[:2]
    assert sum(p < first for p in lowered) < 16  # the first one, with which compilers get warm
    assert EARLY_AFTER <= sum(p < second for p in lowered) < len(lowered)


def test_a_processor_explores_first_and_then_measures() -> None:
    executor = Watched()
    run(Effort.FULL, executor)
    lowered = [p for p, job in enumerate(executor.jobs) if type(job).__name__ == "Lower"]
    assert executor.positions(Measure)[0] > EARLY_AFTER
    assert sum(p < executor.positions(Measure)[0] for p in lowered) == len(executor.done["lower"])


def test_building_runs_only_a_little_ahead_of_measuring() -> None:
    executor = Watched()
    run(Effort.EXHAUSTIVE, executor, target="h200")
    waiting = most = 0
    for job in executor.jobs:
        waiting += {"Build": 1, "Measure": -1}.get(type(job).__name__, 0)
        most = max(most, waiting)
    assert 2 < most <= 4 + AHEAD * 2 + 2  # those being measured count too


def test_a_device_that_would_wait_measures_with_care() -> None:
    executor = Watched()
    run(Effort.FULL, executor, target="h200")
    jobs = [job for job in executor.jobs if isinstance(job, Measure)]
    quick = request(target="h200").protocol
    assert {job.protocol for job in jobs} == {quick, quick.careful()}
    assert all(job.rival_us is None for job in jobs if job.protocol == quick.careful())
    assert any(job.rival_us for job in jobs if job.protocol == quick)


class Reordering(AxpyTemplate):
    """`swizzle` only reorders blocks."""

    def reordered(self, config: Config) -> tuple[Config, Rasterization] | None:
        return (Config({**config, "swizzle": False}), Rasterization("row", 8)) if config["swizzle"] else None


def test_configs_that_share_their_lowering_are_lowered_once_and_all_predicted() -> None:
    executor = FakeExecutor()
    result, journal = run(Effort.PREDICT, executor, template=Reordering())
    assert {c["swizzle"] for c in executor.done["lower"]} == {False}
    assert len(executor.done["lower"]) == len(set(executor.done["lower"])) == 100
    assert len(journal.records) == len(result.trials) == 200
    codes = [t.fingerprint for t in result.trials if t.fingerprint]
    assert len(codes) == len(set(codes))


def test_a_failed_lowering_is_that_of_all_that_share_it() -> None:
    class Failing(FakeExecutor):
        def lowered(self, candidate: Candidate) -> Profiled | Failure:
            found = super().lowered(candidate)
            return Failure(FailureKind.LOWER_ERROR, "no layout") if candidate.config["block"] == 7 else found

    _, journal = run(Effort.PREDICT, Failing(), template=Reordering())
    sevens = [record for config, record in journal.records.items() if config["block"] == 7]
    assert len(sevens) == 4
    assert all(record.failure and record.failure.kind is FailureKind.LOWER_ERROR for record in sevens)


def test_candidates_that_build_to_the_same_binary_are_measured_once() -> None:
    class Same(FakeExecutor):
        def built(self, candidate: Candidate) -> BuildResult:
            return replace(super().built(candidate), binary=str(candidate.config["block"]))

    executor = Same()
    _, journal = run(Effort.EXHAUSTIVE, executor)
    blocks = [c["block"] for c in executor.done["measure"]]
    assert sorted(blocks) == [b for b in range(1, 41) if b != 13]
    twins = [r for r in journal.records.values() if r.failure and r.failure.kind is FailureKind.DUPLICATE]
    assert twins
    assert all("builds to the same binary as" in r.failure.message for r in twins if r.failure)


class Deciding(FakeExecutor):
    """Says of the finalists what a test wants."""

    def __init__(self, winner: int, wrong: int | None = None) -> None:
        super().__init__()
        self._winner, self._wrong = winner, wrong

    def compared(self, candidates: list[Candidate]) -> Comparison:  # type: ignore[override]
        configs = [c.config for c in candidates]
        bad = Measurement(failure=Failure(FailureKind.NONDETERMINISTIC, "changes from run to run"))
        found = tuple(bad if place == self._wrong else measured(c) for place, c in enumerate(candidates))
        others = tuple(c for c in configs[:3] if c != configs[self._winner])
        return Comparison(found, (), (), Decision(configs[self._winner], others, "it is simpler"))


def test_an_indistinguishable_finalist_may_win() -> None:
    executor = Deciding(winner=2)
    result, _ = run(Effort.QUICK, executor)
    third = executor.done["compare"] or sorted(executor.done["measure"], key=true_us)
    assert result.best is not None
    assert result.decision is not None
    assert result.best.config == result.decision.winner == result.trials[0].config
    assert {t.config for t in result.trials[1:3]} == set(result.decision.tied)
    assert result.best.config != min(third, key=true_us)
    assert any(text == "the winner: it is simpler" for text in result.messages)


def test_a_finalist_found_wrong_is_no_result_however_right_it_was() -> None:
    result, _ = run(Effort.QUICK, Deciding(winner=1, wrong=0))
    fastest = Config({"block": 30, "stages": 3, "swizzle": True})
    record = next(t for t in result.trials if t.config == fastest)
    assert record.status is Status.FAILED
    assert result.best is not None
    assert result.best.config != fastest


def test_other_faults_of_a_comparison_say_nothing_against_a_time() -> None:
    class Crashing(Deciding):
        def compared(self, candidates: list[Candidate]) -> Comparison:  # type: ignore[override]
            found = super().compared(candidates)
            lost = Measurement(failure=Failure(FailureKind.RUN_TIMEOUT, "stopped after 300 s"))
            return replace(found, measurements=(lost, *found.measurements[1:]))

    result, _ = run(Effort.QUICK, Crashing(winner=1))
    assert sum(t.status is Status.VERIFIED for t in result.trials) == PLANS[Effort.QUICK].measure


def test_the_stream_is_closed_when_the_session_is_interrupted() -> None:
    closed = []

    class Stopped(FakeExecutor):
        def stream(self, source: Source) -> Iterator[Event]:  # type: ignore[override]
            try:
                for number, event in enumerate(super().stream(source)):
                    if number == 5:
                        raise KeyboardInterrupt
                    yield event
            finally:
                closed.append(True)

    with pytest.raises(KeyboardInterrupt):
        run(Effort.PREDICT, Stopped())
    assert closed == [True]
