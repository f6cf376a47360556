"""Gains if one limit or waste cost nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilesight.costmodel.analytical.headroom import Limits, least_transactions, limits
from tilesight.profile.values import Access, KernelProfile, MatrixWork, Phase, Role, Space, Trips, Work
from tilesight.target.spec import load_target

H200, CPU = load_target("h200"), load_target("cpu")


def gpu(
    work: Work, *, trips: float = 256, registers: float = 0, depth: int = 1, shared_bytes: int = 0
) -> KernelProfile:
    role = Role("all", 128, (Phase(Trips((trips,)), work, depth, is_loop=True),), local_registers=registers)
    return KernelProfile("cuda", "sm_90a", (132 * 8, 1, 1), 128, 1, shared_bytes, (role,), ())


def shared(wavefronts: float) -> Access:
    return Access(Space.SHARED, "", False, "ld", 2048.0, wavefronts, 16, 4)


def stream(**changes: object) -> Access:
    plain = Access(
        Space.GLOBAL,
        "x",
        False,
        "ld",
        65536.0,
        2048,
        128,
        16,
        axes=frozenset("x"),
        loop_dependent=True,
        footprint_bytes=65536.0,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def found(profile: KernelProfile, latency_us: float = 100.0) -> Limits:
    return limits([profile], H200 if profile.kind == "cuda" else CPU, latency_us)


def gains(profile: KernelProfile) -> dict[str, float]:
    answer = found(profile)
    return {h.name: h.gain for h in (*answer.limits, *answer.wastes)}


@pytest.mark.parametrize(
    ("work", "limit"),
    [
        (Work(matrix=(MatrixWork("wgmma.m64n256k16.bf16", 64, 524288.0, warps=4),)), "matrix"),
        (Work(vector_ops=128 * 2000.0), "vector"),
        (Work(accesses=(stream(),)), "dram"),
        (Work(accesses=(shared(4096.0),)), "shared"),
        (Work(barrier_waits=20.0), "waits"),
    ],
)
def test_the_limit_is_the_largest_demand(work: Work, limit: str) -> None:
    answer = found(gpu(work))
    assert answer.limits[0].name == limit
    assert answer.limits[0].gain > 0.3
    assert [h.gain for h in answer.limits] == sorted((h.gain for h in answer.limits), reverse=True)


def test_times_are_on_the_scale_of_the_prediction() -> None:
    profile = gpu(Work(vector_ops=128 * 2000.0))
    for latency_us in (10.0, 1000.0):
        for h in found(profile, latency_us).limits:
            assert h.without_us == pytest.approx(latency_us * (1 - h.gain))


def test_the_next_limit_remains_without_the_first() -> None:
    both = Work(matrix=(MatrixWork("wgmma.m64n256k16.bf16", 64, 524288.0, warps=4),), vector_ops=128 * 3000.0)
    answer = found(gpu(both))
    assert answer.next_limit is not None
    assert {answer.limits[0].name, answer.next_limit.name} == {"matrix", "vector"}
    assert answer.next_limit.without_us < answer.limits[0].without_us


def test_conflicts_are_a_waste_and_broadcasts_are_none() -> None:
    assert gains(gpu(Work(accesses=(shared(512.0),))))["bank conflicts"] > 0.3
    assert gains(gpu(Work(accesses=(shared(16.0),))))["bank conflicts"] == 0.0
    broadcast = Access(
        Space.SHARED, "", False, "ld", 4096.0, 32, 32, 4
    )  # 32 lanes read one word: one wavefront each
    assert least_transactions(broadcast) == 32


def test_half_used_sectors_are_a_waste() -> None:
    assert gains(gpu(Work(accesses=(stream(transactions=8192),))))["partial sectors"] > 0.2
    assert gains(gpu(Work(accesses=(stream(),))))["partial sectors"] == 0.0


def test_spills_are_a_limit_of_their_own() -> None:
    work = Work(vector_ops=128 * 200.0)
    assert gains(gpu(work, registers=800))["spills"] > 0.2
    assert gains(gpu(work, registers=100))["spills"] == 0.0


def test_the_compilers_figures_replace_the_estimate() -> None:
    work = Work(vector_ops=128 * 200.0)
    roomy, tight = gpu(work, registers=100), gpu(work, registers=800)

    def spills(profile: KernelProfile, **built: int) -> float:
        return next(h.gain for h in limits([profile], H200, 100.0, built).limits if h.name == "spills")

    assert spills(roomy, spill_bytes=4096) > 0.02
    assert spills(tight, spill_bytes=0) == 0.0
    assert spills(tight, registers=255) > 0.2  # without a number of spills the estimate is used


def test_a_shallow_pipeline_gains_by_depth() -> None:
    copy = stream(
        mechanism="tma",
        asynchronous=True,
        bytes=16384.0,
        footprint_bytes=16384.0,
        transactions=512,
        instructions=1,
        box_bytes=16384.0,
    )
    shallow, deep = (
        gpu(Work(accesses=(replace(copy, slots=n),), barrier_waits=1.0), depth=n, shared_bytes=200_000)
        for n in (1, 16)
    )
    assert gains(shallow)["shallow pipeline"] > gains(deep)["shallow pipeline"] + 0.1


def test_scalar_loops_on_a_cpu() -> None:
    def nest(width: int) -> KernelProfile:
        levels = ((1.0, 256.0),)
        store = Access(
            Space.GLOBAL, "c", True, "st", 256.0, 64, 64, width, levels=levels, footprint_bytes=256.0
        )
        role = Role(
            "all", 1, (Phase(Trips((1e6,)), Work(accesses=(store,), vector_ops=4096.0), is_loop=True),)
        )
        return KernelProfile("cpu", "native", (1, 1, 1), 1, 1, 0, (role,), ())

    scalar, wide = found(nest(4)), found(nest(64))
    assert scalar.wastes[0].name == "scalar loops"
    assert scalar.wastes[0].gain > 0.5
    assert wide.wastes[0].gain == 0.0


def test_a_misfit_has_no_limits() -> None:
    assert found(replace(gpu(Work()), shared_bytes=300_000)) == Limits((), (), None)
