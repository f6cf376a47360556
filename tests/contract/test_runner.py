"""The contract of measuring under every protocol and for every fault: on the processor, and on a GPU if there
is one.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.sample_kernels import Product, added, product, scale
from tilesight.builder.build import build_kernel
from tilesight.errors import FailureKind
from tilesight.executor.tasks import preload_device
from tilesight.kernels import operator, template_for
from tilesight.problem.candidate import Candidate
from tilesight.records.protocol import PROTOCOLS, MeasurementProtocol
from tilesight.records.session import Comparison
from tilesight.records.trial import BuildResult, Measurement
from tilesight.runner.measure import measure_kernel, measure_together
from tilesight.target.spec import Target, load_target
from tilesight.workers import Crashed, Done, Outcome, TimedOut, WorkerPool, wait_for

Kernel = tuple[BuildResult, Candidate]

ROOT = Path(__file__).resolve().parents[2]
N = 1 << 20  # blocks enough that a GPU runs them in an order of its own


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)], scope="module")
def target(request: pytest.FixtureRequest) -> Target:
    if request.param == "cpu":
        return load_target("cpu")
    found = request.getfixturevalue("gpu_target")
    assert isinstance(found, Target)
    return found


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def quick(name: str, target: Target) -> MeasurementProtocol:
    usual = MeasurementProtocol.named(name, target)
    effort = replace(usual, warmup_ms=1.0, min_samples=6, max_samples=12, max_ms=50.0, precision=0.05)
    return effort if target.is_gpu else replace(effort, stretch_us=100.0, retakes=2)


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest, target: Target) -> MeasurementProtocol:
    if request.param != "default" and not target.is_gpu:
        pytest.skip("on a processor all protocols are one")
    return quick(request.param, target)


@pytest.fixture
def default(target: Target) -> MeasurementProtocol:
    return quick("default", target)


def kernel(candidate: Candidate, cache: Path) -> Kernel:
    build = build_kernel(candidate, cache)
    assert build.artifact, build.failure
    return build, candidate


@pytest.fixture(scope="module")
def good(target: Target, cache: Path) -> Kernel:
    return kernel(scale(target.name, n=N), cache)


@pytest.fixture(scope="module")
def open_kernel(target: Target, cache: Path) -> Kernel:
    """matmul with a dynamic m."""
    dtype = "bfloat16" if target.is_gpu else "float32"
    template = template_for("matmul", target, dtype)
    workload = operator("matmul").workload("m=77,n=192,k=200", dtype)
    config = template.default_config(workload, target)
    assert config is not None
    return kernel(Candidate(workload, target, template, config, ("m",)), cache)


def measure(item: Kernel, protocol: MeasurementProtocol, rival_us: float | None = None) -> Measurement:
    return measure_kernel(*item, protocol, rival_us)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    # as an executor makes it: a process that follows a killed one has all modules
    with WorkerPool(1, timeout_s=120, preload=preload_device) as pool:
        yield pool


def run(pool: WorkerPool, protocol: MeasurementProtocol, *kernels: Kernel) -> list[Measurement]:
    return [outcome.value for outcome in outcomes(pool, protocol, *kernels)]


def outcomes(pool: WorkerPool, protocol: MeasurementProtocol, *kernels: Kernel) -> list[Any]:
    found: dict[int, Outcome[Measurement]] = {}
    for index, outcome in pool.run(partial(measure, protocol=protocol), kernels):
        assert isinstance(outcome, Done), outcome
        found[index] = outcome
    return [found[index] for index in range(len(kernels))]


def alone(
    pool: WorkerPool, protocol: MeasurementProtocol, item: Kernel, timeout_s: float
) -> Outcome[Measurement]:
    pool.submit(partial(measure, protocol=protocol), item, timeout_s=timeout_s)
    ((_, _, outcome),) = wait_for([pool])
    return outcome


# a right kernel


def test_a_correct_kernel_has_samples_and_an_error(
    target: Target, cache: Path, protocol: MeasurementProtocol, pool: WorkerPool
) -> None:
    (measurement,) = run(pool, protocol, kernel(product(target.name), cache))
    assert measurement.failure is None
    assert 3 <= len(measurement.samples_us) <= 12
    assert 0 < measurement.latency_us < 1e6
    assert measurement.relative_error is not None
    assert 0 < measurement.relative_error <= Product().max_relative_error(product(target.name).workload)


@pytest.mark.parametrize("m", [1, 77, 128, 300])
def test_one_library_is_correct_at_every_size(
    m: int, open_kernel: Kernel, default: MeasurementProtocol, pool: WorkerPool
) -> None:
    build, first = open_kernel
    workload = first.template.operator.workload(f"m={m},n=192,k=200", first.workload.dtype)
    candidate = replace(first, workload=workload)
    (measurement,) = run(pool, default, (build, candidate))
    assert measurement.failure is None
    assert measurement.latency_us > 0


def test_sizes_that_a_kernel_does_not_take_are_a_failure(
    open_kernel: Kernel, default: MeasurementProtocol, pool: WorkerPool
) -> None:
    """A candidate without dynamic dimensions with a library that has some: no time, and no other fault."""
    build, first = open_kernel
    ((_, outcome),) = pool.run(partial(measure, protocol=default), [(build, replace(first, dynamic=()))])
    assert not isinstance(outcome, Done), "it is the caller's mistake"
    assert "takes 1 sizes" in str(outcome)


def test_conditions_are_recorded(
    target: Target, good: Kernel, protocol: MeasurementProtocol, pool: WorkerPool
) -> None:
    (measurement,) = run(pool, protocol, good)
    assert set(measurement.environment) >= {"device", "torch", "tilelang", "compiler"}
    assert all(measurement.environment[name] for name in ("device", "torch", "tilelang", "compiler"))
    assert measurement.protocol == protocol.record()
    assert measurement.observed["samples"] == len(measurement.samples_us)
    assert measurement.observed["input_seed"] > 0
    if target.is_gpu:
        assert measurement.environment["device"] in target.device_names
        assert measurement.environment["uuid"]
        assert measurement.environment["driver"]


def test_sampling_of_a_kernel_slower_than_the_rival_stops_early(
    good: Kernel, default: MeasurementProtocol, pool: WorkerPool
) -> None:
    ((_, outcome),) = pool.run(
        partial(measure, protocol=replace(default, min_samples=20, max_samples=20), rival_us=1e-3), [good]
    )
    assert isinstance(outcome, Done), outcome
    assert outcome.value.observed["stopped_early"] == 1
    assert len(outcome.value.samples_us) < 20


def test_measuring_loads_no_compiler(good: Kernel, default: MeasurementProtocol, tmp_path: Path) -> None:
    """A library needs neither TileLang nor TVM: a worker that measures is small and starts fast.

    Workers of tests may be forked from a process that has imported both, so this one is started.
    """
    path = tmp_path / "kernel"
    path.write_bytes(pickle.dumps((good, default)))
    program = (
        "import pickle, sys\n"
        "from tilesight.runner.measure import measure_kernel\n"
        "kernel, protocol = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert measure_kernel(*kernel, protocol).failure is None\n"
        "print(sorted({'tilelang', 'tvm', 'tvm_ffi'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (found.stdout, found.returncode) == ("[]\n", 0), found.stderr


def test_results_travel_between_processes(
    good: Kernel, default: MeasurementProtocol, pool: WorkerPool
) -> None:
    (measurement,) = run(pool, default, good)
    assert pickle.loads(pickle.dumps(measurement)) == measurement


# faults


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("wrong", "relative error"),
        ("unwritten", f"128 of {N} elements were never written"),
        ("infinite", "NaN or infinite"),
        ("not a number", f"{N} of {N} elements are NaN or infinite"),
        ("writes input", "input 'x' was written to"),
    ],
)
def test_a_wrong_kernel_is_a_failure_and_has_no_time(
    target: Target,
    cache: Path,
    protocol: MeasurementProtocol,
    pool: WorkerPool,
    good: Kernel,
    fault: str,
    text: str,
) -> None:
    bad, fine = run(pool, protocol, kernel(scale(target.name, fault, n=N), cache), good)
    assert bad.failure is not None
    assert bad.failure.kind is FailureKind.WRONG_RESULT
    assert text in bad.failure.message
    assert bad.samples_us == ()
    assert fine.failure is None


def test_a_race_is_a_failure_even_if_each_result_is_correct(
    target: Target, cache: Path, default: MeasurementProtocol, pool: WorkerPool, good: Kernel
) -> None:
    racing = kernel(scale(target.name, "atomics" if target.is_gpu else "random", n=N), cache)
    bad, fine = run(pool, default, racing, good)
    assert bad.failure is not None
    assert bad.failure.kind is FailureKind.NONDETERMINISTIC, bad.failure
    assert "differ between runs" in bad.failure.message
    assert bad.samples_us == ()
    assert fine.failure is None


def test_a_template_may_add_in_changing_order(
    target: Target, cache: Path, protocol: MeasurementProtocol, pool: WorkerPool
) -> None:
    (measurement,) = run(
        pool, protocol, kernel(added(target.name, "atomics" if target.is_gpu else "random", n=N), cache)
    )
    assert measurement.failure is None
    assert measurement.samples_us


def test_an_endless_kernel_costs_its_time_limit(
    target: Target, cache: Path, default: MeasurementProtocol, pool: WorkerPool, good: Kernel
) -> None:
    endless = kernel(scale(target.name, "endless", n=N), cache)
    run(pool, default, good)  # the device is ready: what follows takes no longer than a launch
    assert isinstance(alone(pool, default, endless, 10.0 if target.is_gpu else 3.0), TimedOut)
    (fine,) = run(pool, default, good)
    assert fine.failure is None


def test_an_illegal_address_costs_the_kernel_and_its_process(
    target: Target, cache: Path, default: MeasurementProtocol, pool: WorkerPool, good: Kernel
) -> None:
    run(pool, default, good)
    before = pool.pids()
    outcome = alone(pool, default, kernel(scale(target.name, "illegal address", n=N), cache), 120)
    if target.is_gpu:
        assert isinstance(outcome, Done), outcome
        assert outcome.value.failure is not None
        assert outcome.value.failure.kind is FailureKind.RUN_ERROR
        assert "illegal" in outcome.value.failure.message or "invalid" in outcome.value.failure.message
    else:
        assert isinstance(outcome, Crashed), outcome
        assert "SIGSEGV" in outcome.reason
    (fine,) = run(pool, default, good)
    assert fine.failure is None
    assert not set(before) & set(pool.pids())


# finalists


def together(kernels: Sequence[Kernel], protocol: MeasurementProtocol) -> Comparison:
    return measure_together(kernels, protocol)


def test_finalists_and_vendor_are_timed_in_one_process(
    target: Target, cache: Path, protocol: MeasurementProtocol, pool: WorkerPool
) -> None:
    kernels = [
        kernel(scale(target.name, fault, block, n=N), cache)
        for fault, block in (("none", 128), ("wrong", 128), ("none", 256))
    ]
    ((_, outcome),) = pool.run(partial(together, protocol=protocol), [kernels])
    assert isinstance(outcome, Done), outcome
    first, wrong, second = outcome.value.measurements
    (vendor,) = outcome.value.baselines
    assert wrong.failure is not None
    assert len(first.samples_us) == len(second.samples_us) == len(vendor.samples_us)
    assert vendor.name == "torch"
    assert vendor.latency_us > 0
    assert outcome.value.notes == ("broken was left out: no such backend here",)
    decision = outcome.value.decision
    assert decision is not None
    assert decision.winner in (kernels[0][1].config, kernels[2][1].config)
    assert kernels[1][1].config not in decision.tied
    assert decision.reason


def test_without_a_correct_finalist_nothing_is_decided(
    target: Target, cache: Path, default: MeasurementProtocol, pool: WorkerPool
) -> None:
    ((_, outcome),) = pool.run(
        partial(together, protocol=default), [[kernel(scale(target.name, "wrong", n=N), cache)]]
    )
    assert isinstance(outcome, Done), outcome
    assert outcome.value.decision is None
    assert outcome.value.measurements[0].failure is not None
    assert outcome.value.baselines, "the vendor's time is known all the same"
