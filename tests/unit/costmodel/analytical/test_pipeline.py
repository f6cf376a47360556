"""The time of loops that wait for loads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.analytical.constants import DEFAULT
from tilesight.costmodel.analytical.fetch import INSTRUCTION_BYTES, SCHEDULER_BYTES, WITH_ADDRESSES
from tilesight.costmodel.analytical.kernel_terms import (
    TURNOVER_CYCLES,
    TURNOVER_WARP_CYCLES,
    KernelTerms,
)
from tilesight.costmodel.analytical.pipeline import (
    ADDRESS_CYCLES,
    BARRIER_LANES,
    BRANCH_CYCLES,
    ROUTINE_CYCLES,
    Flow,
)
from tilesight.profile.values import (
    Access,
    KernelProfile,
    MatrixWork,
    Phase,
    Role,
    Space,
    Tensor,
    Trips,
    Work,
)
from tilesight.target.spec import load_target

H200 = load_target("h200")


def copy(tile_bytes: float, *, axes: str = "x", slots: int = 1) -> Access:
    return Access(
        Space.GLOBAL, "t0", False, "tma", tile_bytes, tile_bytes / 32, 1, 128, True, slots, tile_bytes,
        axes=frozenset(axes), loop_dependent=True, footprint_bytes=tile_bytes,
    )  # fmt: skip


def specialised(*consumer: Phase, shared: int = 0, blocks: int = 132, slots: int = 1) -> KernelProfile:
    """A producer that copies a tile of 8 KiB in each of 64 iterations, and a consumer."""
    producer = Phase(Trips((64.0,)), Work(accesses=(copy(8192, slots=slots),), barrier_waits=1), is_loop=True)
    roles = (Role("producer", 128, (producer,)), Role("consumer", 128, consumer))
    return KernelProfile(
        "cuda", "sm_90a", (blocks, 1, 1), 256, 1, shared, roles, (Tensor("t0", blocks * 64 * 8192, 2),)
    )


def latency(profile: KernelProfile) -> float:
    return AnalyticalModel().predict([profile], H200).latency_us


FED = Phase(Trips((64.0,)), Work(vector_ops=128 * 400.0, barrier_waits=1), is_loop=True)


def test_a_loop_without_waits_is_not_fed_by_the_producer() -> None:
    # a product of data that the block loaded before; the producer's copies belong to the loop after it
    before = Phase(Trips((8.0,)), Work(vector_ops=128 * 10.0), is_loop=True)
    alone, both = latency(specialised(FED)), latency(specialised(before, FED))
    assert alone < both < alone + 8 * 40 / H200["core.clock_mhz"]


def test_loops_of_several_consumers_run_beside_each_other() -> None:
    one = specialised(FED)
    two = replace(one, roles=(*one.roles, Role("consumer", 128, (FED,))))
    assert latency(one) < latency(two) < 1.6 * latency(one)


def test_a_loop_of_a_producer_that_moves_nothing_feeds_none() -> None:
    """The producer's loop over tiles is around that of its copies, and counts as another loop."""
    copying = specialised(FED)
    producer, consumer = copying.roles
    around = Phase(Trips((64.0,)), Work(integer_ops=32), is_loop=True)

    def with_loops(*phases: Phase) -> float:
        return latency(replace(copying, roles=(replace(producer, phases=phases), consumer)))

    assert with_loops(around, *producer.phases) == pytest.approx(latency(copying), rel=0.02)
    assert with_loops(around) < 0.9 * latency(copying)


def test_a_consumer_waits_for_the_plain_loads_of_its_producer() -> None:
    def fed_by(branches: float) -> float:
        profile = specialised(FED)
        producer, consumer = profile.roles
        loads = Access(
            Space.GLOBAL, "t1", False, "ld", 128 * 2, 8, 4, 2, loop_dependent=True, footprint_bytes=128 * 2
        )  # fmt: skip
        loop = producer.phases[0]
        work = replace(loop.work, accesses=(*loop.work.accesses, loads), load_branches=4 * branches)
        fetching = replace(producer, phases=(replace(loop, work=work),))
        return latency(
            replace(
                profile,
                roles=(fetching, consumer),
                tensors=(*profile.tensors, Tensor("t1", 132 * 64 * 256, 2)),
            )
        )

    # sixteen round trips in each of 64 iterations, each at least one to L2
    least = 64 * 15 * H200["device.memory.l2.latency_ns"] / 1e3
    assert fed_by(16) - fed_by(1) > 0.9 * least


