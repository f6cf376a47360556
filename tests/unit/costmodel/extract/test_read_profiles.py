"""Profiles against counts made by hand."""

from __future__ import annotations

import pytest

from tests.unit.costmodel import sample_kernels as kernels
from tilesight.costmodel.extract import read_profiles
from tilesight.costmodel.extract.element_types import element_type
from tilesight.lowering.lower import lower
from tilesight.profile.values import KernelProfile, Phase, Role, Space
from tilesight.target.spec import load_target


def profile(prim_func: object, target: str = "h200") -> KernelProfile:
    chip = load_target(target)
    (only,) = read_profiles(lower(prim_func, chip, only_read=True), chip)
    return only


def role(profile: KernelProfile, name: str) -> Role:
    (found,) = [r for r in profile.roles if r.name == name]
    return found


def main_loop(role: Role) -> Phase:
    return max((p for p in role.phases if p.is_loop), key=lambda p: p.trips.mean)


def test_hopper_matmul_is_warp_specialised_with_tma_and_wgmma() -> None:
    p = profile(kernels.matmul(1024, 512, 2048, 128, 128, 64, 3, 256))
    assert p.grid == (4, 8, 1)
    assert p.block_threads == 384  # 256 consumers and a producer group of 128
    assert p.shared_bytes >= 3 * (128 * 64 + 64 * 128) * 2
    load, use = main_loop(role(p, "producer")), main_loop(role(p, "consumer"))
    assert load.trips.mean == use.trips.mean == 2048 / 64
    copies = [a for a in load.work.accesses if a.space is Space.GLOBAL]
    assert sum(a.bytes for a in copies) == (128 * 64 + 64 * 128) * 2
    assert {(a.mechanism, a.slots) for a in copies} == {("tma", 3)}
    assert {a.axes for a in copies} == {frozenset("x"), frozenset("y")}
    assert load.pipeline_depth == 3
    assert sum(m.count * m.flops for m in use.work.matrix) == 2 * 128 * 128 * 64
    assert all(m.instruction.startswith("wgmma.") for m in use.work.matrix)
    assert role(p, "consumer").registers_limit == 240
    # 128 x 128 accumulators over 256 threads
    assert 64 <= role(p, "consumer").local_registers < 80
    assert role(p, "consumer").accumulator_registers == 64
    assert role(p, "producer").accumulator_registers == 0
    assert p.unknown_calls == ()


def test_ampere_matmul_uses_cp_async_and_mma() -> None:
    p = profile(kernels.matmul(1024, 512, 2048, 128, 128, 64, 3, 128), "a100")
    loop = main_loop(role(p, "all"))
    assert loop.pipeline_depth == 3
    assert {a.mechanism for a in loop.work.accesses if a.space is Space.GLOBAL} == {"cp_async"}
    assert sum(a.bytes for a in loop.work.accesses if a.space is Space.GLOBAL) == (128 * 64 + 64 * 128) * 2
    # every sector of a tile is fetched once: whole rows of 128 bytes
    assert (
        sum(a.transactions for a in loop.work.accesses if a.space is Space.GLOBAL)
        == (128 * 64 + 64 * 128) * 2 / 32
    )
    assert sum(m.count * m.flops for m in loop.work.matrix) == 2 * 128 * 128 * 64
    loads = [a for a in loop.work.accesses if a.mechanism == "ldmatrix"]
    # the swizzled layout serves a quarter (8 rows of 16 bytes) in each wavefront: no conflicts
    assert sum(a.transactions for a in loads) == sum(a.bytes for a in loads) / 128


def test_total_flops_do_not_depend_on_how_the_pipeline_is_unrolled() -> None:
    for target, stages in (("a100", 1), ("a100", 3), ("h200", 2), ("mi300x", 2)):
        p = profile(kernels.matmul(512, 256, 1024, 128, 128, 64, stages, 128), target)
        flops = sum(
            m.count * m.flops * ph.trips.mean for r in p.roles for ph in r.phases for m in ph.work.matrix
        )
        assert flops * p.blocks == 2 * 512 * 256 * 1024, (target, stages)


def test_amd_matmul_has_no_pipeline_whatever_the_config_says() -> None:
    one, three = (profile(kernels.matmul(1024, 512, 2048, 128, 128, 64, s, 256), "mi300x") for s in (1, 3))
    assert one == three
    loop = main_loop(role(one, "all"))
    assert loop.pipeline_depth == 1
    assert not any(a.asynchronous for a in loop.work.accesses)
    assert all(m.instruction.startswith("mfma.") for m in loop.work.matrix)
    assert sum(m.count * m.flops for m in loop.work.matrix) == 2 * 128 * 128 * 64


