"""Sampling, and how a measuring process behaves when things go wrong."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sample_kernels import Scale, scale

from tilesight import bench as bench_module
from tilesight.bench import bench_for
from tilesight.build import build_kernel
from tilesight.candidate import Candidate
from tilesight.errors import Failure, FailureKind, ToolchainError
from tilesight.measure import measure_kernel, measure_together
from tilesight.target import load_target
from tilesight.template import Tensors
from tilesight.timing import Call, CpuTimer, Protocol, Timer, collect, median_error
from tilesight.trial import BuildResult
from tilesight.worker_process import _State
from tilesight.workload import Workload

FAST = Protocol(warmup_ms=0.1, min_samples=3, max_samples=3, flush_l2=False, min_sample_us=1.0)


class ScriptedTimer(Timer):
    """Gives prepared times, and notes how many samples were asked for at once."""

    def __init__(self, times: Iterator[float], warm_up_ms: float = 0.01) -> None:
        self.times, self.warm_up_ms, self.asked = times, warm_up_ms, list[int]()

    def synchronize(self) -> None:
        pass

    def warm_up(self, call: Call, duration_ms: float) -> float:
        return self.warm_up_ms

    def rounds(self, calls: Sequence[Call], count: int) -> list[list[float]]:
        self.asked.append(count)
        return [[next(self.times) for _ in range(count)] for _ in calls]


def forever(*values: float) -> Iterator[float]:
    while True:
        yield from values


def nothing() -> None:
    pass


def test_steady_times_need_the_least_samples() -> None:
    (samples,) = collect(ScriptedTimer(forever(10.0)), [nothing], Protocol(min_samples=20, max_samples=100))
    assert samples == [10.0] * 20


def test_noisy_times_need_more_up_to_the_bound() -> None:
    (samples,) = collect(ScriptedTimer(forever(10.0, 20.0, 30.0)), [nothing], Protocol(min_samples=20, max_samples=90))
    assert len(samples) == 90


def test_sampling_stops_once_the_median_is_known() -> None:
    protocol = Protocol(min_samples=20, max_samples=10_000, precision=0.01)
    (samples,) = collect(ScriptedTimer(forever(9.5, 10.0, 10.5)), [nothing], protocol)
    assert 20 < len(samples) < 200
    assert median_error(samples) <= 0.01 < median_error(samples[:-20])


def test_a_slow_call_gets_three_samples_and_no_more() -> None:
    timer = ScriptedTimer(forever(5e6), warm_up_ms=5000.0)
    assert collect(timer, [nothing], Protocol(max_ms=300)) == [[5e6] * 3]
    assert timer.asked == [3]


def test_all_calls_get_equally_many_samples() -> None:
    samples = collect(ScriptedTimer(forever(1.0, 2.0, 3.0)), [nothing, nothing], Protocol(min_samples=4, max_samples=12))
    assert [len(s) for s in samples] == [12, 12]
    assert collect(ScriptedTimer(forever(1.0)), [], Protocol()) == []


def test_outliers_do_not_count() -> None:
    assert median_error([10.0] * 30 + [1000.0]) == 0.0
    assert median_error([10.0, 10.0]) == math.inf


def test_calls_are_timed_in_turns_and_each_begins_once() -> None:
    order: list[str] = []
    calls = [lambda name=name: order.append(name) for name in "abc"]
    CpuTimer(0.0, 0).rounds(calls, 3)
    assert "".join(order[3:]) == "abc" + "bca" + "cab", "the first three calls only find out how long one takes"


def test_short_calls_are_repeated_within_a_sample() -> None:
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    CpuTimer(1000.0, 0).rounds([count], 1)
    assert calls > 100


@pytest.mark.parametrize(
    ("takes", "kept", "left"),
    [
        ([(30.0, 0.5), (10.0, 0.0), (99.0, 0.0)], 10.0, 1),  # the first that was not disturbed
        ([(10.2, 0.019), (99.0, 0.0)], 10.2, 1),  # a little is no disturbance
        ([(30.0, 0.6), (20.0, 0.4), (25.0, 0.5), (99.0, 0.0)], 20.0, 1),  # the least disturbed, when all were
    ],
)
def test_disturbed_samples_are_taken_again(
    takes: list[tuple[float, float]], kept: float, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer, given = CpuTimer(0.0, retakes=2), iter(takes)
    monkeypatch.setattr(timer, "_once", lambda *_: next(given))
    assert timer._sample(nothing, 1) == kept
    assert len(list(given)) == left


@pytest.mark.parametrize(("forced", "least", "most"), [(0, 0.0, 0.0), (1, 0.5, 1.0)])
def test_waiting_by_its_own_will_is_no_disturbance(forced: int, least: float, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for its helpers is off its core as well; only being put off it counts."""
    counts = iter([0, forced])
    monkeypatch.setattr("tilesight.timing._forced_switches", lambda: next(counts))
    time_us, disturbed = CpuTimer._once(lambda: time.sleep(0.02), 1)
    assert time_us >= 20_000
    assert least <= disturbed <= most