def test_a_consumer_waits_for_what_the_warps_of_its_producer_compute() -> None:
    def fed_by(operations: float, *, store: bool = True) -> float:
        profile = specialised(FED)
        producer, consumer = profile.roles
        kept = Access(Space.SHARED, "tile", True, "st", 128 * 16, 16, 4, 16)
        loop = producer.phases[0]
        stored = (*loop.work.accesses, kept) if store else loop.work.accesses
        work = replace(loop.work, accesses=stored, vector_ops=128 * operations)
        computing = replace(producer, phases=(replace(loop, work=work),))
        return latency(replace(profile, roles=(computing, consumer)))

    # 4 warps issue 1,600 instructions each, one a cycle on each of the four units, in each of 64 iterations
    least = 64 * 1600 / H200["core.clock_mhz"]
    assert fed_by(1600) > fed_by(16) + 0.6 * least
    assert fed_by(1600, store=False) < fed_by(1600)


def turned_over(blocks: int, threads: int = 256) -> float:
    """Cycles of a block that loads and stores two bytes a thread once, of so many blocks."""
    size, warps = threads * 2.0, threads / 32
    moved = [
        Access(Space.GLOBAL, tensor, write, how, size, size / 32, warps, 2, footprint_bytes=size)
        for tensor, write, how in (("t0", False, "ld"), ("t1", True, "st"))
    ]
    moved = [replace(access, axes=frozenset("x")) for access in moved]
    phase = Phase(Trips((1.0,)), Work(accesses=tuple(moved), vector_ops=float(threads)))
    tensors = tuple(Tensor(label, blocks * size, 2) for label in ("t0", "t1"))
    roles = (Role("all", threads, (phase,)),)
    profile = KernelProfile("cuda", "sm_90a", (blocks, 1, 1), threads, 1, 0, roles, tensors)
    terms = KernelTerms(profile, H200, AnalyticalModel().constants)
    chain = terms.pipeline.phase_time(profile.roles[0], phase, 1).chain
    return terms.block_cycles(terms.resident) - chain


def test_a_place_stays_empty_between_blocks_that_wait() -> None:
    many, wide = turned_over(100_000), turned_over(100_000, 512)
    places = 132 * 8
    assert many == pytest.approx(
        DEFAULT.block_cycles + (TURNOVER_CYCLES + 8 * TURNOVER_WARP_CYCLES) * (1 - places / 100_000)
    )
    assert wide - many == pytest.approx(8 * TURNOVER_WARP_CYCLES, abs=10)
    # in one wave each place has one block
    assert turned_over(132 * 8) == pytest.approx(DEFAULT.block_cycles)


def test_a_producer_loads_in_loops_before_it_copies() -> None:
    def filled(turns: float) -> float:
        loads = Access(Space.GLOBAL, "t1", False, "ld", 128 * 2, 8, 4, 2, footprint_bytes=128 * 2)
        loop = Phase(Trips((turns,)), Work(accesses=(loads,)), is_loop=True)
        one = replace(copy(8192), loop_dependent=False)
        copied = Phase(Trips((1.0,)), Work(accesses=(one,)))
        waiting = Phase(Trips((1.0,)), Work(vector_ops=128 * 400.0, barrier_waits=1))
        roles = (Role("producer", 128, (loop, copied)), Role("consumer", 128, (waiting,)))
        tensors = (Tensor("t0", 132 * 8192, 2), Tensor("t1", 132 * 256, 2))
        return latency(KernelProfile("cuda", "sm_90a", (132, 1, 1), 256, 1, 0, roles, tensors))

    least = 31 * H200["device.memory.l2.latency_ns"] / 1e3
    assert filled(32) - filled(1) > 0.9 * least


def test_blocks_of_a_core_hide_each_others_waits() -> None:
    # one buffer each: a block computes while the other one waits for its copy
    one = latency(specialised(FED, shared=200_000, blocks=264))
    two = latency(specialised(FED, shared=80_000, blocks=264))
    assert two < 0.75 * one


def test_more_buffers_hide_the_waits_of_one_block() -> None:
    times = [latency(specialised(FED, slots=slots)) for slots in (1, 2, 4)]
    assert times[0] > 1.3 * times[1] > times[2]


