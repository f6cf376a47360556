"""What measuring keeps, on the processor always and on a GPU where there is one."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sample_kernels import Product, Scale, product, scale

from tilesight.build import build_kernel
from tilesight.candidate import Candidate
from tilesight.errors import FailureKind
from tilesight.measure import Together, measure_kernel, measure_together, measure_vendor
from tilesight.target import Target, load_target
from tilesight.timing import Protocol
from tilesight.trial import BuildResult, Measurement
from tilesight.workers import Done, WorkerPool

Kernel = tuple[BuildResult, Candidate]


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


@pytest.fixture
def protocol(target: Target) -> Protocol:
    usual = Protocol.of(target)
    return Protocol(1.0, 3, 5, 50.0, 0.05, usual.flush_l2, min(usual.min_sample_us, 100.0))


def kernel(candidate: Candidate, cache: Path) -> Kernel:
    build = build_kernel(candidate, cache)
    assert build.artifact, build.failure
    return build, candidate


def measure(item: Kernel, protocol: Protocol) -> Measurement:
    return measure_kernel(*item, protocol)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1, timeout_s=120) as pool:
        yield pool


def run(pool: WorkerPool, protocol: Protocol, *kernels: Kernel) -> list[Measurement]:
    found: dict[int, Measurement] = {}
    for index, outcome in pool.run(partial(measure, protocol=protocol), kernels):
        assert isinstance(outcome, Done), outcome
        found[index] = outcome.value
    return [found[index] for index in range(len(kernels))]


def test_a_right_kernel_has_samples_and_an_error(target: Target, cache: Path, protocol: Protocol, pool: WorkerPool) -> None:
    (measurement,) = run(pool, protocol, kernel(product(target.name), cache))
    assert measurement.failure is None
    assert 3 <= len(measurement.samples_us) <= 5
    assert 0 < measurement.latency_us < 1e6
    assert measurement.relative_error is not None
    assert 0 < measurement.relative_error <= Product().max_relative_error(product(target.name).workload)


def test_environment_and_protocol_are_recorded(target: Target, cache: Path, protocol: Protocol, pool: WorkerPool) -> None:
    (measurement,) = run(pool, protocol, kernel(scale(target.name), cache))
    assert set(measurement.environment) >= {"device", "torch", "tilelang", "compiler"}
    assert all(measurement.environment[name] for name in ("device", "torch", "tilelang", "compiler"))
    assert measurement.protocol == protocol.record()
    if target.is_gpu:
        assert measurement.environment["device"] in target.device_names
        assert measurement.environment["uuid"]
        assert measurement.environment["driver"]


@pytest.mark.parametrize(("fault", "text"), [("wrong", "relative error"), ("unwritten", "128 of 4096"), ("infinite", "NaN or infinite")])
def test_a_wrong_kernel_is_a_failure_and_has_no_time(
    target: Target, cache: Path, protocol: Protocol, pool: WorkerPool, fault: str, text: str
) -> None:
    bad, good = run(pool, protocol, kernel(scale(target.name, fault), cache), kernel(scale(target.name), cache))
    assert bad.failure is not None
    assert bad.failure.kind is FailureKind.WRONG_RESULT
    assert text in bad.failure.message
    assert bad.samples_us == ()
    assert good.failure is None


def test_the_process_loads_no_compiler(target: Target, cache: Path, protocol: Protocol) -> None:
    """A library needs neither TileLang nor TVM: a worker that only measures is small and starts fast."""
    with WorkerPool(1, timeout_s=120) as fresh:
        built = kernel(scale(target.name), cache)
        ((_, outcome),) = fresh.run(partial(loaded_modules, protocol=protocol), [built])
    assert isinstance(outcome, Done), outcome
    assert outcome.value == []


def loaded_modules(item: Kernel, protocol: Protocol) -> list[str]:
    import sys

    assert measure(item, protocol).failure is None
    return sorted({"tilelang", "tvm", "tvm_ffi"} & set(sys.modules))


def test_results_travel_between_processes(target: Target, cache: Path, protocol: Protocol, pool: WorkerPool) -> None:
    (measurement,) = run(pool, protocol, kernel(scale(target.name), cache))
    assert pickle.loads(pickle.dumps(measurement)) == measurement


def together(kernels: list[Kernel], protocol: Protocol) -> Together:
    return measure_together(kernels, protocol)


def test_finalists_and_vendor_are_timed_in_one_process(target: Target, cache: Path, protocol: Protocol, pool: WorkerPool) -> None:
    kernels = [kernel(scale(target.name, fault, block), cache) for fault, block in (("none", 128), ("wrong", 128), ("none", 256))]
    ((_, outcome),) = pool.run(partial(together, protocol=protocol), [kernels])
    assert isinstance(outcome, Done), outcome
    first, wrong, second = outcome.value.measurements
    (vendor,) = outcome.value.baselines
    assert wrong.failure is not None
    assert len(first.samples_us) == len(second.samples_us) == len(vendor.samples_us)
    assert vendor.name == "torch"
    assert vendor.latency_us > 0
    assert outcome.value.notes == ("broken was left out: no such backend here",)


def vendor_alone(target: Target, protocol: Protocol) -> Together:
    return measure_vendor(Scale(), scale(target.name).workload, target, protocol)


def test_the_vendor_can_be_timed_alone(target: Target, protocol: Protocol, pool: WorkerPool) -> None:
    ((_, outcome),) = pool.run(partial(vendor_alone, protocol=protocol), [target])
    assert isinstance(outcome, Done), outcome
    assert len(outcome.value.baselines) == 1
    assert outcome.value.measurements == ()
