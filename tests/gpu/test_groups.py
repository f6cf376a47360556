"""Kernels of two real GPUs: right ones are measured, faulty ones are found, and a rank that waits for ever
costs its candidate only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.support.group_kernels import sum_candidate
from tests.support.virtual_kernels import way_of
from tilesight.builder.build import build_kernel
from tilesight.errors import Failure, FailureKind
from tilesight.executor import tasks
from tilesight.kernels import operator, operators, template_for
from tilesight.machine.devices import NoDevice, find_devices, groups_for, restricted_to
from tilesight.machine.group_environment import GROUP_ENVIRONMENT
from tilesight.problem.candidate import Candidate
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import Comparison
from tilesight.records.trial import BuildResult, Measurement
from tilesight.runner.measure import measure_kernel, measure_together
from tilesight.settings import available_cores
from tilesight.target.spec import Target, load_target, node_names
from tilesight.workers import Done, Outcome, TimedOut, WorkerPool, wait_for

pytestmark = pytest.mark.gpu

N = 1 << 12
WAITS_S = 6.0
USUAL_S = 60.0
# by dimensions: the second product fills no tile; parts of the positions are three tiles of 64, or nine;
# heads of a rank fill no tile of the exchange;
# more experts than blocks that wait, and some without rows
SHAPES: Mapping[str, tuple[str, ...]] = {
    "all_to_all_grouped_matmul": (
        "tokens=512,hidden=1024,inner=512,experts=8,topk=4",
        "tokens=77,hidden=264,inner=200,experts=3,topk=2,routing=skewed",
        "tokens=1000,hidden=512,inner=256,experts=70,topk=8,routing=skewed",
    ),
    "context_parallel_flash_attention": (
        "batch=1,heads=32,seq_len=2048,head_dim=128,causal=true,group=4",
        "batch=2,heads=32,seq_len=384,head_dim=64,causal=true",
        "batch=3,heads=24,seq_len=576,head_dim=64,group=3,scale=0.1",
    ),
    "context_parallel_flash_decoding": (
        "batch=8,heads=64,kv_heads=8,kv_len=4096,head_dim=128",
        "batch=3,heads=12,kv_heads=2,kv_len=1000,head_dim=64,q_len=3,lse=true",
        "batch=40,heads=64,kv_heads=8,kv_len=512,head_dim=128,page=64,lengths=mixed,lse=true",
    ),
    "context_parallel_mla_decode": (
        "batch=8,heads=128,kv_len=4096",
        "batch=3,heads=6,kv_len=1000,q_len=2,lse=true",
        "batch=5,heads=64,kv_len=1024,page=64,lengths=mixed,lse=true",
    ),
}
OF_PRODUCTS = (
    "m=1024,n=1024,k=1024",
    "m=1000,n=1016,k=1000",  # fills no tile
    "m=4032,n=4152,k=1000",  # as well, with several tiles for each block, and chunks of 32 rows
)
SAMPLED = 600  # configs of a space, among which all algorithms are
KERNELS: Mapping[str, dict[str, object]] = {
    "pull": {"way": "pull"},
    "push": {"way": "push"},
    "library": {"way": "library"},
    "reads slowly": {"way": "push", "slow_us": 300},
    "wrong": {"way": "pull", "factor": 2},
    "reads before it was sent": {"way": "push", "first": "only raises"},
    "reads before others begin": {"way": "pull", "first": "only raises"},
    "ends while others read": {"way": "pull", "last": "only raises", "slow_us": 300},
    "sends while others read": {"way": "push", "last": "only raises", "slow_us": 300},
    "waits for ever": {"way": "push", "first": "waits for ever"},
}
# faulty ones of them, and how the message begins
FAULTY = (
    ("wrong", ""),
    ("reads before it was sent", ""),
    ("reads before others begin", "with rank "),
    ("ends while others read", "with rank "),
    ("sends while others read", "in call "),
)
Kernel = tuple[BuildResult, Candidate]


@pytest.fixture(scope="module")
def pair(gpu_target: Target) -> Target:
    """The target of two GPUs of this machine."""
    nodes = (load_target(name) for name in node_names())
    node = next((node for node in nodes if node.chip == gpu_target and node.world == 2), None)
    if node is None or isinstance(groups_for(node, find_devices()), NoDevice):
        pytest.skip("needs two GPUs of one kind, of which a shipped target describes two")
    return node


@pytest.fixture(scope="module")
def kernels(pair: Target, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    wanted = {name: sum_candidate(pair, N, **changes) for name, changes in KERNELS.items()}
    return built({**wanted, **shipped(pair)}, tmp_path_factory.mktemp("cache"))


def shipped(pair: Target) -> dict[str, Candidate]:
    """Small kernels of each algorithm of each operator that communicates and has these dimensions.

    Of algorithms with blocks that send or add beside the product, there is one with such blocks, and one
    without if that is another way.
    """
    found: dict[str, Candidate] = {}
    communicating = [name for name in operators() if operator(name).communicates]
    cases = [(name, shape) for name in communicating for shape in SHAPES.get(name, OF_PRODUCTS)]
    for name, shape in cases:
        one = operator(name)
        workload = one.workload_on(pair, shape)
        template = template_for(name, pair, workload.dtype)
        default = template.default_config(workload, pair)
        space = template.space(workload, pair)
        configs = {
            way_of(config): config
            for config in reversed([*([default] if default else []), *space.sample(SAMPLED)])
        }
        [algorithm] = (parameter for parameter in space.parameters if parameter.name == "algorithm")
        assert {way.partition(" ")[0] for way in configs} == set(algorithm.values), (name, shape)
        for chosen, config in configs.items():
            candidate = Candidate(workload, pair, template.for_config(config), config)
            found[f"{name} {chosen} {shape}"] = candidate
    assert any("summers" in name for name in found)
    assert any("senders" in name for name in found)
    return found


def built(wanted: Mapping[str, Candidate], folder: Path) -> dict[str, Kernel]:
    found: dict[str, Kernel] = {}
    with WorkerPool(min(len(wanted), available_cores()), timeout_s=120) as builders:
        for index, outcome in builders.run(partial(build_kernel, cache_dir=folder), wanted.values()):
            name, candidate = list(wanted.items())[index]
            assert isinstance(outcome, Done), (name, outcome)
            assert outcome.value.artifact, (name, outcome.value.failure)
            found[name] = outcome.value, candidate
    return found


@pytest.fixture(scope="module")
def pool(pair: Target) -> Iterator[WorkerPool]:
    devices = groups_for(pair, find_devices())
    assert not isinstance(devices, NoDevice)
    with WorkerPool(
        1,
        timeout_s=USUAL_S,
        preload=tasks.preload_device,
        environment=GROUP_ENVIRONMENT,
        environments=[restricted_to(*devices[:2])],
    ) as made:
        yield made


def measure(item: Kernel) -> Measurement:
    return measure_kernel(*item, MeasurementProtocol())


def compare(items: list[Kernel]) -> Comparison:
    return measure_together(items, MeasurementProtocol())


def ask(pool: WorkerPool, item: Kernel, timeout_s: float = USUAL_S) -> Outcome[Measurement]:
    pool.submit(measure, item, timeout_s=timeout_s)
    [(_, _, outcome)] = wait_for([pool])
    return outcome


def value(outcome: Outcome[Measurement]) -> Measurement:
    assert isinstance(outcome, Done), outcome
    return outcome.value


@pytest.mark.parametrize("name", ["pull", "push", "library", "reads slowly"])
def test_a_right_kernel_is_measured(name: str, pool: WorkerPool, kernels: dict[str, Kernel]) -> None:
    found = value(ask(pool, kernels[name]))
    assert found.failure is None, found.failure
    print(name, found.latency_us, found.spread, found.observed, found.environment)
    assert found.latency_us > 0
    assert found.environment["device"].startswith("2 x ")
    assert found.environment["uuid"].count(",") == 1
    assert found.environment["driver"]


def test_a_small_kernel_of_each_algorithm_is_right(pool: WorkerPool, kernels: dict[str, Kernel]) -> None:
    names = [name for name in kernels if name not in KERNELS]
    if not names:
        pytest.skip("no operator here communicates")
    failed = {}
    for name in names:
        outcome = ask(pool, kernels[name])
        if isinstance(outcome, Done) and outcome.value.failure is None:
            print(name, outcome.value.latency_us)
        else:
            failed[name] = outcome.value.failure if isinstance(outcome, Done) else outcome
    assert failed == {}


@pytest.mark.parametrize(("name", "found_by"), FAULTY)
def test_a_faulty_kernel_is_found(
    name: str, found_by: str, pool: WorkerPool, kernels: dict[str, Kernel]
) -> None:
    found = value(ask(pool, kernels[name]))
    print(name, found.failure)
    assert isinstance(found.failure, Failure)
    assert found.failure.kind in (FailureKind.WRONG_RESULT, FailureKind.NONDETERMINISTIC)
    assert found.samples_us == ()
    assert found.failure.message.startswith(found_by)
    assert value(ask(pool, kernels["pull"])).failure is None


def test_finalists_are_compared_with_the_library(pool: WorkerPool, kernels: dict[str, Kernel]) -> None:
    pool.submit(compare, [kernels[name] for name in ("pull", "push", "library")])
    [(_, _, outcome)] = wait_for([pool])
    assert isinstance(outcome, Done), outcome
    assert [m.failure for m in outcome.value.measurements] == [None] * 3
    [library] = outcome.value.baselines
    assert (library.name, outcome.value.notes) == ("cuBLAS, then NCCL", ())
    print(library.latency_us, [m.latency_us for m in outcome.value.measurements])
    assert library.latency_us > 0
    assert outcome.value.decision is not None


def test_a_rank_that_waits_for_ever_costs_its_candidate_only(
    pool: WorkerPool, kernels: dict[str, Kernel]
) -> None:
    before = pool.pids()
    outcome = ask(pool, kernels["waits for ever"], WAITS_S)
    assert isinstance(outcome, TimedOut), outcome
    assert value(ask(pool, kernels["push"])).failure is None
    assert pool.pids() != before
