"""Times the steps on one rank: memory of the peers, launches, events. Needs a GPU and torch's NCCL.

Ranks share one buffer each through torch's symmetric memory, as peers' tensors of a kernel do. Every sample
begins with a barrier of all ranks on the device, in the stream that is timed, so that no rank's time contains
the delay of another. The barrier first waits for as long as the host needs to launch what follows it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...builder.loaded_kernel import LoadedKernel
from ...machine.devices import Device
from ...machine.group_environment import GROUP_ENVIRONMENT
from ...problem.candidate import Candidate
from ..calibration import torch_index
from ..gpu import CudaGpu, u32, u64
from .ranks import Send
from .steps import Kind, NetworkStep, Times

MOST_RANKS = 8  # addresses that a kernel takes
WINDOW_BYTES = 32 << 20  # of one rank in the memory of another, as in network_probes.cu
FLAG_BYTES = 64 << 10  # before the windows; a flag of a barrier has 128 bytes
PASSED_FLAG = 32 << 10  # where the flag is that a partner passes
LANES, BULK_LANES, BULK_SHARED = 1024, 128, 64 << 10
OCCUPIED_SHARED = 160 << 10  # so much shared memory of a core that no block of a product fits beside it
HOST_NS = 200_000  # in which the host launches one sample
WARM_UPS = 3

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class RankSetup:
    """What all ranks need.

    Attributes:
        devices: That of each rank.
        cubin: The code of `network_probes.cu`.
        port: Of this host, where the ranks meet.
        steps: What is timed.
        product: A kernel, and the path and entry of its library; None if it could not be built.
    """

    devices: tuple[Device, ...]
    cubin: bytes
    port: int
    steps: tuple[NetworkStep, ...]
    product: tuple[Candidate, str, str] | None = None


class _Peers(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p * MOST_RANKS),)


def time_steps(rank: int, setup: RankSetup, send: Send) -> None:
    """Time all steps of `setup` as one of its ranks.

    Sends `Times` without samples when the rank is ready, and then those of each step.
    """
    os.environ.update(GROUP_ENVIRONMENT)
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", torch_index(setup.devices[rank]))
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{setup.port}",
        rank=rank,
        world_size=len(setup.devices),
        device_id=device,
    )
    with torch.cuda.stream(torch.cuda.Stream()):
        bench = _Rank(rank, setup, device)
        send(Times(library=f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"))
        for step in setup.steps:
            dist.barrier()  # ranks on the host stay together
            send(bench.time(step))
    torch.cuda.synchronize()
    dist.barrier()  # no rank frees memory that another one reads
    dist.destroy_process_group()


class _Rank:
    """One rank of a calibration, on its device."""

    def __init__(self, rank: int, setup: RankSetup, device: Any) -> None:
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symmetric

        self._torch, self._dist = torch, dist
        self._rank, self._setup, self._device = rank, setup, device
        self._world = len(setup.devices)
        self._gpu = CudaGpu(device.index, setup.cubin)
        size = FLAG_BYTES + self._world * WINDOW_BYTES
        own = symmetric.empty((size,), dtype=torch.uint8, device=device)
        handle = symmetric.rendezvous(own, dist.group.WORLD)
        self._buffers = [
            own if peer == rank else handle.get_buffer(peer, (size,), torch.uint8)
            for peer in range(self._world)
        ]
        own.zero_()
        self._local = torch.zeros(WINDOW_BYTES, dtype=torch.uint8, device=device)
        self._state = torch.zeros(2, dtype=torch.int32, device=device)
        self._out = torch.zeros(2 * 64, dtype=torch.int64, device=device)
        self._side = [torch.cuda.Stream() for _ in range(self._world)]
        self._flags = 1  # next value of the flags of barriers
        self._passed = 1  # and of the flag that partners pass
        self._product: Call | None = None
        torch.cuda.synchronize()
        dist.barrier()

    def time(self, step: NetworkStep) -> Times:
        """The times of one step, which all ranks begin together."""
        if step.kind is Kind.PRODUCT:
            return self._beside_product(step)
        if step.kind is Kind.FLAG:
            call = self._flag_call(step.rounds)
        elif step.kind is Kind.BARRIER:
            call = partial(self._barrier, step.rounds)
        elif step.kind is Kind.COPY:
            call = self._copy_call(step)
        elif step.kind is Kind.LIBRARY:
            call = self._library_call(step)
        else:
            call = self._move_call(step)
        return Times(self._samples(call, step.samples))

    def _samples(self, call: Call, count: int) -> tuple[float, ...]:
        """Times of `call` in us, each after a barrier of all ranks."""
        # the first call of a collective connects the ranks, which can take a second: no sample waits for it
        call()
        self._gpu.synchronize("a first transfer")
        self._dist.barrier()
        events = [self._sample(call) for _ in range(WARM_UPS + count)][WARM_UPS:]
        self._gpu.synchronize("a transfer")
        return tuple(1e3 * begin.elapsed_time(end) for begin, end in events)

    def _sample(self, call: Call, after: Call = lambda: None) -> tuple[Any, Any]:
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._barrier(1, HOST_NS)
        after()
        begin.record()
        call()
        end.record()
        return begin, end

    def _barrier(self, rounds: int, delay_ns: int = 0) -> None:
        flags = self._peers([buffer.data_ptr() for buffer in self._buffers])
        self._gpu.launch(
            "barrier", 1, self._world, flags, u32(self._rank), u32(self._flags), u32(rounds), u64(delay_ns)
        )
        self._flags += rounds

    def _flag_call(self, rounds: int) -> Call:
        """Pairs of neighbours pass flags. Of an odd number of ranks the last one has no partner."""
        partner = self._rank ^ 1
        own, theirs = (
            ctypes.c_void_p(self._buffers[min(rank, self._world - 1)].data_ptr() + PASSED_FLAG)
            for rank in (self._rank, partner)
        )

        def call() -> None:
            passes = rounds if partner < self._world else 0
            leads = u32(self._rank < partner)
            self._gpu.launch("pass_flag", 1, 1, own, theirs, u32(self._passed), u32(passes), leads)
            self._passed += rounds

        return call

    def _move_call(self, step: NetworkStep) -> Call:
        is_bulk = step.name.startswith("tma")
        windows, count, rounds = self._windows(step.peers), u32(step.peers), u32(step.rounds)
        lanes, shared = (BULK_LANES, BULK_SHARED) if is_bulk else (LANES, 0)
        sink, kernel = self._gpu.sink(), f"move_{step.name}"
        return lambda: self._gpu.launch(
            kernel, step.blocks, lanes, windows, count, rounds, sink, shared=shared
        )

    def _windows(self, peers: int) -> _Peers:
        """The windows of this rank in the memory of its next `peers` neighbours."""
        return self._peers([self._window(peer).data_ptr() for peer in self._neighbours(peers)])

    def _neighbours(self, peers: int) -> list[int]:
        return [(self._rank + 1 + step) % self._world for step in range(peers)]

    def _window(self, peer: int) -> Any:
        first = FLAG_BYTES + self._rank * WINDOW_BYTES
        return self._buffers[peer][first : first + WINDOW_BYTES]

    @staticmethod
    def _peers(addresses: Sequence[int]) -> _Peers:
        return _Peers((ctypes.c_void_p * MOST_RANKS)(*addresses))

    def _copy_call(self, step: NetworkStep) -> Call:
        """Copies to all peers at once, each in a stream of its own."""
        source = self._local[: step.size_bytes]
        copies = [self._window(peer)[: step.size_bytes] for peer in self._neighbours(step.peers)]
        if len(copies) == 1:
            return lambda: copies[0].copy_(source)

        def call() -> None:
            main = self._torch.cuda.current_stream()
            for stream, copy in zip(self._side, copies, strict=False):
                stream.wait_stream(main)
                with self._torch.cuda.stream(stream):
                    copy.copy_(source)
            for stream in self._side[: len(copies)]:
                main.wait_stream(stream)

        return call

    def _library_call(self, step: NetworkStep) -> Call:
        elements = step.size_bytes // 2 // self._world * self._world
        whole = self._torch.zeros(elements, dtype=self._torch.bfloat16, device=self._device)
        if step.name == "all_reduce":
            return lambda: self._dist.all_reduce(whole)
        if step.name == "all_to_all":
            received = self._torch.empty_like(whole)
            return lambda: self._dist.all_to_all_single(received, whole)
        part = self._torch.zeros_like(whole[: elements // self._world])
        if step.name == "all_gather":
            return lambda: self._dist.all_gather_into_tensor(whole, part)
        return lambda: self._dist.reduce_scatter_tensor(part, whole)

    def _beside_product(self, step: NetworkStep) -> Times:
        """Times of a product while `step.blocks` other cores push or idle."""
        product = self._loaded_product()
        # a kernel is loaded by its first launch, which would wait for blocks that wait for it
        self._occupied(step, stop=1)
        self._gpu.launch("release_cores", 1, 1, self._state)
        self._samples(product, 1)
        times, rates = [], []
        for _ in range(step.samples):
            begin, end = self._sample(product, lambda: self._occupied(step, stop=0))
            self._gpu.launch("release_cores", 1, 1, self._state)
            self._torch.cuda.current_stream().wait_stream(self._side[0])
            self._gpu.synchronize("a product beside pushes")
            times.append(1e3 * begin.elapsed_time(end))
            spans = self._out[: 2 * step.blocks].reshape(-1, 2).tolist()
            rates.append(sum(size / ns for size, ns in spans if ns))
        pushes = step.name == "push" and step.blocks > 0
        return Times(tuple(times), tuple(rates) if pushes else ())

    def _occupied(self, step: NetworkStep, stop: int) -> None:
        """Let the blocks occupy their cores, and wait until they do; with `stop` they end at once."""
        self._state.zero_()
        self._state[1:].fill_(stop)
        side = self._side[0]
        side.wait_stream(self._torch.cuda.current_stream())
        if step.blocks:
            pushes = u32(step.name == "push")
            with self._torch.cuda.stream(side):
                self._gpu.launch(
                    "occupy",
                    step.blocks,
                    LANES,
                    self._windows(step.peers),
                    u32(step.peers),
                    pushes,
                    self._state,
                    shared=OCCUPIED_SHARED,
                    out=self._out,
                )
        self._gpu.launch("await_occupied", 1, 1, self._state, u32(step.blocks))

    def _loaded_product(self) -> Call:
        if self._product is None:
            assert self._setup.product is not None  # else there is no such step
            candidate, artifact, entry = self._setup.product
            operator, workload = candidate.template.operator, candidate.workload
            inputs = operator.inputs(workload, str(self._device), 0)
            outputs = [
                self._torch.empty(
                    shape,
                    dtype=getattr(self._torch, operator.dtype_of(name, workload)),
                    device=self._device,
                )
                for name, shape in operator.outputs(workload).items()
            ]
            kernel = LoadedKernel(artifact, entry)
            stream = int(self._torch.cuda.current_stream().cuda_stream)
            self._product = kernel.bind([*inputs.values(), *outputs], stream)
        return self._product