def test_blocks_in_step_wait_for_device_memory_together() -> None:
    # all blocks read one tile: one of 132 misses, and all wait for it
    def terms(axes: str) -> KernelTerms:
        loop = Phase(Trips((64.0,)), Work(accesses=(copy(8192, axes=axes),), block_syncs=1), is_loop=True)
        size = 64 * 8192 * (132 if axes else 1)
        profile = KernelProfile(
            "cuda", "sm_90a", (132, 1, 1), 128, 1, 0, (Role("all", 128, (loop,)),), (Tensor("t0", size, 2),)
        )
        return KernelTerms(profile, H200, AnalyticalModel().constants)

    shared, own = terms(""), terms("x")
    assert shared.traffic.miss_share == pytest.approx(1 / 132)
    assert shared.traffic.waiting["t0"] == pytest.approx(1.0)
    assert own.traffic.miss_share == own.traffic.waiting["t0"] == pytest.approx(1.0)


def test_data_that_a_block_reads_again_does_not_wait() -> None:
    tile = Access(
        Space.GLOBAL, "t0", False, "tma", 8192, 256, 1, 128, True, 1, 8192, footprint_bytes=8192,
        axes=frozenset("x"),
    )  # fmt: skip
    loop = Phase(Trips((64.0,)), Work(accesses=(tile,), block_syncs=1), is_loop=True)
    profile = KernelProfile(
        "cuda", "sm_90a", (132, 1, 1), 128, 1, 0, (Role("all", 128, (loop,)),), (Tensor("t0", 132 * 8192, 2),)
    )
    assert KernelTerms(profile, H200, AnalyticalModel().constants).traffic.waiting["t0"] < 0.05


def load(tensor: str, transactions: float, *, footprint: float = 4096) -> Access:
    """128 threads load 32 bytes each, in vectors of 16, from places that move with the loop."""
    return Access(
        Space.GLOBAL, tensor, False, "ld", 4096, transactions, 8, 16, axes=frozenset("x"),
        loop_dependent=True, footprint_bytes=footprint,
    )  # fmt: skip


def looping(*accesses: Access, **work: Any) -> KernelProfile:
    """A block on each core that runs 64 iterations."""
    loop = Phase(Trips((64.0,)), Work(accesses=accesses, **work), is_loop=True)
    tensors = tuple(Tensor(a.tensor, 1 << 26, 2) for a in accesses if a.space is Space.GLOBAL)
    return KernelProfile(
        "cuda", "sm_90a", (132, 1, 1), 128, 1, 0, (Role("all", 128, (loop,), local_registers=128),), tensors
    )


def test_loads_of_parts_of_sectors_wait_like_loads_of_whole_ones() -> None:
    whole, parts = (
        KernelTerms(looping(load("t0", sectors)), H200, AnalyticalModel().constants).traffic
        for sectors in (128, 256)
    )
    assert parts.l2_read > whole.l2_read
    assert whole.waiting == parts.waiting == {"t0": pytest.approx(1.0)}


def test_a_round_trip_lasts_as_long_as_its_slowest_load() -> None:
    # beside loads from device memory, more of what stays in L2 does not shorten the wait
    again = replace(load("t1", 128), axes=frozenset(), loop_dependent=False)
    one, two = latency(looping(load("t0", 128))), latency(looping(load("t0", 128), again))
    assert two >= one
    terms = KernelTerms(looping(load("t0", 128), again), H200, AnalyticalModel().constants)
    assert terms.traffic.waiting["t1"] < 0.1 < terms.traffic.waiting["t0"]


def test_each_branch_around_a_guarded_load_waits_for_it() -> None:
    free, guarded = (latency(looping(load("t0", 128), load_branches=4 * n)) for n in (0, 8))
    round_trip = H200["device.memory.l2.latency_ns"] / 1e3
    assert free + 64 * 7 * round_trip < guarded
    divided = latency(looping(load("t0", 128), load_branches=4 * 8, divided_addresses=4 * 8))
    assert divided == pytest.approx(guarded + 64 * 8 * ADDRESS_CYCLES / H200["core.clock_mhz"], rel=0.02)


def test_warps_that_a_condition_leaves_out_share_no_waits() -> None:
    # eight branches of each of four warps, or of one
    every = latency(looping(load("t0", 128), load_branches=4 * 8))
    one = latency(looping(replace(load("t0", 128), warp_share=0.25), load_branches=8))
    assert one == pytest.approx(every, rel=0.1)


