"""Times torch's fused operators (symmetric memory), in one process for each GPU.

They are torch.ops.symm_mem.fused_matmul_reduce_scatter and fused_all_gather_matmul, beside cuBLAS and NCCL
one after the other in the same processes.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from tilesight.calibration.network.ranks import RankLimits, Send, run_ranks

WARM_UPS, SAMPLES = 3, 20
HOLD_CYCLES = 4_000_000  # some 2 ms, in which the host launches what is timed
REST_S = 0.005  # between samples
WORST_ERROR = 0.02  # of a right result, relative
OPERATORS = ("matmul_reduce_scatter", "all_gather_matmul")


@dataclass(frozen=True)
class TorchCase:
    """One workload: dimensions as its operator names them."""

    index: int
    operator: str
    dims: Mapping[str, int]
    dtype: str


@dataclass(frozen=True)
class _Setup:
    cases: tuple[TorchCase, ...]
    environment: Mapping[str, str]
    port: int
    world: int


def time_torch(
    cases: Sequence[TorchCase], environment: Mapping[str, str], limit_s: float
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(index, values) of each case: `fused_us` and `sequential_us`, or `error`."""
    known = [case for case in cases if case.operator in OPERATORS]
    for case in cases:
        if case not in known:
            yield case.index, {"error": f"torch has no fused operator for {case.operator}"}
    if not known:
        return
    world = known[0].dims["world"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    setup = _Setup(tuple(known), dict(environment), port, world)
    limits = RankLimits(start_s=60.0, silence_s=40.0, total_s=limit_s)
    found = run_ranks(_time_rank, world, setup, 1 + len(known), limits)
    for case, row in zip(known, found.rows[1:], strict=False):
        yield case.index, row[0]
    for case in known[max(0, len(found.rows) - 1) :]:
        yield case.index, {"error": found.fault}


def _time_rank(rank: int, setup: _Setup, send: Send) -> None:
    os.environ.update(setup.environment)
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{setup.port}",
        rank=rank,
        world_size=setup.world,
        device_id=device,
    )
    buffer = symmetric.empty((1024,), dtype=torch.uint8, device=device)
    handle = symmetric.rendezvous(buffer, dist.group.WORLD)
    send(torch.__version__)
    bench = _Bench(device, handle)
    for case in setup.cases:
        try:
            values = _time_case(bench, case, rank, setup.world)
        except Exception as error:
            values = {"error": f"{type(error).__name__}: {str(error)[-300:]}"}
        send(values | {"torch": torch.__version__})
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


class _Bench:
    """Times calls that all ranks begin together; the slowest rank counts."""

    def __init__(self, device: Any, handle: Any) -> None:
        import torch

        self._torch, self._device, self._handle = torch, device, handle
        size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
        self._flushed = torch.empty(size, dtype=torch.int8, device=device)

    def median_us(self, call: Callable[[], object]) -> float:
        torch = self._torch
        import torch.distributed as dist

        samples = []
        for number in range(WARM_UPS + SAMPLES):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            time.sleep(REST_S)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flushed.zero_()
            torch.cuda._sleep(HOLD_CYCLES)
            self._handle.barrier(channel=0)
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            slowest = torch.tensor([begin.elapsed_time(end)], device=self._device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if number >= WARM_UPS:
                samples.append(1e3 * float(slowest.item()))
        return median(samples)


def _time_case(bench: _Bench, case: TorchCase, rank: int, world: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    m, n, k = (case.dims[name] for name in ("m", "n", "k"))
    dtype, device, group = getattr(torch, case.dtype), bench._device, dist.group.WORLD.group_name
    generator = torch.Generator(device).manual_seed(1 + rank)
    make = partial(torch.randn, device=device, generator=generator)
    scatters = case.operator == "matmul_reduce_scatter"
    a = make((m if scatters else m // world, k)).to(dtype)
    b = make((k, n)).to(dtype) * k**-0.5
    if scatters:
        product = torch.empty(m, n, device=device, dtype=dtype)
        part = torch.empty(m // world, n, device=device, dtype=dtype)

        def sequential() -> Any:
            torch.mm(a, b, out=product)
            dist.reduce_scatter_tensor(part, product)
            return part

        def fused() -> Any:
            return torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, group)
    else:
        whole = torch.empty(m, k, device=device, dtype=dtype)
        result = torch.empty(m, n, device=device, dtype=dtype)

        def sequential() -> Any:
            dist.all_gather_into_tensor(whole, a)
            return torch.mm(whole, b, out=result)

        def fused() -> Any:
            return torch.ops.symm_mem.fused_all_gather_matmul(a, [b], 0, group)[1][0]

    wanted = sequential().float()
    error = float((fused().float() - wanted).norm() / wanted.norm())
    worst = torch.tensor([error], device=device)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if not float(worst.item()) < WORST_ERROR:
        return {"error": f"torch's fused operator is wrong: relative error {float(worst.item()):.3g}"}
    return {
        "fused_us": bench.median_us(fused),
        "sequential_us": bench.median_us(sequential),
        "relative_error": float(worst.item()),
    }
