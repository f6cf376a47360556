from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.unit.costmodel import sample_kernels as kernels
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.analytical.constants import DEFAULT
from tilesight.costmodel.analytical.demand import WAIT_INSTRUCTIONS, WGMMA_INSTRUCTIONS, demand, matrix_cycles
from tilesight.costmodel.analytical.kernel_terms import (
    BASE_UNCERTAINTY,
    SMALL_GRID_SHARE,
    UNMEASURED_UNCERTAINTY,
)
from tilesight.costmodel.analytical.norms import p_norm
from tilesight.costmodel.analytical.occupancy import misfit, occupancy
from tilesight.costmodel.analytical.pipeline import SHARED_CYCLES, SharedSteps, _shared_steps
from tilesight.costmodel.extract import read_profiles
from tilesight.lowering.lower import lower
from tilesight.profile.values import Access, KernelProfile, MatrixWork, Phase, Role, Space, Trips, Work
from tilesight.records.trial import Prediction
from tilesight.target.spec import Target, load_target

H200 = load_target("h200")


def plain(
    work: Work,
    *,
    trips: float = 1,
    threads: int = 128,
    blocks: int = 132,
    shared: int = 0,
    registers: float = 0,
) -> KernelProfile:
    role = Role("all", threads, (Phase(Trips((trips,)), work, is_loop=trips > 1),), local_registers=registers)
    return KernelProfile("cuda", "sm_90a", (blocks, 1, 1), threads, 1, shared, (role,), ())


def predict(profile: KernelProfile, target: Target = H200) -> Prediction:
    return AnalyticalModel().predict([profile], target)


def stream(bytes_each: float, *, write: bool = False) -> Access:
    return Access(
        Space.GLOBAL,
        "x",
        write,
        "ld",
        bytes_each,
        bytes_each / 32,
        bytes_each / 512,
        16,
        axes=frozenset("x"),
        footprint_bytes=bytes_each,
    )


def test_occupancy_by_each_resource() -> None:
    assert (
        occupancy(plain(Work(), threads=1024, registers=20), H200).blocks == 1
    )  # 40 registers x 1024 x 4 bytes fit once
    by_shared = occupancy(plain(Work(), shared=100_000), H200)
    assert (by_shared.blocks, by_shared.limited_by) == (2, "shared memory")  # 233472 // (100000 + 1024)
    by_registers = occupancy(plain(Work(), threads=256, registers=160), H200)
    assert (by_registers.blocks, by_registers.registers) == (1, 176)  # 160, and 20 beside them, in eights
    assert occupancy(plain(Work(), threads=32), H200).limited_by == "block slots"


def test_warp_specialised_kernels_fill_the_register_file() -> None:
    (p,) = read_profiles(
        lower(kernels.matmul(1024, 512, 2048, 64, 64, 64, 2, 128), H200, only_read=True), H200
    )
    found = occupancy(p, H200)
    assert (found.blocks, found.registers) == (1, 240)


def test_a_small_grid_starts_sooner_unless_it_waits_for_device_memory() -> None:
    def fill(work: Work, blocks: int) -> float:
        return predict(plain(work, blocks=blocks)).terms_us["fill"]

    arithmetic, whole = Work(vector_ops=128 * 400.0), H200["device.block_start_us"]
    assert fill(arithmetic, 132) == fill(arithmetic, 264) == whole
    assert fill(arithmetic, 33) == pytest.approx(whole * (1 - SMALL_GRID_SHARE * 0.75))
    streaming = Work(accesses=(stream(64e6),))
    assert fill(arithmetic, 33) < fill(streaming, 33) < whole


def test_a_misfit_is_reported_with_numbers() -> None:
    reason = misfit(plain(Work(), shared=300_000), H200)
    assert reason is not None
    assert "300000" in reason
    assert "232448" in reason
    assert misfit(plain(Work(), shared=232_448), H200) is None
    with pytest.raises(ValueError, match="shared memory"):
        predict(plain(Work(), shared=300_000))