def test_registers_beside_accumulators_hold_fewer_loads() -> None:
    # 16 words a thread, eight times, on their way to shared memory: 112 fit beside few accumulators
    loads = replace(load("t0", 1024), bytes=65536, instructions=128, footprint_bytes=65536)
    stores = Access(Space.SHARED, "tile", True, "st", 65536, 512, 128, 16)
    product = (MatrixWork("wgmma.m64n128k16", 4, 2.0 * 64 * 128 * 16, warps=4),)
    profile = looping(loads, stores, matrix=product, matrix_waits=1, block_syncs=1)
    (role,) = profile.roles
    many = replace(profile, roles=(replace(role, local_registers=192),))
    few = replace(profile, roles=(replace(role, local_registers=64),))
    assert latency(many) > latency(few) + 0.5


def test_all_warps_wait_for_those_that_load_for_them() -> None:
    # 64 loads of 16 bytes a warp if all four load, 256 if one of them does
    loads = replace(load("t0", 2048), bytes=131072, instructions=256, vector_bytes=16, footprint_bytes=131072)
    stores = Access(Space.SHARED, "tile", True, "st", 131072, 1024, 256, 16)
    product = (MatrixWork("wgmma.m64n128k16", 4, 2.0 * 64 * 128 * 16, warps=4),)
    all_four, one = (
        latency(looping(replace(loads, warp_share=s), stores, matrix=product, matrix_waits=1, block_syncs=1))
        for s in (1.0, 0.25)
    )
    assert one > all_four + 64 * 2 * H200["device.memory.l2.latency_ns"] / 1e3


def test_loads_in_a_row_arrive_together() -> None:
    product = (MatrixWork("wgmma.m64n128k16", 4, 2.0 * 64 * 128 * 16, warps=4),)
    both = [
        Access(Space.SHARED, "to" if w else "from", w, "st" if w else "ld", 65536, 512, 128, 16)
        for w in (False, True)
    ]
    each, together = (
        latency(looping(load("t0", 8), *(replace(a, in_row=n) for a in both), matrix=product, matrix_waits=1))
        for n in (1, 32)
    )
    assert each > together + 64 * 16 * AnalyticalModel().constants.rewrite_cycles / H200["core.clock_mhz"]


def test_a_block_of_a_few_threads_issues_whole_warps() -> None:
    few = Access(
        Space.GLOBAL, "t0", False, "ld", 64, 2, 1, 16, axes=frozenset("x"), loop_dependent=True,
        footprint_bytes=64,
    )  # fmt: skip
    times = []
    for threads in (4, 32):
        loop = Phase(Trips((256.0,)), Work(accesses=(few,) * 8), is_loop=True)
        role = Role("all", threads, (loop,))
        profile = KernelProfile(
            "cuda", "sm_90a", (132, 1, 1), threads, 1, 0, (role,), (Tensor("t0", 1 << 26, 2),)
        )
        times.append(latency(profile))
    assert times[0] == pytest.approx(times[1], rel=0.02)


def test_what_lanes_load_again_costs_no_time_between_uses() -> None:
    # a mask that all rows share: each thread loads 32 values, and the block 128 different ones
    times = []
    for footprint in (4096.0, 128.0):
        mask = Access(
            Space.GLOBAL, "t0", False, "ld", 4096, 256, 128, 1, axes=frozenset("x"), loop_dependent=True,
            footprint_bytes=footprint,
        )  # fmt: skip
        loop = Phase(Trips((64.0,)), Work(accesses=(mask,), block_syncs=1), is_loop=True)
        profile = KernelProfile(
            "cuda",
            "sm_90a",
            (132, 1, 1),
            128,
            1,
            0,
            (Role("all", 128, (loop,)),),
            (Tensor("t0", 1 << 26, 1),),
        )
        times.append(latency(profile))
    assert times[1] < 0.6 * times[0]


