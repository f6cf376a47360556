"""The Python interface, with a line that answers from a formula; and once for real, on this machine's
processor.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

import tilesight
from tests.support.fakes import AxpyTemplate, FakeExecutor, failing
from tests.support.preloaded import run_python
from tests.unit.conftest import FakeLine
from tilesight.errors import (
    ConfigError,
    DatabaseError,
    DatabaseReadOnlyError,
    Failure,
    FailureKind,
    InputError,
    NoCandidateError,
    ToolchainError,
    UnknownNameError,
    WorkloadError,
)
from tilesight.executor.local import LocalExecutor
from tilesight.machine.devices import Device
from tilesight.problem.space import Config, Constraint, SearchSpace
from tilesight.problem.workload import Workload
from tilesight.records.session import Effort, SessionResult, SessionState
from tilesight.records.trial import Status
from tilesight.target.spec import Target
from tilesight.tuner.request import EFFORT_LIMITS, EffortLimits

H200 = Device("NVIDIA H200", "GPU-1", "580.159", "cuda", 0, 1 << 37)
LEGAL = 200


def tune(**changes: object) -> SessionResult:
    return tilesight.tune("axpy", **{"target": "cpu", "shape": "X0", **changes})[0]  # type: ignore[arg-type]


def test_first_call_works_second_answers_from_the_database(fake_line: FakeLine) -> None:
    first = tune()
    assert first.is_measured
    assert not first.from_database
    assert fake_line.executor.is_closed
    second = tune()
    assert second.from_database
    assert fake_line.executors_made == 1
    assert [t.config for t in second.trials] == [t.config for t in first.trials]
    assert [t.measured_us for t in second.trials] == [t.measured_us for t in first.trials]
    assert second.baselines == first.baselines
    assert second.census == first.census
    assert second.state is SessionState.COMPLETE


@pytest.mark.usefixtures("fake_line")
def test_layers_answer_and_stay_as_they_are(tmp_path: Path) -> None:
    team, own = tmp_path / "team.db", str(tmp_path / "own.db")
    first = tune(database=str(team))
    tilesight.rank("axpy", "cpu", "X0", database=str(team))
    before = team.read_bytes()
    found = tune(database=own, layers=[str(team)])
    assert found.from_database
    assert [t.measured_us for t in found.trials] == [t.measured_us for t in first.trials]
    [ranked] = tilesight.rank("axpy", "cpu", "X0", database=own, layers=[str(team)])
    assert ranked.from_database
    assert not tune(database=own, layers=[]).from_database, "nothing of the layer went into the user's own"
    assert team.read_bytes() == before


@pytest.mark.usefixtures("fake_line")
def test_every_call_takes_layers(tmp_path: Path) -> None:
    missing = [str(tmp_path / "missing.db")]
    for call in (
        lambda: tilesight.tune("axpy", "cpu", "X0", layers=missing),
        lambda: tilesight.rank("axpy", "cpu", "X0", layers=missing),
        lambda: tilesight.explain("axpy", "cpu", "X0", layers=missing),
        lambda: tilesight.plan("axpy", "n=1..64", "cpu", effort="predict", layers=missing),
        lambda: tilesight.tune_misses(None, "cpu", layers=missing),
    ):
        with pytest.raises(DatabaseError, match=r"layer .*missing\.db"):
            call()


@pytest.mark.usefixtures("fake_line")
def test_a_lower_effort_is_answered_by_a_higher_one() -> None:
    tune(effort="full")
    assert tune(effort="quick").from_database
    assert not tune(effort="exhaustive").from_database


@pytest.mark.usefixtures("fake_line")
def test_another_shape_is_another_session() -> None:
    tune()
    assert not tune(shape="X1").from_database
    assert not tune(shape={"n": 77}).from_database
    assert tune(shape="n=77").from_database


def test_a_changed_space_is_no_answer_but_keeps_what_was_measured(
    fake_line: FakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tune(effort="exhaustive")
    assert first.best is not None
    banned, before = first.best.config, AxpyTemplate.space

    def narrower(self: AxpyTemplate, workload: Workload, target: Target) -> SearchSpace:
        wide = before(self, workload, target)
        return SearchSpace(
            wide.parameters,
            [*wide.constraints, Constraint("ban", lambda c: "banned" if dict(c) == dict(banned) else None)],
        )

    monkeypatch.setattr(AxpyTemplate, "space", narrower)
    second = fake_line.executor = FakeExecutor()
    result = tune(effort="exhaustive")
    assert not result.from_database
    assert banned not in {trial.config for trial in result.trials}
    assert result.census.legal == first.census.legal - 1
    assert second.done["lower"] == second.done["measure"] == []
    assert tune(effort="exhaustive").from_database
    monkeypatch.setattr(AxpyTemplate, "space", before)
    assert tune(effort="exhaustive").trials == first.trials


def test_rank_measures_nothing_and_tune_goes_on_from_it(fake_line: FakeLine) -> None:
    ranked = tilesight.rank("axpy", "cpu", "X0")[0]
    assert not ranked.is_measured
    assert ranked.effort is Effort.PREDICT
    assert len(fake_line.executor.done["lower"]) == EFFORT_LIMITS[Effort.PREDICT].explore
    fake_line.executor = FakeExecutor()
    assert tune().is_measured
    assert fake_line.executor.done["lower"] == []
    assert fake_line.model.calls == EFFORT_LIMITS[Effort.PREDICT].explore


def test_a_glance_lowers_little_and_a_greater_effort_answers_it(fake_line: FakeLine) -> None:
    glanced = tilesight.rank("axpy", "cpu", "X0", effort="glance")[0]
    assert (glanced.effort, glanced.is_measured) == (Effort.GLANCE, False)
    assert len(fake_line.executor.done["lower"]) == 24
    assert fake_line.executor.done["build"] == []
    assert tune(effort="glance").from_database
    ranked = tilesight.rank("axpy", "cpu", "X0")[0]
    assert (ranked.effort, ranked.from_database) == (Effort.PREDICT, False)
    assert len(fake_line.executor.done["lower"]) == EFFORT_LIMITS[Effort.PREDICT].explore
    again = tune(effort="glance")
    assert again.from_database
    for effort in ("build", "quick"):
        with pytest.raises(
            InputError, match=f"builds and measures nothing: effort '{effort}' is one of tune"
        ):
            tilesight.rank("axpy", "cpu", "X0", effort=effort)
    with pytest.raises(InputError, match="a plan has no effort 'glance': take one of predict, quick, full"):
        tilesight.plan("matmul", vary="m=1..8", target="cpu", effort="glance")


def test_effort_build_is_for_gpus_that_have_a_compiler_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InputError, match="for GPUs: a compiler for target cpu reports no registers"):
        tilesight.tune("matmul", "cpu", "m=64,n=64,k=64", effort="build")
    with pytest.raises(InputError, match="for GPUs: a compiler for target cpu reports no registers"):
        tilesight.bench(["matmul:S512"], "cpu", effort="build")
    with pytest.raises(InputError, match="effort build builds on this machine: leave out cluster 'local'"):
        tilesight.tune("matmul", "h200", "M0", effort="build", cluster="local")
    monkeypatch.setattr("tilesight.machine.toolchain.compiler_for", lambda *_: None)
    with pytest.raises(ToolchainError, match=r"needs nvcc, .*Predictions need no compiler: --effort predict"):
        tilesight.tune("matmul", "h200", "M0", effort="build")


def test_interrupted_call_goes_on(fake_line: FakeLine) -> None:
    counter = itertools.count(1)

    def interrupt(stage: str, _config: Config) -> Failure | None:
        if stage == "measure" and next(counter) == 6:
            raise KeyboardInterrupt
        return None

    first = fake_line.executor = FakeExecutor(interrupt)
    with pytest.raises(KeyboardInterrupt):
        tune()
    assert first.is_closed
    second = fake_line.executor = FakeExecutor()
    result = tune()
    assert result.state is SessionState.COMPLETE
    assert second.done["lower"] == []
    assert set(second.done["measure"]).isdisjoint(first.done["measure"])
    assert len(first.done["measure"]) + len(second.done["measure"]) == 16
    assert tune().from_database


def test_several_shapes_in_order_each_once(fake_line: FakeLine) -> None:
    results = tilesight.tune("axpy", "cpu", ["X1", "X0", "n=4096"])
    assert [r.context.workload.dims["n"] for r in results] == [4096, 1024]
    assert fake_line.executors_made == 1


@pytest.mark.usefixtures("fake_line")
def test_default_shapes() -> None:
    assert [r.context.workload.name for r in tilesight.tune("axpy", "cpu")] == ["X0"]


def test_no_gpu_is_said_and_nothing_is_measured(fake_line: FakeLine) -> None:
    result = tune(target="h100")
    assert not result.is_measured
    assert result.baselines == ()
    assert "no GPU was found here" in result.messages[0]
    assert fake_line.executor.done["build"] == []
    assert tune(target="h100").messages == result.messages


@pytest.mark.usefixtures("fake_line")
def test_another_gpu_is_not_taken_for_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesight.machine.placement.find_devices", lambda: [H200])
    result = tune(target="h100")
    assert not result.is_measured
    assert "'NVIDIA H200'" in result.messages[0]
    assert "--target h200" in result.messages[0]
    measured = tune(target="h200")
    assert measured.is_measured
    assert measured.context.device == "NVIDIA H200"


@pytest.mark.usefixtures("fake_line")
def test_auto_names_the_gpu_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesight.machine.placement.find_devices", lambda: [H200])
    assert tune(target="auto").context.target == "h200"


@pytest.mark.usefixtures("fake_line")
def test_auto_without_a_gpu_says_what_to_do() -> None:
    with pytest.raises(ToolchainError, match=r"no GPU was found here.*target 'cpu'.*h100"):
        tune(target="auto")


@pytest.mark.usefixtures("fake_line")
def test_auto_with_an_unknown_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tilesight.machine.placement.find_devices",
        lambda: [Device("NVIDIA T4", "GPU-2", "580", "cuda", 0, 1 << 34)],
    )
    with pytest.raises(ToolchainError, match=r"'NVIDIA T4'.*describe it in a file"):
        tune(target="auto")


@pytest.mark.usefixtures("fake_line")
def test_device_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tilesight.machine.placement.missing_compiler",
        lambda target: f"building for {target.name} needs nvcc",
    )
    with pytest.raises(ToolchainError, match=r"needs nvcc.*--effort predict"):
        tune()
    assert not tune(effort="predict").is_measured


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shape": "X9"}, UnknownNameError, "did you mean X1 or X0"),
        ({"shape": "k=3"}, UnknownNameError, "unknown axpy dimension 'k'"),
        ({"shape": {"n": 0}}, WorkloadError, "n=0 must lie in"),
        ({"shape": "n=two"}, WorkloadError, "whole number"),
        ({"shape": []}, InputError, "no shape was given"),
        (
            {"shape": [64]},
            InputError,
            r"shape 64 must be text \('n=...,...' or a published name\) or a mapping of n",
        ),
        ({"dtype": "int3"}, WorkloadError, "int3"),
        ({"target": "h20"}, UnknownNameError, "did you mean h200"),
        ({"effort": "hard"}, UnknownNameError, "unknown effort 'hard'"),
        ({"budget_s": 0}, InputError, "budget 0 must be"),
        ({"budget_s": float("nan")}, InputError, "budget nan must be"),
        ({"workers": 0}, InputError, "workers=0"),
        ({"sampler": "tep"}, UnknownNameError, "did you mean tpe"),
        ({"database": "mysql://x/y"}, InputError, "mysql"),
    ],
)
def test_wrong_input(
    fake_line: FakeLine, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tune(**arguments)
    assert fake_line.executor.done["lower"] == []


@pytest.mark.usefixtures("fake_line")
def test_unknown_kernel() -> None:
    with pytest.raises(UnknownNameError, match="did you mean axpy"):
        tilesight.tune("axpi", "cpu")


def test_read_only_database_is_noticed_before_any_work(fake_line: FakeLine, tmp_path: Path) -> None:
    path = tmp_path / "ro.db"
    tune(database=str(path))
    work = fake_line.executor = FakeExecutor()
    # by its URL: who runs the tests may be root, and write what file modes forbid
    with pytest.raises(DatabaseReadOnlyError):
        tune(database=f"sqlite:///file:{path}?mode=ro&uri=true", shape="X1")
    assert work.done["lower"] == []


def test_an_unwritable_kernel_cache_is_noticed_before_any_work(
    fake_line: FakeLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_real_processes(patch: pytest.MonkeyPatch) -> None:
        patch.setattr("tilesight.executor.local.LocalExecutor", LocalExecutor)
        patch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "file/cache"))

    (tmp_path / "file").touch()
    with monkeypatch.context() as patch:
        with_real_processes(patch)
        with pytest.raises(ToolchainError, match=r"kernel cache '.*file/cache': .*; set TILESIGHT_CACHE_DIR"):
            tune()
    assert fake_line.executor.done["lower"] == []
    tune(effort="predict")  # builds nothing
    first = tune()
    with_real_processes(monkeypatch)
    assert tune().best == first.best  # known


def test_nothing_works(fake_line: FakeLine) -> None:
    fake_line.executor = FakeExecutor(failing(FailureKind.LOWER_ERROR, "lower"))
    with pytest.raises(NoCandidateError, match="lower_error: lower failed"):
        tune()
    again = fake_line.executor = FakeExecutor()
    with pytest.raises(NoCandidateError, match="lower_error"):
        tune()
    assert again.done["lower"] == []


def test_one_hopeless_shape_does_not_stop_the_others(fake_line: FakeLine) -> None:
    def broken(_stage: str, _config: Config) -> Failure | None:
        return (
            Failure(FailureKind.LOWER_ERROR, "hopeless")
            if len(fake_line.executor.done["lower"]) < LEGAL
            else None
        )

    fake_line.executor = FakeExecutor(broken)
    with pytest.raises(NoCandidateError, match=r"axpy X1.*hopeless"):
        tilesight.tune("axpy", "cpu", ["X1", "X0"])
    assert tune().from_database


@pytest.mark.usefixtures("fake_line")
def test_explains_the_best_by_default() -> None:
    found = tilesight.explain("axpy", "cpu", "X0")
    assert found.best is None
    assert found.this.config is not None
    assert found.this.config["block"] == 30
    assert found.this.prediction.limiting == "vector"
    assert found.this.second_cost == "vector"
    assert [(u.resource, u.share) for u in found.this.uses] == [("vector", 0.5), ("dram", 0.25)]
    assert found.this.requested[0].quantities == {"vector_ops": 4 * 300.0}  # four iterations
    assert found.this.launch["pipeline_depth"] == 3


@pytest.mark.usefixtures("fake_line")
def test_explains_why_a_config_loses() -> None:
    found = tilesight.explain("axpy", "cpu", "X0", config="block=10,stages=1,swizzle=false")
    assert found.best is not None
    differences = {(d.kind, d.name): (d.this, d.best) for d in found.differences}
    assert differences["parameter", "block"] == (10, 30)
    assert differences["launch", "pipeline_depth"] == (1, 3)
    slow, fast = differences["term", "vector"]
    assert isinstance(slow, float)
    assert isinstance(fast, float)
    assert slow > fast
    assert differences["quantity", "vector_ops"] == (64 * 400.0, 64 * 1200.0)
    assert ("term", "launch") not in differences


@pytest.mark.usefixtures("fake_line")
def test_explains_against_the_fastest_measured() -> None:
    best = tune().best
    found = tilesight.explain("axpy", "cpu", "X0", config={"block": 29, "stages": 3, "swizzle": True})
    assert best is not None
    assert found.best is not None
    assert (found.best.config, found.best.measured_us) == (best.config, best.measured_us)
    assert found.this.measured_us == 11.0


@pytest.mark.usefixtures("fake_line")
def test_explain_refuses_an_illegal_config() -> None:
    with pytest.raises(ConfigError, match=r"must be even for stages=2.*Nearest legal: block=1"):
        tilesight.explain("axpy", "cpu", "X0", config="block=11,stages=2,swizzle=true")


def test_names_are_complete() -> None:
    assert all(getattr(tilesight, name) is not None for name in tilesight.__all__)
    assert set(tilesight.__all__) - {"__version__"} == set(tilesight._HOME_OF)
    with pytest.raises(AttributeError, match="no attribute 'tun'"):
        tilesight.tun  # noqa: B018


@pytest.fixture
def small_quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setattr(
        "tilesight.tuner.loop.EFFORT_LIMITS",
        {**EFFORT_LIMITS, Effort.QUICK: EffortLimits(6, 2), Effort.PREDICT: EffortLimits(6, 0)},
    )
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return str(tmp_path / "real.db")


@pytest.mark.usefixtures("shared_executor")
def test_whole_line_on_this_processor(small_quick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real session: lowered, predicted, built, measured beside torch; then answered from the database."""
    first = tilesight.tune("matmul", "cpu", "m=128,n=128,k=128", database=small_quick)[0]
    best = first.best
    assert best is not None
    assert best.status is Status.VERIFIED
    assert best.prediction is not None
    assert best.measurement is not None
    assert best.measurement.relative_error is not None
    assert best.measurement.relative_error < 1e-5
    assert first.context.device
    assert first.baselines
    assert sum(t.measurement is not None for t in first.trials) == 2

    monkeypatch.setattr(
        "tilesight.workers.supervisor.Supervisor.start_worker",
        lambda _self: pytest.fail("a worker was started"),
    )
    second = tilesight.tune("matmul", "cpu", "m=128,n=128,k=128", database=small_quick)[0]
    assert second.from_database
    assert second.best == best


def test_predicts_any_prim_func(tmp_path: Path) -> None:
    """In a process of its own, from a file: TileLang reads the source of what it traces."""
    code = """
import tilelang
import tilelang.language as T
import tilesight

def copy(n):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(n // 1024, threads=256) as block:
            for i in T.Parallel(1024):
                B[block * 1024 + i] = A[block * 1024 + i]
    return main

found = [tilesight.predict(copy(1 << 24), name) for name in ("h200", "a100", "mi300x")]
assert all(p.limiting == "dram" for p in found), found
# 128 MiB cross device memory
assert all(p.latency_us > 2 * 4 * 2**24 / 5.4e6 for p in found), found
assert found[0].latency_us < found[1].latency_us
"""
    script = tmp_path / "copy_kernel.py"
    script.write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = run_python(script, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
