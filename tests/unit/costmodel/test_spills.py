"""What the compiler's figures change: occupancy, what is spilled, and what that costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilesight.costmodel.analytical import AnalyticalModel
from tilesight.costmodel.occupancy import occupancy
from tilesight.costmodel.spills import LOOP_SHARE, MATRIX_LOOP_SHARE, SPILL_BYTES_PER_CYCLE, spill_cycles
from tilesight.profile import Access, KernelProfile, MatrixWork, Phase, Role, Space, Trips, Work
from tilesight.target import load_target

H200 = load_target("h200")
MATRIX = Work(matrix=(MatrixWork("wgmma.m64n128k16.bf16", 8, 2 * 64 * 128 * 16, warps=4),))
SOFTMAX = replace(MATRIX, vector_ops=4096.0)
ONCE = Trips((1.0,))


def kernel(loop: Work, registers: float = 136.0, limit: int | None = 160, loops: bool = True) -> KernelProfile:
    phases = (Phase(ONCE, Work(vector_ops=64.0)), Phase(Trips((32.0,)), loop, is_loop=loops), Phase(ONCE, Work(vector_ops=64.0)))
    consumer = Role("consumer", 384, phases, registers_limit=limit, local_registers=registers)
    producer = Role("producer", 128, (Phase(Trips((32.0,)), Work(), is_loop=True),), registers_limit=24)
    return KernelProfile("cuda", "sm_90a", (1056, 1, 1), 512, 1, 98304, (producer, consumer), ())


def cycles(profile: KernelProfile, spill_bytes: int) -> list[float]:
    held = occupancy(profile, H200, {"spill_bytes": spill_bytes})
    return [spill_cycles(profile, role, phase, held) for role in profile.roles for phase in role.phases]


def test_the_compilers_figures_take_the_place_of_the_estimate() -> None:
    plain = KernelProfile("cuda", "sm_90a", (1056, 1, 1), 256, 1, 1024, (Role("all", 256, (), local_registers=400.0),), ())
    estimated = occupancy(plain, H200)
    assert estimated.blocks == 1
    assert estimated.spilled
    assert estimated.spill_bytes is None
    built = occupancy(plain, H200, {"registers": 62, "spill_bytes": 0, "smem_bytes": 70_000})
    assert (built.registers, built.blocks, built.limited_by) == (64, 3, "shared memory")
    assert not built.spilled
    assert built.spill_bytes == 0
    spilling = occupancy(plain, H200, {"registers": 255, "spill_bytes": 160})
    assert spilling.spilled == {"all": 20.0}
    assert spilling.blocks == 1


def test_registers_for_loads_in_flight_do_not_lower_the_occupancy() -> None:
    load = Access(Space.GLOBAL, "x", False, "ld", 4096, 128, 8)
    loop = Phase(Trips((64.0,)), Work(accesses=(load,), vector_ops=2048.0), is_loop=True)
    streaming = KernelProfile("cuda", "sm_90a", (1056, 1, 1), 256, 1, 0, (Role("all", 256, (loop,), local_registers=8.0),), ())
    estimated = occupancy(streaming, H200)
    assert occupancy(streaming, H200, {"registers": 120}).blocks == estimated.blocks > 2
    with_matrix = replace(loop, work=replace(loop.work, matrix=MATRIX.matrix))
    other = replace(streaming, roles=(replace(streaming.roles[0], phases=(with_matrix,)),))
    assert occupancy(other, H200, {"registers": 120}).blocks == 2


def test_figures_that_the_compiler_does_not_give_stay_estimates() -> None:
    profile = kernel(SOFTMAX)
    assert occupancy(profile, H200, {"smem_bytes": 98304}) == occupancy(profile, H200, {}) == occupancy(profile, H200)


def test_full_registers_spill_in_the_loop() -> None:
    producer, before, loop, after = cycles(kernel(SOFTMAX), 320)
    assert producer == before == after == 0
    assert loop == pytest.approx(LOOP_SHARE * 320 * 384 / SPILL_BYTES_PER_CYCLE)


def test_a_loop_that_only_issues_matrix_work_runs_less_of_them() -> None:
    assert cycles(kernel(MATRIX), 320)[2] == pytest.approx(MATRIX_LOOP_SHARE * 320 * 384 / SPILL_BYTES_PER_CYCLE)


@pytest.mark.parametrize(("registers", "spill_bytes"), [(64.0, 320), (136.0, 16)])
def test_what_the_loop_has_room_for_spills_once_a_block(registers: float, spill_bytes: int) -> None:
    _, before, loop, after = cycles(kernel(SOFTMAX, registers), spill_bytes)
    assert loop == 0
    assert before + after == pytest.approx(spill_bytes * 384 / SPILL_BYTES_PER_CYCLE)


def test_straight_code_alone_runs_all_of_them_once() -> None:
    assert sum(cycles(kernel(SOFTMAX, loops=False), 320)) == pytest.approx(320 * 384 / SPILL_BYTES_PER_CYCLE)


def test_nothing_spilled_or_not_asked_costs_nothing() -> None:
    profile = kernel(SOFTMAX)
    assert cycles(profile, 0) == [0, 0, 0, 0]
    consumer = profile.roles[1]
    assert spill_cycles(profile, consumer, consumer.phases[1], occupancy(profile, H200)) == 0


def test_a_prediction_follows_the_compiler() -> None:
    model, profile = AnalyticalModel(), kernel(SOFTMAX, registers=200.0)
    estimated = model.predict([profile], H200)
    clean = model.predict([profile], H200, {"registers": 128, "spill_bytes": 0})
    spilled = model.predict([profile], H200, {"registers": 128, "spill_bytes": 2400})
    assert clean.latency_us < spilled.latency_us
    assert clean.latency_us < estimated.latency_us
    assert not any("do not fit" in note for note in clean.notes)
    assert any("do not fit" in note for note in spilled.notes)
    assert clean.uncertainty < spilled.uncertainty


def test_figures_of_several_kernels_together_say_nothing_of_one() -> None:
    model, kernels = AnalyticalModel(), [kernel(SOFTMAX), kernel(MATRIX)]
    assert model.predict(kernels, H200, {"registers": 255, "spill_bytes": 4000}) == model.predict(kernels, H200)