def test_names_change_nothing() -> None:
    arguments = (1024, 512, 2048, 128, 64, 64, 2, 128)
    assert profile(kernels.matmul(*arguments), "h200") == profile(kernels.renamed_matmul(*arguments), "h200")


def test_trip_counts_follow_the_block() -> None:
    p = profile(kernels.causal_scores(1024, 64, 128, 64))
    trips = main_loop(role(p, "consumer")).trips
    assert trips.axes == {"x"}
    assert trips.per_block == tuple(2.0 * (block + 1) for block in range(8))


def test_swizzle_is_read_from_the_ir() -> None:
    assert profile(kernels.matmul(1024, 512, 256, 128, 128, 64, 2, 128)).rasterization.order == "linear"
    swizzled = profile(kernels.matmul(1024, 512, 256, 128, 128, 64, 2, 128, swizzle=4)).rasterization
    assert (swizzled.order, swizzled.factor) == ("row", 4)


def test_boxes_beyond_the_edge_move_only_their_inside() -> None:
    # 96 rows under tiles of 64: the second tile is half empty
    p = profile(kernels.matmul(96, 128, 256, 64, 128, 64, 2, 128))
    a_copy = next(a for a in main_loop(role(p, "producer")).work.accesses if a.axes == {"y"})
    assert a_copy.box_bytes == 64 * 64 * 2
    assert a_copy.bytes == pytest.approx(0.75 * 64 * 64 * 2, rel=0.05)


def test_coalesced_and_scattered_reads() -> None:
    def read(p: KernelProfile) -> tuple[float, float]:
        (access,) = [
            a
            for r in p.roles
            for ph in r.phases
            for a in ph.work.accesses
            if not a.write and a.space is Space.GLOBAL
        ]
        return access.bytes, access.transactions

    asked, sectors = read(profile(kernels.scale(4096, 512)))
    assert (asked, sectors) == (512 * 4, 512 * 4 / 32)
    asked, sectors = read(profile(kernels.strided_read(4096)))
    assert (asked, sectors) == (128 * 4, 128)


def test_bank_conflicts_of_a_transpose_and_their_cure() -> None:
    def wavefronts(pad: int) -> float:
        p = profile(kernels.transpose(256, 256, 32, pad))
        (read,) = [
            a
            for r in p.roles
            for ph in r.phases
            for a in ph.work.accesses
            if not a.write and a.space is Space.SHARED
        ]
        return read.transactions / read.instructions

    assert wavefronts(0) == 32
    assert wavefronts(1) == 1


def test_special_functions_are_counted() -> None:
    p = profile(kernels.exponentials(4096, 512))
    assert sum(ph.work.special_ops for r in p.roles for ph in r.phases) == 512


def test_unknown_calls_are_reported_and_charged() -> None:
    p = profile(kernels.opaque_call(4096))
    assert p.unknown_calls == ("somebodys_function",)
    assert sum(ph.work.special_ops for r in p.roles for ph in r.phases) > 0


def test_a_loop_that_starts_at_the_block_depends_on_it() -> None:
    p = profile(kernels.sliding_rows(1024, 128, 64))
    (read,) = [
        a
        for r in p.roles
        for ph in r.phases
        for a in ph.work.accesses
        if a.space is Space.GLOBAL and not a.write
    ]
    assert read.axes == {"x"}
    assert read.loop_dependent


def test_nested_conditions_divide_the_threads() -> None:
    p = profile(kernels.thread_quarters(4096))
    writes = [a.bytes for r in p.roles for ph in r.phases for a in ph.work.accesses if a.write]
    assert sum(writes) == pytest.approx(128 * 4, rel=0.05)
    assert sorted(writes) == pytest.approx([128, 128, 256], rel=0.1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bfloat16x4", ("float", 16, 4)),
        ("float8_e4m3fnx16", ("float", 8, 16)),
        ("float8_e5m2", ("float", 8, 1)),
        ("uint8x32", ("int", 8, 32)),
        ("handle", ("handle", 64, 1)),
    ],
)
def test_element_types(name: str, expected: tuple[str, int, int]) -> None:
    assert element_type(name) == expected


def test_shapes_that_are_not_static_are_refused_on_a_cpu_too() -> None:
    with pytest.raises(ValueError, match="known only at run time"):
        profile(kernels.any_rows(), "cpu")
