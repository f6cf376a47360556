"""Copies to peers among the launches of a call: the tensors of `PeerCopies` by their places."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..dtypes import DTYPE_BYTES
from ..problem.group_operator import of_ranks
from ..problem.peer_copies import peer_copies
from ..problem.template import LAUNCHES, RANK

FLAG_BYTES = 4  # of a flag between ranks


class UnsupportedCopiesError(Exception):
    """Copies to peers that a launcher cannot start."""


@dataclass(frozen=True, slots=True)
class PlannedCopies:
    """Copies to peers, as `PeerCopies`. Shared tensors stand by the place of rank 0's; those of the others
    follow it.
    """

    source: int
    target: int
    flags: int
    arrived: int
    world: int
    chunks: int
    chunk_bytes: int
    beside: int


def planned_copies(traced: Any, launches: int) -> PlannedCopies | None:
    """The copies of a traced function of so many launches; None if it has none.

    Raises `UnsupportedCopiesError`.
    """
    copies = peer_copies(traced)
    if copies is None:
        return None
    buffers = [traced.buffer_map[p] for p in traced.params if p in traced.buffer_map]
    numbers = [str(p.name) for p in traced.params if p not in traced.buffer_map]
    if RANK.name not in numbers or LAUNCHES.name in numbers:
        raise UnsupportedCopiesError(
            "copies to peers need the rank, and a call that makes all launches at once"
        )
    if not 0 < copies.beside < launches:
        raise UnsupportedCopiesError(
            f"copies to peers run beside launch {copies.beside} of {launches}, and one before it must be a "
            "barrier of all ranks"
        )

    def place(name: str, least: int) -> int:
        return _place(buffers, of_ranks(name, copies.world), least)

    own = copies.chunks * copies.chunk_bytes
    return PlannedCopies(
        place(copies.source, own),
        place(copies.target, copies.world * own),
        place(copies.flags, (copies.world + 1) * FLAG_BYTES),
        place(copies.arrived, copies.world * copies.chunks * FLAG_BYTES),
        copies.world,
        copies.chunks,
        copies.chunk_bytes,
        copies.beside,
    )


def _place(buffers: list[Any], wanted: tuple[str, ...], least: int) -> int:
    """The place of the first of tensors with these names, in order, each of `least` bytes or more."""
    names = [str(buffer.name) for buffer in buffers]
    first = names.index(wanted[0]) if wanted[0] in names else len(names)
    found = buffers[first : first + len(wanted)]
    if tuple(names[first : first + len(wanted)]) != wanted:
        raise UnsupportedCopiesError(f"copies to peers need {', '.join(wanted)} among its tensors, in order")
    for buffer in found:
        if math.prod(map(int, buffer.shape)) * DTYPE_BYTES[str(buffer.dtype)] < least:
            raise UnsupportedCopiesError(f"copies to peers need {least} bytes of '{buffer.name}'")
    return first
