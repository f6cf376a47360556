"""Tiles of a product on Hopper that TileLang's own pipelines cannot schedule.

Threads of their own copy through TMA, and barriers are explicit:

- `stream_k`: one block for each core computes as many whole tiles as every block can have. The iterations of
  the tiles that are left are shared evenly: each block has a range of them, which ends one tile and may begin
  the next one. Sums of ranges go to memory, and a second kernel adds them in a fixed order.
- blocks that stay and walk over the tiles: copies for the next tile do not wait for the end of the last one.
- a cluster of two blocks side by side: the operand that they share is read once, for both. The stage that it
  fills is free when both have used it, so computing warps report to both blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

GROUP = 128  # threads that issue a wgmma together, and those that copy
# of a computing thread by number of groups; copying threads keep 24. More groups keep an even share
REGISTERS = {1: 240, 2: 240, 3: 160}
RANGES = 2  # tiles that a block's range of iterations reaches, at most


@dataclass(frozen=True)
class SharedTiles:
    """Which iterations each of `blocks` blocks computes. Sizes may be variables of a kernel.

    Attributes:
        tiles: number of tiles.
        depths: iterations of a tile.
        blocks: number of blocks.
    """

    tiles: Any
    depths: int
    blocks: int

    @property
    def turns(self) -> Any:
        """Whole tiles of each block."""
        return self.tiles // self.blocks

    @property
    def rest(self) -> Any:
        """Tiles whose iterations are shared."""
        return self.tiles % self.blocks

    @property
    def share(self) -> Any:
        """Iterations in a block's range."""
        return (self.rest * self.depths + self.blocks - 1) // self.blocks

    def part(self, block: Any, number: Any) -> tuple[Any, Any, Any]:
        """The `number`-th tile in a block's range: the tile, its first iteration there, and how many."""
        import tilelang.language as T  # noqa: N812

        begin = block * self.share
        end = T.min(begin + self.share, self.rest * self.depths)
        tile = begin // self.depths + number
        first = begin % self.depths * (1 - number)
        count = T.max(T.min(end - tile * self.depths, self.depths) - first, 0)
        return self.turns * self.blocks + tile, first, count

    def slots(self, tile: Any) -> tuple[Any, Any, Any]:
        """Of a shared tile, counted from the first one: its first block, the number of its blocks, and
        whether its sums are the second ones of that block. They are the first ones of all later blocks.
        """
        import tilelang.language as T  # noqa: N812

        share = T.max(self.share, 1)
        block, last = tile * self.depths // share, ((tile + 1) * self.depths - 1) // share
        return block, last - block + 1, tile - block * share // self.depths


@dataclass(frozen=True)
class Stages:
    """Memory for operands of a few iterations, which take it one after the other, around a circle.

    Attributes:
        number: iterations whose copies are in flight together.
        pair: whether blocks are clusters of two.
    """

    number: int
    pair: bool

    def slot(self, iteration: Any) -> Any:
        """The stage of an iteration."""
        return iteration % self.number

    def phase(self, iteration: Any) -> Any:
        """The parity of the barrier that says that the stage is full."""
        return iteration // self.number % 2

    def wait_full(self, full: Any, iteration: Any) -> Any:
        """Waits until the operands of an iteration have arrived."""
        import tilelang.language as T  # noqa: N812

        return T.mbarrier_wait_parity(full[self.slot(iteration)], self.phase(iteration))

    def release(self, free: Any, iteration: Any) -> None:
        """Reports that a warp's products of an iteration, for which it has waited as a whole, are over."""
        import tilelang.language as T  # noqa: N812

        slot, pair = self.slot(iteration), self.pair

        @T.macro
        def report(free):  # type: ignore[no-untyped-def]
            if T.get_thread_binding() % 32 == 0:
                if pair:
                    T.mbarrier_arrive(free[slot], 0)
                    T.mbarrier_arrive(free[slot], 1)
                else:
                    T.mbarrier_arrive(free[slot])

        report(free)