def test_groups_that_leave_matrix_work_in_flight_compute_beside_it() -> None:
    """A group whose products run while it computes takes the longer of the two, not their sum."""
    product = MatrixWork("wgmma.m64n128k16", 16.0, 2.0 * 64 * 128 * 16, 128 * 16 * 2, 4, "bfloat16")

    def time(share: float, *, products: int = 1, operations: float = 128 * 1000.0) -> float:
        # arithmetic alone is that of a kernel with matrix instructions, too
        matrix = (product,) * products or (replace(product, count=0.0),)
        work = Work(matrix, vector_ops=operations, matrix_waits=products, matrix_in_flight=share)
        loop = Phase(Trips((512.0,)), work, is_loop=True)
        return latency(
            KernelProfile("cuda", "sm_90a", (132, 1, 1), 128, 1, 0, (Role("all", 128, (loop,)),), ())
        )

    longest = max(time(0.0, operations=0.0), time(0.0, products=0))
    assert time(0.0) > time(0.5) > time(1.0) > longest
    assert time(0.0) > 1.5 * longest
    assert time(1.0) < 1.15 * longest


def test_fewer_lanes_select_than_add() -> None:
    def vector_us(selections: float) -> float:
        work = replace(FED.work, selections=selections)
        return AnalyticalModel().predict([specialised(replace(FED, work=work))], H200).terms_us["vector"]

    lanes = H200["core.unit.vector.fp32_lanes"] / H200["core.unit.vector.int32_lanes"]
    assert vector_us(FED.work.vector_ops) == pytest.approx(lanes * vector_us(0.0), rel=0.1)


def test_groups_of_copies_less_than_an_iteration_ahead_are_waited_for() -> None:
    """cp.async: what a part of an iteration hides of the copies' arrival, the rest exposes."""
    tile = replace(copy(8192), mechanism="cp_async", instructions=16)
    product = MatrixWork("mma.m16n8k16.f16", 512.0, 4096.0)

    def time(ahead: float | None, depth: int = 2) -> float:
        loop = Phase(
            Trips((256.0,)),
            Work((product,), (tile,), barrier_waits=1),
            depth,
            is_loop=True,
            copies_ahead=ahead,
        )
        profile = KernelProfile(
            "cuda",
            "sm_90a",
            (132, 1, 1),
            128,
            1,
            0,
            (Role("all", 128, (loop,)),),
            (Tensor("t0", 1 << 28, 2),),
        )
        return latency(profile)

    assert time(0.0) > 1.1 * time(0.5) > 1.1 * time(1.0)
    assert time(1.0) == pytest.approx(time(None))
    assert time(0.0) == pytest.approx(time(None, depth=1))
    assert time(2.0) <= time(1.0)


def test_a_tile_that_several_products_read_occupies_its_buffer_for_the_iteration() -> None:
    product = MatrixWork("wgmma.m64n64k16", 16.0, 2.0 * 64 * 64 * 16, 4096, 4, "bfloat16")

    def time(products: int, loads: int) -> float:
        consumer = Phase(
            Trips((64.0,)),
            Work((product,), barrier_waits=loads, matrix_waits=products, vector_ops=128 * 400.0),
            is_loop=True,
        )
        profile = specialised(consumer)
        producer = profile.roles[0]
        loop = producer.phases[0]
        tiles = tuple(copy(8192) for _ in range(loads))
        fetching = replace(producer, phases=(replace(loop, work=Work(accesses=tiles, barrier_waits=1)),))
        return latency(replace(profile, roles=(fetching, *profile.roles[1:])))

    # as many products as tiles: each leaves its buffer after its part of the iteration
    drained = 2 * 64 * H200["core.clock_mhz"] ** -1 * AnalyticalModel().constants.matrix_drain_cycles
    assert time(4, 2) > time(2, 2) + 2 * drained


def staying(tiles: float, *, slots: int, after: float = 0.0) -> KernelProfile:
    """A block that stays: each tile has a copy before its loop of eight iterations."""
    before = Phase(Trips((tiles,)), Work(accesses=(copy(8192, slots=slots),), barrier_waits=1), is_loop=True)
    inner = Phase(Trips((8 * tiles,)), Work(accesses=(copy(8192, slots=4),), barrier_waits=1), is_loop=True)
    first = replace(FED, trips=before.trips)
    loop = replace(FED, trips=inner.trips)
    last = Phase(before.trips, Work(vector_ops=128 * 10.0 + after), is_loop=True)
    roles = (Role("producer", 128, (before, inner)), Role("consumer", 128, (first, loop, last)))
    return KernelProfile("cuda", "sm_90a", (132, 1, 1), 256, 1, 0, roles, (Tensor("t0", 132 * 9 * 8192, 2),))


