"""Calls of dispatchers by ranks of one process, each on a thread: all have their memory on one device."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch.distributed import HashStore

from tests.support.virtual_ranks import FLAG_TENSORS, PROTOCOL, Checked, bench_of, told_if_it_hangs
from tilesight.builder.loaded_kernel import LoadedKernel
from tilesight.dispatch.group.exchange import Exchange, RankStep
from tilesight.dispatch.group.group_call import CallOrder, Seat, bind_group_call
from tilesight.dispatch.group.shared_memory import WHAT, Allocation, SharedMemory
from tilesight.dispatch.group.shared_tensors import Place, SharedTensors
from tilesight.dispatch.kernels.bound_calls import BoundCall, CallCounter
from tilesight.dispatch.problem import DispatchProblem, make_problem
from tilesight.errors import Failure
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import GroupOperator
from tilesight.records.trial import BuildResult
from tilesight.runner.bench import BenchCase, InputSet
from tilesight.runner.group.group_bench import by_rank, communicating
from tilesight.runner.group.group_run import GroupRun
from tilesight.runner.measure import close_runs
from tilesight.runner.verify import check_outputs

WAIT_S = 30.0  # of a rank for another one in an exchange
LATE_US = 500.0


@dataclass
class Pool:
    """The memory of all ranks, by allocation and rank."""

    world: int
    device: torch.device
    _made: list[list[torch.Tensor]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def parts(self, number: int, size: int) -> list[torch.Tensor]:
        """Those of allocation `number`, which the first rank makes that comes to it."""
        with self._lock:
            if number == len(self._made):
                self._made.append(
                    [torch.zeros(size, dtype=torch.uint8, device=self.device) for _ in range(self.world)]
                )
                if self.device.type != "cpu":
                    torch.cuda.synchronize(self.device)
            return self._made[number]


class PlainMemory(SharedMemory):
    """Memory of one device for all ranks, in place of torch's symmetric memory."""

    def __init__(self, pool: Pool, exchange: Exchange) -> None:
        super().__init__(pool.device, exchange)
        self._pool, self._count = pool, 0

    def allocate(self, size: int) -> Allocation:
        def make() -> RankStep[Allocation]:
            parts = self._pool.parts(self._count, size)
            self._count += 1
            addresses = tuple(part.data_ptr() for part in parts)
            return RankStep(Allocation(parts[self.exchange.rank], addresses, parts), {"size": str(size)})

        return self.exchange.attempt(WHAT, make)[0]

    def settles(self, timeout_s: float) -> bool:
        return True  # nobody watches ranks of one process


@dataclass(frozen=True)
class VirtualRank:
    """A rank with its bound call. `scratch`: where the shared scratch of its kernel lies."""

    call: BoundCall
    problem: DispatchProblem
    shared: SharedTensors
    scratch: Mapping[str, Place]


def exchanges(world: int) -> list[Exchange]:
    store = HashStore()
    return [Exchange(store, rank, world, WAIT_S) for rank in range(world)]


def bind(kernel: LoadedKernel, candidate: Candidate, pool: Pool, exchange: Exchange) -> VirtualRank:
    """The call of one rank, as a dispatcher binds it. A step of all ranks."""
    template, workload, rank = candidate.template, candidate.workload, exchange.rank
    problem = make_problem(
        template, candidate.target, workload.dtype, workload.attrs, workload.dims, dynamic_dims=()
    )
    shared = SharedTensors(PlainMemory(pool, exchange))
    scratch = shared.scratch(template.shared_scratch(workload, candidate.config))
    seat = Seat(None, rank, pool.world, exchange)
    call = bind_group_call(
        kernel, problem, candidate, scratch, seat, shared, CallOrder(), nullcontext, CallCounter()
    )
    return VirtualRank(call, problem, shared, scratch)


Outputs = dict[str, torch.Tensor]


