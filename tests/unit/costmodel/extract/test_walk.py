"""Counts of short loops, local scalars, data in addresses and conditions, and device functions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tilelang.language as T  # noqa: N812

from tests.unit.costmodel import sample_kernels as kernels
from tests.unit.costmodel.extract.reading import accesses, read, role, total
from tilesight import predict
from tilesight.costmodel.analytical.tiles import Tiles
from tilesight.costmodel.extract import trips
from tilesight.costmodel.extract.value_counts import SOFTWARE_NARROWING, SOFTWARE_WIDENING
from tilesight.errors import InputError
from tilesight.kernels import operator, template_for
from tilesight.problem.space import Config
from tilesight.profile.values import Space, Trips
from tilesight.target.spec import load_target


def test_the_operand_of_a_reinterpretation_is_counted() -> None:
    bits, value = (read(kernels.packed_halves(1 << 14, reinterpreted)) for reinterpreted in (True, False))
    assert total(bits, "integer_ops") == total(value, "integer_ops") > 0
    assert [a.bytes for a in accesses(bits)] == [a.bytes for a in accesses(value)] == [256.0]
    assert total(bits, "convert_ops") == 0  # the bits stay as they are


def test_functions_of_float64_are_programs() -> None:
    """An exponential has no special function. 18 of its 60 instructions are of float64, and the addition."""
    single, double = (read(kernels.values_of(1 << 14, t, T.exp)) for t in ("float32", "float64"))
    lanes = 128
    assert total(double, "vector_ops") == (60 + 1) * lanes > 5 * total(single, "vector_ops")
    assert (total(double, "special_ops"), total(single, "special_ops")) == (0, lanes)
    assert total(double, "selections") == (18 + 1) * lanes
    assert total(single, "selections") == 0
    quotient = read(kernels.values_of(1 << 14, "float64", lambda x: 1.0 / x))
    assert (total(quotient, "special_ops"), total(quotient, "vector_ops")) == (lanes, (16 + 1) * lanes)


def test_a_short_loop_of_loads_is_unrolled_as_by_the_compiler() -> None:
    assert (
        read(kernels.thread_sums(1 << 16, 4, unrolled=False)).roles
        == read(kernels.thread_sums(1 << 16, 4, unrolled=True)).roles
    )


def test_loads_of_a_longer_loop_overlap() -> None:
    (loop,) = [
        p for p in role(read(kernels.thread_sums(1 << 16, 64, unrolled=False)), "all").phases if p.is_loop
    ]
    assert (loop.trips.mean, loop.pipeline_depth) == (64, 32)


@pytest.mark.parametrize(("lanes", "unroll", "phases", "depth"), [(8, 1, 2, 8), (8, 4, 2, 1), (512, 1, 1, 1)])
def test_a_loop_of_loads_overlaps_as_far_as_the_compiler_unrolls_it(
    lanes: int, unroll: int, phases: int, depth: int
) -> None:
    # a row in steps of 8 elements a thread: many small ones, fewer large ones, one alone
    p = read(kernels.row_sums(256, 4096, lanes, unroll))
    assert len(role(p, "all").phases) == phases
    assert role(p, "all").phases[0].pipeline_depth == depth


def test_guarded_loads_of_a_loop_hardly_overlap() -> None:
    whole, guarded = (role(read(kernels.row_sums(256, n, 8, 2)), "all").phases[0] for n in (4096, 4088))
    assert (whole.pipeline_depth, guarded.pipeline_depth) == (8, 2)
    assert role(read(kernels.row_sums(256, 4088, 8, 4)), "all").phases[0].pipeline_depth == 1


def test_a_tile_of_ragged_rows_is_loaded_one_by_one() -> None:
    # rows of 48 pairs and 64 threads: each load has two conditions that depend on its thread
    ragged, even = (read(kernels.ragged_tiles(1001, 90, 16, columns)) for columns in (96, 128))
    assert [p.trips.mean for p in role(ragged, "all").phases if p.is_loop] == [12.0]  # two elements at a time
    assert not any(p.is_loop for p in role(even, "all").phases)


def built(operator_name: str, shape: str, dtype: str, **config: Any) -> Any:
    """One config of the library's kernel for an operator."""
    template = template_for(operator_name, load_target("h200"), dtype)
    return template.build(operator(operator_name).workload(shape, dtype), Config(config))


