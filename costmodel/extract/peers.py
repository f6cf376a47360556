"""Accesses to memory of peers, and barriers of ranks, in kernels that several devices run together.

Such a function takes the shared tensors of all ranks. It is read as rank 0 runs it. Which tensors these are
only its operator knows: the names of parameters say nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ...problem.group_operator import (
    ANNOUNCE,
    ANNOUNCE_RESULT,
    ANNOUNCE_TILE,
    AWAIT,
    AWAIT_ALL,
    AWAIT_RESULTS,
    AWAIT_TILE,
    MEET,
    of_rank,
)
from ...problem.peer_copies import PeerCopies
from ...profile.values import Access, EngineCopies, KernelProfile, Space
from .expressions import call_name
from .loops import contains, visit
from .memory import chosen_by_data

OF_CALLS = (ANNOUNCE_RESULT, AWAIT_RESULTS, AWAIT_ALL)  # which count the calls of a kernel
FLAG_FUNCTIONS = (MEET, ANNOUNCE, AWAIT, ANNOUNCE_TILE, AWAIT_TILE, *OF_CALLS)


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

    meetings, waits = _calls(function, MEET), _calls(function, AWAIT)
    found = replace(
        profile.with_phases(lambda phase: phase.with_accesses(marked)), meetings=meetings, waits=waits
    )
    found = _without_known_notes(found, function, peers)
    return replace(found, roles=()) if meetings else found


def with_copies(profile: KernelProfile, copies: PeerCopies | None) -> KernelProfile:
    """The profile of a kernel that waits for what copy engines bring, with these copies; else the same."""
    if copies is None or not profile.waits:
        return profile
    return replace(profile, copies=EngineCopies(copies.world - 1, copies.chunks, copies.chunk_bytes))


def _without_known_notes(profile: KernelProfile, function: Any, peers: Collection[str]) -> KernelProfile:
    """The profile without notes on functions that raise flags or wait: the network has figures for these.

    A kernel that announces results stores them to one of several places of its peers in turn, which the
    number of its call chooses. The places cost the same.
    """
    known = {name for name in FLAG_FUNCTIONS if _calls(function, name)}
    if not known:
        return profile
    in_turn: set[str] = set()
    if known.intersection(OF_CALLS):
        shared = {one for name in peers for one in (name, of_rank(name.rpartition("_")[0], 0))}
        in_turn = {chosen_by_data(name, write=write) for name in shared for write in (False, True)}

    def is_known(text: str) -> bool:
        return text in in_turn or any(name in text for name in known)

    return replace(
        profile,
        unknown_calls=tuple(call for call in profile.unknown_calls if not is_known(call)),
        notes=tuple(note for note in profile.notes if not is_known(note)),
    )


def _mechanism(access: Access, adding: bool) -> str:
    if access.mechanism == "tma":
        return ("tma_add" if adding else "tma_store") if access.write else "tma_load"
    return "store" if access.write else "load"


def _adding(function: Any) -> bool:
    """Whether bulk stores of a kernel add."""

    def adds(node: Any, kind: str) -> bool:
        # (descriptor, shared pointer, coordinates..., reduce, eviction)
        is_store = kind == "Call" and call_name(node) == "tl.tma_store"
        return is_store and int(node.args[-2]) == 1

    return contains(function.body, adds)


def _calls(function: Any, name: str) -> int:
    """How often a kernel calls a device function of that name."""
    count = 0

    def look(node: Any, kind: str) -> None:
        nonlocal count
        if kind == "Call" and node.args and str(node.args[0]).strip('"') == name:
            count += 1

    visit(function.body, look)
    return count