def check_dispatch(item: tuple[BuildResult, Candidate]) -> Checked:
    """Check calls of dispatchers on virtual ranks, in a process that owns the GPU."""
    build, candidate = item
    bench = bench_of(candidate.target.world, candidate.target.device_target)
    run = GroupRun(build, candidate, bench, PROTOCOL)
    run.failure = check_calls(run, bench.case(candidate.template.operator, candidate.workload, PROTOCOL))
    close_runs([run], bench)
    return Checked(run.failure)


def check_calls(run: GroupRun, case: BenchCase) -> Failure | None:
    """What is wrong with calls with ordinary tensors, each with another rank late, or with one with tensors
    that all ranks reach. None if nothing is. Loads the kernel of the run.
    """
    candidate, ranks, artifact = run.candidate, run._group.ranks, run.build.artifact
    assert artifact is not None
    run._load(artifact)
    world, on_gpu = ranks.world, run.bench.device != "cpu"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    pool, exchanged = Pool(world, device), exchanges(world)
    of_ranks: dict[int, VirtualRank] = {}
    found: list[list[Outputs]] = [[] for _ in range(world)]

    def of_rank(rank: int) -> None:
        own = of_ranks[rank] = bind(run._kernels[rank], candidate, pool, exchanged[rank])
        inputs = [dict(by_rank(given.inputs, world)[rank]) for given in _in_turn(case)]
        for late in range(world):
            if rank == late:
                run.delay(rank, LATE_US)
            found[rank].append(_called(own, inputs[late], {}))
        placed, last = _placed(own, candidate), inputs[world]
        for name in placed.keys() & last.keys():
            last[name] = placed.pop(name).copy_(last[name])
        found[rank].append(_called(own, last, placed))

    def flags() -> dict[str, list[torch.Tensor]]:
        wanted = candidate.template.shared_scratch(candidate.workload, candidate.config)
        return {
            name: [own.scratch[name].tensor(*wanted[name]) for own in of_ranks.values()]
            for name in FLAG_TENSORS
            if name in wanted
        }

    with told_if_it_hangs(flags):
        ranks.together([partial(of_rank, rank) for rank in range(world)])()
        ranks.synchronize()
    return _failure(case, found)


def _in_turn(case: BenchCase) -> list[InputSet]:
    """The inputs of each call: those with exact sums, where there are any, take turns with others."""
    kinds = [case.sets[0], case.second or case.sets[-1]]
    return [kinds[number % 2] for number in range(len(case.parts(case.sets[0].inputs)) + 1)]


def _called(own: VirtualRank, inputs: Mapping[str, torch.Tensor], outputs: Outputs) -> Outputs:
    names = own.problem.outputs
    out = None
    if outputs:
        out = outputs[names[0]] if len(names) == 1 else tuple(outputs[name] for name in names)
    result = own.call(tuple(inputs[name] for name in own.problem.inputs), out)
    return dict(zip(names, (result,) if len(names) == 1 else result, strict=True))


def _placed(own: VirtualRank, candidate: Candidate) -> Outputs:
    """Memory of the dispatcher for each shared input and output. A step of all ranks."""
    operator: GroupOperator = communicating(candidate.template.operator)
    shapes = {
        **{name: tuple(shape) for name, shape in operator.outputs(candidate.workload).items()},
        **{
            name: tuple(tensor.shape)
            for name, tensor in operator.rank_inputs(candidate.workload, 0, "cpu", 0).items()
        },
    }
    return {
        name: own.shared.empty(shapes[name], operator.dtype_of(name, candidate.workload))
        for name in operator.shared
    }


def _failure(case: BenchCase, found: list[list[Outputs]]) -> Failure | None:
    world = len(found)
    for rank, calls in enumerate(found):
        for number, (given, outputs) in enumerate(zip(_in_turn(case), calls, strict=True)):
            reference = by_rank(given.reference, world)[rank]
            magnitude = by_rank(given.magnitude, world)[rank]
            verdict = check_outputs(
                case.operator, case.workload, outputs, reference, magnitude, given.is_exact
            )
            if verdict.failure is not None:
                how = f"rank {number} late" if number < world else "tensors that all ranks reach"
                return replace(
                    verdict.failure,
                    message=f"rank {rank}, call {number + 1} with {how}: {verdict.failure.message}",
                )
    return None