# makes what computing threads do with a tile, of a product, what follows it, and the stages
Consumer = Callable[[Callable[[Any, Any, Any, Any], Any], Any, Stages], Any]


def everywhere(_: Any) -> bool:
    """Every place has work for every warpgroup."""
    return True


def in_order(works: Callable[[Any], Any] = everywhere) -> Consumer:
    """What computing threads do for a tile: the product of each iteration, then `store`.

    Args:
        works: whether a place has work for this thread's warpgroup. Others wait for stages and report them.
    """
    import tilelang.language as T  # noqa: N812

    def consumer(multiply: Callable[[Any, Any, Any, Any], Any], store: Any, stages: Stages) -> Any:
        @T.macro
        def consume(tensors, buffers, barriers, place, part, done, target):  # type: ignore[no-untyped-def]
            a_tile, b_tile, c_sum = buffers
            count = part[1]
            full, free = barriers
            # one loop for all warpgroups: a loop for those that wait would seem to follow that of the others
            for step in T.serial(count):
                at = stages.slot(done + step)
                stages.wait_full(full, done + step)
                if works(place):
                    multiply(a_tile[at, :, :], b_tile[at, :, :], c_sum, step == 0)
                    # a stage that waits for the next product leaves less time to fill it again
                    T.wait_wgmma(0)
                if works is not everywhere:
                    # without a product: a lane that still waits when the stage is full again waits for ever
                    T.sync_warp()
                stages.release(free, done + step)
            store(tensors, place, target, c_sum)

        return consume

    return consumer


def scheduled_tiles(
    load: Any,
    multiply: Callable[[Any, Any, Any, Any], Any],
    store: Any,
    num_stages: int,
    threads: int,
    pair: bool,
    consumer: Consumer,
) -> Any:
    """A macro `run(tensors, buffers, barriers, walk, block)`: what all threads of a block do.

    Args:
        load: a macro `(tensors, place, depth, a_tile, b_tile, stage, full)` that issues the copies of an
            iteration.
        multiply: issues `(a, b, c_sum, clear)`, the product of two tiles, on cleared sums if `clear`.
        store: a macro `(tensors, place, target, c_sum)`. Copies that it issues may end later.
        num_stages: iterations whose copies are in flight together.
        threads: threads that compute.
        pair: whether blocks are clusters of two.
        consumer: makes the `role` of computing threads from `multiply`, `store` and the stages.

    Returns:
        The macro. `buffers` are stages of both operands and the sums, `barriers` are of full and of free
        stages, and `walk(role, *shared, block)` is a macro that calls `role(*shared, place, part, done,
        target)` for every tile, where `shared` are the first three arguments of `run`. `part` is the first
        iteration and their number, and `done` iterations of the block came before.
    """
    import tilelang.language as T  # noqa: N812

    stages = Stages(num_stages, pair)

    @T.macro
    def produce(tensors, buffers, barriers, place, part, done, _):  # type: ignore[no-untyped-def]
        a_tile, b_tile, _ = buffers
        first, count = part
        full, free = barriers
        for step in T.serial(count):
            at = stages.slot(done + step)
            T.mbarrier_wait_parity(free[at], 1 - stages.phase(done + step))
            load(tensors, place, first + step, a_tile, b_tile, at, full)
            if T.shuffle_elect(32):
                T.mbarrier_arrive(full[at])

    consume = consumer(multiply, store, stages)

    @T.macro
    def run(tensors, buffers, barriers, walk, block):  # type: ignore[no-untyped-def]
        thread = T.get_thread_binding()
        # not T.ws, between whose branches TileLang 0.1.15 synchronises all threads
        if thread < GROUP:
            if threads // GROUP in REGISTERS:
                T.dec_max_nreg(24)
            if thread < 32:
                walk(produce, tensors, buffers, barriers, block)
        else:
            if threads // GROUP in REGISTERS:
                T.inc_max_nreg(REGISTERS[threads // GROUP])
            walk(consume, tensors, buffers, barriers, block)
        if pair:  # no block leaves while the other one may report to it
            T.cluster_sync()

    return run