def test_registers_beyond_the_limit_spill_and_cost_time() -> None:
    work = Work(vector_ops=128 * 200.0)
    fits, spills = plain(work, trips=64, registers=150), plain(work, trips=64, registers=800)
    assert not occupancy(fits, H200).spilled
    assert occupancy(spills, H200).spilled["all"] == pytest.approx(800 / 2 + 20 - 255)
    assert predict(spills).latency_us > 1.5 * predict(fits).latency_us
    assert any("spill" in note for note in predict(spills).notes)


def test_matrix_time_is_flops_over_rate() -> None:
    # m64n256k16: 524288 operations at 4096 a cycle
    assert matrix_cycles(MatrixWork("wgmma.m64n256k16", 10, 2 * 64 * 256 * 16), H200, DEFAULT) == 10 * 128
    slower = matrix_cycles(MatrixWork("mma.m16n8k16", 128, 4096.0), H200, DEFAULT)
    assert slower == pytest.approx(128 * 4096 / (4096 * H200["core.unit.matrix.mma_sync_share"]))
    assert slower > 128 * 1.2


def test_a_product_of_few_columns_waits_for_its_operands() -> None:
    def cycles(columns: int) -> float:
        operands = 16 * 2 * (64 + columns)
        work = MatrixWork(f"wgmma.m64n{columns}k16", 1, 2.0 * 64 * columns * 16, operands, warps=4)
        return matrix_cycles(work, H200, DEFAULT)

    assert cycles(128) == 64
    assert cycles(16) == pytest.approx(DEFAULT.operand_share * 20)


def test_bank_conflicts_cost_their_wavefronts() -> None:
    def access(wavefronts: float) -> Work:
        return Work(accesses=(Access(Space.SHARED, "s", False, "ld", 4096, wavefronts, 32),))

    assert (
        demand(access(1024), H200, DEFAULT, 132).shared == 32 * demand(access(32), H200, DEFAULT, 132).shared
    )


def test_warp_group_instructions_and_waits_take_issue_slots() -> None:
    wgmma, mma = (
        MatrixWork("wgmma.m64n128k16.bf16", 8, 2 * 64 * 128 * 16, warps=4),
        MatrixWork("mma.m16n8k16", 8, 4096.0),
    )
    assert demand(Work(matrix=(wgmma,)), H200, DEFAULT, 132).issue == 8 * 4 * WGMMA_INSTRUCTIONS / 4
    assert demand(Work(matrix=(mma,)), H200, DEFAULT, 132).issue == 8 / 4
    waiting = demand(Work(barrier_waits=1.0, matrix_waits=1.0), H200, DEFAULT, 132, threads=256)
    assert waiting.issue == 2 * WAIT_INSTRUCTIONS * 8 / 4


def test_addresses_of_an_unrolled_tile_cost_nothing_beside_matrix_work() -> None:
    load = Access(Space.SHARED, "s", False, "ld", 4096, 32, 32)
    bare = Work(accesses=(load,), integer_ops=32 * 32 + 64.0)
    beside = replace(bare, matrix=(MatrixWork("mma.m16n8k16", 1, 4096.0),))
    assert demand(beside, H200, DEFAULT, 132).vector == 64 / H200["core.unit.vector.int32_lanes"]
    assert demand(bare, H200, DEFAULT, 132).vector > 10 * demand(beside, H200, DEFAULT, 132).vector


def test_steps_through_shared_memory_wait_for_each_other() -> None:
    def chain(steps: float, *, matrix: bool = True, buffers: str = "ab") -> float:
        through = tuple(
            Access(Space.SHARED, buffers[w], w, "st" if w else "ld", 2048 * steps, 4 * steps, 4 * steps)
            for w in (False, True)
        )
        product = (MatrixWork("mma.m16n8k16", 16, 4096.0),) if matrix else ()
        return predict(plain(Work(accesses=through, matrix=product), trips=64)).terms_us["dependency chain"]

    us = 64 * 16 * DEFAULT.rewrite_cycles / H200["core.clock_mixed_mhz"]  # four warps go 16 steps each
    assert chain(32) - chain(16) == pytest.approx(us, rel=0.15)
    assert chain(32, matrix=False) - chain(16, matrix=False) < us / 4
    # values that are stored to a buffer and loaded from it wait for the load alone
    us = 64 * 16 * SHARED_CYCLES / H200["core.clock_mixed_mhz"]
    assert chain(32, buffers="aa") - chain(16, buffers="aa") == pytest.approx(us, rel=0.15)


