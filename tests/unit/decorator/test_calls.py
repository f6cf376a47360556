"""Calls in threads, beside other processes and inside a capture, with fake sessions and kernels."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.decorator import user_kernels
from tilesight.decorator import Autotuned, Tuned, TunedSource, autotune, autotuned, call_kernels
from tilesight.errors import InputError, NoCandidateError
from tilesight.problem.space import Config
from tilesight.records.session import Effort
from tilesight.records.trial import Status
from tilesight.tuner.tuning_lock import tuning_lock

CONFIGS = [{"block": 16}, {"block": 32}]


class Line:
    """A fake of all that a call needs: `known` are the workloads of the database, by their dimension n."""

    def __init__(self) -> None:
        self.known: dict[int, Tuned] = {}
        self.sessions: list[int] = []
        self.tasks = 0
        self.built: list[tuple[int, TunedSource]] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.began = threading.Event()
        self.failure: Exception | None = None
        self.capturing = False
        self.asked: list[Any] = []

    def tuned(self, source: TunedSource, block: int = 32, result: Any = None) -> Tuned:
        return Tuned(
            Config({"block": block}), {"block": block}, source, Status.VERIFIED, latency_us=2.0, result=result
        )

    def task(self, function: Any, call: Any, choices: Any, *_: Any) -> Any:
        self.tasks += 1
        context = SimpleNamespace(key=f"context{call.named['n']}")
        workload = SimpleNamespace(label=f"n={call.named['n']}")
        return SimpleNamespace(n=call.named["n"], request=SimpleNamespace(context=context, workload=workload))

    def session(self, task: Any, *_: Any) -> Tuned:
        self.sessions.append(task.n)
        self.began.set()
        assert self.may_end.wait(20)
        if self.failure is not None:
            raise self.failure
        self.known[task.n] = self.tuned(TunedSource.DATABASE)
        return self.tuned(TunedSource.SESSION)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Line:
    made = Line()

    @contextmanager
    def store(_: Any) -> Iterator[None]:
        yield None

    def build(_function: Any, _options: Any, call: Any, tuned: Tuned) -> Any:
        made.built.append((call.named["n"], tuned.source))
        return SimpleNamespace(tilesight=tuned)

    monkeypatch.setattr(autotuned, "make_task", made.task)
    monkeypatch.setattr(call_kernels, "run_session", made.session)
    monkeypatch.setattr(
        call_kernels, "predict_only", lambda task: SimpleNamespace(n=-task.n, request=task.request)
    )
    monkeypatch.setattr(call_kernels, "checked_task", lambda task, _: task)
    monkeypatch.setattr(call_kernels, "find_recorded", lambda task, _: made.known.get(task.n))
    monkeypatch.setattr(call_kernels, "interim_choice", lambda *_: made.tuned(TunedSource.MODEL, 16))
    monkeypatch.setattr(call_kernels, "opened_store", store)
    monkeypatch.setattr(call_kernels, "is_capturing", lambda: made.capturing)
    monkeypatch.setattr(call_kernels, "build_kernel_of", build)
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path))
    return made


def decorated(**options: Any) -> Autotuned:
    made = autotune(configs=CONFIGS, target="cpu", **options)(user_kernels.add_factory)
    assert isinstance(made, Autotuned)
    return made


def together(count: int, call: Callable[[], Any]) -> list[Any]:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(call())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_a_forked_child_tunes_what_a_thread_of_its_parent_tunes(line: Line) -> None:
    add = autotune(configs=CONFIGS)(user_kernels.jitted_add())
    line.may_end.clear()
    tuner = threading.Thread(target=lambda: add(64))
    tuner.start()
    assert line.began.wait(20)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        line.may_end = threading.Event()
        line.may_end.set()
        try:
            os._exit(0 if add(64).tilesight.source is TunedSource.SESSION else 1)
        except BaseException:
            os._exit(2)
    line.may_end.set()
    tuner.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_one_thread_tunes_and_the_others_wait(line: Line) -> None:
    add = decorated()
    line.may_end.clear()
    threading.Timer(0.2, line.may_end.set).start()
    found = together(8, lambda: add(64))
    assert line.sessions == [64]
    assert len(found) == 8
    assert all(kernel is found[0] for kernel in found)
    assert found[0].tilesight.source is TunedSource.SESSION
    assert line.built == [(64, TunedSource.SESSION)]


def test_or_they_use_the_models_choice(line: Line) -> None:
    add = decorated(while_tuning="model")
    line.may_end.clear()
    first: list[Any] = []
    tuner = threading.Thread(target=lambda: first.append(add(64)))
    tuner.start()
    assert line.began.wait(20)
    meanwhile = [add(64), add(64)]
    assert [kernel.tilesight.source for kernel in meanwhile] == [TunedSource.MODEL, TunedSource.MODEL]
    assert meanwhile[0] is meanwhile[1], "built once"
    line.may_end.set()
    tuner.join(20)
    assert first[0].tilesight.source is TunedSource.SESSION
    assert add(64) is first[0]
    assert line.sessions == [64]


def test_other_arguments_do_not_wait(line: Line) -> None:
    add = decorated()
    line.known[128] = line.tuned(TunedSource.DATABASE)
    line.may_end.clear()
    tuner = threading.Thread(target=lambda: add(64))
    tuner.start()
    assert line.began.wait(20)
    assert add(128).tilesight.source is TunedSource.DATABASE
    line.may_end.set()
    tuner.join(20)


def test_a_final_kernel_is_not_looked_up_again(line: Line) -> None:
    add = decorated()
    first = add(64)
    assert add(64) is add(n=64) is add.compile(64) is first
    assert line.tasks == 1
    assert line.sessions == [64]
    assert add.choice(64).values == {"block": 32}


def test_a_session_that_fails_raises_and_is_tried_again(line: Line) -> None:
    add = decorated()
    line.failure = NoCandidateError("nothing worked")
    for _ in range(2):
        with pytest.raises(NoCandidateError, match="nothing worked"):
            add(64)
    line.failure = None
    assert add(64).tilesight.source is TunedSource.SESSION
    assert line.sessions == [64, 64, 64]


def test_the_database_answers_first(line: Line) -> None:
    line.known[64] = line.tuned(TunedSource.DATABASE)
    assert decorated()(64).tilesight.source is TunedSource.DATABASE
    assert line.sessions == []


def test_the_models_choice_on_a_miss(line: Line) -> None:
    decorated(on_miss="model")(64)
    assert line.sessions == [-64], "a session without a device"


def test_a_call_that_gives_a_tunable_argument_is_not_tuned(line: Line) -> None:
    kernel = decorated()(64, block=8)
    assert kernel.tilesight.source is TunedSource.GIVEN
    assert kernel.tilesight.values == {"block": 8}
    assert line.sessions == []
    with pytest.raises(InputError, match="block is given; leave it out"):
        decorated().tune(64, block=8)


def test_unspecialized_arguments_share_a_config_and_have_kernels_of_their_own(
    line: Line,
) -> None:
    add = autotune(configs=CONFIGS, target="cpu", do_not_specialize=["n"])(user_kernels.add_factory)
    assert add(64) is not add(128)
    assert line.sessions == [64]
    assert [n for n, _ in line.built] == [64, 128]


def test_each_unspecialized_argument_has_an_interim_kernel_of_its_own(line: Line) -> None:
    add = autotune(configs=CONFIGS, target="cpu", do_not_specialize=["n"], while_tuning="model")(
        user_kernels.add_factory
    )
    line.may_end.clear()
    tuner = threading.Thread(target=lambda: add(64))
    tuner.start()
    assert line.began.wait(20)
    kernels = [add(n) for n in (128, 256, 128)]
    assert kernels[0] is kernels[2] is not kernels[1]
    assert line.built == [(128, TunedSource.MODEL), (256, TunedSource.MODEL)]
    line.may_end.set()
    tuner.join(20)
    assert add(256).tilesight.source is TunedSource.SESSION
    assert line.built[-1] == (256, TunedSource.SESSION)


def test_never_inside_a_capture(line: Line) -> None:
    add = decorated()
    line.capturing = True
    with pytest.raises(
        InputError, match=r"inside a CUDA-graph capture, where nothing can be tuned; call it once"
    ):
        add(64)
    assert (line.sessions, line.built) == ([], [])
    line.capturing = False
    kernel = add(64)
    line.capturing = True
    tasks = line.tasks
    assert add(64) is kernel
    assert (line.tasks, line.built) == (tasks, [(64, TunedSource.SESSION)]), "nothing is traced or built"


def test_a_capture_uses_recorded_results_and_built_kernels(line: Line) -> None:
    add = decorated(while_tuning="model")
    line.capturing, line.known[64] = True, line.tuned(TunedSource.DATABASE)
    assert add(64).tilesight.source is TunedSource.DATABASE
    line.capturing = False
    line.may_end.clear()
    tuner = threading.Thread(target=lambda: add(128))
    tuner.start()
    assert line.began.wait(20)
    interim = add(128)
    line.capturing = True
    built = list(line.built)
    assert add(128) is interim
    assert line.built == built
    line.capturing = False
    line.may_end.set()
    tuner.join(20)


def test_another_process_is_waited_for(line: Line, tmp_path: Path) -> None:
    said: list[str] = []
    add = decorated(observer=SimpleNamespace(message=said.append))
    with tuning_lock(tmp_path, "context64", wait=False) as ours:
        assert ours
        found: list[Any] = []
        waiter = threading.Thread(target=lambda: found.append(add(64)))
        waiter.start()
        time.sleep(0.2)
        assert not found
        line.known[64] = line.tuned(TunedSource.DATABASE)  # what that process found
    waiter.join(20)
    assert found[0].tilesight.source is TunedSource.DATABASE
    assert line.sessions == []
    assert said
    assert "waiting for process" in said[0]


def test_or_its_result_is_used_once_it_is_recorded(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(call_kernels, "time", SimpleNamespace(monotonic=lambda: now[0]))
    add = decorated(while_tuning="model")
    with tuning_lock(tmp_path, "context64", wait=False):
        assert add(64).tilesight.source is TunedSource.MODEL
        for now[0] in (1000.1, 1000.9):
            assert add(64).tilesight.source is TunedSource.MODEL
        assert line.tasks == 1, "nobody is asked again within a second"
        now[0] = 1001.5
        assert add(64).tilesight.source is TunedSource.MODEL
        assert line.tasks == 2
    now[0] = 1003.0
    line.known[64] = line.tuned(TunedSource.DATABASE)
    assert add(64).tilesight.source is TunedSource.DATABASE
    assert line.built == [(64, TunedSource.MODEL), (64, TunedSource.DATABASE)]


@pytest.mark.usefixtures("line")
def test_functions_of_the_arguments_make_configs() -> None:
    asked: list[Any] = []

    def configs(*args: Any, **kwargs: Any) -> list[dict[str, int]]:
        asked.append((args, kwargs))
        return [{"block": args[0] // 4}]

    add = autotune(configs=configs, target="cpu")(user_kernels.add_factory)
    assert [dict(c) for c in add.space(64).configs()] == [{"block": 16}]
    assert [dict(c) for c in add.space(128).configs()] == [{"block": 32}]
    add(64)
    assert asked == [((64,), {}), ((128,), {})]


def test_methods_are_bound(line: Line) -> None:
    class Kernels:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @autotune(configs=CONFIGS, target="cpu")
        def scale(self, n: int, block: int = 16) -> Any:
            """Of the class."""

    ours = Kernels(3)
    assert ours.scale(64) is ours.scale(n=64) is ours.scale.compile(64)
    assert Kernels(4).scale(64) is not ours.scale(64), "another object may make another kernel"
    assert Kernels.scale.__doc__ == "Of the class."
    assert line.tasks == 2


def test_efforts_reach_the_task() -> None:
    assert decorated(effort="full")._options.effort is Effort.FULL
