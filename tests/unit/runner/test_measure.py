"""Measuring in one process, mostly when something fails."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.sample_kernels import Scale, ScaleTemplate, scale
from tilesight.builder.build import build_kernel
from tilesight.errors import Failure, FailureKind, InputError, ToolchainError
from tilesight.problem.candidate import Candidate
from tilesight.problem.operator import Tensors
from tilesight.problem.workload import Workload
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult
from tilesight.runner import bench as bench_module
from tilesight.runner.bench import Bench, bench_for
from tilesight.runner.measure import measure_kernel, measure_together
from tilesight.runner.timers import Call, Stretch
from tilesight.target.spec import load_target
from tilesight.workers.worker import _State

FAST = MeasurementProtocol(
    "default",
    "warm",
    "call",
    warmup_ms=0.1,
    min_samples=6,
    max_samples=6,
    precision=1.0,
    stretch_us=1.0,
    retakes=0,
    seed=5,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    result = build_kernel(scale(), tmp_path_factory.mktemp("cache"))
    assert result.artifact, result.failure
    return result


@pytest.fixture(autouse=True)
def fresh_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    bench_module._bench.cache_clear()
    monkeypatch.setattr(_State, "retires", False)


def bench() -> Bench:
    return bench_for(load_target("cpu"), FAST)


# inputs


def test_inputs_and_reference_stay_for_the_next_kernel(
    built: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Workload] = []
    plain = Scale.reference

    def counted(self: Scale, workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        made.append(workload)
        return plain(self, workload, inputs)

    monkeypatch.setattr(Scale, "reference", counted)
    for _ in range(2):
        assert measure_kernel(built, scale(), FAST).failure is None
    assert len(made) == FAST.input_sets + 1, "and those of the second inputs"
    bench().case(Scale(), Scale().workload("n=8"), FAST)
    bench().case(Scale(), Scale().workload("n=8"), replace(FAST, seed=6))
    assert len(made) == 3 * (FAST.input_sets + 1)


def test_the_memory_of_one_workload_is_free_before_that_of_the_next_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last = weakref.ref(bench().case(Scale(), Scale().workload("n=8"), FAST))
    plain, held = Scale.inputs, []

    def watched(self: Scale, workload: Workload, device: str, seed: int) -> dict[str, torch.Tensor]:
        held.append(last() is not None)
        return plain(self, workload, device, seed)

    monkeypatch.setattr(Scale, "inputs", watched)
    bench().case(Scale(), Scale().workload("n=16"), FAST)
    assert held
    assert not any(held)


def test_inputs_differ_from_process_to_process_unless_a_seed_is_given(built: BuildResult) -> None:
    def seed(protocol: MeasurementProtocol) -> float:
        bench_module._bench.cache_clear()
        return measure_kernel(built, scale(), protocol).observed["input_seed"]

    drawn = {seed(replace(FAST, seed=0)) for _ in range(3)}
    assert len(drawn) == 3
    assert all(value == int(value) > 0 for value in drawn)
    assert seed(FAST) == seed(FAST) == 5


def test_several_input_sets_are_used_if_they_fit_the_cache() -> None:
    half = load_target("cpu")["core.memory.l2.bytes"] / 2
    for sets in (1, 2, 3, 4):
        elements = int(half / sets / 8)  # of four bytes, read and written
        case = bench().case(Scale(), Scale().workload(f"n={elements}"), FAST)
        assert len(case.sets) == sets
    values = {float(present.inputs["x"][0]) for present in case.sets}
    assert len(values) == 4
    assert len(bench().case(Scale(), Scale().workload("n=10000000"), FAST).sets) == 1
    assert len(bench().case(Scale(), Scale().workload("n=8"), replace(FAST, input_sets=2)).sets) == 2


def test_every_set_is_computed_and_checked(built: BuildResult) -> None:
    case = bench().case(Scale(), scale().workload, FAST)
    case.sets[3].reference["y"][7] += 1.0
    measurement = measure_kernel(built, scale(), FAST)
    assert measurement.failure is not None
    assert measurement.failure.kind is FailureKind.WRONG_RESULT
    assert measurement.observed["input_sets"] == 4


def test_inputs_are_drawn_again_after_a_failure(tmp_path: Path) -> None:
    """A failed kernel may have overwritten them."""
    wrong = scale(fault="wrong")
    assert measure_kernel(build_kernel(wrong, tmp_path), wrong, FAST).failure is not None
    assert bench()._case is None
    assert not _State.retires


def test_a_kernel_that_writes_its_input_is_wrong_and_the_input_is_restored(
    built: BuildResult, tmp_path: Path
) -> None:
    careless = scale(fault="writes input")
    spoilt = build_kernel(careless, tmp_path)
    failure = measure_kernel(spoilt, careless, FAST).failure
    assert failure == Failure(FailureKind.WRONG_RESULT, "input 'x' was written to")
    found = measure_together([(spoilt, careless), (built, scale())], FAST)
    assert found.measurements[0].failure == failure
    assert found.measurements[1].failure is None
    assert found.decision is not None
    assert found.decision.winner == scale().config


# what is recorded


def test_observed_figures_are_recorded(built: BuildResult) -> None:
    found = measure_kernel(built, scale(), FAST)
    assert found.protocol == FAST.record()
    assert found.observed.keys() == {
        "samples",
        "launches",
        "retaken",
        "disturbed",
        "other_load",
        "stopped_early",
        "input_seed",
        "input_sets",
        "second_inputs",
        "element_ratio",
        "tile_ratio",
        "check_s",
    }
    assert found.observed["samples"] == len(found.samples_us) == 6
    assert found.observed["stopped_early"] == 0
    assert found.observed["launches"] >= 1


def test_a_measurement_that_stopped_early_is_marked(built: BuildResult) -> None:
    found = measure_kernel(built, scale(), replace(FAST, min_samples=20, max_samples=40), rival_us=1e-3)
    assert found.observed["stopped_early"] == 1
    assert len(found.samples_us) == 6
    assert found.relative_error is not None, "it was checked all the same"


# the device


def test_an_unusable_device_requests_a_new_worker(
    built: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = itertools.chain([True], itertools.repeat(False))
    monkeypatch.setattr(bench(), "is_usable", lambda: next(answers))

    def illegal() -> None:
        raise RuntimeError(
            "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA"
        )

    monkeypatch.setattr(bench().timer, "synchronize", illegal)
    first, second = measure_together([(built, scale()), (built, scale())], FAST).measurements
    assert first.failure == Failure(
        FailureKind.RUN_ERROR,
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA",
    )
    assert second.failure is not None
    assert "left the device unusable" in second.failure.message, "the second kernel is not to blame"
    assert _State.retires


def test_a_broken_timer_requests_a_new_worker(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer breaks, for example, when the capture of a graph fails."""
    timer = bench().timer

    def stretch(_: Call) -> Stretch:
        timer.broken = True
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(timer, "stretch", stretch)
    failure = measure_kernel(built, scale(), FAST).failure
    assert failure is not None
    assert failure.kind is FailureKind.RUN_ERROR
    assert _State.retires


