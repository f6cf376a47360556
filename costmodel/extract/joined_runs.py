"""What several statements of a phase access together in device memory: runs, and sectors.

Both halves of a row are one run, and the fields of one record, or neighbours of one place, share sectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...profile.values import Access, Space
from .accesses import AccessSite, reach
from .expressions import UnevaluableError
from .patterns import SECTOR_BYTES, contiguous_bytes, touched_sectors
from .scope import Scope

LONG_RUN_BYTES = 1024.0  # of rows: a run that takes no longer at device memory if it grows

Place = tuple[Access, Scope, AccessSite]


@dataclass
class JoinedRuns:
    """The places of accesses to short runs, by tensor and direction, and those of loads, by tensor.

    Rotary embeddings read the two halves of each head by two statements: alone, each of them reads every
    other 64 or 128 bytes of the tensor, together they read whole rows.
    """

    _runs: dict[tuple[str, bool], list[Place]] = field(default_factory=dict)
    _loads: dict[str, list[Place]] = field(default_factory=dict)

    def note(self, access: Access, scope: Scope, site: AccessSite) -> None:
        """Remember the place of an access."""
        if access.space is not Space.GLOBAL or access.row_bytes or access.run_bytes <= 0:
            return
        if access.run_bytes < LONG_RUN_BYTES:
            self._runs.setdefault((access.tensor, access.write), []).append((access, scope, site))
        if access.mechanism == "ld" and scope.condition is None and scope.held is None:
            self._loads.setdefault(access.tensor, []).append((access, scope, site))

    def joined(self, accesses: Sequence[Access]) -> tuple[Access, ...]:
        """The accesses of the phase, with the runs that they have together and the sectors that each adds."""
        left = set(map(id, accesses))  # equal ones have places of their own
        runs: dict[int, float] = {}
        added: dict[int, float] = {}
        for places in _of_several(self._runs.values(), left):
            run = _run_of(places)
            runs |= {id(access): max(access.run_bytes, run) for access, _, _ in places}
        for places in _of_several(self._loads.values(), left):
            added |= _added_bytes(places)
        return tuple(
            replace(
                access,
                run_bytes=runs.get(id(access), access.run_bytes),
                # other statements of the block continue it
                own_run_bytes=0.0 if runs.get(id(access), 0.0) > access.run_bytes else access.own_run_bytes,
                sector_bytes=added.get(id(access), access.sector_bytes),
            )
            for access in accesses
        )


def _of_several(groups: Iterable[list[Place]], left: set[int]) -> Iterator[list[Place]]:
    """The places of accesses that are `left`, of groups with more than one of them."""
    for group in groups:
        places = [place for place in group if id(place[0]) in left]
        if len(places) > 1:
            yield places


def _added_bytes(places: Sequence[Place]) -> dict[int, float]:
    """Bytes of the sectors of each load that no load before it touches, of those that share some.

    The first-level cache has the other sectors. The keys are identities of accesses.
    """
    added: dict[int, float] = {}
    before = np.zeros(0, np.int64)
    for access, scope, site in places:
        try:
            elements, share = scope.over_statement(site.index)
        except UnevaluableError:
            continue
        if share < 1:
            continue
        width = max(1, round(site.element_bytes * site.vector))
        touched = touched_sectors((elements * site.element_bytes).astype(np.int64), width)
        new = np.setdiff1d(touched, before, assume_unique=True)
        if len(new) < len(touched):
            # 0 stands for bytes that are not known
            added[id(access)] = max(1.0, float(len(new) * SECTOR_BYTES))
        before = np.union1d(before, new)
    return added


def _run_of(places: Sequence[Place]) -> float:
    """Contiguous bytes of all places together, with the blocks that start next; 0 if they are not known."""
    widths = {round(site.element_bytes * site.vector) for _, _, site in places}
    if len(widths) > 1:
        return 0.0
    width = max(1, *widths)
    try:
        parts = [scope.over_statement(site.index)[0] * site.element_bytes for _, scope, site in places]
        run = contiguous_bytes(np.concatenate(parts).astype(np.int64), width)
        return min(reach(scope, site, run) for _, scope, site in places)
    except UnevaluableError:
        return 0.0
