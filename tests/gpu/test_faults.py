"""Every fault that a kernel can have on a real GPU: it costs itself and no more, and the next kernel is
measured right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import pytest
import torch

from tests.support.sample_kernels import added, product, scale
from tilesight.builder.build import build_kernel
from tilesight.errors import Failure, FailureKind
from tilesight.problem.candidate import Candidate
from tilesight.records.protocol import PROTOCOLS, MeasurementProtocol
from tilesight.records.session import Comparison
from tilesight.records.trial import BuildResult, Measurement
from tilesight.runner.measure import measure_kernel, measure_together
from tilesight.runner.timers import GpuTimer, GraphTimer, Stretch
from tilesight.settings import available_cores
from tilesight.target.spec import Target
from tilesight.workers import Done, Outcome, TimedOut, WorkerPool, wait_for

pytestmark = pytest.mark.gpu

N = 1 << 20
ENDLESS_S = 10.0
FAULTS = (
    "wrong",
    "unwritten",
    "infinite",
    "not a number",
    "writes input",
    "race",
    "atomics",
    "endless",
    "illegal address",
    "trap",
)
FAULTS += ("too much shared", "large local")
Kernel = tuple[BuildResult, Candidate]


@pytest.fixture(scope="module")
def kernels(gpu_target: Target, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    """All that is needed here, built at once; `product` and `small` are the right ones."""
    name, folder = gpu_target.name, tmp_path_factory.mktemp("cache")
    wanted = {fault: scale(name, fault, n=N) for fault in FAULTS}
    wanted |= {
        "product": product(name, 128, 3, "m=4096,n=1024,k=4096"),
        "small": product(name),
        "added": added(name, n=N),
    }
    wanted |= {
        f"{tile}x{stages}": product(name, tile, stages, "m=4096,n=1024,k=4096")
        for tile in (64, 128)
        for stages in (2, 4)
    }
    wanted["large"] = scale(name, n=1 << 28)
    found: dict[str, Kernel] = {}
    with WorkerPool(min(8, available_cores()), timeout_s=300) as builders:
        for index, outcome in builders.run(partial(build_kernel, cache_dir=folder), wanted.values()):
            label, candidate = list(wanted.items())[index]
            assert isinstance(outcome, Done), (label, outcome)
            assert outcome.value.artifact, (label, outcome.value.failure)
            found[label] = (outcome.value, candidate)
    return found


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1, timeout_s=120) as pool:
        yield pool


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest, gpu_target: Target) -> MeasurementProtocol:
    return MeasurementProtocol.named(request.param, gpu_target)


def measure(item: Kernel, protocol: MeasurementProtocol) -> Measurement:
    return measure_kernel(*item, protocol)


def ask(
    pool: WorkerPool, protocol: MeasurementProtocol, item: Kernel, timeout_s: float = 120
) -> Outcome[Measurement]:
    pool.submit(partial(measure, protocol=protocol), item, timeout_s=timeout_s)
    ((_, _, outcome),) = wait_for([pool])
    return outcome


def right(pool: WorkerPool, protocol: MeasurementProtocol, item: Kernel) -> Measurement:
    outcome = ask(pool, protocol, item)
    assert isinstance(outcome, Done), outcome
    assert outcome.value.failure is None, outcome.value.failure
    return outcome.value


def same_time(one: Measurement, other: Measurement) -> bool:
    return 0.7 < one.latency_us / other.latency_us < 1.4


@pytest.mark.parametrize(
    ("fault", "kind", "replaced"),
    [
        ("wrong", FailureKind.WRONG_RESULT, False),
        ("unwritten", FailureKind.WRONG_RESULT, False),
        ("infinite", FailureKind.WRONG_RESULT, False),
        ("not a number", FailureKind.WRONG_RESULT, False),
        ("writes input", FailureKind.WRONG_RESULT, False),
        ("race", FailureKind.NONDETERMINISTIC, False),
        ("atomics", FailureKind.NONDETERMINISTIC, False),
        ("too much shared", FailureKind.RUN_ERROR, False),
        ("illegal address", FailureKind.RUN_ERROR, True),
        ("trap", FailureKind.RUN_ERROR, True),
    ],
)
def test_a_fault_costs_the_kernel_and_at_most_its_process(
    fault: str,
    kind: FailureKind,
    replaced: bool,
    kernels: dict[str, Kernel],
    pool: WorkerPool,
    protocol: MeasurementProtocol,
) -> None:
    before = right(pool, protocol, kernels["product"])
    process = pool.pids()
    outcome = ask(pool, protocol, kernels[fault])
    assert isinstance(outcome, Done), outcome
    assert outcome.value.failure is not None
    assert outcome.value.failure.kind is kind, outcome.value.failure
    assert outcome.value.samples_us == ()
    after = right(pool, protocol, kernels["product"])
    assert same_time(before, after)
    assert (pool.pids() != process) is replaced


def test_an_endless_kernel_costs_its_time_limit(
    kernels: dict[str, Kernel], pool: WorkerPool, protocol: MeasurementProtocol
) -> None:
    before = right(pool, protocol, kernels["product"])
    outcome = ask(pool, protocol, kernels["endless"], ENDLESS_S)
    assert isinstance(outcome, TimedOut), outcome
    assert same_time(before, right(pool, protocol, kernels["product"]))


def test_atomics_are_right_where_the_template_says_so(
    kernels: dict[str, Kernel], pool: WorkerPool, protocol: MeasurementProtocol
) -> None:
    measurement = right(pool, protocol, kernels["added"])
    assert measurement.relative_error is not None
    assert 0 < measurement.relative_error < 1e-6


# memory


def starved(
    items: Sequence[Kernel], protocol: MeasurementProtocol, left_bytes: int
) -> tuple[list[Failure | None], Measurement]:
    """Measure while hardly any memory is left, then once more when it is."""
    good, *greedy = items
    assert measure_kernel(*good, protocol).failure is None
    torch.cuda.empty_cache()
    held = torch.empty(torch.cuda.mem_get_info()[0] - left_bytes, dtype=torch.int8, device="cuda")
    failures = [measure_kernel(*item, protocol).failure for item in greedy]
    del held
    torch.cuda.empty_cache()
    return failures, measure_kernel(*good, protocol)


def test_a_lack_of_device_memory_is_told_and_the_process_goes_on(
    kernels: dict[str, Kernel], pool: WorkerPool, protocol: MeasurementProtocol
) -> None:
    """The first asks for a GiB and more of tensors, the second for local memory of all threads when it is
    launched.
    """
    before = right(pool, protocol, kernels["product"])
    process = pool.pids()
    items = [kernels["product"], kernels["large"], kernels["large local"]]
    ((_, outcome),) = pool.run(partial(starved, protocol=protocol, left_bytes=512 << 20), [items])
    assert isinstance(outcome, Done), outcome
    failures, after = outcome.value
    assert [failure and failure.kind for failure in failures] == [FailureKind.RUN_MEMORY] * 2, failures
    assert "1024.00 MiB" in failures[0].message or "1.00 GiB" in failures[0].message, failures[0]
    assert after.failure is None
    assert same_time(before, after)
    assert pool.pids() == process


def used_after(items: Sequence[Kernel], protocol: MeasurementProtocol) -> list[int]:
    """Device memory in use after each round over the kernels."""
    used = []
    for _ in range(10):
        for item in items:
            measure_kernel(*item, replace(protocol, warmup_ms=1.0, max_samples=20))
        free, total = torch.cuda.mem_get_info()
        used.append(total - free)
    return used


def test_measuring_keeps_no_device_memory(kernels: dict[str, Kernel], protocol: MeasurementProtocol) -> None:
    with WorkerPool(1, timeout_s=120) as fresh:
        items = [kernels[name] for name in ("product", "wrong", "small", "atomics", "too much shared")]
        ((_, outcome),) = fresh.run(partial(used_after, protocol=protocol), [items])
    assert isinstance(outcome, Done), outcome
    assert outcome.value[-1] - outcome.value[2] < 64 << 20, outcome.value


# protocols


def test_a_warm_cache_and_a_graph_make_a_small_kernel_faster(
    gpu_target: Target, kernels: dict[str, Kernel], pool: WorkerPool
) -> None:
    cold, warm = (
        right(pool, MeasurementProtocol.named(name, gpu_target), kernels["small"])
        for name in ("default", "serving")
    )
    print("small product, default and serving:", cold.latency_us, warm.latency_us, dict(warm.observed))
    assert warm.latency_us < cold.latency_us
    assert (cold.observed["launches"], cold.observed["input_sets"], warm.observed["input_sets"]) == (1, 4, 4)
    assert warm.observed["launches"] > 1


def sleeps(cycles: int) -> tuple[float, float]:
    """A launch that takes a known number of cycles, eager and in a graph."""
    call = partial(torch.cuda._sleep, cycles)
    eager = GpuTimer(1 << 20)
    found = [median(time_us for (time_us,) in eager.turns([Stretch(call)], 9))]
    graph = GraphTimer(400.0)
    graph.warm_up(call, 5.0)
    stretch = graph.stretch(call)
    found.append(median(time_us for (time_us,) in graph.turns([stretch], 9)))
    graph.release()
    return found[0], found[1]


def test_a_sample_of_a_graph_is_the_time_of_one_launch() -> None:
    with WorkerPool(1, timeout_s=120) as fresh:
        outcomes = dict(fresh.run(sleeps, [20_000, 2_000_000]))
    for index, outcome in outcomes.items():
        assert isinstance(outcome, Done), outcome
        eager, graph = outcome.value
        print(("short", "long")[index], eager, graph)
        assert 0.5 < graph / eager < 1.2, "back to back there is less between launches, and never more"


def failed_capture(_: object) -> tuple[bool, str]:
    graph = GraphTimer(400.0)
    torch.cuda._sleep(1000)  # the first launch loads it, which must not count as its time
    torch.cuda.synchronize()
    turns = 0

    def call() -> None:
        nonlocal turns
        turns += 1
        torch.cuda._sleep(1000)
        if turns > 7:
            torch.cuda.synchronize()  # what no capture allows

    try:
        graph.stretch(call)
    except RuntimeError as error:
        return graph.broken, str(error)
    return graph.broken, ""


def test_a_capture_that_fails_is_an_error_and_not_a_hang() -> None:
    with WorkerPool(1, timeout_s=60) as fresh:
        ((_, outcome),) = fresh.run(failed_capture, [None])
    assert isinstance(outcome, Done), outcome
    broken, message = outcome.value
    assert broken
    assert message


def together(items: Sequence[Kernel], protocol: MeasurementProtocol) -> Comparison:
    return measure_together(items, protocol.careful())


def test_finalists_are_compared_and_one_wins(
    kernels: dict[str, Kernel], pool: WorkerPool, protocol: MeasurementProtocol
) -> None:
    items = [kernels[name] for name in ("64x2", "64x4", "128x2", "128x4")]
    ((_, outcome),) = pool.run(partial(together, protocol=protocol), [items])
    assert isinstance(outcome, Done), outcome
    found = outcome.value
    times = {
        item[1].config: measurement.latency_us
        for item, measurement in zip(items, found.measurements, strict=True)
    }
    print(
        {str(config): time_us for config, time_us in times.items()},
        found.decision,
        dict(found.measurements[0].observed),
    )
    assert found.decision is not None
    assert times[found.decision.winner] <= 1.02 * min(times.values())
    assert found.baselines


def test_what_the_driver_says_is_recorded(
    kernels: dict[str, Kernel], pool: WorkerPool, protocol: MeasurementProtocol
) -> None:
    pytest.importorskip("pynvml")
    observed = right(pool, protocol, kernels["product"]).observed
    print(dict(observed))
    assert 300 < observed["sm_clock_mhz"] < 3000
    assert 30 < observed["power_w"] < 1500
    assert 10 < observed["temperature_c"] < 110
    assert 0 <= observed["power_capped"] <= 1
