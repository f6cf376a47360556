"""Collectives of the vendor's library on tensors of all ranks, called by the process that drives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..timers import Call

if TYPE_CHECKING:
    import torch


def library_name(on_gpu: bool) -> str:
    return "NCCL" if on_gpu else "torch"


def collective_call(name: str, sources: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Call:
    """A call of the collective on tensors of each rank.

    On NVIDIA GPUs it is NCCL's, on the current streams, except that its `all_to_all` is made of copies; on a
    processor it is torch's arithmetic.

    Args:
        name: `all_reduce`, `all_gather`, `reduce_scatter` or `all_to_all`.
        sources: what each rank has.
        results: what each rank gets; written by the call.
    """
    if name == "all_to_all":
        return _copies(sources, results)
    if not sources[0].is_cuda:
        return _on_processor(name, sources, results)
    from torch.cuda import nccl

    flat_sources = [source.view(-1) for source in sources]
    flat_results = [result.view(-1) for result in results]
    library = {"all_reduce": nccl.all_reduce, "all_gather": nccl.all_gather}
    function = library.get(name, nccl.reduce_scatter)
    return lambda: function(flat_sources, flat_results)


def _on_processor(name: str, sources: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Call:
    import torch

    def total() -> torch.Tensor:
        return torch.stack([source.float().view(-1) for source in sources]).sum(0)

    def call() -> None:
        whole = torch.cat([source.view(-1) for source in sources]) if name == "all_gather" else total()
        parts = whole.chunk(len(results)) if name == "reduce_scatter" else [whole] * len(results)
        for part, result in zip(parts, results, strict=True):
            result.view(-1).copy_(part)

    return call


def _copies(sources: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Call:
    world = len(sources)
    pairs = [
        (result.view(world, -1)[giver], source.view(world, -1)[taker])
        for taker, result in enumerate(results)
        for giver, source in enumerate(sources)
    ]

    def call() -> None:
        for into, part in pairs:
            into.copy_(part, non_blocking=True)

    return call