def failing_turns(text: str) -> Callable[..., list[tuple[float, ...]]]:
    def turns(*_: object) -> list[tuple[float, ...]]:
        raise RuntimeError(text)

    return turns


def test_an_error_while_freeing_memory_requests_a_new_worker(
    built: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench().timer, "turns", failing_turns("CUDA error: out of memory"))
    monkeypatch.setattr(bench(), "free_memory", failing_turns("CUDA error: unspecified launch failure"))
    answers = itertools.chain([True], itertools.repeat(False))
    monkeypatch.setattr(bench(), "is_usable", lambda: next(answers))
    failure = measure_kernel(built, scale(), FAST).failure
    assert failure is not None
    assert failure.kind is FailureKind.RUN_MEMORY
    assert _State.retires


def test_a_fault_while_timing_is_a_failure(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench().timer, "turns", failing_turns("CUDA error: unspecified launch failure"))
    measurement = measure_kernel(built, scale(), FAST)
    assert measurement.failure is not None
    assert measurement.failure.kind is FailureKind.RUN_ERROR
    assert measurement.samples_us == ()
    assert measure_together([(built, scale())], FAST).decision is None


def spoiling_turns(
    run: Bench, change: Callable[[torch.Tensor], None]
) -> Callable[..., list[tuple[float, ...]]]:
    """Turns that change an output."""
    plain, outputs = run.timer.turns, []

    def recorded_outputs(case: bench_module.BenchCase) -> dict[str, torch.Tensor]:
        outputs.append(plain_outputs(case))
        return outputs[-1]

    plain_outputs = bench_module.BenchCase.outputs
    bench_module.BenchCase.outputs = recorded_outputs  # type: ignore[method-assign]

    def turns(
        stretches: Sequence[Stretch], count: int, meanwhile: Call | None = None
    ) -> list[tuple[float, ...]]:
        samples = plain(stretches, count, meanwhile)
        for made in outputs:
            change(made["y"])
        return samples

    return turns


