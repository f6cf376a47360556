"""Sampling: when it stops, and what is retaken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tilesight.records.intervals import half_width
from tilesight.records.protocol import MeasurementProtocol
from tilesight.runner.conditions import Conditions, DeviceState, Sensor
from tilesight.runner.timers import Call, Stretch, Timer
from tilesight.runner.turns import collect_samples


class ScriptedTimer(Timer):
    """A timer with prepared turns that records the requested counts and durations of warm-ups."""

    def __init__(self, rows: Iterator[tuple[float, ...]], warm_up_ms: float = 0.01) -> None:
        self.rows, self.warm_up_ms = rows, warm_up_ms
        self.counts, self.warmed, self.released, self.rests = list[int](), list[float](), 0, 0

    def synchronize(self) -> None:
        pass

    def warm_up(self, call: Call, duration_ms: float) -> float:
        self.warmed.append(duration_ms)
        return self.warm_up_ms

    def stretch(self, call: Call) -> Stretch:
        return Stretch(call)

    def turns(
        self, stretches: Sequence[Stretch], count: int, meanwhile: Call | None = None
    ) -> list[tuple[float, ...]]:
        self.counts.append(count)
        if meanwhile is not None:
            meanwhile()
        return [next(self.rows)[: len(stretches)] for _ in range(count)]

    def release(self) -> None:
        self.released += 1

    def rest(self, busy_ms: float) -> None:
        self.rests += 1


class ScriptedSensor(Sensor):
    def __init__(self, *states: DeviceState) -> None:
        self.states = iter([*states, *[states[-1]] * 1000])

    def read_state(self) -> DeviceState | None:
        return next(self.states)

    def power_w(self) -> float | None:
        return None

    def temperature_c(self) -> float | None:
        return None

    def processes(self) -> list[int] | None:
        return None

    def busy_shares(self, seconds: float) -> dict[int, float] | None:
        return None


def forever(*times: float) -> Iterator[tuple[float, ...]]:
    while True:
        yield from ((time,) * 3 for time in times)


def nothing() -> None:
    pass


def test_steady_times_need_the_fewest_samples() -> None:
    taken = collect_samples(
        ScriptedTimer(forever(10.0)), [nothing], MeasurementProtocol(min_samples=20, max_samples=100)
    )
    assert taken.samples_us == ((10.0,) * 20,)
    assert not taken.stopped_early
    assert taken.retaken == 0


def test_noisy_times_need_more_up_to_the_bound() -> None:
    taken = collect_samples(
        ScriptedTimer(forever(10.0, 11.0, 12.0, 13.0, 14.0)),
        [nothing],
        MeasurementProtocol(min_samples=20, max_samples=90),
    )
    assert len(taken.samples_us[0]) == 90


def test_sampling_stops_once_the_interval_is_narrow() -> None:
    protocol = MeasurementProtocol(min_samples=20, max_samples=10_000, precision=0.004)
    (samples,) = collect_samples(
        ScriptedTimer(forever(9.9, 9.95, 10.0, 10.05, 10.1)), [nothing], protocol
    ).samples_us
    assert 20 < len(samples) < 400
    assert half_width(samples) <= 0.004 < half_width(samples[:-20])


def test_a_slow_call_gets_three_samples_and_no_more() -> None:
    timer = ScriptedTimer(forever(5e6), warm_up_ms=5000.0)
    assert collect_samples(timer, [nothing], MeasurementProtocol(max_ms=300)).samples_us == ((5e6,) * 3,)
    assert timer.counts == [3]


def test_all_calls_get_equally_many_samples() -> None:
    taken = collect_samples(
        ScriptedTimer(forever(1.0, 2.0, 3.0)),
        [nothing, nothing],
        MeasurementProtocol(min_samples=4, max_samples=12),
    )
    assert [len(samples) for samples in taken.samples_us] == [12, 12]
    assert collect_samples(ScriptedTimer(forever(1.0)), [], MeasurementProtocol()).samples_us == ()


def test_a_caller_may_require_more_samples() -> None:
    taken = collect_samples(
        ScriptedTimer(forever(1.0)),
        [nothing],
        MeasurementProtocol(max_samples=100),
        enough=lambda columns: len(columns[0]) >= 50,
    )
    assert len(taken.samples_us[0]) == 60


def test_each_warm_up_is_followed_by_a_rest() -> None:
    """Without rests, the warm-ups of several calls would together lower the clock."""
    timer = ScriptedTimer(forever(1.0))
    collect_samples(timer, [nothing] * 3, MeasurementProtocol())
    assert timer.rests == len(timer.warmed) == 6


def test_the_timer_is_released_after_an_error() -> None:
    timer = ScriptedTimer(iter([]))
    with pytest.raises(StopIteration):
        collect_samples(timer, [nothing], MeasurementProtocol())
    assert timer.released == 1


# rivals


def test_a_much_slower_call_costs_six_samples_and_no_warm_up() -> None:
    timer = ScriptedTimer(forever(16.0))
    taken = collect_samples(timer, [nothing], MeasurementProtocol(), rival_us=10.0)
    assert taken.stopped_early
    assert len(taken.samples_us[0]) == 6
    assert timer.warmed == [2.0]


def test_a_call_slower_by_more_than_a_tenth_is_stopped_after_the_warm_up() -> None:
    timer = ScriptedTimer(forever(11.5, 12.0, 12.5))
    taken = collect_samples(timer, [nothing], MeasurementProtocol(), rival_us=10.0)
    assert taken.stopped_early
    assert len(taken.samples_us[0]) == 20, "the first six were taken before it was warm"
    assert timer.warmed == [2.0, MeasurementProtocol().warmup_ms - 2.0]


@pytest.mark.parametrize("times", [(10.9, 10.95), (9.0,), (10.5, 12.0)])
def test_a_call_that_may_be_as_fast_is_measured_in_full(times: tuple[float, ...]) -> None:
    protocol = MeasurementProtocol(max_samples=40)
    plain = collect_samples(ScriptedTimer(forever(*times)), [nothing], protocol)
    taken = collect_samples(ScriptedTimer(forever(*times)), [nothing], protocol, rival_us=10.0)
    assert not taken.stopped_early
    assert taken.samples_us == plain.samples_us


# disturbances


def test_outliers_are_retaken_and_counted() -> None:
    rows = iter([(10.0,)] * 10 + [(50.0,)] + [(10.0 + i % 3 / 100,) for i in range(100)])
    taken = collect_samples(ScriptedTimer(rows), [nothing], MeasurementProtocol())
    assert max(taken.samples_us[0]) < 11
    assert len(taken.samples_us[0]) >= 20
    assert taken.retaken == 1


def test_turns_are_retaken_as_a_whole() -> None:
    rows = iter([(10.0, 1.0)] * 10 + [(10.0, 5.0)] + [(10.0, 1.0)] * 100)
    taken = collect_samples(ScriptedTimer(rows), [nothing, nothing], MeasurementProtocol())
    assert set(zip(*taken.samples_us, strict=True)) == {(10.0, 1.0)}


def test_a_call_that_is_often_slow_keeps_its_slow_samples() -> None:
    """A slowdown more frequent than disturbances belongs to the kernel."""
    protocol = MeasurementProtocol(min_samples=20, max_samples=80, retakes=4)
    taken = collect_samples(ScriptedTimer(forever(*[10.0] * 5, 20.0)), [nothing], protocol)
    assert taken.retaken == 0
    assert taken.samples_us[0].count(20.0) >= 3


def test_batches_with_a_dropped_clock_are_retaken() -> None:
    usual, dropped = DeviceState(1700.0), DeviceState(600.0)
    conditions = Conditions(ScriptedSensor(usual, usual, dropped, usual))
    collect_samples(ScriptedTimer(forever(10.0)), [nothing], MeasurementProtocol(), conditions)
    collect_samples(ScriptedTimer(forever(10.0)), [nothing], MeasurementProtocol(), conditions)
    rows = iter([(30.0,)] * 20 + [(10.0,)] * 20)
    taken = collect_samples(ScriptedTimer(rows), [nothing], MeasurementProtocol(), conditions)
    assert taken.samples_us == ((10.0,) * 20,)
    assert taken.retaken == 20
    assert taken.disturbed == 0


def test_samples_that_stay_disturbed_are_counted() -> None:
    usual, dropped = DeviceState(1700.0), DeviceState(600.0)
    conditions = Conditions(ScriptedSensor(*[usual] * 20, *[dropped] * 4, usual))
    for _ in range(20):
        collect_samples(ScriptedTimer(forever(10.0)), [nothing], MeasurementProtocol(), conditions)
    taken = collect_samples(ScriptedTimer(forever(30.0)), [nothing], MeasurementProtocol(), conditions)
    assert taken.disturbed == 1.0, "three batches were retaken, the fourth was kept"

    class Busy(ScriptedTimer):
        def turns(self, *arguments: Any) -> list[tuple[float, ...]]:
            self.disturbed += 5
            return super().turns(*arguments)

    assert collect_samples(Busy(forever(10.0)), [nothing], MeasurementProtocol()).disturbed == 0.25


def test_a_clock_that_stays_low_becomes_the_usual_clock() -> None:
    conditions = Conditions(ScriptedSensor(*[DeviceState(1700.0)] * 3, DeviceState(600.0)))
    for _ in range(3):
        collect_samples(ScriptedTimer(forever(10.0)), [nothing], MeasurementProtocol(), conditions)
    taken = collect_samples(ScriptedTimer(forever(30.0)), [nothing], MeasurementProtocol(), conditions)
    assert taken.samples_us == ((30.0,) * 20,)
    assert taken.retaken <= 60
    for _ in range(5):
        collect_samples(ScriptedTimer(forever(30.0)), [nothing], MeasurementProtocol(), conditions)
    assert (
        collect_samples(ScriptedTimer(forever(30.0)), [nothing], MeasurementProtocol(), conditions).retaken
        == 0
    ), "by now it is the usual clock"
