"""Runs of device memory that several statements of a phase access together, such as both halves of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...profile.values import Access, Space
from .accesses import AccessSite, reach
from .expressions import UnevaluableError
from .patterns import contiguous_bytes
from .scope import Scope

LONG_RUN_BYTES = 1024.0  # of rows: a run that takes no longer at device memory if it grows


@dataclass
class JoinedRuns:
    """The places of accesses to short runs, by tensor and direction.

    Rotary embeddings read the two halves of each head by two statements: alone, each of them reads every
    other 64 or 128 bytes of the tensor, together they read whole rows.
    """

    _places: dict[tuple[str, bool], list[tuple[int, Scope, AccessSite]]] = field(default_factory=dict)

    def note(self, number: int, access: Access, scope: Scope, site: AccessSite) -> None:
        """Remember the place of `access`, which has this number in its phase."""
        if access.space is Space.GLOBAL and 0 < access.run_bytes < LONG_RUN_BYTES and not access.row_bytes:
            self._places.setdefault((access.tensor, access.write), []).append((number, scope, site))

    def joined(self, accesses: Sequence[Access]) -> tuple[Access, ...]:
        """The accesses of the phase, with the runs that they have together."""
        found = list(accesses)
        for places in self._places.values():
            if len(places) > 1:
                run = _run_of(places)
                for number, _, _ in places:
                    known = found[number]
                    found[number] = replace(known, run_bytes=max(known.run_bytes, run))
        return tuple(found)


def _run_of(places: Sequence[tuple[int, Scope, AccessSite]]) -> float:
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