def test_the_last_lines_of_a_kernel_stay_in_l2() -> None:
    def written(megabytes: float) -> float:
        each = megabytes * 1e6 / 132
        return (
            predict(plain(Work(accesses=(stream(each), stream(each, write=True))))).expected[
                "dram_write_bytes"
            ]
            / 1e6
        )

    assert written(5) < 0.1
    assert written(33.5) == pytest.approx(33.5 - 22, abs=2)  # L2 is nearly full of both
    assert written(500) == pytest.approx(500 - 23.6, abs=1)


def test_a_block_waits_until_its_tile_is_stored() -> None:
    store = replace(stream(32768, write=True), mechanism="tma", asynchronous=True)
    lanes = stream(32768, write=True)
    stored, plainly = (
        predict(plain(Work(vector_ops=1e5, accesses=(a,)), blocks=132 * 8, threads=1024))
        for a in (store, lanes)
    )
    assert stored.terms_us["load latency"] > plainly.terms_us["load latency"]


def test_memory_bound_kernels_run_at_memory_speed() -> None:
    total = 2**30
    blocks = 132 * 64
    p = plain(Work(accesses=(stream(total / blocks), stream(total / blocks, write=True))), blocks=blocks)
    prediction = predict(p)
    floor_us = 2 * total / (H200.dram_gb_per_s * 1e3)
    assert prediction.limiting == "dram"
    assert floor_us < prediction.latency_us < 1.3 * floor_us


def test_matrix_bound_kernels_run_at_the_sustained_matrix_rate() -> None:
    flops = 2 * 8192.0**3
    (p,) = read_profiles(
        lower(kernels.matmul(8192, 8192, 8192, 256, 128, 64, 4, 256, swizzle=8), H200, only_read=True), H200
    )
    prediction = predict(p)
    at_peak_us = flops / (H200.matrix_tflops("bfloat16") * 1e6)
    assert prediction.limiting in (
        "matrix",
        "shared",
    )  # a 256 x 64 half tile reads its operands about as long
    assert at_peak_us < prediction.latency_us < 1.35 * at_peak_us


def test_deeper_pipelines_hide_latency() -> None:
    def time(stages: int) -> float:
        (p,) = read_profiles(
            lower(kernels.matmul(4096, 1024, 8192, 128, 128, 64, stages, 256), H200, only_read=True), H200
        )
        return predict(p).latency_us

    assert time(1) > 1.3 * time(3)


def test_one_block_too_many_costs_a_wave() -> None:
    work = Work(vector_ops=128 * 1e5)
    full, over = (
        predict(plain(work, blocks=132, registers=200)),
        predict(plain(work, blocks=133, registers=200)),
    )
    assert over.terms_us["makespan"] > full.terms_us["makespan"]


def test_large_clusters_leave_cores_idle() -> None:
    work = Work(vector_ops=128 * 1e5)
    pair, four = (replace(plain(work, blocks=132, shared=150_000), cluster=c) for c in (2, 4))
    assert predict(four).terms_us["makespan"] == pytest.approx(
        2 * predict(pair).terms_us["makespan"], rel=0.1
    )
    assert AnalyticalModel().predict([four], load_target("a100")).latency_us > 0


def test_the_last_wave_of_kernels_that_wait_for_memory_takes_its_own_time() -> None:
    """Few blocks of a last wave do not fill the memory: they take as long as a block takes alone."""
    work = Work(accesses=(stream(2.0**22),), vector_ops=128 * 2e4)

    def time(blocks: int) -> Prediction:
        return predict(plain(work, blocks=blocks, shared=200_000))

    full, over = time(132), time(140)
    alone = over.terms_us["makespan"] - full.terms_us["makespan"]
    assert full.limiting == "dram"
    assert over.latency_us - full.latency_us == pytest.approx(alone, rel=0.1)


