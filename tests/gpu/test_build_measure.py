"""Building, loading and measuring on a real GPU: what the CPU cannot show. Run: python -m pytest tests/gpu"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.sample_kernels import Product, product, scale, two_kernels
from tilesight.builder.build import build_kernel, device_source
from tilesight.builder.cuda import build_cuda, cuda_flags
from tilesight.builder.kernel_cache import KernelCache
from tilesight.builder.launch_plan import read_plan
from tilesight.builder.loaded_kernel import LoadedKernel
from tilesight.errors import FailureKind
from tilesight.lowering.lower import lower
from tilesight.machine.devices import Device, device_for, find_devices
from tilesight.machine.toolchain import find_cxx, find_nvcc
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult, Measurement
from tilesight.runner.measure import measure_kernel
from tilesight.runner.timers import GpuTimer
from tilesight.runner.turns import collect_samples
from tilesight.settings import available_cores
from tilesight.target.spec import Target
from tilesight.workers import Done, WorkerPool

pytestmark = pytest.mark.gpu

QUICK = MeasurementProtocol(warmup_ms=2.0, min_samples=5, max_samples=10, max_ms=50.0)
Kernel = tuple[BuildResult, Candidate]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1, timeout_s=120) as pool:
        yield pool


def measure(item: Kernel) -> Measurement:
    return measure_kernel(*item, QUICK)


def kernel(candidate: Candidate, cache: Path) -> Kernel:
    build = build_kernel(candidate, cache)
    assert build.artifact, build.failure
    return build, candidate


def run(pool: WorkerPool, *kernels: Kernel) -> list[Measurement]:
    found: dict[int, Measurement] = {}
    for index, outcome in pool.run(measure, kernels):
        assert isinstance(outcome, Done), outcome
        found[index] = outcome.value
    return [found[index] for index in range(len(kernels))]


def test_the_device_is_found_by_its_exact_name(gpu_target: Target) -> None:
    found = device_for(gpu_target, find_devices())
    assert isinstance(found, Device)
    assert found.uuid
    assert found.driver
    assert found.memory_bytes > 8 << 30


def test_tensor_core_products_are_right_for_all_tiles_and_depths(
    gpu_target: Target, cache: Path, pool: WorkerPool
) -> None:
    """On Hopper these are TMA descriptors, warp specialisation and wgmma; every shape of them must compute
    the product.
    """
    candidates = [product(gpu_target.name, tile, stages) for tile in (32, 64, 128) for stages in (1, 2, 3)]
    with WorkerPool(min(8, available_cores()), timeout_s=300) as builders:
        outcomes = dict(builders.run(partial(build_kernel, cache_dir=cache), candidates))
    kernels: list[Kernel] = []
    for index, candidate in enumerate(candidates):
        outcome = outcomes[index]
        assert isinstance(outcome, Done), outcome
        assert outcome.value.failure is None, (dict(candidate.config), outcome.value.failure)
        kernels.append((outcome.value, candidate))
    limit = Product().max_relative_error(candidates[0].workload)
    for (_, candidate), measurement in zip(kernels, run(pool, *kernels), strict=True):
        assert measurement.failure is None, (dict(candidate.config), measurement.failure)
        assert measurement.relative_error is not None
        assert measurement.relative_error <= limit


def test_shapes_that_tiles_do_not_divide(gpu_target: Target, cache: Path, pool: WorkerPool) -> None:
    (measurement,) = run(pool, kernel(product(gpu_target.name, 128, 2, "m=200,n=328,k=520"), cache))
    assert measurement.failure is None, measurement.failure


def test_a_kernel_that_asks_for_too_much_is_refused_and_the_worker_lives_on(
    gpu_target: Target, cache: Path, pool: WorkerPool
) -> None:
    run(pool, kernel(scale(gpu_target.name), cache))
    before = pool.pids()
    refused, fine = run(
        pool, kernel(scale(gpu_target.name, "too much shared"), cache), kernel(scale(gpu_target.name), cache)
    )
    assert refused.failure is not None
    assert refused.failure.kind is FailureKind.RUN_ERROR
    assert fine.failure is None
    assert pool.pids() == before


def test_a_kernel_that_faults_costs_itself_and_its_worker_only(
    gpu_target: Target, cache: Path, pool: WorkerPool
) -> None:
    run(pool, kernel(scale(gpu_target.name), cache))
    before = pool.pids()
    faulty, fine = run(
        pool, kernel(scale(gpu_target.name, "trap"), cache), kernel(scale(gpu_target.name), cache)
    )
    assert faulty.failure is not None
    assert faulty.failure.kind is FailureKind.RUN_ERROR
    assert fine.failure is None, fine.failure
    assert pool.pids() != before, "a process whose CUDA context is spoiled must be replaced"


def build_function(prim_func: Any, target: Target, folder: Path) -> LoadedKernel:
    lowered = lower(prim_func, target)
    nvcc, cxx = find_nvcc(), find_cxx()
    assert nvcc
    assert cxx
    with KernelCache(folder).building("0" * 24) as work:
        files, _ = build_cuda(
            work, device_source(lowered, target), read_plan(lowered), cuda_flags(target.arch, ()), nvcc, cxx
        )
        library = files[0].rename(folder / "kernel.so")
    torch.zeros(1, device="cuda")  # the context that the kernel is loaded into
    return LoadedKernel(str(library), "tilesight_call")


def test_two_kernels_in_one_function_run_in_order(gpu_target: Target, tmp_path: Path) -> None:
    if gpu_target.kind != "cuda":
        pytest.skip("written for CUDA")
    x, y, z = (torch.randn(1024, device="cuda") for _ in range(3))
    kernel = build_function(two_kernels(), gpu_target, tmp_path)
    kernel.bind([x, y, z], int(torch.cuda.current_stream().cuda_stream))()
    torch.cuda.synchronize()
    assert torch.equal(z, x + 1)
    assert torch.equal(y, (x + 1) * 2)


def test_a_cluster_launch(gpu_target: Target, tmp_path: Path) -> None:
    if not gpu_target.arch.startswith("sm_9"):
        pytest.skip(f"clusters need sm_90, this is {gpu_target.arch}")
    x, y = torch.randn(1024, device="cuda"), torch.zeros(1024, device="cuda")
    build_function(_in_a_cluster(), gpu_target, tmp_path).bind([x, y])()
    torch.cuda.synchronize()
    assert torch.equal(x, y)


def test_a_kernel_runs_in_the_stream_that_it_is_given(gpu_target: Target, cache: Path) -> None:
    build, candidate = kernel(scale(gpu_target.name), cache)
    assert build.artifact is not None
    x, y = (
        torch.ones(candidate.workload.dims["n"], device="cuda"),
        torch.zeros(candidate.workload.dims["n"], device="cuda"),
    )
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    loaded = LoadedKernel(build.artifact, build.entry)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # the stream is busy: a launch elsewhere would be done long before
        x.fill_(2.0)
        loaded.bind([x, y], int(stream.cuda_stream))()
    stream.synchronize()
    assert torch.equal(y, torch.full_like(y, 6.0))


def test_libraries_can_be_loaded_and_closed_many_times(gpu_target: Target, cache: Path) -> None:
    build, candidate = kernel(product(gpu_target.name), cache)
    assert build.artifact is not None
    inputs = Product().inputs(candidate.workload, "cuda", 0)
    c = torch.empty(512, 512, dtype=torch.bfloat16, device="cuda")

    def load_run_close() -> None:
        assert build.artifact is not None
        loaded = LoadedKernel(build.artifact, build.entry)
        loaded.bind([*inputs.values(), c])()
        torch.cuda.synchronize()
        loaded.close()

    load_run_close()
    free, _ = torch.cuda.mem_get_info()
    for _ in range(100):
        load_run_close()
    assert free - torch.cuda.mem_get_info()[0] < 64 << 20, "closed kernels keep device memory"


def test_a_sample_is_the_time_of_one_launch() -> None:
    """A call that keeps the device busy for a known number of cycles must be seen to take at least that."""
    cycles = 2_000_000
    (short,), (long,) = (
        collect_samples(GpuTimer(1 << 20), [partial(torch.cuda._sleep, n)], QUICK).samples_us
        for n in (cycles, 4 * cycles)
    )
    ratio = sorted(long)[len(long) // 2] / sorted(short)[len(short) // 2]
    assert 3.0 < ratio < 5.0
    assert min(short) > cycles / 3000, "no GPU runs at 3 GHz"


def test_config_is_part_of_what_is_built(gpu_target: Target, cache: Path) -> None:
    one, other = (kernel(product(gpu_target.name, tile), cache)[0] for tile in (64, 128))
    assert one.artifact != other.artifact
    assert product(gpu_target.name).config == Config({"tile": 64, "stages": 2})


def _in_a_cluster() -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((1024,), "float32"), y: T.Tensor((1024,), "float32")):  # type: ignore
        with T.ClusterKernel(8, threads=128, cluster_dims=(2, 1, 1)) as b:
            for i in T.Parallel(128):
                y[b * 128 + i] = x[b * 128 + i]

    return main
