"""Rechecks of recorded winners after a change of software, with a line that answers from a formula."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tilesight
from tests.support.fakes import AxpyTemplate, FakeExecutor, FakeModel, profile_of, request, true_us
from tests.support.sessions import add_session
from tests.unit.cli.documented import check_fields
from tests.unit.conftest import FakeLine
from tilesight.cli.main import main
from tilesight.database import Store, open_layers
from tilesight.errors import Failure, FailureKind, InputError, ToolchainError
from tilesight.executor.jobs import CompareJob, Job, Lane, LowerJob
from tilesight.executor.tasks import Profiled
from tilesight.machine.placement import locate
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.rechecking.check import LOWERED, WinnerCheck
from tilesight.rechecking.due import DueWinner
from tilesight.rechecking.result import Rechecked, RecheckResult
from tilesight.rechecking.verdict import RecheckOutcome
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import Comparison, Context, Decision
from tilesight.records.trial import NOT_MEASURED, BuildResult, Measurement, Prediction, Status, TrialRecord
from tilesight.records.winners import Miss
from tilesight.runner.decide import Finalist, decide
from tilesight.tuner.resolve import find_context

TURNS = 12
BEST = Config({"block": 30, "stages": 3, "swizzle": True})  # of `true_us`
BUILD = "tilesight.machine.toolchain.BUILD_VERSION"


class TurnsExecutor(FakeExecutor):
    """Compares by samples of several turns. `changed_us`: times that another software has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.changed_us: dict[Config, float] = {}
        self.faults: dict[Config, Failure] = {}  # of runs
        self.unbuildable: set[Config] = set()
        self.noise = 0.0
        self.order: list[str] = []  # of jobs

    def event(self, job: Job):  # type: ignore[no-untyped-def]
        self.order.append(type(job).__name__)
        return super().event(job)

    def built(self, candidate: Candidate) -> BuildResult:
        found = super().built(candidate)
        if candidate.config in self.unbuildable:
            return BuildResult(None, Failure(FailureKind.BUILD_ERROR, "it does not compile"))
        return replace(found, binary=f"binary-{candidate.config}")

    def compared(self, candidates: Sequence[Candidate]) -> Comparison | Failure:
        self.done["compare"] += [candidate.config for candidate in candidates]
        times = [self._measured(candidate.config) for candidate in candidates]
        crashes = [m for m in times if m.failure and not m.is_wrong]
        if crashes:
            lost = Failure(FailureKind.RUN_ERROR, f"{NOT_MEASURED}another kernel left the device unusable")
            return Comparison(tuple(m if m.failure else Measurement(failure=lost) for m in times), ())
        finalists = [
            Finalist(candidate.config, m.samples_us, {})
            for candidate, m in zip(candidates, times, strict=True)
            if m.failure is None
        ]
        decision = decide(finalists) if finalists else None
        return Comparison(tuple(times), (), decision=decision)

    def _measured(self, config: Config) -> Measurement:
        if config in self.faults:
            return Measurement(failure=self.faults[config])
        us = self.changed_us.get(config, true_us(config))
        samples = tuple(us * (1 + 0.0001 * turn + self.noise * (turn % 2)) for turn in range(TURNS))
        return Measurement(samples, relative_error=0.0)


@pytest.fixture
def line(fake_line: FakeLine) -> TurnsExecutor:
    made = fake_line.executor = TurnsExecutor()
    return made


def tuned(
    monkeypatch: pytest.MonkeyPatch,
    *shapes: str,
    build: str = "0",
    config: Config = BEST,
    others: Sequence[TrialRecord] = (),
) -> Config:
    """Record a winner for shapes, as an earlier build of TileSight would."""
    target, template = tilesight.load_target("cpu"), AxpyTemplate()
    protocol = MeasurementProtocol.named("default", target)
    trial = TrialRecord(
        config,
        Status.VERIFIED,
        build=BuildResult("/cache/old.so", entry="f"),
        measurement=Measurement((10.0,), relative_error=0.0),
    )
    decision = Decision(config, (), "the only finalist")
    with monkeypatch.context() as patch, store() as opened:
        patch.setattr(BUILD, build)
        for shape in shapes:
            workload = template.operator.workload(shape)
            space = template.space(workload, target)
            context = find_context(
                template, workload, locate("cpu", measures=True), "fake-1", space, protocol
            )
            add_session(opened, context, trial, *others, decision=decision)
    return config