def test_prediction_is_explained_by_its_terms() -> None:
    (p,) = read_profiles(
        lower(kernels.matmul(1024, 1024, 1024, 128, 128, 64, 3, 256), H200, only_read=True), H200
    )
    prediction = predict(p)
    assert (
        0
        < prediction.latency_us
        == pytest.approx(
            prediction.terms_us["launch"] + prediction.terms_us["fill"] + prediction.terms_us["makespan"],
            rel=0.35,
        )
    )
    assert all(0 <= share <= 1 for share in prediction.utilization.values())
    assert prediction.model == AnalyticalModel().version


def test_unknown_calls_widen_the_uncertainty() -> None:
    (p,) = read_profiles(lower(kernels.opaque_call(4096), H200, only_read=True), H200)
    assert predict(p).uncertainty > predict(replace(p, unknown_calls=())).uncertainty
    assert any("somebodys_function" in note for note in predict(p).notes)


@pytest.mark.parametrize("target", ["h100", "h200", "a100", "mi300x"])
def test_every_gpu_target_predicts(target: str) -> None:
    chip = load_target(target)
    prediction = AnalyticalModel().predict(
        read_profiles(
            lower(kernels.matmul(2048, 2048, 2048, 128, 128, 32, 2, 256), chip, only_read=True), chip
        ),
        chip,
    )
    assert 2 * 2048**3 / prediction.latency_us / 1e6 < chip.matrix_tflops("bfloat16")


def test_several_kernels_run_one_after_the_other() -> None:
    one = plain(Work(vector_ops=1e6))
    model = AnalyticalModel()
    alone, together = (model.predict([one] * n, H200) for n in (1, 3))
    # measured in experiments/launches: further launches cost a quarter of the first one
    saved = 2 * 0.75 * H200["device.launch_us"]
    assert together.latency_us == pytest.approx(3 * alone.latency_us - saved)
    assert together.terms_us["launch"] == pytest.approx(1.5 * H200["device.launch_us"])


def test_busy_times_combine_close_to_their_maximum() -> None:
    assert p_norm([10.0, 0.0], 6) == 10
    assert 10 < p_norm([10.0, 9.0], 6) < 12
    assert p_norm([], 6) == 0


def test_fewer_blocks_than_clusters() -> None:
    mi300x = load_target("mi300x")
    prediction = AnalyticalModel().predict(
        read_profiles(lower(kernels.scale(256, 256), mi300x, only_read=True), mi300x), mi300x
    )
    assert prediction.latency_us > 0


def test_atomics_are_expensive_and_noted() -> None:
    def of(prim_func: object) -> Prediction:
        return AnalyticalModel().predict(read_profiles(lower(prim_func, H200, only_read=True), H200), H200)

    n = 2**22
    counted, copied = of(kernels.counter(n)), of(kernels.scale(n, 128))
    assert counted.latency_us > 50 * copied.latency_us
    assert counted.limiting == "atomics"
    assert counted.uncertainty > copied.uncertainty
    assert any("atomics" in note for note in counted.notes)


def test_a_matrix_rate_that_the_target_does_not_give_is_noted() -> None:
    def noted(dtype: str) -> bool:
        work = Work(matrix=(MatrixWork("mma.m8n8k4", 100, 512.0, dtype=dtype),))
        return any("matrix rate" in note for note in predict(plain(work)).notes)

    assert noted("float64")
    assert not noted("bfloat16")


def test_small_kernels_are_limited_by_their_launch() -> None:
    assert predict(plain(Work(vector_ops=1000.0), blocks=1)).limiting == "launch"


def test_blocks_start_one_after_another() -> None:
    short = Work(vector_ops=128.0)
    assert (
        predict(plain(short, threads=64, blocks=65_536)).latency_us
        > 65_536 * DEFAULT.dispatch_cycles / H200["core.clock_mhz"]
    )


