"""The contract of all executors: the local one and, if Ray is installed, a cluster of two nodes."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.executors import (
    USUAL,
    FaultyToLower,
    FaultyToRun,
    Queue,
    candidate,
    is_gone,
    kinds,
    on_cluster,
    on_this_machine,
    products,
    results,
    wait_until,
)
from tests.support.preloaded import run_python
from tests.support.sample_kernels import ScaleTemplate
from tilesight.errors import Failure, FailureKind, ToolchainError
from tilesight.executor.jobs import (
    BuildDone,
    BuildJob,
    CompareDone,
    CompareJob,
    Event,
    Executor,
    Job,
    Lane,
    LowerDone,
    LowerJob,
    MeasureDone,
    MeasureJob,
)
from tilesight.executor.tasks import Profiled
from tilesight.records.trial import BuildResult
from tilesight.workers import TimeLimit

Make = Callable[[Path], Any]


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.full)])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes an executor, given its kernel cache."""
    return (
        on_this_machine
        if request.param == "local"
        else partial(on_cluster, request.getfixturevalue("cluster"))
    )


@pytest.fixture(scope="module")
def cache(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def executor(make: Make, cache: Path) -> Iterator[Executor]:
    """One executor for many tests, as a run has one for many sessions: no test may affect the next."""
    with make(cache) as made:
        yield made


@pytest.fixture(scope="module")
def built(executor: Executor) -> BuildResult:
    [result] = results(executor, BuildJob(candidate()))
    assert result.failure is None
    return result  # type: ignore[no-any-return]


def test_nothing_to_do_is_no_event(executor: Executor) -> None:
    assert Queue([]).run(executor) == []
    assert all(executor.width(lane) >= 1 for lane in Lane)
    assert list(executor.cached(products(1))) == []


def test_all_stages_from_lowering_to_the_comparison(executor: Executor, cache: Path) -> None:
    measured: list[MeasureDone] = []

    def follow(event: Event) -> Iterator[Job]:
        match event:
            case LowerDone(job, Profiled()):
                yield BuildJob(job.candidate)
            case BuildDone(job, result) if result.failure is None:
                yield MeasureJob(job.candidate, result, USUAL)
            case MeasureDone():
                measured.append(event)
                if len(measured) == 3:
                    yield CompareJob(tuple((m.job.candidate, m.job.build) for m in measured), USUAL)

    events = Queue(map(LowerJob, products(3)), follow).run(executor)
    assert [type(event) for event in events if isinstance(event, CompareDone)] == [CompareDone]
    assert [
        len([e for e in events if isinstance(e, kind)]) for kind in (LowerDone, BuildDone, MeasureDone)
    ] == [3, 3, 3]
    for event in events:
        match event:
            case LowerDone():
                assert isinstance(event.outcome, Profiled)
                assert event.outcome.kernels[0].kind == "cpu"
                assert len(event.outcome.fingerprint) == 16
            case BuildDone():
                assert event.result.artifact is not None
                library = Path(event.result.artifact)
                assert cache in library.parents, "the recorded library is not in this machine's cache"
                assert library.read_bytes().startswith(b"\x7fELF")
            case MeasureDone():
                assert event.measurement.failure is None
                assert event.measurement.relative_error is not None
                assert event.device_seconds > 0
            case CompareDone():
                assert not isinstance(event.found, Failure)
                assert [m.failure for m in event.found.measurements] == [None] * 3
                assert event.found.baselines
                assert event.found.decision is not None


def test_faults_of_candidates_are_data_and_other_jobs_go_on(executor: Executor, built: BuildResult) -> None:
    found = results(
        executor,
        LowerJob(candidate(FaultyToLower("raise"))),
        LowerJob(candidate(FaultyToLower("abort"))),
        LowerJob(candidate()),
        BuildJob(candidate(FaultyToLower("abort"))),
        BuildJob(candidate(fault="uncompilable")),
        BuildJob(candidate(block=256)),
        MeasureJob(candidate(FaultyToRun("abort")), built, USUAL),
        MeasureJob(candidate(), built, USUAL),
    )
    lower_error, lower_crash, lowered, build_crash, build_error, also_built, run_crash, measured = kinds(
        found
    )
    assert (lower_error, lower_crash, lowered) == (FailureKind.LOWER_ERROR, FailureKind.LOWER_CRASH, None)
    assert (build_crash, build_error, also_built) == (FailureKind.BUILD_CRASH, FailureKind.BUILD_ERROR, None)
    assert (run_crash, measured) == (FailureKind.RUN_CRASH, None)
    assert "layout conflict" in found[0].message
    assert re.search(r" \(executors\.py:\d+ in act\)$", found[0].message), "where the template raised"
    assert "SIGABRT" in found[1].message


def test_a_comparison_that_crashes_is_data(executor: Executor, built: BuildResult) -> None:
    crashing = candidate(FaultyToRun("abort"))
    crashed, compared = results(
        executor, CompareJob(((crashing, built),), USUAL), CompareJob(((candidate(), built),), USUAL)
    )
    assert kinds([crashed]) == [FailureKind.RUN_CRASH]
    assert compared.measurements[0].failure is None


def test_a_wrong_result_is_data(executor: Executor) -> None:
    wrong = candidate(fault="wrong")
    [build] = results(executor, BuildJob(wrong))
    assert kinds(results(executor, MeasureJob(wrong, build, USUAL))) == [FailureKind.WRONG_RESULT]


def test_a_candidate_that_cannot_be_sent_is_data(executor: Executor) -> None:
    template = ScaleTemplate()
    template.lock = threading.Lock()  # type: ignore[attr-defined]
    unsendable, lowered = results(executor, LowerJob(candidate(template)), LowerJob(candidate()))
    assert kinds([unsendable, lowered]) == [FailureKind.LOWER_ERROR, None]
    assert "lock" in unsendable.message


def test_jobs_are_drawn_as_there_is_room(executor: Executor, built: BuildResult) -> None:
    lowering, measuring = (
        Queue([LowerJob(candidate())] * 6),
        Queue([MeasureJob(candidate(), built, USUAL)] * 3),
    )
    for queue, lane in ((lowering, Lane.PREPARE), (measuring, Lane.DEVICE)):
        events = queue.run(executor)
        assert len(events) == queue.drawn
        assert queue.most_out[lane] <= executor.width(lane)


def test_leaving_early_ends_the_running_jobs(executor: Executor, tmp_path: Path, built: BuildResult) -> None:
    notes = tmp_path / "lowering", tmp_path / "running"
    endless = (
        LowerJob(candidate(FaultyToLower("hang", notes[0]))),
        MeasureJob(candidate(FaultyToRun("hang", notes[1])), built, USUAL),
    )
    for job, note in zip(endless, notes, strict=True):
        leave_early(executor, job, note)
        wait_until(lambda note=note: is_gone(int(note.read_text())))
    assert kinds(results(executor, LowerJob(candidate()), MeasureJob(candidate(), built, USUAL))) == [
        None,
        None,
    ]


def leave_early(executor: Executor, endless: Job, note: Path) -> None:
    """Start a job that never ends, and press Ctrl-C once it runs."""

    def interrupt() -> None:
        wait_until(note.exists)
        os.kill(os.getpid(), signal.SIGINT)

    # a command of a test before may have left a handler of its own
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt), closing(executor.stream(Queue([endless]))) as events:
        next(events)
    interrupter.join()


