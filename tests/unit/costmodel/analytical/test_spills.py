"""Effects of the compiler's figures on occupancy, spills and their costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.analytical.occupancy import occupancy
from tilesight.costmodel.analytical.spills import (
    LOOP_SHARE,
    MATRIX_LOOP_SHARE,
    SERIAL_CYCLES,
    loaded_beyond_core,
    loaded_beyond_l2,
    local_bytes,
    local_footprint,
    serial_cycles,
    spilled_registers,
    written_beyond_l2,
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
MATRIX = Work(matrix=(MatrixWork("wgmma.m64n128k16.bf16", 8, 2 * 64 * 128 * 16, warps=4),))
SOFTMAX = replace(MATRIX, vector_ops=4096.0)
ONCE = Trips((1.0,))


def kernel(
    loop: Work, registers: float = 136.0, limit: int | None = 160, loops: bool = True
) -> KernelProfile:
    phases = (
        Phase(ONCE, Work(vector_ops=64.0)),
        Phase(Trips((32.0,)), loop, is_loop=loops),
        Phase(ONCE, Work(vector_ops=64.0)),
    )
    consumer = Role("consumer", 384, phases, registers_limit=limit, local_registers=registers)
    producer = Role("producer", 128, (Phase(Trips((32.0,)), Work(), is_loop=True),), registers_limit=24)
    return KernelProfile("cuda", "sm_90a", (1056, 1, 1), 512, 1, 98304, (producer, consumer), ())


def moved(profile: KernelProfile, spill_bytes: int) -> list[float]:
    held = occupancy(profile, H200, {"spill_bytes": spill_bytes})
    return [local_bytes(profile, role, phase, held) for role in profile.roles for phase in role.phases]


def test_the_compilers_figures_replace_the_estimate() -> None:
    plain = KernelProfile(
        "cuda", "sm_90a", (1056, 1, 1), 256, 1, 1024, (Role("all", 256, (), local_registers=800.0),), ()
    )
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


def test_loads_in_flight_take_registers() -> None:
    load = Access(Space.GLOBAL, "x", False, "ld", 4096, 128, 8, 16)  # four words a thread
    loop = Phase(Trips((64.0,)), Work(accesses=(load,), vector_ops=2048.0), is_loop=True)
    streaming = KernelProfile(
        "cuda", "sm_90a", (1056, 1, 1), 256, 1, 0, (Role("all", 256, (loop,), local_registers=8.0),), ()
    )
    unrolled = replace(
        streaming, roles=(replace(streaming.roles[0], phases=(replace(loop, pipeline_depth=8),)),)
    )
    assert (
        occupancy(unrolled, H200).registers == occupancy(streaming, H200).registers + 24
    )  # 7 x 4 more, by eights
    assert occupancy(streaming, H200, {"registers": 120}).blocks == 2


def test_data_that_straight_code_loads_and_stores_again_takes_registers() -> None:
    load = Access(Space.GLOBAL, "x", False, "ld", 256 * 64, 512, 32, 16)
    store = replace(load, write=True, mechanism="st", tensor="y")
    tensors = (Tensor("x", 1 << 20, 2), Tensor("y", 1 << 20, 2))
    sums, scaled = (
        KernelProfile(
            "cuda",
            "sm_90a",
            (1056, 1, 1),
            256,
            1,
            0,
            (Role("all", 256, (Phase(ONCE, Work(accesses=a)),), None, 20.0),),
            tensors,
        )
        for a in ((load,), (load, store))
    )
    assert occupancy(scaled, H200).registers > occupancy(sums, H200).registers


def test_figures_that_the_compiler_does_not_give_stay_estimates() -> None:
    profile = kernel(SOFTMAX)
    assert (
        occupancy(profile, H200, {"smem_bytes": 98304})
        == occupancy(profile, H200, {})
        == occupancy(profile, H200)
    )


def test_full_registers_spill_in_the_loop() -> None:
    producer, before, loop, after = moved(kernel(SOFTMAX), 320)
    assert producer == before == after == 0
    assert loop == pytest.approx(LOOP_SHARE * 320 * 384)


def test_a_loop_that_only_issues_matrix_work_runs_less_of_them() -> None:
    assert moved(kernel(MATRIX), 320)[2] == pytest.approx(MATRIX_LOOP_SHARE * 320 * 384)


@pytest.mark.parametrize(("registers", "spill_bytes"), [(64.0, 320), (136.0, 16)])
def test_spills_run_once_a_block_if_the_loop_has_registers_left(registers: float, spill_bytes: int) -> None:
    _, before, loop, after = moved(kernel(SOFTMAX, registers), spill_bytes)
    assert loop == 0
    assert before + after == pytest.approx(spill_bytes * 384)


def test_straight_code_alone_runs_all_of_them_once() -> None:
    assert sum(moved(kernel(SOFTMAX, loops=False), 320)) == pytest.approx(320 * 384)


def test_without_spills_nothing_moves() -> None:
    assert moved(kernel(SOFTMAX), 0) == [0, 0, 0, 0]


def estimated(profile: KernelProfile) -> list[float]:
    """Registers that each phase of the consumer spills, estimated from the IR."""
    held, consumer = occupancy(profile, H200), profile.roles[1]
    return [spilled_registers(consumer, phase, held) for phase in consumer.phases]


def test_one_product_spills_the_registers_that_do_not_fit() -> None:
    # beside its buffers, each of three groups needs 28 registers
    assert estimated(kernel(SOFTMAX, registers=132.0)) == [0, 0, 0]
    assert estimated(kernel(SOFTMAX, registers=134.0)) == [0, 2, 0]
    assert estimated(kernel(SOFTMAX, registers=170.0)) == [0, 38, 0]


def test_two_products_make_room_for_each_other_by_fragments() -> None:
    scores = MatrixWork("wgmma.m64n160k16.bf16", 8, 2 * 64 * 160 * 16, warps=4)
    both = replace(SOFTMAX, matrix=(scores, *MATRIX.matrix), matrix_waits=2.0)
    assert estimated(kernel(both, registers=136.0)) == [0, 4, 0]  # so few need no fragment
    assert estimated(kernel(both, registers=152.0)) == [0, 160, 0]
    profile = kernel(both, registers=152.0)
    consumer = profile.roles[1]
    assert local_bytes(profile, consumer, consumer.phases[1], occupancy(profile, H200)) == 8 * 160 * 384


def matmul(
    columns: int, instructions: float, held: float, accumulators: float, **work: float
) -> KernelProfile:
    """A block of 128 threads whose loop has `instructions` with `columns` columns each."""
    product = MatrixWork(f"wgmma.m64n{columns}k16", instructions, 2 * 64 * columns * 16, warps=4)
    loop = Phase(Trips((32.0,)), Work(matrix=(product,), matrix_waits=1.0, **work), is_loop=True)
    role = Role("all", 128, (loop,), local_registers=held, accumulator_registers=accumulators)
    return KernelProfile("cuda", "sm_90a", (1056, 1, 1), 128, 1, 98304, (role,), ())


def in_loop(profile: KernelProfile) -> float:
    role = profile.roles[0]
    return spilled_registers(role, role.phases[0], occupancy(profile, H200))


def test_the_tiles_of_a_product_take_turns() -> None:
    # compiled for sm_90a: both tiles of 128x256, and two of the four tiles of 256x128, are stored and loaded
    # in each iteration (1024 and 512 bytes a thread each way)
    assert in_loop(matmul(256, 8, 258.0, 256.0)) == 256
    assert in_loop(matmul(128, 16, 258.0, 256.0)) == 128
    assert in_loop(matmul(256, 8, 130.0, 128.0)) == 0


def test_values_beside_the_accumulators_are_spilled_one_by_one() -> None:
    # half of the values are sums that no matrix instruction holds: ptxas spills 39 registers of them
    assert in_loop(matmul(128, 8, 258.0, 128.0, vector_ops=65536.0)) == 258 + 36 - 255


def test_what_only_code_around_the_loop_needs_is_spilled_there() -> None:
    """192 accumulators fit beside the products; 64 values that are made of them afterwards do not."""
    profile = matmul(192, 8, 258.0, 192.0)
    (loop,) = profile.roles[0].phases
    after = Phase(Trips((1.0,)), Work(convert_ops=24576.0))
    role = replace(profile.roles[0], phases=(loop, after), outside_registers=64.0)
    held = occupancy(replace(profile, roles=(role,)), H200)
    assert [spilled_registers(role, p, held) for p in role.phases] == [0, 258 + 36 - 255]


def test_accumulators_that_were_not_counted_are_the_buffers_of_a_loop_without_arithmetic() -> None:
    assert in_loop(matmul(128, 16, 258.0, 0.0)) == 128
    assert in_loop(matmul(128, 16, 258.0, 0.0, vector_ops=65536.0)) == 258 + 36 - 255


def test_matrix_instructions_wait_for_each_other_if_their_accumulators_spill() -> None:
    profile = matmul(128, 16, 258.0, 256.0)
    role, held = profile.roles[0], occupancy(profile, H200)
    assert serial_cycles(role, role.phases[0], held) == 16 * SERIAL_CYCLES
    built = occupancy(profile, H200, {"registers": 255, "spill_bytes": 1332})
    assert serial_cycles(role, role.phases[0], built) == 16 * SERIAL_CYCLES
    few = occupancy(profile, H200, {"registers": 255, "spill_bytes": 320})
    assert serial_cycles(role, role.phases[0], few) == 0
    fitting = matmul(128, 16, 194.0, 192.0)
    assert serial_cycles(fitting.roles[0], fitting.roles[0].phases[0], occupancy(fitting, H200)) == 0


def test_iterations_in_line_after_a_loop_spill_as_those_of_the_loop() -> None:
    profile = matmul(256, 8, 258.0, 256.0)
    loop = profile.roles[0].phases[0]
    twice = replace(loop.work, matrix=(replace(loop.work.matrix[0], count=16.0),))
    phases = (loop, Phase(ONCE, twice), Phase(ONCE, Work(convert_ops=64.0)))
    longer = replace(profile, roles=(replace(profile.roles[0], phases=phases),))
    held = occupancy(longer, H200)
    moved = [local_bytes(longer, longer.roles[0], phase, held) for phase in phases]
    assert moved == [8 * 256 * 128, 2 * 8 * 256 * 128, 0]


def test_producers_and_buffers_of_joined_loops_need_few_registers() -> None:
    profile = kernel(SOFTMAX, registers=100.0)
    fetching = replace(profile.roles[0], local_registers=9.0)
    assert not occupancy(replace(profile, roles=(fetching, profile.roles[1])), H200).spilled
    joined = Role("all", 128, (Phase(ONCE, Work(vector_ops=64.0)),), local_registers=264.0)
    plain = KernelProfile("cuda", "sm_90a", (1056, 1, 1), 128, 1, 0, (joined,), ())
    assert not occupancy(plain, H200).spilled


def test_the_cost_of_spills_is_a_term() -> None:
    model = AnalyticalModel()
    spilling, fitting = (model.predict([matmul(256, 8, n, n - 2)], H200) for n in (258.0, 130.0))
    assert 0.5 * spilling.latency_us < spilling.terms_us["spills"] < spilling.latency_us
    assert spilling.expected["local_bytes"] == 8 * 256 * 128 * 32 * 1056
    assert fitting.terms_us["spills"] == 0
    assert fitting.uncertainty < spilling.uncertainty


def test_stores_pass_the_first_level_cache_and_loads_follow_where_it_is_full() -> None:
    assert loaded_beyond_core(32.0, 15360, 1e6) == 0.0
    assert loaded_beyond_core(32.0, 15360, 15360 / 2) == 16.0
    assert loaded_beyond_core(32.0, 15360, -1.0) == 32.0
    assert loaded_beyond_core(32.0, 0, 0.0) == 0.0


def test_what_exceeds_l2_goes_to_device_memory() -> None:
    # loads come back after half of the others
    assert loaded_beyond_l2(32.0, 160e6, 40e6) == 16.0
    assert loaded_beyond_l2(32.0, 80e6, 40e6) == loaded_beyond_l2(32.0, 0, 40e6) == 0.0
    # stores reach it as soon as L2 does not hold them beside what else passes through
    assert written_beyond_l2(32.0, 20e6, 20e6, 40e6) == written_beyond_l2(32.0, 0, 90e6, 40e6) == 0.0
    assert written_beyond_l2(32.0, 20e6, 30e6, 40e6) == 16.0
    assert written_beyond_l2(32.0, 20e6, 60e6, 40e6) == written_beyond_l2(32.0, 90e6, 0.0, 40e6) == 32.0


def test_stores_of_spills_take_the_rate_of_writes_unless_matrix_instructions_run_beside_them() -> None:
    built = {"registers": 128, "spill_bytes": 800}

    def extra(work: Work) -> float:
        role = Role("all", 256, (Phase(ONCE, work),), local_registers=200.0)
        plain = KernelProfile("cuda", "sm_90a", (1320, 1, 1), 256, 1, 0, (role,), ())
        return AnalyticalModel().predict([plain], H200, built).terms_us["spills"]

    # 400 bytes a thread are stored; the cache of a core holds them for the loads
    stored_us = 1320 * 256 * 400 / (H200["device.memory.l2.write_gb_per_s"] * 1e3)
    assert extra(Work(vector_ops=4096.0)) == pytest.approx(
        stored_us + 10 * 256 * 800 / H200["core.memory.shared.bytes_per_cycle"] / 1955, rel=0.01
    )
    assert extra(SOFTMAX) < 0.6 * extra(Work(vector_ops=4096.0))


def test_arrays_in_local_memory_take_the_way_of_spills() -> None:
    def kernel(array_bytes: float, blocks: int = 1320) -> KernelProfile:
        stored, loaded = (
            Access(Space.LOCAL, "b1", write, "st" if write else "ld", 128 * 4, 4, 4,
                   footprint_bytes=128 * array_bytes)
            for write in (True, False)
        )  # fmt: skip
        work = Work(accesses=(stored, loaded), vector_ops=128.0)
        role = Role("all", 128, (Phase(Trips((array_bytes / 4,)), work, is_loop=True),), local_registers=16)
        return KernelProfile("cuda", "sm_90a", (blocks, 1, 1), 128, 1, 0, (role,), ())

    def terms(profile: KernelProfile) -> dict[str, float]:
        return dict(AnalyticalModel().predict((profile,), H200).terms_us)

    small, large = kernel(128), kernel(4096)
    role = large.roles[0]
    assert local_bytes(large, role, role.phases[0], occupancy(large, H200)) == 2 * 128 * 4
    assert local_footprint(role, role.phases[0], occupancy(large, H200)) == 4096 * 128
    # ten blocks of a core keep 5 MB, beyond its first-level cache, and those of all cores 692 MB, beyond L2
    assert terms(small)["dram"] == 0.0
    assert terms(large)["dram"] > 0.0
    # 32 times the accesses, and loads that miss
    assert terms(large)["spills"] > 1.2 * 32 * terms(small)["spills"]


def test_waits_for_local_memory_last_as_long_as_a_trip_to_where_the_arrays_are() -> None:
    def chain(array_bytes: float, waits: float, near: float = 0.0) -> float:
        stored = Access(Space.LOCAL, "b1", True, "st", 128 * 4, 4, 4, footprint_bytes=128 * array_bytes)
        work = Work(accesses=(stored,), vector_ops=128.0, local_waits=4 * waits, near_local_waits=4 * near)
        role = Role("all", 128, (Phase(Trips((1.0,)), work),), local_registers=16)
        profile = KernelProfile("cuda", "sm_90a", (1320, 1, 1), 128, 1, 0, (role,), ())
        return dict(AnalyticalModel().predict((profile,), H200).terms_us)["load latency"]

    core, l2, memory = (chain(size, 100.0) for size in (64, 3000, 8192))
    assert chain(8192, 0.0) == 0.0 < core < l2 < memory
    assert memory == pytest.approx(100 * H200["device.memory.dram.latency_ns"] / 1e3, rel=0.1)
    assert chain(8192, 100.0, near=100.0) == pytest.approx(core)  # of what the iteration before touched


def test_what_is_stored_again_at_once_is_beside_arithmetic_and_stays_in_l2() -> None:
    def terms(again: float, vector_ops: float = 128.0) -> dict[str, float]:
        stored = Access(Space.LOCAL, "b1", True, "st", 1e6, 1e6 / 128, 1e6 / 128,
                        footprint_bytes=128 * 4096, sector_bytes=again)  # fmt: skip
        work = Work(accesses=(stored,), vector_ops=vector_ops)
        role = Role("all", 128, (Phase(Trips((1.0,)), work),), local_registers=16)
        profile = KernelProfile("cuda", "sm_90a", (13200, 1, 1), 128, 1, 0, (role,), ())
        return dict(AnalyticalModel().predict((profile,), H200).terms_us)

    assert terms(1e4)["dram"] < 0.1 * terms(0.0)["dram"]
    assert 0.8 < terms(1e4)["makespan"] / terms(0.0)["makespan"] < 1
    assert terms(1e4, 4e6)["makespan"] < 0.9 * terms(0.0, 4e6)["makespan"]


def test_spills_cost_more_where_shared_memory_leaves_no_cache() -> None:
    model, built = AnalyticalModel(), {"registers": 128, "spill_bytes": 1200}
    kernels = (kernel(SOFTMAX), replace(kernel(SOFTMAX), shared_bytes=225 * 1024))
    extra = [
        model.predict([k], H200, built).latency_us
        - model.predict([k], H200, {**built, "spill_bytes": 0}).latency_us
        for k in kernels
    ]
    assert 0 < 1.2 * extra[0] < extra[1]


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


def test_figures_of_several_kernels_are_ignored() -> None:
    model, kernels = AnalyticalModel(), [kernel(SOFTMAX), kernel(MATRIX)]
    assert model.predict(kernels, H200, {"registers": 255, "spill_bytes": 4000}) == model.predict(
        kernels, H200
    )
