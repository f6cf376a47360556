"""Timers: turns, stretches and disturbed samples.

GPU timers run on a simulated device with a clock and a log.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tilesight.runner.timers import MAX_LAUNCHES, CpuTimer, GpuTimer, GraphTimer, Stretch


def nothing() -> None:
    pass


def test_calls_are_timed_in_turns_and_each_begins_once() -> None:
    order: list[str] = []
    stretches = [Stretch(lambda name=name: order.append(name)) for name in "abc"]
    rows = CpuTimer(0.0, 0).turns(stretches, 3)
    assert "".join(order) == "abc" + "bca" + "cab"
    assert [len(row) for row in rows] == [3, 3, 3]


def test_samples_are_in_the_order_of_the_calls() -> None:
    stretches = [Stretch(nothing), Stretch(lambda: time.sleep(0.01))]
    for short, long in CpuTimer(0.0, 0).turns(stretches, 2):
        assert short < 5000 < long


def test_short_calls_are_repeated_within_a_sample_and_the_time_is_that_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 0

    def two_us() -> None:
        nonlocal now_ns
        now_ns += 2000

    clock = SimpleNamespace(perf_counter_ns=lambda: now_ns, thread_time_ns=lambda: now_ns)
    monkeypatch.setattr("tilesight.runner.timers.time", clock)
    timer = CpuTimer(1000.0, 0)
    stretch = timer.stretch(two_us)
    assert stretch.launches == 500
    before = now_ns
    assert timer.turns([stretch], 1) == [(2.0,)]
    assert now_ns - before == 500 * 2000


def test_meanwhile_is_called_once() -> None:
    calls_meanwhile: list[int] = []
    CpuTimer(0.0, 0).turns([Stretch(nothing)], 5, lambda: calls_meanwhile.append(1))
    assert calls_meanwhile == [1]


@pytest.mark.parametrize(
    ("takes", "expected", "left"),
    [
        ([(30.0, 0.5), (10.0, 0.0), (99.0, 0.0)], 10.0, 1),  # the first that was not disturbed
        ([(10.2, 0.019), (99.0, 0.0)], 10.2, 1),  # a little is no disturbance
        ([(30.0, 0.6), (20.0, 0.4), (25.0, 0.5), (99.0, 0.0)], 20.0, 1),  # the least disturbed, when all were
    ],
)
def test_disturbed_samples_are_retaken(
    takes: list[tuple[float, float]], expected: float, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer, given = CpuTimer(0.0, retakes=2), iter(takes)
    monkeypatch.setattr(timer, "_once", lambda *_: next(given))
    assert timer._sample(nothing, 1) == expected
    assert len(list(given)) == left
    assert timer.retaken == len(takes) - left - 1
    assert timer.disturbed == (expected == 20.0)


@pytest.mark.parametrize(("forced", "least", "most"), [(0, 0.0, 0.0), (1, 0.5, 1.0)])
def test_a_voluntary_wait_is_no_disturbance(
    forced: int, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waits for other threads is off its core too; only forced switches count."""
    counts = iter([0, forced])
    monkeypatch.setattr("tilesight.runner.timers._forced_switches", lambda: next(counts))
    time_us, disturbed = CpuTimer._once(lambda: time.sleep(0.02), 1)
    assert time_us >= 20_000
    assert least <= disturbed <= most


# GPUs


class SimulatedGpu:
    """The part of torch that timers use, with simulated times in us and a log of the work.

    Work goes into the graph while one is captured.
    """

    def __init__(self) -> None:
        self.now_us, self.log, self.capturing = 0.0, list[str](), None
        self.graphs: list[Any] = []
        played = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_us = played.now_us

            def elapsed_time(self, end: Any) -> float:
                return (end.at_us - self.at_us) / 1e3

        class CUDAGraph:
            def __init__(self) -> None:
                self.work, self.is_reset = list[tuple[str, float]](), False
                played.graphs.append(self)

            def capture_begin(self, capture_error_mode: str) -> None:
                assert capture_error_mode == "thread_local"
                played.capturing = self

            def capture_end(self) -> None:
                played.capturing = None

            def replay(self) -> None:
                assert not self.is_reset
                played.log.append("replay")
                for _, time_us in self.work:
                    played.now_us += time_us

            def reset(self) -> None:
                self.is_reset = True

        self.torch = SimpleNamespace(
            int8="int8",
            empty=lambda size, **_: SimpleNamespace(zero_=lambda: self.work(f"flush {size}", 30.0)),
            cuda=SimpleNamespace(
                Event=Event,
                CUDAGraph=CUDAGraph,
                Stream=lambda: "side",
                set_stream=lambda stream: self.log.append(f"stream {stream}"),
                synchronize=lambda: self.log.append("synchronize"),
            ),
        )

    def work(self, name: str, time_us: float) -> None:
        if self.capturing is not None:
            self.capturing.work.append((name, time_us))
        else:
            self.log.append(name)
            self.now_us += time_us


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    played = SimulatedGpu()
    monkeypatch.setitem(sys.modules, "torch", played.torch)
    return played


