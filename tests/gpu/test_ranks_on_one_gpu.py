"""Ranks that share one GPU: each has a stream and some of the cores, so blocks of all ranks are resident.

Memory of peers is that of the same device: this shows what kernels compute and wait for, not what links do.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest

from tilesight.builder.build import build_kernel
from tilesight.builder.loaded_kernel import LoadedKernel
from tilesight.errors import Failure
from tilesight.executor import tasks
from tilesight.kernels import template_for
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import GroupOperator, argument_names
from tilesight.problem.space import Config
from tilesight.records.trial import BuildResult
from tilesight.runner.bench import new_tensors
from tilesight.runner.verify import check_outputs
from tilesight.settings import available_cores
from tilesight.target.spec import Target, load_target, node_names
from tilesight.workers import Done, WorkerPool, wait_for

pytestmark = pytest.mark.gpu

NAME = "context_parallel_flash_attention"
CALLS = 6  # in a row, with nothing between them
LATE_CYCLES = 2_000_000
# the first launch of a kernel must not wait for others to end: these wait for it
ENVIRONMENT = {"CUDA_MODULE_LOADING": "EAGER"}
TILE: Mapping[str, int | str] = {
    "algorithm": "push",
    "block_m": 128,
    "block_n": 64,
    "num_stages": 2,
    "threads": 256,
    "block_order": "by_length",
    "schedule": "overlapped",
    "senders": 4,
    "chunk_rows": 64,
}
CASES: Mapping[str, tuple[int, str, Mapping[str, int | str]]] = {
    "causal": (2, "batch=2,heads=8,seq_len=1024,head_dim=128,group=4,causal=true", {"chunk_rows": 128}),
    "causal, small chunks": (4, "batch=1,heads=8,seq_len=512,head_dim=64,causal=true", {"senders": 2}),
    "causal, in turns": (
        4,
        "batch=2,heads=6,seq_len=384,head_dim=64,group=2,causal=true,scale=0.2",
        {"block_m": 192, "threads": 384, "schedule": "ping_pong", "block_order": "by_head"},
    ),
    "no mask": (
        4,
        "batch=3,heads=4,seq_len=320,head_dim=128",
        {"block_m": 64, "threads": 128, "block_n": 32},
    ),
}


@pytest.fixture(scope="module")
def kernels(
    gpu_target: Target, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[BuildResult, Candidate]]:
    """Built for as many devices, with a part of the cores of one."""
    nodes = [node for node in map(load_target, node_names()) if node.chip == gpu_target]
    wanted = {}
    for case, (world, shape, changes) in CASES.items():
        node = next((node for node in nodes if node.world == world), None)
        if node is None:
            pytest.skip(f"no shipped target is {world} of this GPU")
        template = template_for(NAME, node, "bfloat16")
        config = Config({**TILE, **changes, "persistent": node.int("core.count") // world})
        assert isinstance(template.operator, GroupOperator)
        wanted[case] = Candidate(template.operator.workload_on(node, shape), node, template, config)
    found = {}
    with WorkerPool(min(len(wanted), available_cores()), timeout_s=180) as builders:
        build = partial(build_kernel, cache_dir=tmp_path_factory.mktemp("cache"))
        for index, outcome in builders.run(build, wanted.values()):
            case = list(wanted)[index]
            assert isinstance(outcome, Done), (case, outcome)
            assert outcome.value.artifact, (case, outcome.value.failure)
            found[case] = outcome.value, wanted[case]
    return found


def run_ranks(item: tuple[BuildResult, Candidate]) -> list[tuple[int, int, Failure]]:
    """Calls in a row, of which each rank comes late to one: call, rank and fault of wrong results."""
    import torch

    build, candidate = item
    template, workload, config = candidate.template, candidate.workload, candidate.config
    ours, world = template.operator, workload.dims["world"]
    assert isinstance(ours, GroupOperator)
    assert build.artifact is not None
    torch.zeros(1, device="cuda")
    kernel = LoadedKernel(build.artifact, build.entry)
    shared = template.shared_scratch(workload, config)
    scratch = [new_tensors(shared, "cuda", zeroed=True) for _ in range(world)]
    sets = [[ours.rank_inputs(workload, rank, "cuda", seed) for rank in range(world)] for seed in range(2)]
    sets.append([ours.rank_second_inputs(workload, rank, "cuda", 0).tensors for rank in range(world)])  # type: ignore[union-attr]
    results = [
        [
            {name: torch.full_like(one["Q"], torch.nan) for name in ours.outputs(workload)}
            for one in sets[call % len(sets)]
        ]
        for call in range(CALLS)
    ]
    streams = [torch.cuda.Stream() for _ in range(world)]
    names = argument_names(ours, workload, shared, template.scratch(workload, config))
    torch.cuda.synchronize()
    for call, outputs in enumerate(results):
        given = sets[call % len(sets)]
        for rank, stream in enumerate(streams):
            if call % world == rank:
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(LATE_CYCLES)
            own = {**given[rank], **outputs[rank]}
            tensors = [own[name] if owner is None else scratch[owner][name] for name, owner in names]
            kernel.bind(tensors, stream.cuda_stream, candidate.slots_of_rank(rank))()
    torch.cuda.synchronize()
    found = []
    for call, outputs in enumerate(results):
        given = sets[call % len(sets)]
        right, sizes = ours.group_reference(workload, given), ours.group_magnitude(workload, given)
        for rank in range(world):
            verdict = check_outputs(ours, workload, outputs[rank], right[rank], sizes[rank])
            if verdict.failure is not None:
                found.append((call, rank, verdict.failure))
    return found


@pytest.mark.parametrize("case", CASES)
def test_calls_in_a_row_are_right_while_a_rank_is_late(
    case: str, kernels: dict[str, tuple[BuildResult, Candidate]]
) -> None:
    with WorkerPool(1, timeout_s=60, preload=tasks.preload_device, environment=ENVIRONMENT) as pool:
        pool.submit(run_ranks, kernels[case])
        [(_, _, outcome)] = wait_for([pool])
    assert isinstance(outcome, Done), outcome
    assert outcome.value == []
