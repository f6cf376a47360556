"""Rows of a rank that blocks of their own copy to all peers, by chunks, beside a product that reads them.

Some blocks of the product's kernel copy and compute nothing. Each rank sends to the peer before it first,
then to the one before that. A rank takes its own rows, then those of the rank after it, so rows arrive in the
order in which they are taken, and at any time each rank sends to one peer and gets from one.

Every chunk has a flag at its destination, which one block raises when the whole chunk is there. Its number
is that of the last barrier, so flags only grow and are never reset. Tiles wait for the chunks that they read.
The barrier before the kernel says that no peer reads rows of an earlier call any more.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..dtypes import DTYPE_BYTES
from ..problem.group_operator import ANNOUNCE, AWAIT
from ._rank_tiles import RankTiles
from ._ranks import RAISE_AND_WAIT, Tensor, chosen_pointer, on_rank, pointer_parameters

VECTOR_BYTES = 16  # of a lane's access
VECTORS = 8  # that a thread has in flight


@dataclass(frozen=True)
class Chunks:
    """The chunks of the rows of each rank.

    Attributes:
        tiles: of the product. A chunk has whole rows of A.
        height: rows of a chunk, which divide those of a rank.
        senders: blocks that copy.
    """

    tiles: RankTiles
    height: int
    senders: int

    @property
    def world(self) -> int:
        return self.tiles.world

    @property
    def number(self) -> int:
        """Chunks of a rank."""
        return self.tiles.rows // self.height

    @property
    def sent(self) -> int:
        """Chunks that a rank sends to all peers."""
        return (self.world - 1) * self.number

    def place(self, index: Any, rank: Any) -> tuple[Any, Any]:
        """Of a chunk that `rank` sends, by its place in the order: the peer that gets it, and which it is."""
        return (rank + self.world - 1 - index // self.number) % self.world, index % self.number

    def of_rows(self, first: Any, count: int) -> tuple[Any, Any]:
        """The first chunk that has one of `count` rows of a rank, and the number of such chunks."""
        import tilelang.language as T  # noqa: N812

        begin = first // self.height
        return begin, (T.min(first + count, self.tiles.rows) - 1) // self.height + 1 - begin


def shape_of_arrivals(chunks: Chunks) -> Tensor:
    """Shape and dtype of the flags of chunks of a rank: those of each rank that they come from."""
    return (chunks.world, chunks.number), "int32"


def chunk_functions(world: int, number: int) -> str:
    """The text of `ANNOUNCE` and `AWAIT`.

    All threads of a block call the former, after they have stored a chunk of `rank` at `peer`. One warp calls
    the latter before it reads `count` chunks by TMA, in whose proxy the stores of peers are not visible
    without a fence.
    """

    flags = f"{pointer_parameters('flags', world)}, {pointer_parameters('arrived', world)}"
    return f"""
#ifndef TILESIGHT_{ANNOUNCE.upper()}
#define TILESIGHT_{ANNOUNCE.upper()}
{RAISE_AND_WAIT}
__device__ __forceinline__ void {ANNOUNCE}(int rank, int peer, int chunk, {flags}) {{
  const int *own = {chosen_pointer("flags", "rank", world)};
  int *there = {chosen_pointer("arrived", "peer", world)};
  __syncthreads();
  if (threadIdx.x == 0) {{
    const int number = read_flag(own + {world});
    __threadfence_system();
    raise_flag(there + rank * {number} + chunk, number);
  }}
}}
__device__ __forceinline__ void {AWAIT}(int rank, int from, int chunk, int count, {flags}) {{
  const int *own = {chosen_pointer("flags", "rank", world)};
  const int *here = {chosen_pointer("arrived", "rank", world)};
  const int number = read_flag(own + {world});
  for (int i = threadIdx.x % 32; i < count; i += 32) {{
    while ((int)((unsigned int)read_flag(here + from * {number} + chunk + i) - (unsigned int)number) < 0) {{
    }}
  }}
  __syncwarp();
  asm volatile("fence.proxy.async;" ::: "memory");
}}
#endif
"""


@dataclass(frozen=True)
class Gathering:
    """The tensors of a gathering: the rows of each rank, where those of peers go, and flags.

    Attributes:
        own: rows of each rank.
        gathered: of each rank, of shape (world, rows, columns).
        flags: of barriers.
        arrived: of chunks.
        rank: which of them this one is.
    """

    own: Sequence[Any]
    gathered: Sequence[Any]
    flags: Sequence[Any]
    arrived: Sequence[Any]
    rank: Any


def chunks_to_peers(chunks: Chunks) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two macros: `send(gathering, _, block)`, all that a block copies, none of blocks that compute, and
    `wait(gathering, shard, first, count)`, which waits for `count` rows of a rank.

    Lanes copy words of 16 bytes, of which each thread has several in flight.
    """
    import tilelang.language as T  # noqa: N812

    dtype, threads = chunks.tiles.dtype, chunks.tiles.threads
    width = VECTOR_BYTES // DTYPE_BYTES[dtype]
    of_row = chunks.tiles.depth // width  # words
    words = chunks.height * of_row
    step = VECTORS * threads
    functions = chunk_functions(chunks.world, chunks.number)

    def all_flags(gathering: Gathering) -> list[Any]:
        return [
            *(T.access_ptr(one[0], "rw", chunks.world + 1) for one in gathering.flags),
            *(T.access_ptr(one[0, 0], "rw", chunks.world, chunks.number) for one in gathering.arrived),
        ]

    # buffers keep the names of the kernel's arguments, so there are no views of them
    @T.macro
    def fetch(own, first, last, held):  # type: ignore[no-untyped-def]
        for i in T.unroll(VECTORS):
            word = first + i * threads + T.get_thread_binding()
            if word < last:
                for lane in T.vectorized(width):
                    held[i, lane] = own[word // of_row, word % of_row * width + lane]

    @T.macro
    def store(peer, rank, first, last, held):  # type: ignore[no-untyped-def]
        for i in T.unroll(VECTORS):
            word = first + i * threads + T.get_thread_binding()
            if word < last:
                for lane in T.vectorized(width):
                    peer[rank, word // of_row, word % of_row * width + lane] = held[i, lane]

    @T.macro
    def move(gathering, peer, first, last, held):  # type: ignore[no-untyped-def]
        rank = gathering.rank
        on_rank(rank, gathering.own, lambda own: fetch(own, first, last, held))
        on_rank(peer, gathering.gathered, lambda there: store(there, rank, first, last, held))

    @T.macro
    def send(gathering, _, block):  # type: ignore[no-untyped-def]
        T.import_source(functions)
        rank = gathering.rank
        held = T.alloc_local((VECTORS, width), dtype)
        mine = (chunks.sent + chunks.senders - 1 - block) // chunks.senders
        for turn in T.serial(T.if_then_else(block < chunks.senders, mine, 0)):
            # the model evaluates turns that the last blocks do not have
            peer, chunk = chunks.place(T.min(turn * chunks.senders + block, chunks.sent - 1), rank)
            begin = chunk * words
            for part in T.serial((words + step - 1) // step):
                move(gathering, peer, begin + part * step, begin + words, held)
            T.call_extern("handle", ANNOUNCE, rank, peer, chunk, *all_flags(gathering))

    @T.macro
    def wait(gathering, shard, first, count):  # type: ignore[no-untyped-def]
        if shard != gathering.rank:
            begin, number = chunks.of_rows(first, count)
            T.call_extern("handle", AWAIT, gathering.rank, shard, begin, number, *all_flags(gathering))

    return send, wait
