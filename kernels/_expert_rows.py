"""Rows of tokens on their way to the experts of all ranks and back: kernels around grouped products.

`send` stores each token's row once at each rank that has one of its experts, at the token's own place there,
so that no rank needs to know how many rows come. Its last blocks wait until the rows of all ranks are there,
and give each row its place among the rows of its expert. `spread` then copies rows to those places, where a
grouped product finds the rows of an expert one after the other. `give_back` adds the results of a token on
one rank, with their weights, stores the sum at the token's rank, and there adds the sums of all ranks.

Memory for rows needs no turns, since each call has two exchanges. A rank sends rows when it has ended the
call before, in which it waited for sums of all peers, which they store when they have read the rows. It
stores sums when it has rows of all peers, which they send when they have ended the call before.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from dataclasses import dataclass
from typing import Any

from ._rank_flags import WAITING, TileFlags
from ._ranks import Tensor, on_rank

CHOICES = 8  # that a thread reads at once
VECTOR = 8  # elements of 2 bytes that a thread copies at once
THREADS = 128  # that copy rows
FINDING_THREADS = 512  # of `send`, whose last blocks read all choices
MOST_TOKENS = 8  # of a tile
TILES = 64  # of few tokens, so that they occupy many cores


@dataclass(frozen=True)
class ExpertRows:
    """The rows of all ranks.

    Attributes:
        tokens: of one rank.
        hidden: elements of a row, a multiple of `VECTOR`.
        experts: of one rank; those of all ranks have numbers in the order of the ranks.
        topk: choices of a token.
        world: number of ranks.
        dtype: of rows.
    """

    tokens: int
    hidden: int
    experts: int
    topk: int
    world: int
    dtype: str

    @property
    def height(self) -> int:
        """Tokens of a tile."""
        return max(1, min(MOST_TOKENS, self.tokens // TILES))

    @property
    def tiles(self) -> int:
        """Of the tokens of one rank."""
        return -(-self.tokens // self.height)

    @property
    def everyones(self) -> int:
        """Tokens of all ranks."""
        return self.world * self.tokens

    @property
    def capacity(self) -> int:
        """Rows of a rank's experts, if all tokens choose them alone."""
        return self.everyones * self.topk

    @property
    def finding(self) -> int:
        """Blocks that wait for all rows."""
        return min(self.experts, WAITING)

    @property
    def adding(self) -> int:
        """Blocks that wait for sums."""
        return min(self.tiles, WAITING)

    @property
    def sent(self) -> TileFlags:
        return TileFlags(self.world, self.tiles, self.finding)

    @property
    def returned(self) -> TileFlags:
        return TileFlags(self.world, self.tiles, self.tiles)

    @property
    def rows_of_all(self) -> Tensor:
        """A row for each token of each rank."""
        return (self.everyones, self.hidden), self.dtype

    @property
    def choices_of_all(self) -> tuple[int, int]:
        return self.everyones, self.topk

    @property
    def rows_by_expert(self) -> Tensor:
        return (self.capacity, self.hidden), self.dtype

    @property
    def ends(self) -> Tensor:
        """The first row of each expert, and the number of rows."""
        return (self.experts + 1,), "int32"

    def is_on(self, expert: Any, rank: Any) -> Any:
        """Whether that rank has the expert. None has one of a negative number."""
        import tilelang.language as T  # noqa: N812

        return T.And(expert >= rank * self.experts, expert < (rank + 1) * self.experts)


