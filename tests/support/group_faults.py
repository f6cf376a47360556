"""What dispatchers of a process group refuse: values, memory, and GPUs that are only said to be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.group_kernels import SumOfRanks
from tilesight.dispatch.group.group_dispatcher import GroupDispatcher
from tilesight.dispatch.make import dispatcher
from tilesight.errors import TileSightError

H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"


def refusal(work: Callable[[], Any]) -> str:
    try:
        work()
    except TileSightError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def refused_values(made: GroupDispatcher, rank: int) -> dict[str, str]:
    """Rank 1 finds a wrong value of an index tensor, then all do."""

    def fault(all_have_it: bool) -> Callable[..., str | None]:
        return lambda *_: "x[3] is 9 and must be 0 to 8: an index" if rank or all_have_it else None

    before, said = len(made._loaded), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SumOfRanks, "index_fault", fault(all_have_it=False))
        said["value"] = refusal(lambda: made(torch.zeros(88)))
        said["checked"] = refusal(lambda: made.check(torch.zeros(88)))
        patch.setattr(SumOfRanks, "index_fault", fault(all_have_it=True))
        said["value on all"] = refusal(lambda: made(torch.zeros(88)))
    said["checked shapes"] = refusal(lambda: made.check(torch.zeros(88 + rank)))
    said["checked and right"] = refusal(lambda: made.check(torch.zeros(88)))
    return {**said, "built meanwhile": str(len(made._loaded) - before)}


def refused_memory(made: GroupDispatcher, rank: int) -> dict[str, str]:
    """Rank 1 has memory that is too small, or gets none."""
    freed, x = torch.zeros(86), made.empty("x", n=40)
    if rank:
        freed.untyped_storage().resize_(40)

    def no_memory(*_: Any) -> None:
        raise MemoryError("no memory is left")

    with pytest.MonkeyPatch.context() as patch:
        if rank:
            patch.setattr("tilesight.dispatch.group.shared_memory.os.ftruncate", no_memory)
        unallocated = refusal(lambda: made.empty("x", n=1 << 22))
    return {
        "small out": refusal(lambda: made(torch.zeros(86), out=torch.zeros(86 - rank))),
        "freed": refusal(lambda: made(freed)),
        "shorter": refusal(lambda: made(x[: 40 - rank])),
        "unallocated": unallocated,
    }


@contextmanager
def gpus(own: int, *names: str, reached: bool = True, host: str = "one") -> Iterator[None]:
    """As on a host with GPUs of these names, of which this process uses number `own`."""

    def index_of(device: Any) -> int:
        return torch.device(device).index

    def reaches(first: int, second: int) -> bool:
        return reached or first == second

    stand_ins: dict[str, Callable[..., Any]] = {
        "is_available": lambda: bool(names),
        "current_device": lambda: own,
        "device_count": lambda: len(names),
        "get_device_name": lambda device: names[index_of(device)],
        "get_device_properties": lambda device: SimpleNamespace(
            name=names[index_of(device)], uuid=f"uuid-{index_of(device)}"
        ),
        "can_device_access_peer": reaches,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, stand_in in stand_ins.items():
            patch.setattr(torch.cuda, name, stand_in)
        patch.setattr("tilesight.dispatch.group.members._host", lambda: host)
        yield


def gpu_faults(rank: int, _: Path) -> Any:
    """Dispatchers of GPUs that cannot be made."""

    def refused(*, kernel: str = "matmul_all_reduce", **given: Any) -> str:
        return refusal(lambda: dispatcher(kernel, "h200x2", group=dist.group.WORLD, workers=1, **given))

    said = {}
    with gpus(0):
        said["no GPU"] = refused()
    with gpus(rank, *([H200, A100] if rank else [H200, H200])):
        said["another GPU"] = refused()
    with gpus(0, H200, H200):
        said["one GPU"] = refused()
    with gpus(rank, H200, H200, reached=not rank):
        said["no access from one"] = refused()
    with gpus(rank, H200, H200, reached=False):
        said["no access"] = refused()
    with gpus(rank, H200, H200, host=f"number {rank}"):
        said["hosts"] = refused()
    with gpus(rank, H200, H200):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "__version__", f"2.{rank}")
            said["torch"] = refused()
        said["dtype"] = refused(dtype=["bfloat16", "float16"][rank])
        said["attribute"] = refused(kernel="all_to_all_grouped_matmul", routing=["even", "skewed"][rank])
        said["operator"] = refused(kernel=["matmul_all_reduce", "matmul_reduce_scatter"][rank])
    dist.destroy_process_group()
    with gpus(rank, H200, H200):
        said["after the end"] = refused()
    return said
