"""The phases of a collective, each between the parts of one level."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CollectivePhase:
    """A part of a collective, on one level.

    Attributes:
        level: Name of the level.
        collective: What its parts do.
        ranks: Number of parts that take part.
        sent_bytes: Bytes that each device sends or fetches.
        latency_us: Steps, barriers and the ends of transfers; of the library everything but bytes.
        transfer_us: Bytes over the bandwidth. Of phases at the same time, what it adds to the longest one.
    """

    level: str
    collective: str
    ranks: int
    sent_bytes: float
    latency_us: float
    transfer_us: float