def test_a_producer_copies_ahead_of_the_next_tile() -> None:
    tiles, arrival_us = 16.0, 0.4  # of a copy on an idle chip, at least
    single, ring = latency(staying(tiles, slots=1)), latency(staying(tiles, slots=2))
    assert single > ring + tiles * arrival_us / 2  # a single buffer is free once the loop has used it
    # code after the loop hides the copy
    work = 128 * 2000.0
    assert latency(staying(tiles, slots=1, after=work)) - latency(
        staying(tiles, slots=2, after=work)
    ) < 0.1 * (single - ring)


def test_consumers_share_their_producer_and_the_wait_for_its_first_copy() -> None:
    once = replace(FED, trips=Trips((1.0,)), is_loop=False)

    def consumers(count: int, work: float) -> KernelProfile:
        phase = replace(once, work=replace(once.work, vector_ops=work))
        profile = specialised(phase)
        copies = Phase(Trips((1.0,)), Work(accesses=(copy(65536),)))
        roles = (Role("producer", 128, (copies,)), *(Role("consumer", 128, (phase,)) for _ in range(count)))
        return replace(profile, roles=roles)

    # straight code of four consumers, which wait for the same copy
    assert latency(consumers(4, 128.0)) < 1.1 * latency(consumers(1, 128.0))
    one, four = (latency(consumers(count, 128 * 4000.0)) for count in (1, 4))
    assert one < four < 2.5 * one


def test_a_buffer_is_free_when_a_product_by_mma_sync_releases_it() -> None:
    matrix = (MatrixWork("mma.m16n8k16", 512.0, 4096.0),)
    work = Work(matrix=matrix, barrier_waits=2, vector_ops=128 * 100.0)
    held = Phase(Trips((64.0,)), work, is_loop=True)
    assert latency(specialised(replace(held, held_share=0.5))) < latency(specialised(held))
    many = {share: latency(specialised(replace(held, held_share=share), slots=8)) for share in (0.5, None)}
    assert many[0.5] == pytest.approx(many[None])


def test_warps_wait_for_the_instructions_of_a_large_loop() -> None:
    """Code of up to 32 KiB costs nothing, code beyond what the core holds most; other kinds nothing."""

    def extra(instructions: float, *, kind: str = "cuda", is_loop: bool = True) -> float:
        plain = looping(load("t0", 64), vector_ops=128 * 2000.0)
        (role,) = plain.roles
        phases = tuple(replace(p, code_instructions=instructions, is_loop=is_loop) for p in role.phases)
        large = replace(plain, roles=(replace(role, phases=phases),))
        small = replace(
            plain, roles=(replace(role, phases=tuple(replace(p, is_loop=is_loop) for p in role.phases)),)
        )
        chip = H200 if kind == "cuda" else load_target("mi300x")
        predict = AnalyticalModel().predict
        times = [
            predict([replace(p, kind=kind, arch="sm_90a" if kind == "cuda" else "gfx942")], chip).latency_us
            for p in (small, large)
        ]
        return times[1] - times[0]

    held = SCHEDULER_BYTES / INSTRUCTION_BYTES / WITH_ADDRESSES
    assert extra(held) == 0
    beyond, far = extra(1.5 * held), extra(6 * held)
    assert 0 < 4 * beyond < far
    assert far > 4 * 4 * beyond
    assert extra(6 * held, is_loop=False) == extra(6 * held, kind="hip") == 0


def test_each_branch_waits_for_its_value_from_shared_memory() -> None:
    def waiting(branches: float) -> float:
        return latency(specialised(replace(FED, work=replace(FED.work, shared_branches=4 * branches))))

    each = (waiting(200) - waiting(100)) / 100 / 64 * H200["core.clock_mhz"]
    assert each == pytest.approx(BRANCH_CYCLES, rel=0.02)


def test_exact_divisions_of_a_warp_follow_each_other() -> None:
    def dividing(calls: float) -> float:
        return latency(specialised(replace(FED, work=replace(FED.work, routine_calls=4 * calls))))

    each = (dividing(200) - dividing(100)) / 100 / 64 * H200["core.clock_mhz"]
    assert each == pytest.approx(ROUTINE_CYCLES, rel=0.02)


