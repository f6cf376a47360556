"""Kernels of several GPUs on one: all ranks run there at once, and wait for each other's flags.

Hosts of several GPUs are rare. What these tests show needs none: results are right, also with each rank late
in turn; flags count calls; ranks never wait for ever. Kernels whose waits are taken out fail, so a wait that
is missing would show. Each kernel is checked in a child process, which is ended if it hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.gpu.test_groups import FAULTY, KERNELS, N
from tests.support.group_kernels import sum_candidate
from tests.support.virtual_dispatch import check_dispatch
from tests.support.virtual_graphs import check_graphs
from tests.support.virtual_kernels import (
    build,
    build_without,
    fused_candidates,
    is_by_engines,
    misfit,
    virtual_target,
    waits,
    way_of,
)
from tests.support.virtual_ranks import ENVIRONMENT, LIMIT_S, Checked, check_on_gpu
from tilesight.builder.build import build_kernel
from tilesight.executor import tasks
from tilesight.kernels import operator, operators
from tilesight.machine.devices import find_devices, restricted_to, target_for
from tilesight.problem.candidate import Candidate
from tilesight.records.trial import BuildResult
from tilesight.settings import available_cores
from tilesight.target.spec import Target, load_target
from tilesight.workers import Done, Outcome, TimedOut, WorkerPool, wait_for

pytestmark = pytest.mark.gpu

WORLDS = (2, 4)
OPERATORS = [name for name in operators() if operator(name).communicates]
CONFIGS = 2  # of each way at each shape
WAITS_S = 10.0  # for a kernel that waits for ever
# as in `test_groups`: whole tiles, and tiles that nothing fills, several for each block
OF_PRODUCTS = ("m=1024,n=1024,k=512", "m=1152,n=1016,k=200")
SHAPES: Mapping[str, tuple[str, ...]] = {
    "all_to_all_grouped_matmul": (
        "tokens=32,hidden=512,inner=256,experts=8,topk=4",
        "tokens=17,hidden=264,inner=200,experts=3,topk=2,routing=skewed",
    ),
    # one of several tiles for each block, one whose parts are three tiles of 64, one without a mask
    "context_parallel_flash_attention": (
        "batch=2,heads=32,seq_len=1024,head_dim=128,group=4,causal=true",
        "batch=4,heads=12,seq_len=384,head_dim=64,group=2,causal=true,scale=0.2",
        "batch=3,heads=24,seq_len=320,head_dim=128",
    ),
    "context_parallel_flash_decoding": (
        "batch=8,heads=64,kv_heads=8,kv_len=512,head_dim=128",
        "batch=3,heads=12,kv_heads=2,kv_len=500,head_dim=64,q_len=3,lse=true",
        "batch=5,heads=64,kv_heads=8,kv_len=512,head_dim=128,page=64,lengths=mixed,lse=true",
    ),
    "context_parallel_mla_decode": (
        "batch=4,heads=128,kv_len=512",
        "batch=3,heads=12,kv_len=500,q_len=2,lse=true",
        "batch=5,heads=64,kv_len=512,page=64,lengths=mixed,lse=true",
    ),
}
# more tiles and experts than blocks that wait, which four ranks on one chip have no room for
SHAPES_OF_TWO: Mapping[str, tuple[str, ...]] = {
    "all_to_all_grouped_matmul": ("tokens=200,hidden=512,inner=256,experts=70,topk=8,routing=skewed",),
    "context_parallel_flash_decoding": ("batch=40,heads=64,kv_heads=8,kv_len=512,head_dim=128",),
}
Kernel = tuple[BuildResult, Candidate]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def builders() -> Iterator[WorkerPool]:
    with WorkerPool(min(16, available_cores()), timeout_s=300) as made:
        yield made


@pytest.fixture(scope="module")
def runner(gpu_target: Target) -> Iterator[WorkerPool]:
    """The process that owns the GPU."""
    device = next(one for one in find_devices() if target_for(one) == gpu_target.name)
    with WorkerPool(
        1,
        timeout_s=LIMIT_S,
        preload=tasks.preload_device,
        environment=ENVIRONMENT,
        environments=[restricted_to(device)],
    ) as made:
        yield made


def candidates(name: str, world: int, chip: Target, count: int = CONFIGS) -> dict[str, Candidate]:
    """Configs of each way of an operator, at each of its shapes, by label."""
    target, found = virtual_target(chip, world, name), dict[str, Candidate]()
    shapes = SHAPES.get(name, OF_PRODUCTS)
    for shape in (*shapes, *(SHAPES_OF_TWO.get(name, ()) if world == 2 else ())):
        found |= fused_candidates(name, shape, target, count)
    return found


def one_of_each_way(name: str, world: int, chip: Target) -> dict[str, Candidate]:
    return {way_of(one.config): one for one in candidates(name, world, chip, 1).values()}


def built(
    builders: WorkerPool, make: Callable[[Candidate], BuildResult], wanted: Mapping[str, Candidate]
) -> dict[str, Kernel]:
    found: dict[str, Kernel] = {}
    for index, outcome in builders.run(make, wanted.values()):
        label, candidate = list(wanted.items())[index]
        assert isinstance(outcome, Done), f"{label}: not built: {outcome}"
        assert outcome.value.artifact, f"{label}: not built: {outcome.value.failure}"
        found[label] = outcome.value, candidate
    return found


def ask(
    runner: WorkerPool,
    kernel: Kernel,
    timeout_s: float = LIMIT_S,
    check: Callable[[Kernel], Checked] = check_on_gpu,
) -> Outcome[Checked]:
    runner.submit(check, kernel, timeout_s=timeout_s)
    [(_, _, outcome)] = wait_for([runner])
    return outcome


def fault(outcome: Outcome[Checked]) -> str | None:
    """What is wrong with a kernel, in words; None if nothing is."""
    if isinstance(outcome, TimedOut):
        return f"ranks or launches wait for ever (ended after {outcome.seconds:g} s): {outcome.output}"
    if not isinstance(outcome, Done):
        return f"the process that runs it failed: {outcome}"
    found = outcome.value.failure
    return f"{found.kind.value}: {found.message}" if found else outcome.value.flags


def assert_right(
    runner: WorkerPool, kernels: Mapping[str, Kernel], check: Callable[[Kernel], Checked] = check_on_gpu
) -> None:
    """All are right, or the test fails with each one that is not, and why."""
    found = {label: fault(ask(runner, kernel, check=check)) for label, kernel in kernels.items()}
    failed = {label: reason for label, reason in found.items() if reason}
    report = "\n\n".join(f"{label}\n{reason}" for label, reason in failed.items())
    assert not failed, f"{len(failed)} of {len(kernels)} kernels failed\n\n{report}"


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_each_way_is_right(
    name: str, world: int, gpu_target: Target, builders: WorkerPool, runner: WorkerPool, folder: Path
) -> None:
    """Results, alone and in a row, with each rank late in turn; then flags."""
    wanted = candidates(name, world, gpu_target)
    assert wanted
    cores = gpu_target.int("core.count")
    unfit = {label: reason for label, one in wanted.items() if (reason := misfit(one, cores))}
    assert unfit == {}
    kernels = built(builders, partial(build, folder=folder), wanted)
    assert_right(runner, kernels)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_calls_of_dispatchers_are_right(
    name: str, world: int, gpu_target: Target, builders: WorkerPool, runner: WorkerPool, folder: Path
) -> None:
    """Of each way one kernel, as dispatchers call it: with late ranks, then with tensors that all reach."""
    ways = one_of_each_way(name, world, gpu_target)
    wanted = {f"{name} {way} {one.workload.label}: {one.config}": one for way, one in ways.items()}
    assert_right(runner, built(builders, partial(build, folder=folder), wanted), check_dispatch)


@pytest.mark.parametrize("world", WORLDS)
def test_graphs_of_calls_are_right(
    world: int, gpu_target: Target, builders: WorkerPool, runner: WorkerPool, folder: Path
) -> None:
    """A graph has the copies of copy engines too, and its flags grow each time it is launched."""
    ways = one_of_each_way("all_gather_matmul", world, gpu_target)
    assert any(is_by_engines(one.config) for one in ways.values())
    wanted = {f"{way} {one.workload.label}: {one.config}": one for way, one in ways.items()}
    assert_right(runner, built(builders, partial(build, folder=folder), wanted), check_graphs)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_wait_that_is_missing_shows(
    name: str, world: int, gpu_target: Target, builders: WorkerPool, runner: WorkerPool, folder: Path
) -> None:
    """Of each way one kernel for each device function that waits, in which that one does not wait.

    Copies of copy engines begin late on one rank after the other (`GroupRun.delay`).
    """
    ways = one_of_each_way(name, world, gpu_target)
    by_wait: dict[str, dict[str, Candidate]] = {}
    for way, one in ways.items():
        for wait in waits(one):
            by_wait.setdefault(wait, {})[f"{name} {way} without {wait}: {one.config}"] = one
    unnoticed = []
    for wait, wanted in by_wait.items():
        for label, kernel in built(builders, partial(build_without, wait, folder=folder), wanted).items():
            outcome = ask(runner, kernel)
            reason = outcome.value.failure if isinstance(outcome, Done) else fault(outcome)
            print(label, "->", reason)
            if reason is None:
                unnoticed.append(label)
    assert unnoticed == []


@pytest.fixture(scope="module")
def sums(gpu_target: Target, builders: WorkerPool, folder: Path) -> dict[str, Kernel]:
    """The kernels of `test_groups`, right ones and faulty ones, without that of the library, which refuses to
    have two ranks on one GPU.
    """
    pair = load_target(f"{gpu_target.name}x2")
    wanted = {
        name: sum_candidate(pair, N, **changes) for name, changes in KERNELS.items() if name != "library"
    }
    return built(builders, partial(build_kernel, cache_dir=folder), wanted)


@pytest.mark.parametrize("name", ["pull", "push", "reads slowly"])
def test_a_right_kernel_is_right(name: str, runner: WorkerPool, sums: dict[str, Kernel]) -> None:
    assert fault(ask(runner, sums[name])) is None


@pytest.mark.parametrize(("name", "found_by"), FAULTY)
def test_a_faulty_kernel_is_found(
    name: str, found_by: str, runner: WorkerPool, sums: dict[str, Kernel]
) -> None:
    outcome = ask(runner, sums[name])
    assert isinstance(outcome, Done), outcome
    assert outcome.value.failure is not None, "the fault was not noticed"
    assert outcome.value.failure.message.startswith(found_by)


def test_a_kernel_that_waits_for_ever_costs_its_process_only(
    runner: WorkerPool, sums: dict[str, Kernel]
) -> None:
    outcome = ask(runner, sums["waits for ever"], WAITS_S)
    assert isinstance(outcome, TimedOut), outcome
    assert fault(ask(runner, sums["push"])) is None