def test_little_traffic_never_fills_the_memory() -> None:
    terms = [predict(plain(Work(accesses=(stream(each),)))).terms_us["dram"] for each in (512, 1 << 20)]
    full_us = DEFAULT.dram_ramp * H200["device.memory.dram.latency_ns"] / 1e3
    assert terms[0] < full_us / 10
    assert terms[1] > 132 * (1 << 20) / H200["device.memory.dram.read_gb_per_s"] / 1e3 + 0.9 * full_us


def test_loads_in_flight_together_share_a_latency() -> None:
    work = Work(accesses=(replace(stream(4096), loop_dependent=True),), vector_ops=512.0)
    apart = plain(work, trips=256, blocks=4)
    (role,) = apart.roles
    together = replace(apart, roles=(replace(role, phases=(replace(role.phases[0], pipeline_depth=8),)),))
    assert predict(together).latency_us < 0.5 * predict(apart).latency_us


def test_data_that_a_producer_fetches_once_are_waited_for() -> None:
    box = Access(
        Space.GLOBAL,
        "x",
        False,
        "tma",
        16384,
        512,
        1,
        128,
        asynchronous=True,
        box_bytes=16384,
        footprint_bytes=16384,
    )
    consumer = Role(
        "consumer",
        128,
        (Phase(Trips((1.0,)), Work(vector_ops=1024.0, barrier_waits=1)),),
        registers_limit=240,
    )

    def launch(accesses: tuple[Access, ...]) -> KernelProfile:
        producer = Role(
            "producer",
            128,
            (Phase(Trips((1.0,)), Work(accesses=accesses, integer_ops=1.0)),),
            registers_limit=24,
        )
        return KernelProfile("cuda", "sm_90a", (132, 1, 1), 256, 1, 16384, (producer, consumer), ())

    waited_us = predict(launch((box,))).terms_us["makespan"] - predict(launch(())).terms_us["makespan"]
    assert (
        waited_us > (DEFAULT.copy_start_cycles + H200["device.memory.l2.latency_ns"]) / H200["core.clock_mhz"]
    )


def _between_barriers(
    *, stored: bool = False, copies: bool = True, loads: float = 0.0, loaded: str = "s"
) -> KernelProfile:
    """An iteration of a block of eight warps with two barriers: copies, operand loads and matrix work.

    `stored` adds stores to the buffer "s", `loads` wavefronts of loads from the buffer `loaded`.
    """

    def shared(mechanism: str, wavefronts: float, *, write: bool) -> Access:
        return Access(Space.SHARED, "s", write, mechanism, wavefronts * 128, wavefronts, wavefronts)

    copied = replace(stream(16384), mechanism="cp_async", asynchronous=True)
    stores = (copied, shared("cp_async", 64, write=True)) if copies else ()
    work = Work(
        matrix=(MatrixWork("mma.m16n8k16", 256, 4096.0),),
        accesses=(
            shared("ldmatrix", 384, write=False),
            *stores,
            *((shared("st", 64, write=True),) if stored else ()),
            *((replace(shared("ld", loads, write=False), tensor=loaded),) if loads else ()),
        ),
        block_syncs=2,
        barrier_waits=1,
    )
    phase = Phase(Trips((256.0,)), work, pipeline_depth=3, is_loop=True)
    return replace(plain(work, threads=256), arch="sm_80", roles=(Role("all", 256, (phase,)),))


def test_warps_overlap_between_barriers_that_only_guard_copies() -> None:
    a100 = load_target("a100")
    without = {n: f for n, f in a100.figures.items() if n != "core.unit.matrix.barrier_overlap"}
    joined = replace(a100, figures=without)
    p = _between_barriers()
    assert predict(p, a100).latency_us < 0.99 * predict(p, joined).latency_us
    for other in (_between_barriers(stored=True), _between_barriers(copies=False)):
        assert predict(other, a100).latency_us == predict(other, joined).latency_us


def test_barriers_join_warps_that_rewrite_shared_memory() -> None:
    """Values that threads exchange leave the warps free for a part of an iteration."""
    exchanged = predict(_between_barriers(stored=True, loads=64)).latency_us
    rewritten = predict(_between_barriers(stored=True, loads=64, loaded="other")).latency_us
    assert 1.3 * exchanged < rewritten


