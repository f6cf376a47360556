"""The collective of a process group that is part of a kernel's call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...problem.template import Collective


def is_in_place(collective: Collective) -> bool:
    """Whether it writes to the memory that it reads, so that the kernel's scratch and its result are one."""
    return collective.name == "all_reduce" and collective.when == "after"


def run_collective(collective: Collective, source: torch.Tensor, result: torch.Tensor, group: Any) -> None:
    """Run it on the current stream, after the work that is there and before what follows.

    Args:
        collective: which one.
        source: what this rank has.
        result: what this rank gets; for an all-reduce it may be `source`.
        group: of torch.distributed.
    """
    _FUNCTIONS[collective.name](source.view(-1), result.view(-1), group)


def _all_reduce(source: torch.Tensor, result: torch.Tensor, group: Any) -> None:
    import torch.distributed as dist

    if source.data_ptr() != result.data_ptr():
        result.copy_(source)
    dist.all_reduce(result, group=group)


def _reduce_scatter(source: torch.Tensor, result: torch.Tensor, group: Any) -> None:
    import torch.distributed as dist

    dist.reduce_scatter_tensor(result, source, group=group)


def _all_gather(source: torch.Tensor, result: torch.Tensor, group: Any) -> None:
    import torch.distributed as dist

    dist.all_gather_into_tensor(result, source, group=group)


def _all_to_all(source: torch.Tensor, result: torch.Tensor, group: Any) -> None:
    import torch.distributed as dist

    dist.all_to_all_single(result, source, group=group)


_FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor, Any], None]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
}
