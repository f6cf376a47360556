"""Roles: warp specialisation in loops, thread ranges, producers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.costmodel import sample_kernels as kernels
from tests.unit.costmodel.extract.reading import accesses, flops, read, role
from tilesight.costmodel.extract.phase_counts import LoopOrder, PhaseCounts
from tilesight.costmodel.extract.registers import LiveRanges
from tilesight.costmodel.extract.roles import RoleCounts, roles_of
from tilesight.kernels import operator, templates
from tilesight.problem.space import Config
from tilesight.profile.values import Access, MatrixWork, Space, Trips
from tilesight.target.spec import load_target


def test_a_persistent_kernel_has_the_roles_of_the_plain_one() -> None:
    p = read(kernels.persistent_matmul(1024, 1024, 512, 128, 64, 3, cores=60))
    producer, consumer = role(p, "producer"), role(p, "consumer")
    assert (producer.threads, consumer.threads) == (128, 256)
    loads = [a for a in accesses(p) if a.mechanism == "tma"]
    assert sum(a.bytes for a in loads) == 2 * 128 * 64 * 2
    # the ring's slot is counted in a local scalar over all turns
    assert {a.slots for a in loads} == {3}
    # 64 tiles over 60 blocks: four of them have a second turn
    (copying,) = producer.phases
    computing = consumer.phases[0]
    assert sorted(copying.trips.per_block) == [8.0] * 56 + [16.0] * 4
    assert computing.trips == copying.trips
    assert copying.is_loop
    assert computing.is_loop
    assert flops(p) == 2 * 1024 * 1024 * 512


def test_a_persistent_kernel_holds_its_accumulators_as_the_plain_one_does() -> None:
    p = read(kernels.persistent_matmul(1024, 1024, 512, 128, 64, 3, cores=60))
    plain = read(kernels.matmul(1024, 1024, 512, 128, 128, 64, 3, 256))
    assert role(p, "consumer").local_registers == pytest.approx(
        role(plain, "consumer").local_registers, abs=4
    )


@pytest.mark.parametrize(
    ("schedule", "waits", "in_flight"), [("serial", 2, 0.0), ("overlapped", 2, 0.5), ("ping_pong", 3, 0.5)]
)
def test_turns_join_no_warps_and_products_may_be_left_in_flight(
    schedule: str, waits: float, in_flight: float
) -> None:
    target, workload = load_target("h200"), operator("flash_attention").workload("FA3")
    (template,) = (t for t in templates("flash_attention") if "cuda" in t.target_kinds)
    config = Config(
        {"block_m": 128, "block_n": 128, "num_stages": 2, "threads": 256, "block_order": "by_head"}
        | {"schedule": schedule}
    )
    assert config in template.space(workload, target)
    profile = read(template.build(workload, config))
    (loop,) = (p for p in role(profile, "consumer").phases if p.is_loop)
    assert loop.work.block_syncs == 0
    assert loop.work.barrier_waits == pytest.approx(waits, abs=0.2)
    assert loop.work.matrix_in_flight == in_flight


def test_blocks_that_stay_add_up_loops_whose_length_changes_with_the_turn() -> None:
    """Each turn of a block takes other queries, and causal attention has other numbers of keys for them."""
    workload = operator("flash_attention").workload("FA4")
    (template,) = (t for t in templates("flash_attention") if "cuda" in t.target_kinds)
    config = Config(
        {"block_m": 128, "block_n": 128, "num_stages": 2, "threads": 256, "block_order": "by_length"}
        | {"schedule": "overlapped", "persistent": 132}
    )
    profile = read(template.build(workload, config))
    loop = max(role(profile, "producer").phases, key=lambda phase: phase.trips.mean)
    # 32 heads, of whose 32 tiles of queries the first sees one tile of keys and the last one 32
    assert sum(loop.trips.per_block) == 32 * (32 * 33 / 2)
    assert len(loop.trips.per_block) == 132
    # every turn goes to and fro over the blocks
    assert max(loop.trips.per_block) - min(loop.trips.per_block) <= 1
    # tiles of keys are counted over all turns
    assert {a.slots for a in loop.work.accesses if a.mechanism == "tma" and a.space is Space.GLOBAL} == {2}


@pytest.mark.parametrize("active", [1, 32, 40, 96, 127])
def test_threads_that_pass_a_condition_are_counted_exactly(active: int) -> None:
    p = read(kernels.first_threads(1 << 14, active))
    (load,) = accesses(p)
    assert load.bytes == active * 4
    assert load.instructions == -(-active // 32)


def test_a_producer_that_looks_up_what_to_fetch_is_a_producer() -> None:
    roles = [RoleCounts(0, 256), _role_counts(1, 128, matrix=False), _role_counts(2, 128, matrix=True)]
    assert [r.name for r in roles_of(roles, LiveRanges(), {}, 32)] == ["producer", "consumer"]


def test_a_role_that_fetches_for_itself_is_no_producer() -> None:
    roles = [RoleCounts(0, 256), _role_counts(1, 128, matrix=False), _role_counts(2, 128, matrix=False)]
    assert [r.name for r in roles_of(roles, LiveRanges(), {}, 32)] == ["consumer", "consumer"]


def test_a_role_that_computes_integers_alone_is_a_consumer() -> None:
    """What it stores is the result: products of bytes are no floating-point operations."""
    profile = read(kernels.products_of_bytes())
    producer, consumer = role(profile, "producer"), role(profile, "consumer")
    assert (producer.threads, consumer.threads) == (128, 64)
    assert any(a.mechanism == "tma" for p in producer.phases for a in p.work.accesses)
    (loop,) = (p for p in consumer.phases if p.is_loop)
    assert loop.work.integer_ops >= 64 * 16 * 4  # four products in each of 16 steps of a thread


def _role_counts(number: int, threads: int, *, matrix: bool) -> RoleCounts:
    phase = PhaseCounts(Trips((4.0,)), is_loop=True)
    phase.counts["vector_ops"] += 128
    if matrix:
        phase.matrix.append(MatrixWork("wgmma.m64n64k16", 4, 2.0 * 64 * 64 * 16))
    else:
        phase.accesses.append(Access(Space.GLOBAL, "t0", False, "tma", 4096, 128, 1, asynchronous=True))
    return RoleCounts(number, threads, [phase])


def _attention(*, kept: bool, masked: bool) -> float:
    """Registers of a loop with two products: 512 bytes of scores a thread, 256 of weights, 256 of result."""
    scores, weights, result = 1, 2, 3
    live = LiveRanges()
    live.touch(0, result)
    with live.loop():
        live.accumulate(0, scores, kept=kept)
        live.touch(0, scores)
        if masked:
            with live.branch():
                live.touch(0, scores)
        live.touch(0, scores)
        live.touch(0, weights)
        live.accumulate(0, result, kept=kept)
        live.touch(0, result)
    live.touch(0, result)
    live.finish()
    return live.peak_registers(0, {scores: 512, weights: 256, result: 256})


def test_an_accumulator_behind_a_fence_lives_through_its_loop_unless_a_branch_uses_it() -> None:
    # ptxas, attention of head_dim 128 with tiles of 128 x 256: 88 spilled words without a mask, none with it
    assert _attention(kept=True, masked=False) == 128 + 64 + 64
    assert _attention(kept=True, masked=True) == 128 + 64
    assert _attention(kept=False, masked=False) == 128 + 64


def _products_anew(count: int) -> float:
    """Registers of a loop with two running sums of 64, in which `count` products of 64 begin one by one."""
    sums = (1, 2)
    live = LiveRanges()
    for total in sums:
        live.touch(0, total)
    with live.loop():
        for product in range(3, 3 + count):
            live.accumulate(0, product, kept=True)
            live.touch(0, product)
            live.touch(0, product)
        for total in sums:
            live.accumulate(0, total, kept=True)
            live.touch(0, total)
    for total in sums:
        live.touch(0, total)
    live.finish()
    return live.peak_registers(0, dict.fromkeys(range(1, 3 + count), 256.0))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_products_that_begin_anew_in_a_loop_share_their_registers(count: int) -> None:
    # machine code of attention's backward pass: its loop begins with the two sums alone
    assert _products_anew(count) == 2 * 64 + 64


def test_only_the_loop_in_which_several_products_begin_anew_lets_them_share() -> None:
    live = LiveRanges()
    with live.loop():
        for product in (1, 2):
            with live.loop():
                live.touch(0, 3)
                live.accumulate(0, product, kept=True)
                live.touch(0, product)
                live.touch(0, 4)
    live.finish()
    # each inner loop keeps its own product beside the buffers that both use
    assert live.peak_registers(0, {1: 256, 2: 256, 3: 128, 4: 128}) == 64 + 32 + 32


@pytest.mark.parametrize(
    ("steps", "peak"),
    [
        # converted, then used for the last time: the narrow copy takes the place of the values
        ([("store", 1, None), ("store", 2, 1), ("use", 1), ("use", 2)], 64),
        # an instruction needs the copy while the values live
        ([("store", 1, None), ("store", 2, 1), ("use", 2), ("use", 1)], 64 + 32),
        # other values than a conversion are not put off
        ([("store", 1, None), ("store", 2, None), ("use", 1), ("use", 2)], 64 + 32),
        # the values change before they die
        ([("store", 1, None), ("store", 2, 1), ("store", 1, None), ("use", 1), ("use", 2)], 64 + 32),
        # two conversions, each used
        ([("store", 1, None), ("store", 2, 1), ("use", 2), ("store", 2, 1), ("use", 1), ("use", 2)], 64 + 32),
    ],
)
def test_a_conversion_waits_until_its_source_dies_or_its_result_is_needed(
    steps: list[tuple[Any, ...]], peak: float
) -> None:
    live = LiveRanges()
    for kind, buffer, *source in steps:
        if kind == "store":
            live.store(0, buffer, *source)
        else:
            live.touch(0, buffer)
    live.finish()
    assert live.peak_registers(0, {1: 256, 2: 128}) == peak


def test_a_conversion_is_not_put_off_beyond_a_loop_that_changes_its_source() -> None:
    live = LiveRanges()
    with live.loop():
        live.store(0, 1)
        live.store(0, 2, 1)
        live.touch(0, 3)
    live.touch(0, 1)
    live.touch(0, 2)
    live.finish()
    assert live.peak_registers(0, {1: 256, 2: 128, 3: 128}) == 64 + 32 + 32


@pytest.mark.parametrize(("ahead", "buffers"), [(0, 1), (1, 2)])
def test_where_all_threads_meet_in_a_loop_copies_take_the_buffers_that_they_are_ahead(
    ahead: int, buffers: int
) -> None:
    """The next copies are issued after the consumer has used those that it waited for."""
    profile = read(kernels.shared_loop(ahead))
    loads = [a for a in accesses(profile) if a.asynchronous]
    assert [a.slots for a in loads] == [buffers] * 2
    (loop,) = [p for p in role(profile, "producer").phases if p.is_loop]
    assert loop.pipeline_depth == buffers
    assert sum(p.work.block_syncs for p in role(profile, "all").phases if p.is_loop) == 2


@pytest.mark.parametrize("stages", [1, 3])
def test_copies_of_a_product_are_ahead_by_what_passes_until_its_wait(stages: int) -> None:
    """Ampere copies in groups. Of two products each waits for its own, half an iteration before the next."""
    loop = max(role(read(kernels.two_products(64, stages), "a100"), "all").phases, key=lambda p: p.trips.mean)
    assert loop.pipeline_depth == 2 * stages
    assert loop.copies_ahead == stages - 0.5


def test_a_kernel_may_ask_for_several_blocks_on_a_core() -> None:
    assert read(kernels.two_products(4, 1)).min_blocks_per_core == 1
    assert read(kernels.two_products(4, 1, blocks_per_core=3)).min_blocks_per_core == 3


def _order(*events: str) -> LoopOrder:
    """An iteration of products `p` and additions `a`.

    `c` closes a group of copies, a digit waits for all but so many.
    """
    order = LoopOrder()
    phase = PhaseCounts(Trips((64.0,)), is_loop=True, order=order)
    order.phases.append(phase)
    for event in events:
        if event == "p":
            phase.matrix.append(MatrixWork("mma.m16n8k16", 1, 4096.0))
        elif event == "a":
            phase.counts["vector_ops"] += 128
        elif event == "c":
            order.commit_copies()
        else:
            order.wait_for_copies(int(event))
    return order


@pytest.mark.parametrize(
    ("events", "ahead"),
    [
        ("0ppppc", 0.0),  # one buffer: waits for what was just issued
        ("c1pppp", 1.0),  # issued an iteration before
        ("1ppppc", 1.0),
        ("c3pppp", 3.0),
        ("0ppcppc", 0.0),  # the second group is needed at once
        ("c2ppc2pp", 1.0),  # two groups an iteration
        ("1ppcpp", 1.5),
        ("a1ppcaapp", 1.5),
        ("0acaaa", 0.75),  # without products, by what is computed
        ("0caaaa", 1.0),
        ("cpppp", None),  # nothing waits
        ("0", None),
    ],
)
def test_how_far_copies_are_ahead(events: str, ahead: float | None) -> None:
    assert _order(*events).copies_ahead() == ahead


def test_groups_in_branches_are_not_followed() -> None:
    order = _order(*"c1pppp")
    order.is_certain = False
    assert order.copies_ahead() is None