def test_each_eager_sample_follows_an_untimed_flush(gpu: SimulatedGpu) -> None:
    stretches = [Stretch(lambda: gpu.work("a", 10.0)), Stretch(lambda: gpu.work("b", 20.0))]
    rows = GpuTimer(99).turns(stretches, 2, lambda: gpu.log.append("meanwhile"))
    assert rows == [pytest.approx((10.0, 20.0))] * 2
    lead = ["flush 99", "a"]  # not timed: the host gets ahead of the device
    assert gpu.log == [
        *lead,
        *("flush 99", "a", "flush 99", "b"),
        *("flush 99", "b", "flush 99", "a"),
        "meanwhile",
        "synchronize",
    ]


def test_a_gpu_rests_between_bursts_and_not_within_them(
    gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: gpu.log.append(f"rest {1e3 * seconds:g}"))
    timer = GpuTimer(0, burst_ms=8.0, rest=2.0)
    stretch = Stretch(lambda: gpu.work("a", 3000.0), busy_ms=3.0)
    assert timer.turns([stretch], 5) == [pytest.approx((3000.0,))] * 5
    burst = ["a"] * 3  # the first is not timed
    assert gpu.log == [
        *burst,
        "synchronize",
        "rest 18",
        *burst,
        "synchronize",
        "rest 18",
        "a",
        "a",
        "synchronize",
    ]
    gpu.log.clear()
    timer.turns([stretch], 2)
    assert gpu.log == ["a", "a", "synchronize", "rest 24", "a", "a", "synchronize"], "the last burst goes on"


def test_without_a_rest_in_the_protocol_the_gpu_never_rests(
    gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it rested"))
    timer = GraphTimer(400.0)
    timer.rest(1000.0)
    timer.turns([Stretch(lambda: gpu.work("a", 3000.0), busy_ms=3000.0)], 5)


def test_a_graph_has_enough_launches_for_a_stretch(gpu: SimulatedGpu) -> None:
    timer = GraphTimer(400.0)
    assert gpu.log == ["stream side"]
    stretch = timer.stretch(lambda: gpu.work("a", 7.0))
    assert stretch.launches == len(gpu.graphs[0].work) == 58
    assert timer.turns([stretch], 3) == [pytest.approx((7.0,))] * 3
    assert timer.stretch(lambda: gpu.work("long", 5000.0)).launches == 1
    assert timer.stretch(lambda: gpu.work("nothing", 0.0)).launches == MAX_LAUNCHES


def test_an_untimed_replay_warms_the_cache(gpu: SimulatedGpu) -> None:
    timer = GraphTimer(10.0)
    one, other = timer.stretch(lambda: gpu.work("a", 10.0)), timer.stretch(lambda: gpu.work("b", 10.0))
    gpu.log.clear()
    timer.turns([one], 3)
    assert gpu.log.count("replay") == 4, "the replay before is the warm-up of the next"
    gpu.log.clear()
    timer.turns([one, other], 3)
    assert gpu.log.count("replay") == 12, "another call ran in between"


def test_after_a_failed_capture_the_timer_is_broken(gpu: SimulatedGpu) -> None:
    timer = GraphTimer(100.0)

    def refused() -> None:
        gpu.work("a", 10.0)
        if gpu.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        timer.stretch(refused)
    assert timer.broken
    assert gpu.capturing is None


def test_graphs_are_released(gpu: SimulatedGpu) -> None:
    timer = GraphTimer(100.0)
    timer.stretch(lambda: gpu.work("a", 10.0))
    timer.release()
    timer.release()
    assert [graph.is_reset for graph in gpu.graphs] == [True]
    assert not timer.broken
