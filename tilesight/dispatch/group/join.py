"""Joins the dispatchers of all processes of a group: they agree, or all refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...errors import InputError
from .exchange import Exchange, GroupStore, RankStep
from .group_call import Seat
from .group_dispatcher import GroupDispatcher
from .members import RankProcess, Watch, check_members, own_member
from .shared_memory import check_access, device_identity, shared_memory_for
from .shared_tensors import SharedTensors

if TYPE_CHECKING:
    from ..make import DispatcherParts
    from ..problem import DispatchProblem


@dataclass(frozen=True)
class _Joining:
    """What this process brings to the group."""

    parts: DispatcherParts
    device: torch.device


def join(kernel: str, group: Any, make: Callable[[Seat], DispatcherParts]) -> GroupDispatcher:
    """The dispatcher of this process. A step of all ranks.

    Args:
        kernel: name of the operator.
        group: a process group of torch.distributed.
        make: makes the parts of the dispatcher, which are the same on all ranks.

    Raises:
        InputError: there is no such group, or all ranks have the same wrong arguments.
        GroupError: the ranks disagree, or one has failed.
    """
    seat = take_seat(kernel, group)
    made: list[DispatcherParts] = []

    def bring() -> RankStep[_Joining]:
        made.append(parts := make(seat))
        device = _own_device(parts.shapes.problem)
        conditions = {**parts.conditions, "version of torch": str(torch.__version__)}
        return RankStep(_Joining(parts, device), conditions, own_member(device_identity(device)).to_json())

    def accept(device: torch.device, members: Sequence[RankProcess]) -> RankStep[None]:
        check_members(members)
        check_access(device, members)
        return RankStep(None)

    try:
        what = f"{kernel}: make a dispatcher"
        own, told = seat.exchange.attempt(what, bring)
        members = [RankProcess(**fields) for fields in told]
        seat.exchange.attempt(what, lambda: accept(own.device, members))
    except BaseException:
        for parts in made:
            parts.shapes.close()
            parts.close()
        raise
    exchange = seat.exchange
    memory = shared_memory_for(own.device, exchange, group)
    watch = Watch(members, seat.rank, memory.settles, exchange.waiting_ranks, exchange.refuse)
    exchange.check_others, memory.waiting = watch.check, watch.waiting
    shared = SharedTensors(memory)
    return GroupDispatcher(own.parts.shapes, own.parts.load, own.parts.close, seat, shared, watch)


def take_seat(kernel: str, group: Any) -> Seat:
    """The place of this process in a group. Raises `InputError` if there is none."""
    import torch.distributed as dist

    if not dist.is_available():
        raise InputError(f"{kernel}: this torch has no torch.distributed, which groups of processes need")
    if not dist.is_initialized():
        raise InputError(
            f"{kernel}: there is no process group: start the program with `torchrun --nproc-per-node N`, "
            "call torch.distributed.init_process_group() in it, and give "
            "group=torch.distributed.group.WORLD"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise InputError(
            f"{kernel}: group={group!r} is no process group with this process in it; give "
            "torch.distributed.group.WORLD, or what torch.distributed.new_group returned on its ranks"
        )
    rank, world = group.rank(), group.size()
    return Seat(group, rank, world, Exchange(_store_of(group), rank, world))


def _store_of(group: Any) -> GroupStore:
    from torch.distributed import distributed_c10d

    found: GroupStore = distributed_c10d._get_process_group_store(
        group
    )  # its keys are those of this group only
    return found


def _own_device(problem: DispatchProblem) -> torch.device:
    """The device of this process: the current GPU, or the processor. Raises `InputError`."""
    if not problem.target.is_gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError(
            f"{problem.operator.name}: torch sees no GPU, and target {problem.target.name} is of GPUs"
        )
    device = torch.device("cuda", torch.cuda.current_device())
    problem.check_gpu(device, torch.cuda.get_device_name(device), "this process uses")
    return device
