"""What `tests/gpu/test_virtual_ranks.py` rests on, without a GPU: arguments, blocks, flags and waits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.gpu.test_virtual_ranks import OPERATORS, SHAPES, WORLDS, candidates
from tests.support.group_kernels import cpu_pair, sum_candidate
from tests.support.virtual_kernels import (
    FOR_COPIES,
    fused_candidates,
    is_by_engines,
    misfit,
    most_waiting,
    virtual_target,
    waits,
    way_of,
    without_wait,
)
from tests.support.virtual_ranks import FLAG_TENSORS, check, flags_fault
from tests.unit.runner.test_measure import FAST
from tilesight.builder.build import build_kernel, device_source
from tilesight.builder.launch_plan import read_plan
from tilesight.kernels import operator
from tilesight.kernels._rank_products import RankProduct
from tilesight.kernels._ranks import barrier_function
from tilesight.lowering.dynamic import lower_candidate
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import AWAIT, MEET, argument_names, of_rank
from tilesight.records.trial import BuildResult
from tilesight.runner.bench import new_tensors
from tilesight.runner.group import group_bench
from tilesight.runner.group.group_bench import GroupBench, communicating, group_bench_for, of_all
from tilesight.runner.group.group_run import GroupRun
from tilesight.runner.group.ranks import ThreadRanks
from tilesight.runner.kernel_run import new_scratch
from tilesight.runner.timers import Call, CpuTimer
from tilesight.target.spec import load_target

H200 = load_target("h200")
SMALL: Mapping[str, str] = {
    "all_to_all_grouped_matmul": "tokens=4,hidden=64,inner=64,experts=2,topk=2",
    "context_parallel_flash_attention": "batch=3,heads=24,seq_len=256,head_dim=64,causal=true",
    "context_parallel_flash_decoding": "batch=1,heads=4,kv_heads=2,kv_len=64,head_dim=64,lse=true",
    "context_parallel_mla_decode": "batch=1,heads=4,kv_len=64,lse=true",
}


@cache
def of_operator(name: str, world: int) -> dict[str, Candidate]:
    target = virtual_target(H200, world, name)
    found = fused_candidates(name, SMALL.get(name, "m=1024,n=1024,k=512"), target, 1)
    assert found
    return found


class NotedKernel:
    """Stands for the library of a rank: notes what it is bound to."""

    def __init__(self) -> None:
        self.tensors: Sequence[torch.Tensor] = ()
        self.slots: Sequence[int] = ()

    def bind(self, tensors: Sequence[torch.Tensor], stream: int, slots: Sequence[int]) -> Call:
        self.tensors, self.slots = tensors, slots
        return lambda: None


def bound(candidate: Candidate) -> list[NotedKernel]:
    """The arguments that `GroupRun` gives to the kernel of each rank."""
    template, workload, config = candidate.template, candidate.workload, candidate.config
    kind, ranks = communicating(template.operator), range(candidate.target.world)
    bench = GroupBench("cpu", CpuTimer(0.0, 0), {}, ranks=ThreadRanks(len(ranks)))
    run = GroupRun(BuildResult("none"), candidate, bench, FAST)
    shared = template.shared_scratch(workload, config)
    run._scratch = of_all({**new_tensors(shared, "cpu"), **new_scratch(candidate, "cpu")} for _ in ranks)
    kernels = [NotedKernel() for _ in ranks]
    run._kernels = list(kernels)  # type: ignore[arg-type]
    wanted = {key: (size, kind.dtype_of(key, workload)) for key, size in kind.outputs(workload).items()}
    inputs = of_all(kind.rank_inputs(workload, rank, "cpu", 1) for rank in ranks)
    run._stages(inputs, of_all(new_tensors(wanted, "cpu") for _ in ranks))
    return kernels


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_each_rank_gets_its_own_tensors_and_the_shared_ones_of_all(name: str, world: int) -> None:
    """Names, sizes and dtypes are those of the parameters of the traced function, in its order."""
    for label, candidate in of_operator(name, world).items():
        template, workload, config = candidate.template, candidate.workload, candidate.config
        traced = template.build(workload, config)
        buffers = [traced.buffer_map[one] for one in traced.params if one in traced.buffer_map]
        names = argument_names(
            communicating(template.operator),
            workload,
            template.shared_scratch(workload, config),
            template.scratch(workload, config),
        )
        assert [str(one.name) for one in buffers] == [
            key if rank is None else of_rank(key, rank) for key, rank in names
        ], label
        parameters = [(math.prod(map(int, one.shape)), str(one.dtype)) for one in buffers]
        kernels = bound(candidate)
        for rank, kernel in enumerate(kernels):
            tensors = [(one.numel(), str(one.dtype).removeprefix("torch.")) for one in kernel.tensors]
            assert tensors == parameters, f"{label}: rank {rank}"
            assert kernel.slots[0] == rank
        for index, (key, owner) in enumerate(names):
            places = {kernel.tensors[index].data_ptr() for kernel in kernels}
            assert len(places) == (world if owner is None else 1), f"{label}: {key} of rank {owner}"


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_all_ranks_of_each_case_fit_one_chip(name: str, world: int) -> None:
    cases = candidates(name, world, H200, 10**6 if isinstance(operator(name), RankProduct) else 3)
    assert cases
    assert {misfit(one, H200.int("core.count")) for one in cases.values()} == {None}


def test_ranks_that_do_not_fit_are_refused() -> None:
    name = "context_parallel_flash_decoding"
    target = virtual_target(H200, 4, name)
    [candidate] = fused_candidates(name, SHAPES[name][0].replace("batch=8", "batch=40"), target, 1).values()
    reason = misfit(candidate, 132)
    assert reason is not None
    assert reason.startswith("64 blocks of each of 4 ranks may wait at once, and the chip has 132 cores")
    product = "matmul_all_reduce"
    whole = fused_candidates(product, "m=1024,n=1024,k=512", load_target("h200x2"), 1)
    assert whole
    assert all(misfit(one, 132) for one in whole.values()), "each rank has a block for each core of the chip"


@pytest.mark.parametrize("world", WORLDS)
def test_copies_to_peers_have_cores_that_no_block_holds(world: int) -> None:
    """Within the memory of one GPU the driver may copy by kernels: these would wait for blocks that wait."""
    cases = candidates("all_gather_matmul", world, H200)
    copied = [one for one in cases.values() if is_by_engines(one.config)]
    assert copied
    assert {way_of(one.config) for one in copied} == {"push mechanism copy_engine"}
    assert {waits(one) for one in copied} == {(AWAIT,)}
    assert all(most_waiting(one) * world + FOR_COPIES <= 132 for one in copied)
    reason = misfit(copied[0], most_waiting(copied[0]) * world + FOR_COPIES - 1)
    assert reason is not None
    assert reason.endswith("take a smaller shape")


@pytest.mark.full
@pytest.mark.parametrize(("name", "world"), [("matmul_all_reduce", 4), ("context_parallel_mla_decode", 2)])
def test_launches_that_take_flags_have_the_blocks_that_are_counted(name: str, world: int) -> None:
    candidate = list(of_operator(name, world).values())[-1]
    template, kind = candidate.template, communicating(candidate.template.operator)
    plan = read_plan(lower_candidate(candidate))
    names = argument_names(
        kind,
        candidate.workload,
        template.shared_scratch(candidate.workload, candidate.config),
        template.scratch(candidate.workload, candidate.config),
    )
    flags = {index for index, (key, _) in enumerate(names) if key in FLAG_TENSORS}
    blocks = [
        launch.grid[0]
        for launch in plan.launches
        if flags & {one.index for one in launch.arguments if one.kind == "tensor"}
    ]
    if isinstance(kind, RankProduct):
        assert max(map(int, blocks)) == most_waiting(candidate)  # type: ignore[call-overload]
    else:
        assert blocks == [(world + 1) * most_waiting(candidate)], "those that send, and those that wait"


@pytest.mark.full
@pytest.mark.parametrize("name", OPERATORS)
def test_each_wait_can_be_taken_out(name: str) -> None:
    """The device functions of `waits` are in the generated source, and wait there."""
    for label, candidate in of_operator(name, 2).items():
        source = device_source(lower_candidate(candidate), candidate.target)
        for wait in waits(candidate):
            changed = without_wait(source, wait)
            assert changed.count("while (false && ") >= 1, label
            assert changed.replace("false && ", "") == source, label
            assert f"  {wait}(rank, " in source, f"{label}: no kernel calls {wait}"


def test_a_wait_that_is_not_there_cannot_be_taken_out() -> None:
    with pytest.raises(ValueError, match="no device function await_chunks waits in this source"):
        without_wait(barrier_function(2), "await_chunks")
    text = without_wait(barrier_function(2) + barrier_function(2), MEET)
    assert text.count("while (false && (int)") == 2


def flags(*calls: Sequence[Sequence[int]], name: str = "flags") -> list[dict[str, list[torch.Tensor]]]:
    return [{name: [torch.tensor(own) for own in call]} for call in calls]


@pytest.mark.parametrize(
    ("seen", "fault"),
    [
        (flags([[2, 2], [2, 2]], [[4, 4], [4, 4]], [[6, 6], [6, 6]]), None),
        (flags([[0, 1], [1, 0]], [[0, 3], [3, 0]], name="arrived"), None),
        (
            flags([[2, 2], [2, 2]], [[4, 4], [4, 2]]),
            r"flags: after call 2 ranks have the numbers \[\[4\], \[2, 4",
        ),
        (flags([[1, 1], [2, 2]]), r"flags: after call 1 ranks have the numbers \[\[1\], \[2\]\]"),
        (flags([[0, 1], [1, 1]]), r"flags: after call 1 ranks have the numbers \[\[0, 1\], \[1\]\]"),
        (flags([[0, 1], [2, 1]], name="arrived"), r"arrived: after call 1 .*\[\[1\], \[1, 2\]\]"),
        (flags([[2], [2]], [[4], [4]], [[4], [4]]), r"flags: calls raise it to \[2, 4, 4\]"),
        (flags([[4], [4]], [[2], [2]]), r"flags: calls raise it to \[4, 2\]"),
    ],
)
def test_flags_count_calls(seen: Sequence[Mapping[str, Sequence[torch.Tensor]]], fault: str | None) -> None:
    found = flags_fault(seen)
    assert found is None if fault is None else re.match(fault, found or "")


@pytest.mark.parametrize(
    ("changes", "is_right"), [({"way": "push"}, True), ({"way": "push", "first": "only raises"}, False)]
)
def test_checks_are_those_of_threads_too(changes: dict[str, object], is_right: bool, tmp_path: Path) -> None:
    """What runs on the GPU, with threads as ranks."""
    pair = cpu_pair(tmp_path)
    candidate = sum_candidate(pair, **changes)
    build = build_kernel(candidate, tmp_path)
    group_bench._group_bench.cache_clear()
    bench = group_bench_for(pair, FAST)
    run = GroupRun(build, candidate, bench, FAST)
    found = check(run, bench.case(candidate.template.operator, candidate.workload, FAST))
    run.close()
    assert found.flags is None
    assert (found.failure is None) is is_right