def test_values_that_are_unpacked_and_stored_count_as_rewritten() -> None:
    """Also if the buffer that they go to is loaded from in the same iteration."""

    def steps(*accesses: tuple[str, bool, float]) -> SharedSteps:
        made = (
            Access(Space.SHARED, name, write, "st" if write else "ld", 128 * n, n, n)
            for name, write, n in accesses
        )
        return _shared_steps(Work(accesses=tuple(made)))

    packed = steps(("packed", False, 16), ("wide", True, 16), ("wide", False, 16))
    assert (packed.rewritten, packed.exchanged) == (16, 16)
    sums = steps(("sums", True, 2), ("sums", False, 2))
    assert (sums.rewritten, sums.exchanged) == (0, 2)
    counts = {"a": 0.1, "b": 0.2, "c": 0.3}
    thirds = steps(*((name, write, count) for name, count in counts.items() for write in (True, False)))
    assert thirds.rewritten == 0


def test_barriers_join_the_warps_of_hopper() -> None:
    # the constants were fitted to its kernels with joined warps
    assert "core.unit.matrix.barrier_overlap" not in H200.figures
    assert "core.unit.matrix.barrier_overlap" not in load_target("h100").figures


def _rate(target: Target, block_m: int, block_n: int, block_k: int, stages: int, threads: int) -> float:
    """Predicted TFLOP/s of a matmul of 8192 x 8192 x 8192."""
    kernel = kernels.matmul(
        8192, 8192, 8192, block_m, block_n, block_k, stages, threads, swizzle=8, dtype="float16"
    )
    (p,) = read_profiles(lower(kernel, target, only_read=True), target)
    return 2 * 8192**3 / predict(p, target).latency_us / 1e6


def test_pipelined_tiles_of_an_a100_come_near_the_published_rates() -> None:
    # cuBLAS: 238 to 271 TFLOP/s; TileLang's best: 0.97 of cuBLAS (arXiv 2504.17577)
    a100 = load_target("a100")
    best, usual, narrow = (
        _rate(a100, *tile, 3, 256) for tile in ((128, 256, 32), (128, 128, 32), (64, 64, 32))
    )
    assert 0.97 * 238 * 0.9 < best < 271
    assert 0.8 * best < usual < best
    assert narrow < 0.75 * best
    assert _rate(a100, 128, 128, 32, 1, 128) < 0.8 * _rate(a100, 128, 128, 32, 3, 128)


def test_the_number_of_stages_changes_nothing_on_an_mi300x() -> None:
    # TileLang 0.1.15 generates the same code for any of them; published: 383 TFLOP/s (CK, one stage)
    mi300x = load_target("mi300x")
    rates = {_rate(mi300x, 256, 256, 64, stages, 256) for stages in (0, 3)}
    assert len(rates) == 1
    assert rates.pop() == pytest.approx(383, rel=0.15)


@pytest.mark.parametrize("name", ["a100", "mi300x"])
def test_targets_that_nobody_measured_say_so(name: str) -> None:
    target = load_target(name)
    p = replace(plain(Work(vector_ops=1e6)), kind=target.kind, arch=target.arch)
    found = predict(p, target)
    (note,) = [n for n in found.notes if n.startswith("not measured on this target: ")]
    assert f"{UNMEASURED_UNCERTAINTY:.0%}" in note
    assert found.uncertainty == pytest.approx(math.hypot(BASE_UNCERTAINTY, UNMEASURED_UNCERTAINTY))
    clock = replace(target.figures["core.clock_mhz"], provenance="measured")
    calibrated = replace(target, figures={**target.figures, "core.clock_mhz": clock})
    assert predict(p, calibrated).notes == ()
    assert predict(p, calibrated).uncertainty == BASE_UNCERTAINTY


@pytest.mark.parametrize("name", ["h200", "h100"])
def test_targets_of_the_fitted_instruction_set_have_no_such_note(name: str) -> None:
    found = predict(plain(Work(vector_ops=1e6)), load_target(name))
    assert (found.notes, found.uncertainty) == ((), BASE_UNCERTAINTY)