def test_a_protocol_is_recorded_as_plain_values() -> None:
    record = Protocol.of(load_target("h200")).record()
    assert record["flush_l2"] is True
    assert all(isinstance(value, str | int | float | bool) for value in record.values())
    assert Protocol.of(load_target("cpu")).flush_l2 is False


# a measuring process


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    result = build_kernel(scale(), tmp_path_factory.mktemp("cache"))
    assert result.artifact, result.failure
    return result


@pytest.fixture(autouse=True)
def fresh_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    bench_module._bench.cache_clear()
    monkeypatch.setattr(_State, "retires", False)


def test_inputs_and_reference_stay_for_the_next_kernel(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Workload] = []
    plain = Scale.reference

    def counted(self: Scale, workload: Workload, inputs: Tensors) -> object:
        made.append(workload)
        return plain(self, workload, inputs)

    monkeypatch.setattr(Scale, "reference", counted)
    for _ in range(2):
        assert measure_kernel(built, scale(), FAST).failure is None
    assert len(made) == 1
    bench = bench_for(load_target("cpu"), FAST)
    bench.case(Scale(), Scale().workload("n=8"), 0)
    bench.case(Scale(), Scale().workload("n=8"), 1)
    assert len(made) == 3


def test_inputs_are_made_anew_after_a_failure(tmp_path: Path) -> None:
    """A kernel that went wrong may have written over them."""
    wrong = scale(fault="wrong")
    assert measure_kernel(build_kernel(wrong, tmp_path), wrong, FAST).failure is not None
    assert bench_for(load_target("cpu"), FAST)._case is None
    assert not _State.retires


def test_a_spoiled_device_asks_for_a_new_worker(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_for(load_target("cpu"), FAST)
    answers = iter([True, False, False])
    monkeypatch.setattr(bench, "answers", lambda: next(answers))

    def illegal() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(bench.timer, "synchronize", illegal)
    first, second = measure_together([(built, scale()), (built, scale())], FAST).measurements
    assert first.failure == Failure(
        FailureKind.RUN_ERROR,
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA",
    )
    assert second.failure is not None
    assert "left the device unusable" in second.failure.message, "the second kernel is not to blame"
    assert _State.retires


def test_a_fault_while_timing_is_a_failure(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounds(*_: object) -> list[list[float]]:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(bench_for(load_target("cpu"), FAST).timer, "rounds", rounds)
    failure = measure_kernel(built, scale(), FAST).failure
    assert failure is not None
    assert failure.kind is FailureKind.RUN_ERROR


def test_a_result_that_goes_wrong_while_timing_is_a_failure(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a race does that shows now and then."""
    bench = bench_for(load_target("cpu"), FAST)
    plain = bench.timer.rounds

    def rounds(calls: Sequence[Call], count: int) -> list[list[float]]:
        samples = plain(calls, count)
        case = bench.case(Scale(), scale().workload, 0)
        case.reference["y"][7] += 1.0
        return samples

    monkeypatch.setattr(bench.timer, "rounds", rounds)
    measurement = measure_kernel(built, scale(), FAST)
    assert measurement.failure is not None
    assert measurement.failure.kind is FailureKind.WRONG_RESULT
    assert measurement.samples_us == ()


def test_a_lack_of_memory_is_a_failure(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def inputs(*_: object) -> Tensors:
        raise MemoryError

    monkeypatch.setattr(Scale, "inputs", inputs)
    failure = measure_kernel(built, scale(), FAST).failure
    assert failure == Failure(FailureKind.RUN_ERROR, "MemoryError", "")


def test_a_gpu_target_is_refused_without_a_gpu(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ToolchainError, match="sees no GPU"):
        measure_kernel(built, scale("h200"), FAST)


def test_a_gpu_of_another_name_is_refused(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "NVIDIA H200")
    with pytest.raises(ToolchainError, match=r"target h100 is measured on .* only, and torch sees NVIDIA H200"):
        measure_kernel(built, scale("h100"), FAST)


@pytest.mark.parametrize("others", [[scale(n=8192)], [scale("h200")]])
def test_kernels_for_several_workloads_are_not_measured_together(built: BuildResult, others: list[Candidate]) -> None:
    with pytest.raises(ValueError, match="one operator, workload and target"):
        measure_together([(built, scale()), *((built, other) for other in others)], FAST)
    with pytest.raises(ValueError, match="one operator"):
        measure_together([], FAST)


def test_what_was_not_built_is_not_measured() -> None:
    failed = BuildResult(None, Failure(FailureKind.BUILD_ERROR, "no"))
    with pytest.raises(ValueError, match="not built"):
        measure_kernel(failed, scale(), FAST)
