"""Accesses to memory of peers, and barriers of ranks, in kernels that several devices run together.

Such a function takes the shared tensors of all ranks. It is read as rank 0 runs it. Which tensors these are
only its operator knows: the names of parameters say nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ...problem.group_operator import ANNOUNCE, ANNOUNCE_TILE, AWAIT, AWAIT_TILE, MEET
from ...profile.values import Access, KernelProfile, Space
from .loops import visit


def with_peers(
    profile: KernelProfile, names: Mapping[str, str], function: Any, peers: Collection[str]
) -> KernelProfile:
    """The profile with accesses to `peers` marked, and with barriers of ranks as such.

    Args:
        profile: of one kernel.
        names: of its parameters, by label.
        function: the kernel.
        peers: names of the tensors of peers; none of a function for one device.
    """
    if not peers:
        return profile
    adding = _adding(function)

    def marked(access: Access) -> Access:
        if access.space is not Space.GLOBAL or names.get(access.tensor) not in peers:
            return access
        return replace(access, peer=_mechanism(access, adding))

    meetings = _calls(function, MEET)
    # what these functions do is to raise flags and to wait, for times that the network has figures for
    known = (MEET, ANNOUNCE, AWAIT, ANNOUNCE_TILE, AWAIT_TILE)
    found = replace(
        profile.with_phases(lambda phase: phase.with_accesses(marked)),
        meetings=meetings,
        waits=_calls(function, AWAIT),
        unknown_calls=tuple(one for one in profile.unknown_calls if not any(name in one for name in known)),
        notes=tuple(note for note in profile.notes if not any(name in note for name in known)),
    )
    return replace(found, roles=()) if meetings else found


def _mechanism(access: Access, adding: bool) -> str:
    if access.mechanism == "tma":
        return ("tma_add" if adding else "tma_store") if access.write else "tma_load"
    return "store" if access.write else "load"


def _adding(function: Any) -> bool:
    """Whether bulk stores of a kernel add."""
    found = False

    def look(node: Any, kind: str) -> None:
        nonlocal found
        if kind == "Call" and str(getattr(node.op, "name", "")) == "tl.tma_store":
            # (descriptor, shared pointer, coordinates..., reduce, eviction)
            found = found or int(node.args[-2]) == 1

    visit(function.body, look)
    return found


def _calls(function: Any, name: str) -> int:
    """How often a kernel calls a device function of that name."""
    count = 0

    def look(node: Any, kind: str) -> None:
        nonlocal count
        if kind == "Call" and node.args and str(node.args[0]).strip('"') == name:
            count += 1

    visit(function.body, look)
    return count
