"""Tiles of a product on Hopper that TileLang's own pipelines cannot schedule.

Threads of their own copy through TMA, and barriers are explicit:

- `stream_k`: one block for each core computes as many whole tiles as every block can have. The iterations of
  the tiles that are left are shared evenly: each block has a range of them, which ends one tile and may begin
  the next one. Sums of ranges go to memory, and a second kernel adds them in a fixed order.
- blocks that stay and walk over the tiles: copies for the next tile do not wait for the end of the last one.
  In turns, two groups of computing threads have tiles of their own: while one multiplies, the other one
  finishes its tile.
- a cluster of two blocks side by side: the operand that they share is read once, for both. The stage that it
  fills is free when both have used it, so computing warps report to both blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

GROUP = 128  # threads that issue a wgmma together, and those that copy
# of a computing thread by number of groups; copying threads keep 24. More groups keep an even share
REGISTERS = {1: 240, 2: 240, 3: 160}
FIRST_TURN = 8  # named barriers of the turns; TileLang takes the first ones
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


def scheduled_tiles(
    load: Any,
    multiply: Callable[[Any, Any, Any, Any], Any],
    store: Any,
    num_stages: int,
    threads: int,
    pair: bool,
    turns: Any = None,
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
        turns: a function of a block, how many tiles it has, if two groups of computing threads take turns.

    Returns:
        The macro. `buffers` are stages of both operands and the sums of each group that has its own,
        `barriers` are of full and of free stages, and `walk(role, *shared, block, first, every)` is a macro
        that calls `role(*shared, place, part, done, target)` for each `every`-th tile from `first` on, where
        `shared` are `buffers` of the role and the other first arguments of `run`. `part` is the first
        iteration and their number, and `done` iterations of the block came before.
    """
    import tilelang.language as T  # noqa: N812

    in_turns = turns is not None

    def slot(iteration: Any) -> Any:
        return iteration % num_stages

    def phase(iteration: Any) -> Any:
        return iteration // num_stages % 2

    @T.macro
    def release(free, iteration):  # type: ignore[no-untyped-def]
        if T.get_thread_binding() % 32 == 0:  # a warp has waited for its products as a whole
            if pair:
                T.mbarrier_arrive(free[slot(iteration)], 0)
                T.mbarrier_arrive(free[slot(iteration)], 1)
            else:
                T.mbarrier_arrive(free[slot(iteration)])

    @T.macro
    def produce(tensors, buffers, barriers, place, part, done, _):  # type: ignore[no-untyped-def]
        a_tile, b_tile, _ = buffers
        first, count = part
        full, free = barriers
        for step in T.serial(count):
            T.mbarrier_wait_parity(free[slot(done + step)], 1 - phase(done + step))
            at = slot(done + step)
            load(tensors, place, first + step, a_tile, b_tile, at, full)
            if T.shuffle_elect(32):
                T.mbarrier_arrive(full[at])

    @T.macro
    def multiply_stage(buffers, full, iteration, clear):  # type: ignore[no-untyped-def]
        a_tile, b_tile, c_sum = buffers
        at = slot(iteration)
        T.mbarrier_wait_parity(full[at], phase(iteration))
        multiply(a_tile[at, :, :], b_tile[at, :, :], c_sum, clear)

    @T.macro
    def consume(tensors, buffers, barriers, place, part, done, target):  # type: ignore[no-untyped-def]
        full, free = barriers
        for step in T.serial(part[1]):
            multiply_stage(buffers, full, done + step, step == 0)
            # a stage that waits for the next product leaves less time to fill it again
            T.wait_wgmma(0)
            release(free, done + step)
        store(tensors, place, target, buffers[2])

    def consume_in_turn(group: int) -> Any:
        @T.macro
        def consume(tensors, buffers, barriers, place, part, done, target):  # type: ignore[no-untyped-def]
            full, free = barriers
            T.sync_threads(FIRST_TURN + group, 2 * GROUP)
            multiply_stage(buffers, full, done, True)
            for step in T.serial(part[1] - 1):
                # one group keeps the matrix unit busy if its next product is issued before the last one ends
                multiply_stage(buffers, full, done + step + 1, False)
                T.wait_wgmma(1)
                release(free, done + step)
            # the other group's first stage is the next one to be filled
            T.named_barrier_arrive(FIRST_TURN + 1 - group, 2 * GROUP)
            T.wait_wgmma(0)
            release(free, done + part[1] - 1)
            store(tensors, place, target, buffers[2])

        return consume

    @T.macro
    def compute(tensors, buffers, barriers, walk, block, group):  # type: ignore[no-untyped-def]
        own = (buffers[0], buffers[1], buffers[2][group])
        if in_turns:
            if group == 1:
                T.named_barrier_arrive(FIRST_TURN, 2 * GROUP)  # the first turn
            walk(consume_in_turn(group), tensors, own, barriers, block, group, 2)
            if turns(block) % 2 == group:  # a turn is left
                T.sync_threads(FIRST_TURN + group, 2 * GROUP)
        else:
            walk(consume, tensors, own, barriers, block, 0, 1)

    @T.macro
    def run(tensors, buffers, barriers, walk, block):  # type: ignore[no-untyped-def]
        thread = T.get_thread_binding()
        # not T.ws, between whose branches TileLang 0.1.15 synchronises all threads
        if thread < GROUP:
            if threads // GROUP in REGISTERS:
                T.dec_max_nreg(24)
            if thread < 32:
                walk(produce, tensors, (buffers[0], buffers[1], None), barriers, block, 0, 1)
        else:
            if threads // GROUP in REGISTERS:
                T.inc_max_nreg(REGISTERS[threads // GROUP])
            if in_turns:
                if thread < 2 * GROUP:
                    compute(tensors, buffers, barriers, walk, block, 0)
                else:
                    compute(tensors, buffers, barriers, walk, block, 1)
            else:
                compute(tensors, buffers, barriers, walk, block, 0)
        if pair:  # no block leaves while the other one may report to it
            T.cluster_sync()

    return run