def store() -> Store:
    from tilesight.settings import load_settings

    return open_layers(load_settings().database_url)


def only(found: RecheckResult) -> Rechecked:
    [one] = found.winners
    return one


def recorded_now() -> dict[str, Config]:
    """What a dispatcher of the present software has, by workload."""
    with store() as opened:
        found = {}
        for context in opened.measured_contexts(tilesight.load_target("cpu"), ""):
            if context.software["tilesight-build"] != "0":
                found |= {one.workload.label: one.config for one in opened.winners(context, {})}
        return found


@pytest.mark.usefixtures("line")
def test_a_winner_that_holds_is_recorded_for_the_present_software(monkeypatch: pytest.MonkeyPatch) -> None:
    best = tuned(monkeypatch, "X0")
    assert recorded_now() == {}
    one = only(tilesight.recheck("axpy", "cpu"))
    assert (one.verdict.outcome, one.is_replaced) == (RecheckOutcome.HELD, False)
    assert ("tilesight-build", "0") in {(part, before) for part, before, _ in one.due.changes}
    assert recorded_now() == {one.due.workload.label: best}
    again = tilesight.recheck("axpy", "cpu")
    assert (again.winners, again.current) == ((), 1)
    assert "no recorded winner of earlier software is due; 1 more are of the present" in again.summary


