"""Calls of ranks that share one GPU as CUDA graphs: captured once, and launched again with other inputs."""

from __future__ import annotations

from functools import partial

import torch

from tests.support.virtual_ranks import PROTOCOL, Checked, StreamRanks, bench_of, flags_of, told_if_it_hangs
from tilesight.errors import Failure
from tilesight.problem.candidate import Candidate
from tilesight.records.trial import BuildResult
from tilesight.runner.bench import BenchCase
from tilesight.runner.group.group_run import GroupRun
from tilesight.runner.measure import close_runs

LAUNCHES = 4
LATE_US = 500.0


def check_graphs(item: tuple[BuildResult, Candidate]) -> Checked:
    """Check graphs of calls on virtual ranks, in a process that owns the GPU."""
    build, candidate = item
    bench = bench_of(candidate.target.world, candidate.target.device_target)
    run = GroupRun(build, candidate, bench, PROTOCOL)
    case = bench.case(candidate.template.operator, candidate.workload, PROTOCOL)
    assert build.artifact is not None
    run._load(build.artifact)
    with told_if_it_hangs(partial(flags_of, run)):
        failure = check_launches(run, case)
    close_runs([run], bench)
    return Checked(failure)


def check_launches(run: GroupRun, case: BenchCase) -> Failure | None:
    """What is wrong with launches of a graph of each rank, with one late and the inputs of one set after the
    other. None if nothing is.
    """
    ranks = run._group.ranks
    assert isinstance(ranks, StreamRanks)
    inputs = {name: tensor.clone() for name, tensor in case.sets[0].inputs.items()}
    outputs = case.outputs()
    [calls] = run._stages(inputs, outputs)
    assert not callable(calls)
    run._once(case, outputs, run._launches([calls]))
    graphs = [captured(ranks, rank, call) for rank, call in enumerate(calls)]

    def launch(rank: int, late: int) -> None:
        if rank == late:
            ranks.wait(rank, LATE_US)
        graphs[rank].replay()

    for number in range(LAUNCHES):
        given, late = case.sets[number % len(case.sets)], number % ranks.world
        for name, tensor in given.inputs.items():
            inputs[name].copy_(tensor)
        run._once(case, outputs, ranks.together([partial(launch, rank, late) for rank in range(ranks.world)]))
        run._compare(case, given, outputs)
        run._say_when(f"launch {number + 1} of a graph, with rank {late} late")
        if run.failure is not None:
            return run.failure
    return None


def captured(ranks: StreamRanks, rank: int, call: object) -> torch.cuda.CUDAGraph:
    """The graph of a call on the stream of a rank."""
    assert callable(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.ExternalStream(ranks.stream(rank))):
        graph.capture_begin(capture_error_mode="relaxed")
        call()
        graph.capture_end()
    return graph
