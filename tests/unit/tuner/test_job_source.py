"""The tuner as a source of jobs: what overlaps what, what shares a lowering, who is measured and who wins."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest

from tests.support.fakes import (
    AxpyTemplate,
    FakeExecutor,
    FakeModel,
    Journal,
    failing,
    measured,
    request,
    true_us,
)
from tilesight.errors import Failure, FailureKind
from tilesight.executor.jobs import BuildJob, Event, Job, JobSource, Lane, LowerJob, MeasureJob
from tilesight.executor.tasks import Profiled
from tilesight.problem.candidate import Candidate
from tilesight.problem.rasterization import Rasterization
from tilesight.problem.space import Config
from tilesight.records.session import Comparison, Decision, Effort, SessionResult, SessionState
from tilesight.records.trial import NOT_MEASURED, BuildResult, Measurement, Status
from tilesight.tuner.loop import EARLY_AFTER, Tuner
from tilesight.tuner.queue import AHEAD
from tilesight.tuner.request import EFFORT_LIMITS


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


def run(
    effort: Effort = Effort.QUICK, executor: FakeExecutor | None = None, **changes: object
) -> tuple[SessionResult, Journal]:
    journal = Journal()
    result = Tuner(request(effort, **changes), FakeModel(), executor or FakeExecutor(), journal).run()  # type: ignore[arg-type]
    return result, journal


def test_on_a_gpu_the_first_candidates_are_measured_while_others_are_explored() -> None:
    executor = Watched()
    run(Effort.FULL, executor, target="h200")
    lowered = [p for p, job in enumerate(executor.jobs) if isinstance(job, LowerJob)]
    first, second = executor.positions(MeasureJob)[:2]
    assert sum(p < first for p in lowered) < 16  # the first one, with which compilers get warm
    assert EARLY_AFTER <= sum(p < second for p in lowered) < len(lowered)


def test_a_processor_explores_first_and_then_measures() -> None:
    executor = Watched()
    run(Effort.FULL, executor)
    lowered = [p for p, job in enumerate(executor.jobs) if isinstance(job, LowerJob)]
    assert executor.positions(MeasureJob)[0] > EARLY_AFTER
    assert sum(p < executor.positions(MeasureJob)[0] for p in lowered) == len(executor.done["lower"])


def test_building_runs_only_a_little_ahead_of_measuring() -> None:
    executor = Watched()
    run(Effort.EXHAUSTIVE, executor, target="h200")
    waiting = most = 0
    for job in executor.jobs:
        waiting += {BuildJob: 1, MeasureJob: -1}.get(type(job), 0)
        most = max(most, waiting)
    assert 2 < most <= 4 + AHEAD * 2 + 2  # those being measured count too


def test_a_device_that_would_wait_measures_with_care() -> None:
    executor = Watched()
    run(Effort.FULL, executor, target="h200")
    jobs = [job for job in executor.jobs if isinstance(job, MeasureJob)]
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
    assert sum(t.status is Status.VERIFIED for t in result.trials) == EFFORT_LIMITS[Effort.QUICK].measure


def test_a_finalist_that_spoils_the_device_is_left_out_and_the_others_are_compared() -> None:
    class Spoiling(FakeExecutor):
        rounds = 0

        def compared(self, candidates: list[Candidate]) -> Comparison:  # type: ignore[override]
            self.rounds += 1
            if self.rounds > 1:
                return Comparison(tuple(measured(c) for c in candidates), ())
            guilty = Measurement(failure=Failure(FailureKind.RUN_ERROR, "illegal memory access"))
            others = Measurement(
                failure=Failure(FailureKind.RUN_ERROR, f"{NOT_MEASURED}the device is unusable")
            )
            return Comparison((guilty, *[others] * (len(candidates) - 1)), ())

    executor = Spoiling()
    result, journal = run(Effort.QUICK, executor)
    guilty = Config({"block": 30, "stages": 3, "swizzle": True})
    assert executor.rounds == 2
    assert journal.records[guilty].status is Status.FAILED
    assert result.best is not None
    assert result.best.config != guilty
    assert sum(t.status is Status.VERIFIED for t in result.trials) == 15
    assert any("is left out: run_error: illegal memory access" in text for text in result.messages)


def test_a_comparison_of_which_nothing_is_left_says_so() -> None:
    class Gone(FakeExecutor):
        def compared(self, candidates: list[Candidate]) -> Comparison:  # type: ignore[override]
            lost = Measurement(failure=Failure(FailureKind.RUN_ERROR, "the device fell off the bus"))
            return Comparison((lost,) * len(candidates), ())

    result, _ = run(Effort.QUICK, Gone())
    assert result.baselines == ()
    assert sum(t.status is Status.VERIFIED for t in result.trials) == 16
    assert "no comparison with the vendor's library: the device fell off the bus" in result.messages


def test_the_stream_is_closed_when_the_session_is_interrupted() -> None:
    closed = []

    class Stopped(FakeExecutor):
        def stream(self, source: JobSource) -> Iterator[Event]:  # type: ignore[override]
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


class OneByOne(FakeExecutor):
    """One process: nothing runs while it asks."""

    widths: ClassVar = {Lane.PREPARE: 1, Lane.DEVICE: 1}


def test_the_end_of_the_time_to_explore_leaves_the_rest_for_measuring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count()
    monkeypatch.setattr("tilesight.tuner.loop.time.monotonic", lambda: float(next(clock)))
    executor = OneByOne()
    result, _ = run(Effort.QUICK, executor, budget_s=60.0)
    assert 0 < len(executor.done["lower"]) < 100
    assert executor.done["measure"]
    assert result.state is SessionState.INTERRUPTED


def test_a_short_time_budget_has_more_than_the_first_candidate_built_while_it_explores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count()
    monkeypatch.setattr("tilesight.tuner.loop.time.monotonic", lambda: next(clock) / 10)
    executor = Watched()
    run(Effort.QUICK, executor, target="h200", budget_s=30.0)
    lowered, built = executor.positions(LowerJob), executor.positions(BuildJob)
    assert len(lowered) < EARLY_AFTER
    assert sum(p < lowered[-1] for p in built) == 4, "a quarter of the measurements"


def test_a_budget_that_was_enough_has_ended_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Slow(FakeExecutor):
        def event(self, job: Job) -> Event:
            nonlocal now
            now += 5.0 if isinstance(job, MeasureJob) else 0.0
            return super().event(job)

    monkeypatch.setattr("tilesight.tuner.loop.time.monotonic", lambda: now)
    result, _ = run(
        Effort.QUICK, Slow(), budget_s=120.0
    )  # two thirds of it are used, more than exploring may take
    assert result.state is SessionState.COMPLETE
    assert not any("budget" in text for text in result.messages)


def test_finalists_of_an_earlier_session_that_no_longer_build_are_not_compared() -> None:
    _, journal = run(Effort.QUICK)
    executor = FakeExecutor(failing(FailureKind.BUILD_ERROR, "build"))
    result = Tuner(
        request(Effort.QUICK), FakeModel(), executor, Journal(), known=journal.records.values()
    ).run()
    assert executor.done["compare"] == []
    assert any("no longer build" in text for text in result.messages)
    assert result.is_measured


def test_candidates_are_picked_anew_when_more_are_known() -> None:
    class Unmeasured(Watched):
        def stream(self, source: JobSource) -> Iterator[Event]:  # type: ignore[override]
            """The device takes until all is lowered: only what is known changes the picks."""
            held: list[Job] = []
            while True:
                job = source.next(Lane.PREPARE) or source.next(Lane.DEVICE)
                if isinstance(job, MeasureJob):
                    held.append(job)
                elif job is not None:
                    yield self.event(job)
                elif not held:
                    return
                else:
                    yield self.event(held.pop(0))

    executor = Unmeasured()
    run(
        Effort.QUICK, executor, target="h200", template=Reordering()
    )  # the first lowering shows two candidates
    lowered = [p for p, job in enumerate(executor.jobs) if isinstance(job, LowerJob)]
    second = [p for p, job in enumerate(executor.jobs) if isinstance(job, BuildJob)][1]
    known = {executor.jobs[p].candidate.config for p in lowered if p < second}  # type: ignore[union-attr]
    best = min(
        (config for config in known if config["block"] != 13),
        key=lambda c: true_us(Config({**c, "swizzle": True})),
    )
    chosen = executor.jobs[second].candidate.config  # type: ignore[union-attr]
    assert true_us(Config({**chosen, "swizzle": True})) == true_us(Config({**best, "swizzle": True}))


def test_the_bar_of_the_measurements_counts_those_made_while_exploring() -> None:
    totals: list[int] = []

    class Counting(Journal):
        def phase(self, name: str, total: int | None) -> None:
            if name == "measure":
                totals.append(total or 0)

    executor = Watched()
    Tuner(request(Effort.QUICK, target="h200"), FakeModel(), executor, Counting()).run()
    assert totals == [len(executor.done["measure"])] == [16]
