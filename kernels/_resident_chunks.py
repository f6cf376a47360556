"""Mamba-2 on Hopper: blocks that keep what all heads of a chunk share, and take these heads in turn.

C B^T, C and B are the same for every head. A block reads them once, and then only what a head has of its own,
through TMA and ahead of the heads that it computes. Each group of 128 threads has a program of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..problem.space import Config
from ..problem.workload import Workload
from ..search_spaces.resident_chunks import HEADS
from ..target.spec import Target
from ._row_tiles import LOG2_E
from ._scheduled_tiles import GROUP, Stages

ROWS = 64  # of a group: those of one wgmma
WARP = 32
WAVE_SHARE = 0.9  # of the cores, which the blocks of one wave occupy at least
LAST = 4  # sums of a chunk that are copied for the last one: TMA takes 16 bytes


@dataclass(frozen=True)
class HeadWalk:
    """Which heads of a chunk a block takes.

    Attributes:
        nheads: heads of the layer.
        each: heads of a block; the last block of a chunk may have fewer.
        tiles: tiles of a head, each of which has blocks of its own.
    """

    nheads: Any
    each: int
    tiles: int

    def grid(self, batch: Any, chunks: Any) -> tuple[Any, Any, Any]:
        """Blocks of one chunk run together."""
        return self.tiles * ((self.nheads + self.each - 1) // self.each), chunks, batch

    def first(self, block: Any) -> Any:
        """The first head of a block."""
        return block // self.tiles * self.each

    def tile(self, block: Any) -> Any:
        """The tile of its heads."""
        return block % self.tiles

    def count(self, block: Any) -> Any:
        """Heads of a block."""
        import tilelang.language as T  # noqa: N812

        if isinstance(self.nheads, int) and self.nheads % self.each == 0:
            return self.each
        return T.min(self.each, self.nheads - self.first(block))


def heads_of_a_wave(workload: Workload, tiles: int, target: Target) -> int:
    """The most heads of a block, of those in the search space, with which blocks occupy nearly all cores.

    0 if they do not even with one head each.

    Args:
        workload: of `chunk_scan` or `chunk_state`.
        tiles: tiles of a head.
        target: the device.
    """
    batch, seq_len, nheads, _, _ = workload.dims.values()
    chunks = -(-seq_len // int(workload.attrs["chunk"]))

    def blocks(heads: int) -> int:
        return batch * chunks * tiles * -(-nheads // heads)

    heads = min(1 << max(0, nheads - 1).bit_length(), max(HEADS))
    while heads and blocks(heads) < WAVE_SHARE * target.int("core.count"):
        heads //= 2
    return heads


def by_group(groups: int, program: Callable[[int], Any]) -> Any:
    """A macro `run(given)` that calls the macro `program(group)` of each group of threads."""
    import tilelang.language as T  # noqa: N812

    def from_group(group: int) -> Any:
        own = program(group)
        if group == groups - 1:
            return own
        others = from_group(group + 1)

        @T.macro
        def run(given):  # type: ignore[no-untyped-def]
            # not T.ws, between whose branches TileLang 0.1.15 synchronises all threads
            if T.get_thread_binding() < (group + 1) * GROUP:
                own(given)
            else:
                others(given)

        return run

    return from_group(0)


def _part(number: int) -> slice:
    return slice(number * ROWS, (number + 1) * ROWS)


def _issue(source: Any, tile: Any, barrier: Any) -> Any:
    import tilelang.language as T  # noqa: N812

    return T.tma_copy(source, tile, barrier=barrier, leader_scope_threads=WARP)


def resident_scan(workload: Workload, config: Config) -> Any:
    """The tile program of `chunk_scan` with `heads` > 0.

    A group has 64 rows of the chunk: its rows of C are in registers, its tiles of cb in shared memory. All
    tokens of an earlier tile come before each of its rows l, so that with l0 as the last token before them
    exp(dA[l] - dA[s]) is the product of exp(dA[l] - dA[l0]) and exp(dA[l0] - dA[s]), of which none is more
    than 1. That takes an exponential for each row and each column in place of one for each weight.

    The last group, whose rows have the most tokens, copies: others have seldom a head to finish before it.
    """
    import tilelang.language as T  # noqa: N812
    from tilelang.layout import make_swizzled_layout

    batch, seq_len, nheads, head_dim, d_state = workload.dims.values()
    chunk, dtype, accumulator = int(workload.attrs["chunk"]), workload.dtype, "float32"
    block_n, num_stages, threads = config.int("block_n"), config.int("num_stages"), config.int("threads")
    groups, width = chunk // ROWS, -(-d_state // 16) * 16  # a matrix instruction takes 16 elements at once
    chunks, stages = (seq_len + chunk - 1) // chunk, Stages(num_stages, pair=False)
    walk = HeadWalk(nheads, config.int("heads"), -(-head_dim // block_n))
    decay_shape, policy = (batch, nheads, chunks, chunk), T.GemmWarpPolicy.FullRow
    tiles = [(row, column) for row in range(groups) for column in range(row + 1)]  # of cb

    def first_row(row: int, column: int) -> int:
        return tiles.index((row, column)) * ROWS

    @T.macro
    def keep(tensors, shared, where, row, column):  # type: ignore[no-untyped-def]
        item, at, _ = where
        first = first_row(row, column)
        source = tensors["cb"][item, at, 0, _part(row), _part(column)]
        _issue(source, shared["cb"][first : first + ROWS, :], shared["kept"])

    @T.macro
    def fill(tensors, shared, where, step):  # type: ignore[no-untyped-def]
        item, at, block = where
        p, head, slot = walk.tile(block) * block_n, walk.first(block) + step, stages.slot(step)
        _issue(tensors["dA_cumsum"][item, head, at, 0:chunk], shared["decays"][slot, :], shared["full"][slot])
        _issue(tensors["dt"][item, head, at, 0:chunk], shared["steps"][slot, :], shared["full"][slot])
        states = tensors["prev_states"][item, at, head, p : p + block_n, 0:width]
        _issue(states, shared["state"][slot, :, :], shared["full"][slot])
        x = tensors["x"][item, at * chunk : (at + 1) * chunk, head, p : p + block_n]
        _issue(x, shared["x"][slot, :, :], shared["full"][slot])
        if T.shuffle_elect(WARP):
            T.mbarrier_arrive(shared["full"][slot])

    def program(group: int) -> Any:
        row, diagonal, copies = group * ROWS, first_row(group, group), group == groups - 1

        @T.macro
        def earlier(shared, slot, column, factors, before, weights, sums):  # type: ignore[no-untyped-def]
            for i, j in T.Parallel(ROWS, ROWS):
                weights[i, j] = shared["cb"][first_row(group, column) + i, j] * (
                    before[i] * factors[column * ROWS + j]
                )
            T.wgmma_gemm(weights, shared["x"][slot, _part(column), :], sums, policy=policy)

        @T.macro
        def run(given):  # type: ignore[no-untyped-def]
            tensors, shared, where = given
            item, at, block = where
            p, first, count = walk.tile(block) * block_n, at * chunk + row, walk.count(block)
            decays, steps, out_tile = shared["decays"], shared["steps"], shared["out"]
            c_rows = T.alloc_fragment((ROWS, width), dtype)
            exact = T.alloc_fragment((ROWS, ROWS), accumulator)
            even = T.alloc_fragment((ROWS, ROWS), dtype)
            odd = T.alloc_fragment((ROWS, ROWS), dtype)
            sums = T.alloc_fragment((ROWS, block_n), accumulator)
            powers = T.alloc_fragment((ROWS,), accumulator)
            before = T.alloc_fragment((ROWS,), accumulator)
            factors = T.alloc_shared((max(row, ROWS),), accumulator)
            own = T.alloc_local((1,), accumulator)
            if copies:  # noqa: SIM102
                if T.get_thread_binding() < row // ROWS * GROUP + WARP:
                    fill(tensors, shared, where, 0)
                    for tile in tuple(tiles):
                        keep(tensors, shared, where, *tile)
                    if T.shuffle_elect(WARP):
                        T.mbarrier_arrive(shared["kept"])
                    for step in T.serial(T.min(count, num_stages) - 1):
                        fill(tensors, shared, where, step + 1)
            # rows beyond an edge are zeros
            T.copy(tensors["C"][item, first : first + ROWS, 0:width], c_rows)
            T.mbarrier_wait_parity(shared["kept"], 0)
            for step in T.serial(count):
                head, slot = walk.first(block) + step, stages.slot(step)
                own[0] = tensors["D"][head]
                stages.wait_full(shared["full"], step)
                T.wgmma_gemm(
                    c_rows, shared["state"][slot, :, :], sums,
                    transpose_B=True, policy=policy, clear_accum=True,
                )  # fmt: skip
                # weights of the diagonal, meanwhile
                for i in T.Parallel(ROWS):
                    powers[i] = decays[slot, row + i] * LOG2_E
                for i, j in T.Parallel(ROWS, ROWS):
                    exact[i, j] = (
                        shared["cb"][diagonal + i, j]
                        * T.exp2(powers[i] - decays[slot, row + j] * LOG2_E)
                        * steps[slot, row + j]
                    )
                for i, j in T.Parallel(ROWS, ROWS):
                    exact[i, j] = T.if_then_else(j > i, 0, exact[i, j] + T.if_then_else(i == j, own[0], 0))
                T.copy(exact, even)
                if group:
                    for j in T.Parallel(row):
                        factors[j] = (
                            T.exp2((decays[slot, row - 1] - decays[slot, j]) * LOG2_E) * steps[slot, j]
                        )
                    for i in T.Parallel(ROWS):
                        before[i] = T.exp2(powers[i] - decays[slot, row - 1] * LOG2_E)
                for i in T.Parallel(ROWS):
                    powers[i] = T.exp2(powers[i])
                T.wait_wgmma(0)
                for i, j in T.Parallel(ROWS, block_n):
                    sums[i, j] *= powers[i]
                T.wgmma_gemm(even, shared["x"][slot, _part(group), :], sums, policy=policy)
                for column in tuple(range(group)):
                    if column:
                        T.wait_wgmma(1)  # of these weights
                    earlier(shared, slot, column, factors, before, even if column % 2 else odd, sums)
                T.wait_wgmma(0)
                stages.release(shared["free"], step)
                if copies:  # noqa: SIM102
                    if T.get_thread_binding() < row // ROWS * GROUP + WARP and step + num_stages < count:
                        T.mbarrier_wait_parity(shared["free"][slot], stages.phase(step))
                        fill(tensors, shared, where, step + num_stages)
                T.tma_store_wait(0)
                T.copy(sums, out_tile[group, :, :])
                T.tma_copy(
                    out_tile[group, :, :],
                    tensors["out"][item, first : first + ROWS, head, p : p + block_n],
                )
            T.tma_store_wait(0)

        return run

    run = by_group(groups, program)

    @T.prim_func
    def chunk_scan(  # type: ignore[no-untyped-def]
        x: T.Tensor((batch, seq_len, nheads, head_dim), dtype),  # type: ignore[valid-type]
        cb: T.Tensor((batch, chunks, 1, chunk, chunk), dtype),  # type: ignore[valid-type]
        dt: T.Tensor(decay_shape, accumulator),  # type: ignore[valid-type]
        dA_cumsum: T.Tensor(decay_shape, accumulator),  # type: ignore[valid-type]  # noqa: N803
        C: T.Tensor((batch, seq_len, d_state), dtype),  # type: ignore[valid-type]  # noqa: N803
        prev_states: T.Tensor((batch, chunks, nheads, head_dim, d_state), dtype),  # type: ignore[valid-type]
        D: T.Tensor((nheads,), accumulator),  # type: ignore[valid-type]  # noqa: N803
        out: T.Tensor((batch, seq_len, nheads, head_dim), dtype),  # type: ignore[valid-type]
    ):
        with T.Kernel(*walk.grid(batch, chunks), threads=threads) as (block, at, item):
            cb_tiles = T.alloc_shared((len(tiles) * ROWS, ROWS), dtype)
            x_tile = T.alloc_shared((num_stages, chunk, block_n), dtype)
            state = T.alloc_shared((num_stages, block_n, width), dtype)
            decays = T.alloc_shared((num_stages, chunk), accumulator)
            steps = T.alloc_shared((num_stages, chunk), accumulator)
            out_tile = T.alloc_shared((groups, ROWS, block_n), dtype)
            kept, full = T.alloc_barrier(1), T.alloc_barrier([1] * num_stages)
            free = T.alloc_barrier([threads // WARP] * num_stages)
            # threads read and write 8 rows at once, which share a few banks without a swizzle
            T.annotate_layout(
                {cb_tiles: make_swizzled_layout(cb_tiles), out_tile: make_swizzled_layout(out_tile)}
            )
            tensors = {
                "x": x, "cb": cb, "dt": dt, "dA_cumsum": dA_cumsum,
                "C": C, "prev_states": prev_states, "D": D, "out": out,
            }  # fmt: skip
            shared = {
                "cb": cb_tiles, "x": x_tile, "state": state, "decays": decays, "steps": steps,
                "out": out_tile, "kept": kept, "full": full, "free": free,
            }  # fmt: skip
            run((tensors, shared, (item, at, block)))

    return chunk_scan


def resident_state(workload: Workload, config: Config) -> Any:
    """The tile program of `chunk_state` with `heads` > 0.

    Groups compute different heads, with tiles of block_k tokens of x in memory of their own. A group scales x
    there and multiplies B, which the block keeps, with it.
    """
    import tilelang.language as T  # noqa: N812
    from tilelang.layout import make_swizzled_layout

    batch, seq_len, nheads, head_dim, d_state = workload.dims.values()
    chunk, dtype, accumulator = int(workload.attrs["chunk"]), workload.dtype, "float32"
    block_n, block_k = config.int("block_n"), config.int("block_k")
    num_stages, threads = config.int("num_stages"), config.int("threads")
    groups, depths, stages = threads // GROUP, chunk // block_k, Stages(num_stages, pair=False)
    chunks, tiles_n = (seq_len + chunk - 1) // chunk, -(-d_state // block_n)
    walk = HeadWalk(nheads, config.int("heads"), -(-head_dim // ROWS) * tiles_n)
    decay_shape, policy = (batch, nheads, chunks, chunk), T.GemmWarpPolicy.FullRow

    def program(group: int) -> Any:
        @T.macro
        def fill(tensors, shared, where, step):  # type: ignore[no-untyped-def]
            item, at, block = where
            head = walk.first(block) + step // depths * groups + group
            p, row = walk.tile(block) // tiles_n * ROWS, at * chunk + step % depths * block_k
            slot = group * num_stages + stages.slot(step)
            tokens = slice(step % depths * block_k, (step % depths + 1) * block_k)
            decays, full = tensors["dA_cumsum"], shared["full"]
            _issue(decays[item, head, at, tokens], shared["decays"][slot, :], full[slot])
            _issue(decays[item, head, at, chunk - LAST : chunk], shared["last"][slot, :], full[slot])
            _issue(tensors["dt"][item, head, at, tokens], shared["steps"][slot, :], full[slot])
            x = tensors["x"][item, row : row + block_k, head, p : p + ROWS]
            _issue(x, shared["x"][slot, :, :], shared["full"][slot])
            if T.shuffle_elect(WARP):
                T.mbarrier_arrive(shared["full"][slot])

        @T.macro
        def reuse(tensors, shared, where, step, count):  # type: ignore[no-untyped-def]
            slot = group * num_stages + stages.slot(step)
            if T.get_thread_binding() % WARP == 0:
                T.mbarrier_arrive(shared["free"][slot])
            if T.get_thread_binding() < group * GROUP + WARP and step + num_stages < count:
                T.mbarrier_wait_parity(shared["free"][slot], stages.phase(step))
                fill(tensors, shared, where, step + num_stages)

        @T.macro
        def run(given):  # type: ignore[no-untyped-def]
            tensors, shared, where = given
            item, at, block = where
            p, n = walk.tile(block) // tiles_n * ROWS, walk.tile(block) % tiles_n * block_n
            x_tile, out_tile = shared["x"], shared["out"]
            decays, steps, last = shared["decays"], shared["steps"], shared["last"]
            first = walk.first(block) + group
            # of this group
            turns = (walk.count(block) - group + groups - 1) // groups
            sums = T.alloc_fragment((ROWS, block_n), accumulator)
            if T.get_thread_binding() < group * GROUP + WARP:
                if group == 0:
                    b = tensors["B"][item, at * chunk : (at + 1) * chunk, n : n + block_n]
                    _issue(b, shared["B"], shared["kept"])
                    if T.shuffle_elect(WARP):
                        T.mbarrier_arrive(shared["kept"])
                for step in T.serial(T.min(turns * depths, num_stages)):
                    fill(tensors, shared, where, step)
            for turn in T.serial(turns):
                head = first + turn * groups
                if turn == 0:
                    T.mbarrier_wait_parity(shared["kept"], 0)
                for depth in T.serial(depths):
                    step = turn * depths + depth
                    slot = group * num_stages + stages.slot(step)
                    T.mbarrier_wait_parity(shared["full"][slot], stages.phase(step))
                    for j, i in T.Parallel(block_k, ROWS):
                        x_tile[slot, j, i] = x_tile[slot, j, i] * (
                            T.exp2((last[slot, LAST - 1] - decays[slot, j]) * LOG2_E) * steps[slot, j]
                        )
                    T.fence_proxy_async()
                    T.wgmma_gemm(
                        x_tile[slot, :, :],
                        shared["B"][depth * block_k : (depth + 1) * block_k, :],
                        sums,
                        transpose_A=True,
                        policy=policy,
                        clear_accum=depth == 0,
                    )
                    # while a tile is scaled, the one before it is multiplied
                    T.wait_wgmma(1)
                    if depth > 0:
                        reuse(tensors, shared, where, step - 1, turns * depths)
                T.wait_wgmma(0)
                reuse(tensors, shared, where, (turn + 1) * depths - 1, turns * depths)
                T.tma_store_wait(0)
                T.copy(sums, out_tile[group, :, :])
                T.tma_copy(
                    out_tile[group, :, :],
                    tensors["states"][item, at, head, p : p + ROWS, n : n + block_n],
                )
            T.tma_store_wait(0)

        return run

    run = by_group(groups, program)

    @T.prim_func
    def chunk_state(  # type: ignore[no-untyped-def]
        x: T.Tensor((batch, seq_len, nheads, head_dim), dtype),  # type: ignore[valid-type]
        B: T.Tensor((batch, seq_len, d_state), dtype),  # type: ignore[valid-type]  # noqa: N803
        dt: T.Tensor(decay_shape, accumulator),  # type: ignore[valid-type]
        dA_cumsum: T.Tensor(decay_shape, accumulator),  # type: ignore[valid-type]  # noqa: N803
        states: T.Tensor((batch, chunks, nheads, head_dim, d_state), dtype),  # type: ignore[valid-type]
    ):
        with T.Kernel(*walk.grid(batch, chunks), threads=threads) as (block, at, item):
            x_tile = T.alloc_shared((groups * num_stages, block_k, ROWS), dtype)
            b_tile = T.alloc_shared((chunk, block_n), dtype)
            out_tile = T.alloc_shared((groups, ROWS, block_n), dtype)
            decays = T.alloc_shared((groups * num_stages, block_k), accumulator)
            steps = T.alloc_shared((groups * num_stages, block_k), accumulator)
            last = T.alloc_shared((groups * num_stages, LAST), accumulator)
            kept, full = T.alloc_barrier(1), T.alloc_barrier([1] * groups * num_stages)
            free = T.alloc_barrier([GROUP // WARP] * groups * num_stages)
            T.annotate_layout({out_tile: make_swizzled_layout(out_tile)})
            tensors = {"x": x, "B": B, "dt": dt, "dA_cumsum": dA_cumsum, "states": states}
            shared = {
                "x": x_tile, "B": b_tile, "decays": decays, "steps": steps, "last": last,
                "out": out_tile, "kept": kept, "full": full, "free": free,
            }  # fmt: skip
            run((tensors, shared, (item, at, block)))

    return chunk_state
