"""Rows of a rank that copy engines bring to all peers, by chunks, beside tiles that read them.

The launcher of the kernel starts the copies (`problem/peer_copies.py`): they take no cores, and all blocks
compute. Order, flags and waits are those of chunks that blocks copy (`_rank_chunks.py`).

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable
from typing import Any

from ..dtypes import DTYPE_BYTES
from ..problem.peer_copies import PeerCopies
from ._rank_chunks import Chunks, chunk_functions, wait_for_chunks
from ._ranks import ARRIVED, FLAGS


def chunks_from_engines(chunks: Chunks) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The macros of `chunks_to_peers` for chunks that copy engines bring: `send` copies nothing."""
    import tilelang.language as T  # noqa: N812

    functions = chunk_functions(chunks.world, chunks.number)

    @T.macro
    def send(gathering, _, stages, block):  # type: ignore[no-untyped-def]  # noqa: ARG001
        T.import_source(functions)

    return send, wait_for_chunks(chunks)


def copies_of_chunks(chunks: Chunks, source: str, target: str, beside: int) -> PeerCopies:
    """The chunks as copies of copy engines, in the order of `Chunks.place`.

    Args:
        chunks: the chunks.
        source: name of the own rows.
        target: name of the gathered rows.
        beside: place of the launch that waits for them.
    """
    row_bytes = chunks.shared.depth * DTYPE_BYTES[chunks.shared.dtype]
    size = chunks.height * row_bytes
    return PeerCopies(source, target, FLAGS, ARRIVED, chunks.world, chunks.number, size, beside)