def test_hip_divides_without_a_branch() -> None:
    mi300x = load_target("mi300x")

    def dividing(calls: float) -> float:
        role = Role("all", 256, (Phase(Trips((64.0,)), Work(vector_ops=256.0, routine_calls=calls)),))
        profile = KernelProfile("hip", "gfx942", (304, 1, 1), 256, 1, 0, (role,), ())
        return AnalyticalModel().predict((profile,), mi300x).latency_us

    assert dividing(400) == dividing(0)


def test_threads_arrive_at_a_barrier_one_after_another() -> None:
    def with_barriers(threads: int, count: float) -> float:
        work = Work(vector_ops=threads * 1.0, block_syncs=count)
        role = Role("all", threads, (Phase(Trips((1.0,)), work),))
        return latency(KernelProfile("cuda", "sm_90a", (132, 1, 1), threads, 1, 0, (role,), ()))

    for threads in (128, 1024):
        cycles = (with_barriers(threads, 200) - with_barriers(threads, 100)) / 100 * H200["core.clock_mhz"]
        assert cycles == pytest.approx(max(H200["core.sync_cycles"], threads / BARRIER_LANES), rel=0.02)


def chained(threads: int, operations: float, *, matrix: bool = False) -> float:
    """Microseconds of straight code of one block a core, `operations` for each thread."""
    work = Work(vector_ops=threads * operations)
    if matrix:
        work = replace(work, matrix=(MatrixWork("wgmma.m64n8k16.bf16", 1, 2 * 64 * 8 * 16, warps=4),))
    role = Role("all", threads, (Phase(Trips((1.0,)), work),), local_registers=16.0)
    return latency(KernelProfile("cuda", "sm_90a", (132, 1, 1), threads, 1, 0, (role,), ()))


def test_a_warp_uses_the_lanes_of_its_own_scheduler() -> None:
    # a warp alone takes as long as four, one on each scheduler
    one, four = chained(32, 4e4), chained(128, 4e4)
    assert one == pytest.approx(four, rel=0.1)


def test_a_warp_alone_leaves_half_of_the_slots_of_plain_code() -> None:
    # two warps of a scheduler fill them, but for their queues
    alone, two = chained(128, 4e4), chained(256, 4e4)
    assert two < 1.3 * alone
    assert chained(128, 4e4, matrix=True) < 0.7 * alone


def test_the_groups_of_a_block_end_one_after_another() -> None:
    flow = Flow((500.0, 300.0, 0.0, 0.0), 400.0, 3.0, 0.0)
    # the matrix pipe is busy for all of a round: the last group ends its first one after the two others
    assert flow.together(1, 0.0) == pytest.approx(1500)
    assert flow.drain(0.0) == pytest.approx(1200 + 2 * 500 - 1500)
    assert replace(flow, groups=1.0).drain(1.0) == 0.0


def test_only_groups_that_advance_freely_end_one_after_another() -> None:
    def cycles(syncs: float) -> float:
        product = MatrixWork("wgmma.m64n128k16.bf16", 16, 64 * 128 * 16 * 2, warps=4)
        work = Work(matrix=(product,), matrix_waits=1, vector_ops=64 * 256, block_syncs=syncs)
        role = Role("all", 256, (Phase(Trips((8.0,)), work, is_loop=True),))
        profile = KernelProfile("cuda", "sm_90a", (132, 1, 1), 256, 1, 0, (role,), ())
        terms = KernelTerms(profile, H200, DEFAULT)
        [(_, _, time)] = terms.timed(1)
        return time.drain

    assert cycles(0) > 0
    assert cycles(1) == 0.0


def test_blocks_of_a_cluster_report_a_free_buffer_before_it_is_copied_for_all() -> None:
    def time(*, shared: bool) -> float:
        load = copy(8192)
        received = Access(Space.SHARED, "", True, "tma", 8192, 64, 1, 16, True, 1, 8192)
        if shared:  # one of two blocks copies the tile for both
            load = replace(load, bytes=4096, transactions=128, instructions=0.5)
        loads = Work(accesses=(load, received), barrier_waits=1)
        producer = Role("producer", 128, (Phase(Trips((64.0,)), loads, is_loop=True),))
        profile = specialised(FED)
        return latency(replace(profile, cluster=2, roles=(producer, profile.roles[1])))

    cycles = 64 * H200["cluster.network.latency_cycles"]
    later = (time(shared=True) - time(shared=False)) * H200["core.clock_mhz"]
    assert later == pytest.approx(cycles, rel=0.25)
