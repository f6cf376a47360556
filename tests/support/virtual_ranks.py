"""Ranks that share one GPU: their kernels run at once, each on a stream of its own, and wait for each other.

Kernels of several GPUs take the tensors of all ranks as ordinary arguments, so that the memory of one GPU can
stand for that of all: `GroupRun` checks such a kernel here as it does on several GPUs. Results, the order of
flags and every wait are those of several GPUs. Times are not, nor is memory of another GPU.

Blocks that wait hold their place until the blocks of other ranks have run. A search space counts those of one
rank, which has a GPU of its own. Here those of all ranks must be resident together, and each must leave the
others a place: see `most_waiting`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch

from tilesight.builder.build import build_lowered
from tilesight.builder.device_code import compile_device_code
from tilesight.builder.launch_plan import LaunchPlan
from tilesight.builder.loaded_kernel import LoadedKernel
from tilesight.errors import Failure, ToolchainError
from tilesight.kernels import operator, template_for
from tilesight.kernels._context_parallel import ContextParallelOperator
from tilesight.kernels._rank_flags import WAITING
from tilesight.kernels._rank_products import RankProduct
from tilesight.kernels._ranks import ARRIVED, FLAGS
from tilesight.kernels.all_to_all_grouped_matmul import RETURNED, AllToAllGroupedMatmul
from tilesight.kernels.context_parallel_flash_attention import ContextParallelFlashAttention
from tilesight.lowering.dynamic import lower_candidate
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import AWAIT, AWAIT_ALL, AWAIT_RESULTS, AWAIT_TILE, MEET, WORLD
from tilesight.problem.space import Config
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult
from tilesight.runner.bench import BenchCase
from tilesight.runner.group import group_bench
from tilesight.runner.group.device_kernels import DeviceKernels
from tilesight.runner.group.group_bench import GroupBench, name_of_rank
from tilesight.runner.group.group_run import GroupRun
from tilesight.runner.group.ranks import Ranks
from tilesight.runner.measure import close_runs
from tilesight.runner.timers import GpuTimer
from tilesight.search_spaces.rank_products import SEQUENTIAL
from tilesight.target.spec import Target, load_target

PROTOCOL = MeasurementProtocol(input_sets=2)
ENVIRONMENT: Mapping[str, str] = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}  # else streams may share a queue
FLAG_TENSORS = (FLAGS, ARRIVED, RETURNED)
CALLS = 3  # after which flags are looked at, one by one
HANGS_S, LIMIT_S = 40.0, 60.0  # after which a check tells where it is, and after which it is ended
SHOWN = 24  # flags of a rank that hangs
STACK_BYTES = 8192  # of a thread
# operators whose kernels of several ranks have a block for each core
OF_CORES = (RankProduct, ContextParallelFlashAttention)
_STACK_SIZE = 0  # CU_LIMIT_STACK_SIZE


class StreamRanks(Ranks):
    """Ranks on streams of the current NVIDIA GPU."""

    def __init__(self, world: int, cubin: bytes) -> None:
        """`cubin`: the code of `group_kernels.cu`. Raises `ToolchainError`."""
        super().__init__(("cuda",) * world)
        torch.zeros(1, device="cuda")  # makes the context
        # a launch that needs more local memory waits for an idle device, and kernels here wait for launches
        limit = ctypes.CDLL("libcuda.so.1").cuCtxSetLimit
        if status := limit(_STACK_SIZE, ctypes.c_size_t(STACK_BYTES)):
            raise ToolchainError(f"the CUDA driver gives threads no stack of {STACK_BYTES} bytes: {status}")
        self._device = torch.cuda.current_device()
        self._streams = [torch.cuda.Stream() for _ in range(world)]
        self._kernels = DeviceKernels(cubin, ("wait_ns",))

    def load(self, rank: int, path: str, entry: str) -> LoadedKernel:
        return LoadedKernel(path, entry)

    def unload(self, rank: int, kernel: LoadedKernel) -> None:
        kernel.close()

    def stream(self, rank: int) -> int:
        return int(self._streams[rank].cuda_stream)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def wait(self, rank: int, duration_us: float) -> None:
        self._kernels.launch("wait_ns", 1, self.stream(rank), ctypes.c_uint64(int(1e3 * duration_us)))

    def _enter(self, rank: int) -> None:
        torch.cuda.set_device(self._device)
        torch.cuda.set_stream(self._streams[rank])


@cache
def bench_of(world: int, chip: Target) -> GroupBench:
    """This process's bench for so many ranks on its GPU."""
    cubin = compile_device_code(chip, group_bench.__package__, "group_kernels.cu")
    ranks = StreamRanks(world, cubin)
    return GroupBench("cuda", GpuTimer(0), {}, chip.int("device.memory.l2.bytes"), ranks=ranks)