def test_guarded_loads_in_a_branch_wait_for_each_other() -> None:
    # 64 x 32 elements of A: 384 threads need a sixth, partial pass, which makes each pass a branch
    common = {"block_m": 64, "block_n": 192, "block_k": 32, "policy": "square", "epilogue": "shared"}
    odd, even = (
        read(
            built(
                *("matmul", "m=777,n=1111,k=555", "bfloat16"),
                **common, threads=threads, num_stages=4, swizzle=0,
            )
        )
        for threads in (384, 256)
    )  # fmt: skip
    (loop,) = [p for p in role(odd, "all").phases if p.is_loop and p.work.matrix]
    assert loop.work.load_branches == 6 * 384 / 32
    assert total(even, "load_branches") == 0


def test_copies_to_swizzled_rows_that_the_threads_do_not_divide_wait_for_each_other() -> None:
    # 384 threads copy three rows of 128 elements at a time, the last pass is partial, and the swizzle of rows
    # is computed anew in each pass: each pass is a branch
    common = {"block_k": 32, "block_n": 64, "num_stages": 3, "copies": "bulk"}
    ragged, even = (
        read(built("chunk_scan", "CC2", "bfloat16", **common, block_m=64 * groups, threads=128 * groups))
        for groups in (2, 1)
    )
    # of C, by single elements, and of the state, by pairs
    assert [p.trips.mean for p in role(ragged, "all").phases if p.is_loop] == [-(-128 // 3), -(-64 // 6)]
    assert not any(p.is_loop for p in role(even, "all").phases)


@pytest.mark.parametrize("nested", [False, True])
def test_each_branch_with_guarded_loads_is_one_round_trip(nested: bool) -> None:
    # the loads of the other blocks stand in a branch of their own, without a condition
    profile = read(kernels.padded_rows(1 << 14, 120, nested=nested))
    (loop,) = [p for p in role(profile, "all").phases if p.is_loop]
    warps = 128 / 32
    assert loop.pipeline_depth == 1
    assert loop.trips.mean * max(1.0, loop.work.load_branches / warps) == 8


@pytest.mark.parametrize(("in_place", "depth"), [(False, 8), (True, 2)])
def test_loads_of_constant_tensors_pass_stores(in_place: bool, depth: int) -> None:
    (loop,) = [p for p in role(read(kernels.prefix_sums(1 << 12, 64, in_place)), "all").phases if p.is_loop]
    assert (loop.trips.mean, loop.pipeline_depth) == (64, depth)


def test_an_array_indexed_by_a_long_loop_lies_in_local_memory() -> None:
    short, long = (read(kernels.held_steps(1 << 12, steps)) for steps in (64, 512))
    assert not accesses(short, Space.LOCAL)
    assert role(short, "all").local_registers >= 64
    (stored,) = accesses(long, Space.LOCAL, write=True)
    assert stored.bytes == 32 * 4
    assert stored.footprint_bytes == 32 * 4 * 512
    # its elements are loaded twice: for the sum and for the output
    assert [a.bytes for a in accesses(long, Space.LOCAL)] == [32 * 4] * 2
    assert role(long, "all").local_registers < 8


@pytest.mark.parametrize(
    ("steps", "slots", "stays"),
    [(512, 4, False), (1001, 4, False), (512, 8, False), (1001, 8, True), (512, 32, True), (512, 12, True)],
)
def test_a_remainder_that_copies_of_a_loop_know_leaves_an_array_in_registers(
    steps: int, slots: int, stays: bool
) -> None:
    assert bool(accesses(read(kernels.sums_by_remainder(1 << 12, steps, slots)), Space.LOCAL)) == stays


def test_loops_that_index_an_array_of_more_than_the_registers_are_kept() -> None:
    assert not accesses(read(kernels.held_rows(1 << 12, 4, 32)), Space.LOCAL)
    assert accesses(read(kernels.held_rows(1 << 12, 4, 128)), Space.LOCAL)


def test_products_that_are_added_up_at_once_need_no_memory() -> None:
    """All loops are unrolled: 1,024 products, each of which becomes a multiply-add, unless they are kept."""
    added, *kept = (
        read(kernels.unrolled_products(1 << 12, 32, 32, carried, again))
        for carried, again in ((False, False), (True, False), (False, True))
    )
    assert not accesses(added, Space.LOCAL)
    assert role(added, "all").local_registers < 128  # those of a row of factors and a row of sums
    assert all(accesses(each, Space.LOCAL) for each in kept)


def test_loads_from_local_memory_wait_for_stores_to_another_array() -> None:
    whole, part = (read(kernels.serial_rows(64, 2048, guarded)) for guarded in (False, True))
    warps = 128 / 32
    # four elements at once where no condition chooses them
    assert total(whole, "local_waits") == warps * 2048 / 4
    assert total(part, "local_waits") == warps * 2048
    # 8 elements a thread are stored again and again
    (stored,) = [a for a in accesses(part, Space.LOCAL, write=True) if a.footprint_bytes == 128 * 8 * 4]
    assert stored.sector_bytes < stored.bytes / 100
    # sums in place: their loop stores to no other array
    assert total(read(kernels.sums_by_remainder(1 << 12, 512, 12)), "local_waits") == 0


def test_an_array_that_only_a_condition_reads_lies_in_local_memory() -> None:
    """Its elements are stored at a number that is computed from the counter of a loop."""
    profile = read(kernels.chosen_rows(64, 32))
    assert accesses(profile, Space.LOCAL, write=True)
    assert accesses(profile, Space.LOCAL)
    assert role(profile, "all").local_registers < 8


def test_a_loop_whose_copies_would_be_long_code_keeps_its_array_in_local_memory() -> None:
    few, many = (read(kernels.logarithms(1 << 12, steps)) for steps in (2, 8))
    assert not accesses(few, Space.LOCAL)
    assert accesses(many, Space.LOCAL, write=True)


@pytest.mark.parametrize(("lanes", "alone"), [(1, 1.0), (4, 0.0)])
def test_stores_of_single_lanes_lie_alone(lanes: int, alone: float) -> None:
    # four lanes store half a sector of a row, and the next instruction the other half
    (store,) = accesses(read(kernels.transposed(1 << 10, lanes)), write=True)
    assert store.transactions / store.instructions == 32 / lanes
    assert store.alone_share == alone


def test_divisions_of_addresses_are_counted_once() -> None:
    def operations(divisor: int, dtype: str = "int32") -> float:
        return total(read(kernels.divided(1 << 14, divisor, dtype)), "integer_ops")

    shifted, divided = operations(8), operations(7)
    assert divided - shifted == 5 * 128  # for the loads of both copies and for the stored quotient
    assert operations(7, "int64") - operations(8, "int64") == (5 + 14) * 128


def test_a_long_copy_with_two_conditions_is_loaded_one_by_one() -> None:
    # 32 rows of 3001 elements by 64 threads: 1504 passes, more than the compiler unrolls; 4 rows: 188 passes
    def passes(block_m: int) -> list[tuple[float, int]]:
        config = {"block_m": block_m, "keep": "shared", "reduce_threads": 8, "threads": 64}
        profile = read(built("rms_norm", "m=2047,n=3001", "bfloat16", **config, unroll=1, vector=1))
        return [
            (p.trips.mean, p.pipeline_depth)
            for p in role(profile, "all").phases
            if p.is_loop and any(a.space is Space.SHARED and a.write for a in p.work.accesses)
        ]

    assert passes(32) == [(1504.0, 1)]
    assert passes(4) == []


def test_barriers_keep_only_loads_of_written_tensors_apart() -> None:
    # nvcc moves loads of constant tensors over barriers: eight iterations of two barriers load together
    def depth(*, in_place: bool) -> int:
        profile = read(kernels.staged_steps(64, 128, in_place=in_place))
        (loop,) = [p for p in role(profile, "all").phases if p.is_loop]
        assert loop.work.block_syncs == 2
        return loop.pipeline_depth

    assert depth(in_place=False) == 8
    assert depth(in_place=True) == 1


def test_a_loop_over_registers_is_unrolled_whole() -> None:
    loop = next(p for p in role(read(kernels.held_steps(64, 48)), "all").phases if p.is_loop)
    assert (loop.trips.mean, loop.pipeline_depth) == (48, 48)
    long = next(p for p in role(read(kernels.held_steps(64, 100)), "all").phases if p.is_loop)
    assert long.pipeline_depth == 64  # as far as registers hold what was loaded


def test_an_address_that_a_thread_meets_again_is_loaded_once() -> None:
    (load,) = [a for a in accesses(read(kernels.rows_scaled(32, 64))) if not a.write]
    assert load.instructions == 2 * 128 / 32  # two rows a thread, for sixteen elements
    assert load.bytes == 2 * 128 * 4


def test_values_of_less_than_a_word_are_stored_one_by_one() -> None:
    rows = read(kernels.narrow_rows(64))
    ((store,), (load,)) = (accesses(rows, Space.SHARED, write=write) for write in (True, False))
    assert (store.vector_bytes, store.instructions) == (2, 16.0)
    assert (load.vector_bytes, load.instructions) == (8, 4.0)  # float16


@pytest.mark.parametrize("ring", [1, 3, 5])
def test_a_counter_in_a_local_scalar_chooses_slots(ring: int) -> None:
    p = read(kernels.tick(1 << 10, ring))
    written = [a for a in accesses(p, Space.SHARED, write=True) if a.loop_dependent or ring == 1]
    assert {a.slots for a in written} == {ring}


def test_a_choice_by_data_depends_on_the_index_of_the_data() -> None:
    p = read(kernels.chosen_weights(512, 512, 256, 8, 128, 64, 2))
    largest = max((t for t in p.tensors), key=lambda t: t.bytes)
    (weights,) = [a for a in accesses(p) if a.tensor == largest.label]
    assert weights.axes == frozenset(
        "xy"
    )  # the expert follows the row of blocks, the columns follow the block
    assert weights.loop_dependent


def test_a_branch_on_data_is_noted_as_always_taken() -> None:
    p = read(kernels.masked_matmul(512, 512, 256, 128, 64, 2))
    assert any("depends on data" in note for note in p.notes)
    assert {a.slots for a in accesses(p) if a.mechanism == "tma"} == {2}
    assert read(kernels.matmul(512, 512, 256, 128, 128, 64, 2, 128)).notes == ()


def test_loads_inside_addresses_are_counted() -> None:
    p = read(kernels.gather(1 << 14, 1 << 20))
    # the indices, wherever they are asked for, and the values
    assert {t.bytes for t in p.tensors if t.label in {a.tensor for a in accesses(p)}} == {
        (1 << 14) * 4,
        (1 << 20) * 4,
    }
    (added,) = accesses(p, write=True)
    assert added.mechanism == "atomic"


def test_running_sums_are_known() -> None:
    p = read(kernels.running_sums(1024, 256, 8))
    assert p.unknown_calls == ()
    # 8 rows of 8 segments of 32, five steps and a carry each
    assert total(p, "shuffles") == 8 * 8 * 32 * 6
    moved = sum(
        a.bytes
        for write in (False, True)
        for a in accesses(p, Space.SHARED, write=write)
        if a.tensor == "scan"
    )
    assert moved == 2 * 8 * 256 * 4


def test_loops_within_loops_multiply_block_by_block() -> None:
    rows, columns = Trips((1.0, 2.0), frozenset("y")), Trips((3.0, 4.0, 5.0), frozenset("x"))
    both = trips.product(rows, columns, (3, 2, 1))
    assert both == Trips((3.0, 4.0, 5.0, 6.0, 8.0, 10.0), frozenset("xy"))
    assert trips.product(both, Trips((0.5,)), (3, 2, 1)).per_block == (1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
    assert trips.product(rows, rows, (3, 2, 1)).per_block == (1.0, 4.0)


@pytest.mark.parametrize(
    ("blocks", "turns", "first", "tolerance"),
    [
        (16, 1, 200, 0.0),  # few iterations, all beyond the mean number
        (16, 1, 2, 0.02),  # nearly all iterations, which are sampled
        (8, 8, 6, 0.02),  # a loop in a loop
        (1, 200, 150, 0.15),  # some iterations of the inner loop, of which the turn has more or less
    ],
)
def test_conditions_on_iterations_that_only_some_blocks_have(
    blocks: int, turns: int, first: int, tolerance: float
) -> None:
    profile = read(kernels.late_iterations(blocks, turns, first))
    lengths = [16 * block + turn + 1 for block in range(blocks) for turn in range(turns)]
    loaded = profile.blocks * sum(
        phase.trips.mean * access.bytes
        for phase in role(profile, "all").phases
        for access in phase.work.accesses
        if access.space == "global" and not access.write
    )
    exact = sum(max(0, length - first) for length in lengths) * 128 * 4
    assert loaded == pytest.approx(exact, rel=tolerance)


def test_a_compiled_kernel_is_predicted_with_its_own_options() -> None:
    kernel = kernels.matmul(2048, 2048, 2048, 128, 128, 64, 3, 128)
    options = {"tl.disable_tma_lower": True, "tl.disable_warp_specialized": True}
    plain = predict(kernel, "h200")
    compiled = predict(SimpleNamespace(prim_func=kernel, pass_configs=options), "h200")
    assert compiled.latency_us != plain.latency_us
    assert predict(SimpleNamespace(prim_func=kernel, pass_configs={}), "h200").latency_us == plain.latency_us


def test_an_error_tells_what_a_kernel_is() -> None:
    with pytest.raises(InputError, match="a function that returns one"):
        predict(SimpleNamespace(get_tir=lambda: None), "h200")


@pytest.mark.parametrize(("down", "run"), [(True, 256.0), (False, 64 * 256.0)])
def test_neighbours_that_start_together_continue_a_run(down: bool, run: float) -> None:
    """Tiles of 64 columns of 4 bytes: alone, or beside the 63 others of the same rows."""
    profile = read(kernels.stripes(4096, 4096, 32, 64, down))
    runs = {a.run_bytes for write in (False, True) for a in accesses(profile, write=write)}
    assert runs == {run}


@pytest.mark.parametrize(
    ("columns", "down", "own"), [(16, False, 64.0), (32, False, 128.0), (64, False, 0.0), (16, True, 0.0)]
)
def test_short_runs_of_a_block_are_kept_apart_from_those_of_its_neighbours(
    columns: int, down: bool, own: float
) -> None:
    """Columns of 4 bytes. Runs of 256 bytes are long; those without neighbours are the block's own anyway."""
    profile = read(kernels.stripes(4096, 4096, 32, columns, down))
    runs = {a.own_run_bytes for write in (False, True) for a in accesses(profile, write=write)}
    assert runs == {own}


@pytest.mark.parametrize(
    ("steps", "each", "unrolled", "code"),
    [(2000, 1, True, 2002.0), (2000, 1, False, 0.0), (32, 40, True, 1282.0), (32, 40, False, 0.0)],
)
def test_the_code_of_a_loop_has_its_unrolled_steps_and_one_copy_of_others(
    steps: int, each: int, unrolled: bool, code: float
) -> None:
    """Steps are unrolled if the source says so; else a loop of many, or of large ones, stays one."""
    profile = read(kernels.long_iterations(steps, each, unrolled=unrolled))
    assert [p.code_instructions for r in profile.roles for p in r.phases if p.is_loop] == [code]
    assert all(p.code_instructions == 0 for r in profile.roles for p in r.phases if not p.is_loop)


def test_what_a_condition_loads_stands_under_no_condition() -> None:
    """So the loads of many iterations are in flight together."""
    (loop,) = (p for r in read(kernels.ranks()).roles for p in r.phases if p.is_loop)
    assert loop.pipeline_depth >= 16


@pytest.mark.parametrize(("apart", "run"), [(1, 4096 * 128.0), (2, 64.0)])
def test_statements_continue_the_runs_of_each_other(apart: int, run: float) -> None:
    """Two halves of 16 columns of 4 bytes: whole rows together, unless there are columns in between."""
    profile = read(kernels.exchanged_halves(4096, 32, 64, apart))
    runs = {a.run_bytes for write in (False, True) for a in accesses(profile, write=write)}
    assert runs == {run}


def test_narrow_floats_without_an_instruction_take_a_function() -> None:
    """An H100 converts 8 bits by instructions, an A100 only 16; neither converts 4."""
    ops = {
        (target, dtype): total(read(kernels.narrowed(1 << 16, dtype), target), "integer_ops")
        for target in ("h100", "a100")
        for dtype in ("float8_e4m3fn", "float4_e2m1fn")
    }
    function = 512 * (SOFTWARE_NARROWING + SOFTWARE_WIDENING)
    by_instruction = ops["h100", "float8_e4m3fn"]
    assert by_instruction < 0.1 * function
    for narrow in (("h100", "float4_e2m1fn"), ("a100", "float8_e4m3fn"), ("a100", "float4_e2m1fn")):
        assert ops[narrow] == pytest.approx(function + by_instruction, rel=0.1)


def test_the_steps_of_reductions_follow_each_other() -> None:
    """Five steps of a warp, once for each turn; one turn is straight code."""
    for turns in (1, 64):
        assert total(read(kernels.warp_sums(64, 8192, turns)), "exchange_steps") == 5 * turns


def test_what_a_cluster_loads_together_is_read_once() -> None:
    """The first block of two loads for both: L2 is read by half of the blocks, and all receive."""
    rows, cols, block, clusters = 512, 64, 32, 8
    p = read(kernels.multicast(rows, cols, block, clusters))
    box = block * cols * 2
    assert p.cluster == 2
    common, own = (a for a in accesses(p) if a.mechanism == "tma")
    assert (common.bytes, common.instructions, common.footprint_bytes) == (box / 2, 0.5, box)
    assert (own.bytes, own.instructions, own.footprint_bytes) == (box, 1.0, box)
    assert Tiles.of(common).count(p.grid) == clusters
    received = [a.bytes for a in accesses(p, Space.SHARED, write=True) if a.mechanism == "tma"]
    assert received == [box, box]
    assert not p.notes