def test_a_hanging_job_is_stopped(
    make: Make, tmp_path: Path, built: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tilesight.executor.local.LIMITS", {LowerJob: 2.0, BuildJob: 60.0, MeasureJob: 2.0, CompareJob: 60.0}
    )
    monkeypatch.setattr("tilesight.executor.local.TimeLimit", partial(TimeLimit, floor_s=1.0))
    note = tmp_path / "pid"
    with make(tmp_path / "cache") as executor:
        found = results(
            executor,
            LowerJob(candidate(FaultyToLower("hang", note))),
            MeasureJob(candidate(FaultyToRun("hang")), built, USUAL),
        )
        assert kinds(found) == [FailureKind.LOWER_TIMEOUT, FailureKind.RUN_TIMEOUT]
        assert is_gone(int(note.read_text()))


def test_no_process_is_left_after_closing(
    make: Make, cache: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In a process of its own: the connection to a cluster belongs to the process, not to the executor."""
    note = tmp_path / "pid"
    address = request.getfixturevalue("cluster") if make is not on_this_machine else ""
    code = "import sys\nfrom tests.support.executors import lower_and_close\nlower_and_close(*sys.argv[1:])"
    done = run_python(
        "-c", code, address, cache, note, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == "", "Ray or workers have printed something"
    wait_until(lambda: is_gone(int(note.read_text())))


def test_what_this_machine_lacks_ends_the_run(make: Make, tmp_path: Path) -> None:
    """Whatever the candidate: there is no folder for kernels, or no device."""
    taken = tmp_path / "taken"
    taken.write_text("a file where the folder should be")
    with make(taken) as executor:
        with pytest.raises(ToolchainError, match="set TILESIGHT_CACHE_DIR"):
            results(executor, BuildJob(candidate()))
        with pytest.raises(ToolchainError, match="no device of that target"):
            results(executor, LowerJob(candidate(FaultyToLower("no device"))))
