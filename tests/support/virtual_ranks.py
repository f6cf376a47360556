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
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

import torch

from tilesight.builder.device_code import compile_device_code
from tilesight.builder.loaded_kernel import LoadedKernel
from tilesight.errors import Failure, ToolchainError
from tilesight.kernels._ranks import ARRIVED, FLAGS
from tilesight.kernels.all_to_all_grouped_matmul import RETURNED
from tilesight.problem.candidate import Candidate
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
from tilesight.target.spec import Target

PROTOCOL = MeasurementProtocol(input_sets=2)
ENVIRONMENT: Mapping[str, str] = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}  # else streams may share a queue
FLAG_TENSORS = (FLAGS, ARRIVED, RETURNED)
CALLS = 3  # after which flags are looked at, one by one
HANGS_S, LIMIT_S = 40.0, 60.0  # after which a check tells where it is, and after which it is ended
SHOWN = 24  # flags of a rank that hangs
STACK_BYTES = 8192  # of a thread
COPIED_BYTES = 1 << 24  # more than a chunk of any case
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
        copy_once()
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

    def wait(self, rank: int, duration_us: float, stream: int | None = None) -> None:
        on = self.stream(rank) if stream is None else stream
        self._kernels.launch("wait_ns", 1, on, ctypes.c_uint64(int(1e3 * duration_us)))

    def _enter(self, rank: int) -> None:
        torch.cuda.set_device(self._device)
        torch.cuda.set_stream(self._streams[rank])


def copy_once() -> None:
    """Copies within the memory of this GPU, of all magnitudes.

    The driver may do them by kernels, which it loads by the first copy: that may wait for an idle device.
    """
    source, target = (torch.zeros(COPIED_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    size = 4
    while size <= COPIED_BYTES:
        target[:size].copy_(source[:size])
        size *= 4
    torch.cuda.synchronize()


@cache
def bench_of(world: int, chip: Target) -> GroupBench:
    """This process's bench for so many ranks on its GPU."""
    cubin = compile_device_code(chip, group_bench.__package__, "group_kernels.cu")
    ranks = StreamRanks(world, cubin)
    return GroupBench("cuda", GpuTimer(0), {}, chip.int("device.memory.l2.bytes"), ranks=ranks)


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