# ---- kernels


def virtual_target(chip: Target, world: int, name: str) -> Target:
    """A target of so many devices, on which an operator's configs are those that fit one chip together.

    Those `OF_CORES` have a block for each core, all of which may wait: each rank has an equal part of the
    cores. Of the other operators the number of blocks that wait follows from the shape, so cores stay.
    """
    node = load_target(f"{chip.name}x{world}")
    if not isinstance(operator(name), OF_CORES):
        return node

    def part(of: Target) -> Target:
        count = of.figures["core.count"]
        return replace(of, figures={**of.figures, "core.count": replace(count, value=count.value // world)})

    return replace(part(node), chip=part(chip))


def way_of(config: Config) -> str:
    """The algorithm, and what some of its blocks do beside the product."""
    return " ".join(
        [config.str("algorithm"), *(name for name in ("senders", "summers", "mechanism") if name in config)]
    )


def fused_candidates(name: str, shape: str, target: Target, count: int) -> dict[str, Candidate]:
    """Up to `count` configs, drawn at random, of each way in which kernels reach peers; by label."""
    workload = operator(name).workload_on(target, shape)
    template = template_for(name, target, workload.dtype)
    of_ways: dict[str, list[Config]] = {}
    for config in template.space(workload, target).configs():
        if config["algorithm"] != SEQUENTIAL:
            of_ways.setdefault(way_of(config), []).append(config)
    return {
        f"{name} {way} ({number}) {shape} {WORLD}={target.world}: {config}": Candidate(
            workload, target, template.for_config(config), config
        )
        for way, configs in of_ways.items()
        for number, config in enumerate(random.Random(0).sample(configs, min(count, len(configs))))
    }


def most_waiting(candidate: Candidate) -> int:
    """How many blocks of one launch on one rank may wait for other ranks, at most.

    They must be fewer, of all ranks together, than the chip has cores: each holds one core at most, and
    another block of any kernel fits a core without them. Of operators `OF_CORES` all blocks may wait, and
    those of all ranks may be as many as there are cores: nothing else has to run then.
    """
    kind, workload = candidate.template.operator, candidate.workload
    if isinstance(kind, ContextParallelOperator):
        return min(kind.parts(workload).tiles, WAITING)
    if isinstance(kind, AllToAllGroupedMatmul):
        return max(kind.rows(workload).finding, kind.rows(workload).adding)
    assert isinstance(kind, OF_CORES)
    return candidate.config.int("persistent")


def misfit(candidate: Candidate, cores: int) -> str | None:
    """Why the ranks of a kernel cannot share a chip; None if they can."""
    world = candidate.target.world
    waiting = most_waiting(candidate) * world
    if waiting < cores + isinstance(candidate.template.operator, OF_CORES):
        return None
    return (
        f"{most_waiting(candidate)} blocks of each of {world} ranks may wait at once, and the chip has "
        f"{cores} cores: they could keep the blocks that they wait for from running; take a smaller shape"
    )


def build(candidate: Candidate, folder: Path) -> BuildResult:
    """Build a kernel, without an entry in the index of the kernel cache: the target is none of a user."""
    return build_without("", candidate, folder)


def build_without(wait: str, candidate: Candidate, folder: Path) -> BuildResult:
    """Build a kernel in which a device function that waits (one of `waits`) returns at once; "": none."""
    flags = candidate.template.compile_flags.get(candidate.target.kind, ())
    lower = partial(lower_candidate, candidate)
    if not wait:
        return build_lowered(lower, candidate.target, flags, folder)

    def rewrite(source: str, plan: LaunchPlan) -> tuple[str, LaunchPlan]:
        return without_wait(source, wait), plan

    return build_lowered(lower, candidate.target, flags, folder, rewrite=rewrite)


def without_wait(source: str, function: str) -> str:
    """A text of device functions, of which one never waits. Raises `ValueError` if it has not that one."""
    pattern = rf"(__device__ __forceinline__ void {function}\([^{{]*\{{.*?\bwhile \()"
    text, count = re.subn(pattern, r"\1false && ", source, flags=re.DOTALL)
    if not count:
        raise ValueError(f"no device function {function} waits in this source")
    return text


def waits(candidate: Candidate) -> tuple[str, ...]:
    """The device functions whose waits a result needs.

    That before rows are pushed is left out: a call without it is right unless the one before it is slow.
    """
    config, kind = candidate.config, candidate.template.operator
    if isinstance(kind, ContextParallelOperator):
        return (AWAIT_RESULTS,)
    if isinstance(kind, AllToAllGroupedMatmul):
        return AWAIT_ALL, AWAIT_RESULTS
    if config.int("senders", 0):
        return (AWAIT,)
    return (MEET, AWAIT_TILE) if config.int("summers", 0) else (MEET,)


# ---- checks


@dataclass(frozen=True)
class Checked:
    """What was found of a kernel. `failure`: of its results. `flags`: what is wrong with its flags."""

    failure: Failure | None
    flags: str | None = None


def check_on_gpu(item: tuple[BuildResult, Candidate]) -> Checked:
    """Check a built kernel on virtual ranks, in a process that owns the GPU."""
    build, candidate = item
    bench = bench_of(candidate.target.world, candidate.target.device_target)
    run = GroupRun(build, candidate, bench, PROTOCOL)
    with told_if_it_hangs(partial(flags_of, run)):
        found = check(run, bench.case(candidate.template.operator, candidate.workload, PROTOCOL))
    close_runs([run], bench)
    return found


def check(run: GroupRun, case: BenchCase) -> Checked:
    """The checks of `GroupRun`: results of calls alone and in a row, with each rank late. Then the flags."""
    run.prepare(case)
    if run.failure is not None:
        return Checked(run.failure)
    seen = []
    for _ in range(CALLS):
        run.call()
        run.bench.timer.synchronize()
        seen.append({name: [one.clone() for one in of] for name, of in flags_of(run).items()})
    return Checked(None, flags_fault(seen))


def flags_of(run: GroupRun) -> dict[str, list[torch.Tensor]]:
    """Those of all ranks, by name."""
    found = {
        name: [run._scratch[name_of_rank(name, rank)] for rank in range(run.candidate.target.world)]
        for name in FLAG_TENSORS
        if name_of_rank(name, 0) in run._scratch
    }
    assert found, f"{run.candidate.key} has no flags, and its ranks cannot wait for each other"
    return found


def flags_fault(seen: Sequence[Mapping[str, Sequence[torch.Tensor]]]) -> str | None:
    """What is wrong with flags after each of several calls; None if nothing is.

    A call raises each flag that it uses to the same number on all ranks, and all calls raise it by the same.
    Some flags of tiles and chunks are never used, and stay 0.

    Args:
        seen: for each call the flags of all ranks, by name.
    """
    for name in seen[0]:
        numbers = []
        for call, flags in enumerate(seen, 1):
            unused = {0} if name == ARRIVED else set()
            of_ranks = [sorted(set(one.flatten().tolist()) - unused) for one in flags[name]]
            if of_ranks != [of_ranks[0]] * len(of_ranks) or len(of_ranks[0]) != 1:
                return f"{name}: after call {call} ranks have the numbers {of_ranks}, and should have one"
            numbers.append(of_ranks[0][0])
        steps = {later - earlier for earlier, later in itertools.pairwise(numbers)}
        if len(steps) != 1 or min(steps) < 1:
            return f"{name}: calls raise it to {numbers}, and should raise it by the same number each"
    return None


@contextmanager
def told_if_it_hangs(flags: Callable[[], Mapping[str, Sequence[torch.Tensor]]]) -> Iterator[None]:
    """After a while, print where this process is, and what `flags` gives: those of all ranks."""

    def tell() -> None:
        faulthandler.dump_traceback()
        with torch.cuda.stream(torch.cuda.Stream()):
            for name, of_ranks in flags().items():
                for rank, one in enumerate(of_ranks):
                    print(f"{name} of rank {rank}: {one.flatten()[:SHOWN].tolist()}", file=sys.stderr)
        sys.stderr.flush()

    timer = threading.Timer(HANGS_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
