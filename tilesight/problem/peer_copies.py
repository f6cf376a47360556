"""Copies of a rank's rows to its peers by the copy engines, which a kernel's launcher starts beside a launch.

No core takes part. A kernel's function has them as an attribute: from that the builder writes the launcher,
and the cost model reads how many bytes they move.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_ATTRIBUTE = "tilesight_peer_copies"


@dataclass(frozen=True, slots=True)
class PeerCopies:
    """Chunks of the rows of a rank, each of which goes to every peer, and then its flag.

    A rank sends all chunks to the peer before it first, then all to the one before that: at any time it sends
    to one peer and gets from one. A flag gets the number of the last barrier. The copies begin when the
    launches before `beside` have ended, and what follows the call begins when they have ended too.

    Attributes:
        source: name of the shared tensor with the rows of a rank.
        target: name of the shared tensor in which each rank has the rows of all, in the order of ranks.
        flags: name of the shared tensor of barriers. Its last element is the number of the last one.
        arrived: name of the shared tensor with a flag for each chunk of each rank, in the order of ranks.
        world: number of ranks.
        chunks: of a rank.
        chunk_bytes: of a chunk.
        beside: place of the launch that takes what arrives, among those of the call. One before it is a
            barrier.
    """

    source: str
    target: str
    flags: str
    arrived: str
    world: int
    chunks: int
    chunk_bytes: int
    beside: int


def with_peer_copies(prim_func: Any, copies: PeerCopies) -> Any:
    """A traced function with these copies."""
    return prim_func.with_attr(_ATTRIBUTE, asdict(copies))


def peer_copies(prim_func: Any) -> PeerCopies | None:
    """The copies of a traced function; None if it has none."""
    found = (getattr(prim_func, "attrs", None) or {}).get(_ATTRIBUTE)
    if found is None:
        return None
    return PeerCopies(
        source=str(found["source"]),
        target=str(found["target"]),
        flags=str(found["flags"]),
        arrived=str(found["arrived"]),
        world=int(found["world"]),
        chunks=int(found["chunks"]),
        chunk_bytes=int(found["chunk_bytes"]),
        beside=int(found["beside"]),
    )
