"""Rows of a rank that are copied to all peers, by chunks, beside tiles that read them.

Some blocks of the kernel that computes tiles copy and compute nothing, or copy engines copy in their place
(`_engine_chunks.py`). Each rank sends to the peer before it first, then to the one before that. A rank takes
its own rows, then those of the rank after it, so rows arrive in the order in which they are taken, and at any
time each rank sends to one peer and gets from one.

Every chunk has a flag at its destination, which is raised when the whole chunk is there. Its number
is that of the last barrier, so flags only grow and are never reset. Tiles wait for the chunks that they read.
The barrier before the kernel says that no peer reads rows of an earlier call any more.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..dtypes import DTYPE_BYTES
from ..problem.group_operator import ANNOUNCE, ANNOUNCE_TILE, AWAIT
from ._ranks import Tensor, announcement, chosen_pointer, on_each, on_rank, pointer_parameters
from ._scheduled_tiles import GROUP

VECTOR_BYTES = 16  # of a lane's access
VECTORS = 8  # that a thread has in flight


@dataclass(frozen=True)
class SharedRows:
    """Rows that are spread over ranks.

    Attributes:
        rows: of a rank.
        depth: elements of a row.
        world: number of ranks.
        dtype: of an element.
        threads: of a block of the kernel.
    """

    rows: int
    depth: int
    world: int
    dtype: str
    threads: int


@dataclass(frozen=True)
class Boxes:
    """Boxes of rows that one warp copies by TMA, through shared memory: tiles of A of a product.

    Attributes:
        rows: of a box, which divide those of a chunk.
        columns: of a box.
        stages: boxes that are in shared memory together.
    """

    rows: int
    columns: int
    stages: int


@dataclass(frozen=True)
class Chunks:
    """The chunks of the rows of each rank.

    Attributes:
        shared: the rows. A chunk has whole ones.
        height: rows of a chunk, which divide those of a rank.
        senders: blocks that copy; 0: the copy engines do.
        boxes: how they copy by TMA; None: words, by all threads.
    """

    shared: SharedRows
    height: int
    senders: int
    boxes: Boxes | None = None

    @property
    def world(self) -> int:
        return self.shared.world

    @property
    def number(self) -> int:
        """Chunks of a rank."""
        return self.shared.rows // self.height

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
        return begin, (T.min(first + count, self.shared.rows) - 1) // self.height + 1 - begin


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
    arguments = flags.replace("int *", "")
    return f"""
{announcement(world, number)}
#ifndef TILESIGHT_{ANNOUNCE.upper()}
#define TILESIGHT_{ANNOUNCE.upper()}
__device__ __forceinline__ void {ANNOUNCE}(int rank, int peer, int chunk, {flags}) {{
  __syncthreads();
  if (threadIdx.x == 0) {{
    {ANNOUNCE_TILE}(rank, peer, chunk, {arguments});
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
        pairs: of each tensor whose rows go to peers, the own rows and the gathered ones. Own rows are those
            of each rank, or those of this one alone. Gathered ones are of each rank, of shape (world, rows,
            columns). A chunk has the same rows of all.
        flags: of barriers.
        arrived: of chunks.
        rank: which of them this one is.
    """

    pairs: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    flags: Sequence[Any]
    arrived: Sequence[Any]
    rank: Any


def chunks_to_peers(chunks: Chunks) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two macros: `send(gathering, _, stages, block)`, all that a block copies, none of blocks that compute,
    and `wait(gathering, shard, first, count)`, which waits for `count` rows of a rank.
    """
    import tilelang.language as T  # noqa: N812

    functions, all_flags = chunk_functions(chunks.world, chunks.number), flags_of(chunks)
    copy = (words_to_peers if chunks.boxes is None else boxes_to_peers)(chunks, all_flags)

    @T.macro
    def send(gathering, _, stages, block):  # type: ignore[no-untyped-def]
        T.import_source(functions)
        rank = gathering.rank
        mine = (chunks.sent + chunks.senders - 1 - block) // chunks.senders
        for turn in T.serial(T.if_then_else(block < chunks.senders, mine, 0)):
            # the model evaluates turns that the last blocks do not have
            peer, chunk = chunks.place(T.min(turn * chunks.senders + block, chunks.sent - 1), rank)
            copy(gathering, stages, turn, peer, chunk)

    return send, wait_for_chunks(chunks)


def flags_of(chunks: Chunks) -> Callable[[Gathering], list[Any]]:
    """A function that gives the flags of a gathering as arguments of the functions of chunks."""
    import tilelang.language as T  # noqa: N812

    def all_flags(gathering: Gathering) -> list[Any]:
        return [
            *(T.access_ptr(one[0], "rw", chunks.world + 1) for one in gathering.flags),
            *(T.access_ptr(one[0, 0], "rw", chunks.world, chunks.number) for one in gathering.arrived),
        ]

    return all_flags


def wait_for_chunks(chunks: Chunks) -> Any:
    """A macro `wait(gathering, shard, first, count)`, which waits for `count` rows of a rank."""
    import tilelang.language as T  # noqa: N812

    all_flags = flags_of(chunks)

    @T.macro
    def wait(gathering, shard, first, count):  # type: ignore[no-untyped-def]
        if shard != gathering.rank:
            begin, number = chunks.of_rows(first, count)
            T.call_extern("handle", AWAIT, gathering.rank, shard, begin, number, *all_flags(gathering))

    return wait


def words_to_peers(chunks: Chunks, all_flags: Callable[[Gathering], list[Any]]) -> Any:
    """A macro `copy(gathering, _, _, peer, chunk)`: all threads of a block copy words of 16 bytes.

    Each thread has several in flight.
    """
    import tilelang.language as T  # noqa: N812

    dtype, threads = chunks.shared.dtype, chunks.shared.threads
    width = VECTOR_BYTES // DTYPE_BYTES[dtype]
    of_row = chunks.shared.depth // width  # words
    words = chunks.height * of_row
    step = VECTORS * threads

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
    def move(pair, rank, peer, first, last, held):  # type: ignore[no-untyped-def]
        own, gathered = pair
        on_rank(rank, own, lambda one: fetch(one, first, last, held))
        on_rank(peer, gathered, lambda there: store(there, rank, first, last, held))

    @T.macro
    def move_all(pair, rank, peer, begin, held):  # type: ignore[no-untyped-def]
        for part in T.serial((words + step - 1) // step):
            move(pair, rank, peer, begin + part * step, begin + words, held)

    @T.macro
    def copy(gathering, _, turn, peer, chunk):  # type: ignore[no-untyped-def]  # noqa: ARG001
        held = T.alloc_local((VECTORS, width), dtype)
        begin = chunk * words
        on_each(gathering.pairs, lambda pair: move_all(pair, gathering.rank, peer, begin, held))
        T.call_extern("handle", ANNOUNCE, gathering.rank, peer, chunk, *all_flags(gathering))

    return copy


def boxes_to_peers(chunks: Chunks, all_flags: Callable[[Gathering], list[Any]]) -> Any:
    """A macro `copy(gathering, stages, turn, peer, chunk)`: one warp copies boxes by TMA.

    `stages` are those of A in shared memory and their barriers, of which a block that sends has no other use.
    A box is read while the ones before it are stored. There is one tensor.
    """
    import tilelang.language as T  # noqa: N812

    assert chunks.boxes is not None
    rows, depth, number = chunks.boxes.rows, chunks.boxes.columns, chunks.boxes.stages
    of_row = -(-chunks.shared.depth // depth)
    boxes = chunks.height // rows * of_row  # of a chunk
    ahead = number - 2  # boxes that are being read. One may be stored, and the one before it has been

    def place(chunk: Any, box: Any) -> tuple[slice, slice]:
        row = chunk * chunks.height + box // of_row * rows
        column = box % of_row * depth
        return slice(row, row + rows), slice(column, column + depth)

    @T.macro
    def read(own, at, stages, box):  # type: ignore[no-untyped-def]
        a_tile, full = stages
        slot = box % number
        T.tma_copy(own[at[0], at[1]], a_tile[slot, :, :], barrier=full[slot], leader_scope_threads=32)

    @T.macro
    def write(there, rank, at, stages, box):  # type: ignore[no-untyped-def]
        T.tma_copy(stages[0][box % number, :, :], there[rank, at[0], at[1]], leader_scope_threads=32)

    @T.macro
    def copy_box(gathering, stages, done, peer, chunk, step):  # type: ignore[no-untyped-def]
        rank, full = gathering.rank, stages[1]
        own_rows, gathered = gathering.pairs[0]
        if step < boxes:
            T.tma_store_wait(1)
            on_rank(rank, own_rows, lambda own: read(own, place(chunk, step), stages, done + step))
            if T.shuffle_elect(32):
                T.mbarrier_arrive(full[(done + step) % number])
        if step >= ahead:
            box = done + step - ahead
            T.mbarrier_wait_parity(full[box % number], box // number % 2)
            at = place(chunk, step - ahead)
            on_rank(peer, gathered, lambda there: write(there, rank, at, stages, box))

    @T.macro
    def copy_all(gathering, stages, turn, peer, chunk):  # type: ignore[no-untyped-def]
        for step in T.serial(boxes + ahead):
            copy_box(gathering, stages, turn * boxes, peer, chunk, step)
        if T.shuffle_elect(32):
            # of the thread that has issued the copies
            T.tma_store_wait(0, read=False)
            T.call_extern("handle", ANNOUNCE_TILE, gathering.rank, peer, chunk, *all_flags(gathering))

    @T.macro
    def copy(gathering, stages, turn, peer, chunk):  # type: ignore[no-untyped-def]
        # Not the warp that copies for products, so that the model tells them apart. Bounds of a range:
        # TileLang 0.1.15 lets all threads wait within a condition that it does not understand
        if T.get_thread_binding() >= GROUP:  # noqa: SIM102
            if T.get_thread_binding() < GROUP + 32:
                copy_all(gathering, stages, turn, peer, chunk)

    return copy