@pytest.mark.parametrize(("deterministic", "kind"), [(True, FailureKind.NONDETERMINISTIC), (False, None)])
def test_a_last_bit_that_changes_while_timing_is_a_race_unless_the_template_expects_it(
    deterministic: bool, kind: FailureKind | None, built: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flip(y: torch.Tensor) -> None:
        y.view(torch.int32)[7] ^= 1

    monkeypatch.setattr(
        bench_module.BenchCase, "outputs", bench_module.BenchCase.outputs
    )  # put back afterwards
    monkeypatch.setattr(ScaleTemplate, "deterministic", deterministic)
    monkeypatch.setattr(bench().timer, "turns", spoiling_turns(bench(), flip))
    measurement = measure_kernel(built, scale(), FAST)
    assert (measurement.failure and measurement.failure.kind) == kind
    assert bool(measurement.samples_us) is (kind is None)
    if measurement.failure:
        assert (
            measurement.failure.message
            == "output 'y': 1 of 4096 elements differ between runs on the same inputs"
        )


def test_a_nondeterministic_kernel_must_still_be_correct(
    built: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module.BenchCase, "outputs", bench_module.BenchCase.outputs)
    monkeypatch.setattr(ScaleTemplate, "deterministic", False)
    monkeypatch.setattr(bench().timer, "turns", spoiling_turns(bench(), lambda y: y.mul_(1.001)))
    failure = measure_kernel(built, scale(), FAST).failure
    assert failure is not None
    assert failure.kind is FailureKind.WRONG_RESULT


def test_different_results_of_two_runs_are_a_race(tmp_path: Path) -> None:
    candidate = scale(fault="random")
    measurement = measure_kernel(build_kernel(candidate, tmp_path), candidate, FAST)
    assert measurement.failure is not None
    assert measurement.failure.kind is FailureKind.NONDETERMINISTIC
    assert measurement.relative_error is not None
    assert measurement.relative_error < 1e-6, "each run by itself is right"


# memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("12 GiB"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
)
def test_exhausted_memory_has_its_own_kind_and_the_bench_stays_usable(
    error: Exception, built: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outputs(*_: object) -> dict[str, torch.Tensor]:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(bench_module.BenchCase, "outputs", outputs)
        failure = measure_kernel(built, scale(), FAST).failure
    assert failure is not None
    assert failure.kind is FailureKind.RUN_MEMORY
    assert failure.message == str(error)
    assert bench()._case is None
    assert not _State.retires
    assert measure_kernel(built, scale(), FAST).failure is None


def test_a_workload_that_does_not_fit_is_no_fault_of_the_kernel(
    built: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inputs(*_: object) -> Tensors:
        raise RuntimeError(
            "CUDA out of memory. Tried to allocate 200.00 GiB. GPU 0 has a total capacity of 139.80 GiB"
        )

    monkeypatch.setattr(Scale, "inputs", inputs)
    for failure in (
        measure_kernel(built, scale(), FAST).failure,
        measure_together([(built, scale())], FAST).measurements[0].failure,
    ):
        assert failure is not None
        assert failure.kind is FailureKind.RUN_MEMORY
        assert "inputs and reference of scale n=4096 float32 need more memory" in failure.message
        assert "200.00 GiB" in failure.message


def test_no_tensor_stays_alive(built: BuildResult, tmp_path: Path) -> None:
    wrong = scale(fault="wrong")
    bad = build_kernel(wrong, tmp_path)

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    before = alive()
    measure_kernel(built, scale(), FAST)
    measure_together([(built, scale()), (bad, wrong)], FAST)
    bench().drop_case()
    assert alive() == before


# what is refused


def test_a_gpu_target_is_refused_without_a_gpu(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ToolchainError, match="sees no GPU"):
        measure_kernel(built, scale("h200"), MeasurementProtocol())


def test_a_gpu_of_another_name_is_refused(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "NVIDIA H200")
    with pytest.raises(
        ToolchainError, match=r"target h100 is measured on .* only, and torch sees NVIDIA H200"
    ):
        measure_kernel(built, scale("h100"), MeasurementProtocol())


@pytest.mark.parametrize(("target", "protocol"), [("cpu", MeasurementProtocol()), ("h200", FAST)])
def test_a_protocol_of_another_kind_of_target_is_refused(
    target: str, protocol: MeasurementProtocol, built: BuildResult
) -> None:
    with pytest.raises(InputError, match=f"target {target} is not measured with launch={protocol.launch}"):
        measure_kernel(built, scale(target), protocol)


def test_only_right_results_of_vendors_count(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def vendor(_: Scale, __: Workload, inputs: Tensors) -> dict[str, Call]:
        x = inputs["x"]

        def overwrites() -> torch.Tensor:
            y = 3 * x
            x.zero_()
            return y

        return {
            "wrong": lambda: 3.1 * x,
            "no number": lambda: torch.where(x > 0, 3 * x, torch.nan),
            "another shape": lambda: 3 * x[1:],
            "overwrites": overwrites,
            "overwrites and fails": lambda: overwrites() / {},
            "right": lambda: 3 * x,
            "something else": lambda: None,
        }

    monkeypatch.setattr(Scale, "vendor", vendor)
    found = measure_together([(built, scale())], FAST)
    assert found.measurements[0].failure is None
    assert [baseline.name for baseline in found.baselines] == ["right", "something else"]
    wrong, no_number, shape, overwrites, fails = found.notes
    assert wrong.startswith("wrong was left out: its result 'y' has a relative error of 0.033")
    assert "of 4096 elements are NaN or infinite" in no_number
    assert shape == "another shape was left out: its result 'y' has the shape (4095,) and not (4096,)"
    assert overwrites == "overwrites was left out: it writes to the input 'x'"
    assert fails == "overwrites and fails was left out: it writes to the input 'x'"
    without = measure_together([(built, scale())], FAST, with_vendor=False)
    assert (without.baselines, without.notes) == ((), ())
    assert without.decision is not None


def test_a_result_is_compared_with_the_reference_of_its_own_inputs(
    built: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = []

    def vendor(_: Scale, __: Workload, inputs: Tensors) -> dict[str, Call]:
        offered.append(inputs)
        # of the second set of inputs there is no such call
        return {} if len(offered) == 2 else {"right": lambda: 3 * inputs["x"]}

    monkeypatch.setattr(Scale, "vendor", vendor)
    found = measure_together([(built, scale())], replace(FAST, input_sets=3))
    assert len(offered) == 3
    assert [baseline.name for baseline in found.baselines] == ["right"]
    assert not found.notes


@pytest.mark.parametrize("others", [[scale(n=8192)], [scale("h200")]])
def test_kernels_for_several_workloads_are_not_measured_together(
    built: BuildResult, others: list[Candidate]
) -> None:
    with pytest.raises(ValueError, match="one operator, workload and target"):
        measure_together([(built, scale()), *((built, other) for other in others)], FAST)
    with pytest.raises(ValueError, match="one operator"):
        measure_together([], FAST)


def test_a_failed_build_is_not_measured() -> None:
    failed = BuildResult(None, Failure(FailureKind.BUILD_ERROR, "no"))
    with pytest.raises(ValueError, match="not built"):
        measure_kernel(failed, scale(), FAST)