def test_it_is_compared_with_the_default_and_the_first_three_of_the_model(
    line: TurnsExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = tuned(monkeypatch, "X0")
    tilesight.recheck("axpy", "cpu")
    compared = line.done["compare"]
    template = AxpyTemplate()
    default = template.default_config(template.operator.workload("X0"), tilesight.load_target("cpu"))
    assert compared[:2] == [best, default], "the recorded winner comes first"
    assert 3 <= len(compared) <= 5
    lowered = sorted(line.done["lower"], key=lambda c: true_us(Config({**c, "swizzle": True})))
    assert set(compared[2:]) <= set(lowered[:6]), "the model is blind for swizzle"


def test_what_was_predicted_best_before_is_lowered_first(
    line: TurnsExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new TileLang has no cached profiles."""
    promising = [Config({"block": block, "stages": 3, "swizzle": False}) for block in range(25, 36)]
    predicted = [
        TrialRecord(config, Status.PREDICTED, Prediction(1.0 + place, {}, "dram", model="fake-1"))
        for place, config in enumerate(promising)
    ]
    tuned(monkeypatch, "X0", others=predicted)
    tilesight.recheck("axpy", "cpu")
    assert line.done["lower"][: len(promising)] == promising
    assert len(line.done["lower"]) == LOWERED


def test_one_that_fell_is_replaced_with_ratio_and_interval(
    line: TurnsExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = tuned(monkeypatch, "X0")
    line.changed_us[best] = 40.0
    found = tilesight.recheck("axpy", "cpu")
    one = only(found)
    assert one.verdict.outcome is RecheckOutcome.FELL
    assert one.is_replaced
    assert one.verdict.ratio == pytest.approx(one.verdict.now_us / one.verdict.best_us, rel=1e-6)  # type: ignore[operator]
    assert one.verdict.slower_by is not None
    low, high = one.verdict.slower_by
    assert low <= one.verdict.ratio - 1 <= high  # type: ignore[operator]
    assert low > 0.5
    assert "with 99% confidence" in one.verdict.reason
    assert recorded_now() == {one.due.workload.label: one.verdict.winner}
    text = str(found)
    assert "fell (" in text
    assert "changed since: tilesight-build 0 -> " in text
    with store() as opened:
        [latest, *_] = opened.session_summaries()
        assert "recheck of a recorded winner: fell" in opened.recorded_session(latest.id).result.messages[0]


def test_one_that_is_slower_within_the_noise_stays(
    line: TurnsExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = tuned(monkeypatch, "X0")
    line.changed_us = {best: 10.01, Config({**best, "swizzle": not best["swizzle"]}): 10.0}
    one = only(tilesight.recheck("axpy", "cpu"))
    assert (one.verdict.outcome, one.verdict.winner) == (RecheckOutcome.HELD, best)


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        (None, RecheckOutcome.NOT_BUILT, "it does not compile"),
        (Failure(FailureKind.WRONG_RESULT, "off by one"), RecheckOutcome.WRONG, "wrong_result: off by one"),
        (Failure(FailureKind.RUN_ERROR, "illegal address"), RecheckOutcome.FAILED, "illegal address"),
    ],
)
def test_one_that_works_no_longer_is_replaced_by_the_fastest_of_the_others(
    line: TurnsExecutor,
    monkeypatch: pytest.MonkeyPatch,
    fault: Failure | None,
    outcome: RecheckOutcome,
    reason: str,
) -> None:
    best = tuned(monkeypatch, "X0")
    if fault is None:
        line.unbuildable.add(best)
    else:
        line.faults[best] = fault
    one = only(tilesight.recheck("axpy", "cpu"))
    assert one.verdict.outcome is outcome
    assert reason in one.verdict.reason
    assert one.is_replaced
    assert recorded_now() == {one.due.workload.label: one.verdict.winner}


@pytest.mark.usefixtures("line")
def test_a_config_that_left_the_space_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    best = tuned(monkeypatch, "X0")
    monkeypatch.setattr(AxpyTemplate, "blocks", tuple(b for b in range(1, 41) if b != best["block"]))
    one = only(tilesight.recheck("axpy", "cpu"))
    assert one.verdict.outcome is RecheckOutcome.REFUSED
    assert "block" in one.verdict.reason
    assert one.is_replaced


def test_noise_decides_nothing(line: TurnsExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    best = tuned(monkeypatch, "X0")
    monkeypatch.setenv("TILESIGHT_MAX_NOISE", "0.1")
    line.changed_us[best], line.noise = 40.0, 1.0
    one = only(tilesight.recheck("axpy", "cpu"))
    assert one.verdict.outcome is RecheckOutcome.UNDECIDED
    assert recorded_now() == {}
    line.noise = 0.0
    assert only(tilesight.recheck("axpy", "cpu")).verdict.outcome is RecheckOutcome.FELL


@pytest.mark.usefixtures("line")
def test_most_used_first(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(monkeypatch, "X0", "X1", "n=512")
    operator = AxpyTemplate().operator
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    config = Config({"block": 20, "stages": 1, "swizzle": False})
    with store() as opened:
        opened.record_misses(
            Miss(operator.workload(shape), "cpu", "", "axpy", count, config, "default", us, moment, moment)
            for shape, count, us in (("n=512", 3, 10.0), ("X1", 2, 90.0))
        )
    found = tilesight.recheck(None, "cpu", limit=2)
    assert [one.due.workload.dims["n"] for one in found.winners] == [4096, 512]
    assert [one.due.calls for one in found.winners] == [2, 3]
    assert found.due == 3
    assert "1 more are due, beyond --limit" in str(found)
    with store() as opened:
        assert opened.misses() == [], "they have records now"
    assert only(tilesight.recheck(None, "cpu")).due.workload.dims["n"] == 1024


def test_the_next_winners_are_built_before_the_first_is_compared(
    line: TurnsExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(monkeypatch, "X0", "X1", "n=512")
    monkeypatch.setattr(line, "widths", {Lane.PREPARE: 16, Lane.DEVICE: 1})
    tilesight.recheck("axpy", "cpu")
    first = line.order.index(CompareJob.__name__)
    assert line.order.count(CompareJob.__name__) == 3
    assert line.order[:first].count(LowerJob.__name__) > LOWERED, "those of more than one winner"


def test_without_time_the_rest_is_left_and_done_later(
    line: TurnsExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(monkeypatch, "X0", "X1", "n=512", "n=256", "n=128", "n=64", "n=32")
    now = 0.0

    def clock() -> float:
        return now

    compared = line.compared

    def slow(candidates: Sequence[Candidate]) -> Comparison | Failure:
        nonlocal now
        now += 10.0
        return compared(candidates)

    monkeypatch.setattr("tilesight.rechecking.loop.time.monotonic", clock)
    monkeypatch.setattr(line, "compared", slow)
    found = tilesight.recheck("axpy", "cpu", budget_s=15.0)
    assert found.counts == {"held": 2, "left": 5}
    again = tilesight.recheck("axpy", "cpu")
    assert (again.counts, again.current) == ({"held": 5}, 2)


def test_a_dry_run_measures_nothing(line: TurnsExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(monkeypatch, "X0")
    found = tilesight.recheck("axpy", "cpu", dry_run=True)
    assert (found.counts, line.order) == ({"due": 1}, [])
    assert only(tilesight.recheck("axpy", "cpu")).verdict.outcome is RecheckOutcome.HELD


@pytest.mark.usefixtures("line")
def test_the_latest_of_several_recorded_winners_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(monkeypatch, "X0")
    later = tuned(monkeypatch, "X0", build="1", config=Config({**BEST, "block": 31}))
    one = only(tilesight.recheck("axpy", "cpu"))
    assert one.due.config == later
    assert ("tilesight-build", "1") in {(part, before) for part, before, _ in one.due.changes}


@pytest.mark.usefixtures("line")
def test_a_winner_of_a_layer_is_due(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    layer = tmp_path / "layer.db"
    with monkeypatch.context() as patch:
        patch.setenv("TILESIGHT_DB", f"sqlite:///{layer}")
        tuned(monkeypatch, "X0")
    one = only(tilesight.recheck("axpy", "cpu", layers=[str(layer)]))
    assert one.verdict.outcome is RecheckOutcome.HELD
    assert one.due.layer == str(layer)


@pytest.mark.usefixtures("line")
def test_records_of_unknown_kernels_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(monkeypatch, "X0")
    monkeypatch.setattr(AxpyTemplate, "name", "axpy2")
    found = tilesight.recheck(None, "cpu")
    assert found.winners == ()
    assert "1 recorded winner left out: this TileSight has no kernel" in found.messages[-1]


@pytest.mark.usefixtures("line")
def test_wrong_arguments() -> None:
    with pytest.raises(InputError, match="limit=0 must be at least 1"):
        tilesight.recheck("axpy", "cpu", limit=0)
    with pytest.raises(InputError, match="axpi"):
        tilesight.recheck("axpi", "cpu")
    with pytest.raises(ToolchainError, match=r"a recheck measures.*--dry-run"):
        tilesight.recheck(None, "h200")
    assert tilesight.recheck(None, "h200", dry_run=True).winners == ()


def test_the_command(
    line: TurnsExecutor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    best = tuned(monkeypatch, "X0", "X1")
    line.changed_us[best] = 40.0

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--target", "cpu"])
        assert ended.value.code == 0
        return capsys.readouterr().out

    asked = "db", "why", "axpy", "--shape", "X0"
    assert "tilesight recheck axpy --target cpu" in run(*asked).splitlines()
    assert json.loads(run(*asked, "--json"))["recheck"] == "tilesight recheck axpy --target cpu"
    listed = run("recheck", "axpy", "--dry-run", "--quiet")
    assert "2 due" in listed
    first = json.loads(run("recheck", "--json", "--quiet", "--limit", "1"))
    text = run("recheck", "axpy", "--quiet")
    assert "1 fell; 1 more are of the present software" in text
    assert "order: most used first" in text
    last = json.loads(run("recheck", "axpy", "--json", "--quiet"))
    assert (first["counts"], last["counts"], last["current"]) == ({"fell": 1}, {}, 2)
    check_fields("recheck", [first, last])
    assert json.loads(run(*asked, "--json"))["recheck"] is None
    assert "tilesight recheck" not in run(*asked)


def test_cached_profiles_are_not_lowered() -> None:
    """Of promising configs and of a sample. The recorded winner and the default are built in any case."""

    class Cached(TurnsExecutor):
        def cached(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]:
            for candidate in candidates:
                yield candidate, Profiled((profile_of(candidate.config),), f"code-{candidate.config}", 0.0)

    class Predicted:
        def best_predicted(self, context: Context, count: int) -> list[Config]:
            return [Config({"block": 29, "stages": 3, "swizzle": False}), Config({"block": 99})]

    asked = request()
    slow = Config({"block": 1, "stages": 1, "swizzle": False})
    due = DueWinner(asked.workload, asked.template, slow, (), asked.context, 50.0, None, "", ())
    check = WinnerCheck(due, asked, FakeModel(), Cached(), Predicted())  # type: ignore[arg-type]
    assert not check.to_lower
    default = asked.template.default_config(asked.workload, asked.target)
    best = {
        config
        for config in asked.space.configs()
        if config["stages"] == 3 and config["block"] in (29, 30, 31)
    }
    assert list(check.to_build)[:2] == [slow, default]
    assert len(check.to_build) == 5
    assert set(list(check.to_build)[2:]) <= best, "the first three of the model, which is blind for swizzle"