def _copy_row(rows: ExpertRows, threads: int) -> Any:
    """A macro `(source, token, target, row, lane)` that copies a row."""
    import tilelang.language as T  # noqa: N812

    vectors = rows.hidden // VECTOR

    @T.macro
    def copy_row(source, token, target, row, lane):  # type: ignore[no-untyped-def]
        for step in T.serial(-(-vectors // threads)):
            at = step * threads + lane
            if at < vectors:
                for v in T.vectorized(VECTOR):
                    target[row, at * VECTOR + v] = source[token, at * VECTOR + v]

    return copy_row


def _find(rows: ExpertRows, threads: int) -> Any:
    """A macro `(choices, places, ends, counts, rank, expert, lane)` for a block: the places of an expert's
    rows, from 0, and its first row among those of the rank.

    `counts` are two numbers in shared memory. Which of its rows comes first is not determined, and no result
    depends on that.
    """
    import tilelang.language as T  # noqa: N812

    topk, entries = rows.topk, rows.everyones * rows.topk
    together = math.gcd(entries, CHOICES)  # that a thread reads at once

    @T.macro
    def find(choices, places, ends, counts, rank, expert, lane):  # type: ignore[no-untyped-def]
        before = T.alloc_var("int32")
        before = 0
        if lane < 2:
            counts[lane] = 0
        T.sync_threads()
        own = T.alloc_local((together,), "int32")
        for step in T.serial(-(-entries // (threads * together))):
            first = (step * threads + lane) * together
            if first < entries:
                for v in T.vectorized(together):
                    own[v] = choices[(first + v) // topk, (first + v) % topk]
                for v in T.unroll(together):
                    if T.And(own[v] >= rank * rows.experts, own[v] < rank * rows.experts + expert):
                        before += 1
                    if own[v] == rank * rows.experts + expert:
                        places[(first + v) // topk, (first + v) % topk] = T.atomic_add(
                            counts[1], 1, return_prev=True
                        )
        T.atomic_add(counts[0], before)
        T.sync_threads()
        if lane == 0:
            ends[expert] = counts[0]
            if expert == rows.experts - 1:
                ends[rows.experts] = counts[0] + counts[1]
        T.sync_threads()

    return find


def send(rows: ExpertRows) -> Any:
    """A function for a PrimFunc: the launch that sends rows, waits for those of all ranks, and places them.

    It takes A, choices and weights of this rank; rows, choices, weights and flags of all ranks; places, ends,
    and the rank.
    """
    import tilelang.language as T  # noqa: N812

    world, tokens, topk, tiles, height = rows.world, rows.tokens, rows.topk, rows.tiles, rows.height
    sending, finding, of_tiles = world * tiles, rows.finding, rows.sent
    copy_row, find = _copy_row(rows, FINDING_THREADS), _find(rows, FINDING_THREADS)

    @T.macro
    def send_choices(source, target, tile, rank, lane):  # type: ignore[no-untyped-def]
        token, j = tile * height + lane // topk, lane % topk
        if T.And(lane < height * topk, token < tokens):
            target[rank * tokens + token, j] = source[token, j]

    @T.macro
    def send_row(a, choices, arrived, token, owner, rank, lane):  # type: ignore[no-untyped-def]
        # conditions on counts: one of all choices takes TileLang several times as long to lower
        wanted = T.alloc_var("int32")
        experts = T.alloc_local((topk,), "int32")
        for j in T.unroll(topk):
            experts[j] = choices[token, j]
        wanted = 0
        for j in T.unroll(topk):
            if rows.is_on(experts[j], owner):
                wanted = 1
        if wanted > 0:
            on_rank(owner, arrived, lambda one: copy_row(a, token, one, rank * tokens + token, lane))

    @T.macro
    def find_all(choices, places, ends, counts, rank, reader, lane):  # type: ignore[no-untyped-def]
        for turn in T.serial((rows.experts + finding - 1 - reader) // finding):
            find(choices, places, ends, counts, rank, turn * finding + reader, lane)

    @T.macro
    def launch(own, arrived, flags, places, ends, rank):  # type: ignore[no-untyped-def]
        with T.Kernel(sending + finding, threads=FINDING_THREADS) as block:
            T.import_source(of_tiles.functions())
            # peers write what is read here
            T.annotate_restrict_buffers(*arrived[1], *flags)
            counts = T.alloc_shared((2,), "int32")
            lane = T.get_thread_binding()
            number = T.alloc_var("int32")
            if block < sending:
                # own tiles come last, since they need no way
                owner, tile = (block // tiles + rank + 1) % world, block % tiles
                number = of_tiles.number_of_sent(flags, rank, owner, tile)
                on_rank(owner, arrived[1], lambda one: send_choices(own[1], one, tile, rank, lane))
                on_rank(owner, arrived[2], lambda one: send_choices(own[2], one, tile, rank, lane))
                for i in T.serial(height):
                    if tile * height + i < tokens:
                        send_row(own[0], own[1], arrived[0], tile * height + i, owner, rank, lane)
                of_tiles.raise_tile(flags, rank, owner, tile, number)
            else:
                number = of_tiles.number_of_read(flags, rank, block - sending)
                of_tiles.await_all(flags, rank, block - sending, number)
                on_rank(
                    rank,
                    arrived[1],
                    lambda one: find_all(one, places, ends, counts, rank, block - sending, lane),
                )

    return launch


def place(rows: ExpertRows) -> Any:
    """A function for a PrimFunc: the launch that places rows that the library has gathered.

    It takes the choices of all tokens, places, ends, and the rank.
    """
    import tilelang.language as T  # noqa: N812

    find = _find(rows, FINDING_THREADS)

    @T.macro
    def launch(choices, places, ends, rank):  # type: ignore[no-untyped-def]
        with T.Kernel(rows.experts, threads=FINDING_THREADS) as expert:
            counts = T.alloc_shared((2,), "int32")
            find(choices, places, ends, counts, rank, expert, T.get_thread_binding())

    return launch


def spread(rows: ExpertRows) -> Any:
    """A function for a PrimFunc: the launch that copies each row to its places among those of experts.

    It takes rows, choices and weights of all tokens (each a sequence, of which that of the rank is taken);
    places and ends; the rows by expert, and for each choice its row there (-1: of another rank) and its
    weight; and the rank.
    """
    import tilelang.language as T  # noqa: N812

    topk, vectors = rows.topk, rows.hidden // VECTOR

    @T.macro
    def run(source, placed, found, token, rank):  # type: ignore[no-untyped-def]
        # no tensor is named again, so that they keep the names of the kernel's arguments
        lane = T.get_thread_binding()
        # the model knows the choices, and not the rows: conditions are on choices
        experts = T.alloc_local((topk,), "int32")
        targets = T.alloc_local((topk,), "int32")
        values = T.alloc_local((VECTOR,), rows.dtype)
        count = T.alloc_var("int32")
        count = 0
        for j in T.unroll(topk):
            experts[j] = source[1][token, j]
        for j in T.unroll(topk):
            targets[j] = -1
            if rows.is_on(experts[j], rank):
                targets[j] = placed[1][experts[j] - rank * rows.experts] + placed[0][token, j]
                count += 1
            if lane == j:
                found[1][token, j] = targets[j]
                found[2][token, j] = source[2][token, j]
        if count > 0:
            for step in T.serial(-(-vectors // THREADS)):
                at = step * THREADS + lane
                if at < vectors:
                    for v in T.vectorized(VECTOR):
                        values[v] = source[0][token, at * VECTOR + v]
                    for j in T.unroll(topk):
                        if rows.is_on(experts[j], rank):
                            for v in T.vectorized(VECTOR):
                                found[0][targets[j], at * VECTOR + v] = values[v]

    @T.macro
    def launch(arrived, placed, found, rank):  # type: ignore[no-untyped-def]
        with T.Kernel(rows.everyones, threads=THREADS) as token:
            of_ranks = list(zip(*arrived, strict=True))
            on_rank(rank, of_ranks, lambda own: run(own, placed, found, token, rank))

    return launch


def _weighted_sum(rows: ExpertRows, always: bool) -> Any:
    """A macro `(results, row_of, weight_of, token, target, row)`: a row of the target is the sum of the
    results of the token's experts on this rank, with their weights.

    Args:
        rows: the rows.
        always: whether tokens without such an expert get zeros; else nothing.
    """
    import tilelang.language as T  # noqa: N812

    topk, vectors = rows.topk, rows.hidden // VECTOR

    @T.macro
    def add(results, row_of, weight_of, token, target, row):  # type: ignore[no-untyped-def]
        targets = T.alloc_local((topk,), "int32")
        weights = T.alloc_local((topk,), "float32")
        total = T.alloc_local((VECTOR,), "float32")
        count = T.alloc_var("int32")
        count = 1 if always else 0
        # one after the other, since the model knows the rows, and not the weights
        for j in T.unroll(topk):
            targets[j] = row_of[token, j]
        for j in T.unroll(topk):
            weights[j] = weight_of[token, j]
        for j in T.unroll(topk):
            if targets[j] >= 0:
                count += 1
        if count > 0:
            for step in T.serial(-(-vectors // THREADS)):
                at = step * THREADS + T.get_thread_binding()
                if at < vectors:
                    for v in T.vectorized(VECTOR):
                        total[v] = 0
                    for j in T.unroll(topk):
                        if targets[j] >= 0:
                            for v in T.vectorized(VECTOR):
                                total[v] += weights[j] * T.cast(
                                    results[targets[j], at * VECTOR + v], "float32"
                                )
                    for v in T.vectorized(VECTOR):
                        target[row, at * VECTOR + v] = T.cast(total[v], rows.dtype)

    return add


def give_back(rows: ExpertRows) -> Any:
    """A function for a PrimFunc: the launch that stores sums at the ranks of their tokens, waits for those of
    all ranks, and adds them.

    It takes this rank's choices; results by expert, and for each choice of all tokens its row there and its
    weight; sums and flags of all ranks; C, and the rank.
    """
    import tilelang.language as T  # noqa: N812

    world, tokens, topk, tiles, height = rows.world, rows.tokens, rows.topk, rows.tiles, rows.height
    sending, adding, of_tiles, vectors = world * tiles, rows.adding, rows.returned, rows.hidden // VECTOR
    add = _weighted_sum(rows, always=False)

    @T.macro
    def add_sums(choices, sums, c, token):  # type: ignore[no-untyped-def]
        total = T.alloc_local((VECTOR,), "float32")
        experts = T.alloc_local((topk,), "int32")
        given = T.alloc_local((world,), "int32")
        for j in T.unroll(topk):
            experts[j] = choices[token, j]
        for source in T.unroll(world):
            given[source] = 0
            for j in T.unroll(topk):
                if rows.is_on(experts[j], source):
                    given[source] = 1
        for step in T.serial(-(-vectors // THREADS)):
            at = step * THREADS + T.get_thread_binding()
            if at < vectors:
                for v in T.vectorized(VECTOR):
                    total[v] = 0
                for source in T.unroll(world):
                    if given[source] > 0:
                        for v in T.vectorized(VECTOR):
                            total[v] += T.cast(sums[source * tokens + token, at * VECTOR + v], "float32")
                for v in T.vectorized(VECTOR):
                    c[token, at * VECTOR + v] = T.cast(total[v], rows.dtype)

    @T.macro
    def add_tile(choices, sums, c, tile):  # type: ignore[no-untyped-def]
        for i in T.serial(height):
            if tile * height + i < tokens:
                add_sums(choices, sums, c, tile * height + i)

    @T.macro
    def receive(choices, sums, c, tile, rank):  # type: ignore[no-untyped-def]
        on_rank(rank, sums, lambda one: add_tile(choices, one, c, tile))

    @T.macro
    def send_tile(found, target, owner, tile, rank):  # type: ignore[no-untyped-def]
        for i in T.serial(height):
            if tile * height + i < tokens:
                token = tile * height + i
                add(*found, owner * tokens + token, target, rank * tokens + token)

    @T.macro
    def launch(choices, found, sums, flags, c, rank):  # type: ignore[no-untyped-def]
        with T.Kernel(sending + adding, threads=THREADS) as block:
            T.import_source(of_tiles.functions())
            # peers write what is read here
            T.annotate_restrict_buffers(*sums, *flags)
            number = T.alloc_var("int32")
            if block < sending:
                owner, tile = (block // tiles + rank + 1) % world, block % tiles
                number = of_tiles.number_of_sent(flags, rank, owner, tile)
                on_rank(owner, sums, lambda one: send_tile(found, one, owner, tile, rank))
                of_tiles.raise_tile(flags, rank, owner, tile, number)
            else:
                for turn in T.serial((tiles + adding - 1 - (block - sending)) // adding):
                    mine = turn * adding + block - sending
                    number = of_tiles.number_of_read(flags, rank, mine)
                    of_tiles.await_tile(flags, rank, mine, number)
                    receive(choices, sums, c, mine, rank)

    return launch


def weighted_sums(rows: ExpertRows) -> Any:
    """A function for a PrimFunc: the launch that makes the sums of all tokens on this rank, for the library.

    It takes results by expert, for each choice of all tokens its row there and its weight, and the sums.
    """
    import tilelang.language as T  # noqa: N812

    add = _weighted_sum(rows, always=True)

    @T.macro
    def launch(found, sums):  # type: ignore[no-untyped-def]
        with T.Kernel(rows.everyones, threads=THREADS) as token:
            add(*found, token, sums, token)

    return launch
