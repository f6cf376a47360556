"""Statements are counted as the device compiler executes them: joined, removed, apart or once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tilesight.costmodel.extract.copy_calls import SWAP_TRIPS, SWAP_WAVEFRONTS
from tilesight.costmodel.extract.joined_loads import Functions, widest_joined
from tilesight.costmodel.extract.kept_branches import HELD_PREDICATES
from tilesight.profile.values import Access, Space

from .. import fragment_kernels
from .. import statement_kernels as kernels
from .reading import accesses, read, role, total


def product(x: Any, y: Any) -> Any:
    return x * y


def logarithm(x: Any, y: Any) -> Any:
    from tilelang import language

    return x * language.log(y)


def twice(x: Any) -> Any:
    return x + x


def sine(x: Any) -> Any:
    from tilelang import language

    return language.sin(x)


def quotient(x: Any, y: Any) -> Any:
    return x / y


@pytest.mark.parametrize(
    ("dtype", "function", "widest"),
    [
        ("float32", product, 16),
        ("float32", logarithm, 16),
        ("bfloat16", product, 16),
        ("bfloat16", quotient, 16),
        ("bfloat16", logarithm, 2),
        ("float16", product, 8),
        ("float16", quotient, 2),
        ("float16", logarithm, 2),
    ],
)
def test_loads_of_narrow_types_are_joined_less(
    dtype: str, function: Callable[[Any, Any], Any], widest: int
) -> None:
    profile = read(kernels.products_of_rows(dtype, function))
    loads = [a for a in accesses(profile, Space.SHARED) if a.mechanism == "ld"]
    assert {a.vector_bytes for a in loads} == {widest}


def test_fast_math_joins_loads_beside_logarithms() -> None:
    profile = read(kernels.products_of_rows("float16", logarithm), flags=("--use_fast_math",))
    loads = [a for a in accesses(profile, Space.SHARED) if a.mechanism == "ld"]
    assert {a.vector_bytes for a in loads} == {8}


def test_no_loads_of_eight_bits_are_joined() -> None:
    assert widest_joined("float8_e4m3", Functions.SHORT) == 0
    assert widest_joined("uint8", Functions.SHORT) == 16


def test_what_nothing_uses_is_not_computed() -> None:
    used, unused = (read(kernels.sums_of_channels(used)) for used in (True, False))
    assert sum(a.bytes for a in accesses(used)) > 0
    assert accesses(unused) == []
    assert total(unused, "vector_ops") < total(used, "vector_ops")


@pytest.mark.parametrize("used", [True, False])
def test_a_call_that_changes_memory_is_made_though_nothing_uses_its_result(used: bool) -> None:
    (added,) = (a for a in accesses(read(kernels.counted(used)), write=True) if a.mechanism == "atomic")
    assert added.bytes > 0


def atomics(dtype: str, places: int, shared: bool) -> Access:
    profile = read(kernels.added_up(dtype, places, shared))
    space = Space.SHARED if shared else Space.GLOBAL
    (found,) = (a for a in accesses(profile, space, write=True) if a.mechanism == "atomic")
    return found


@pytest.mark.parametrize("shared", [False, True])
def test_the_integers_of_a_warp_for_one_address_are_added_up_before(shared: bool) -> None:
    warps = 4
    assert atomics("int32", 1, shared).bytes == warps * 4
    assert atomics("int32", 2, shared).bytes == warps * 32 * 4
    assert atomics("float32", 1, shared).bytes == warps * 32 * 4


@pytest.mark.parametrize(("places", "rounds"), [(1, 32), (8, 4), (128, 1)])
def test_floats_are_added_in_shared_memory_lane_after_lane(places: int, rounds: int) -> None:
    """All lanes of a warp compare and swap in each round, and one of those of an address succeeds."""
    assert atomics("float32", places, True).transactions == 4 * (1 + (rounds - 1) * SWAP_WAVEFRONTS)
    assert atomics("float32", places, False).transactions < 4 * 8  # device memory adds floats by itself


def test_floats_of_places_that_data_choose_are_taken_to_meet_no_other() -> None:
    (added,) = (
        a
        for a in accesses(read(kernels.added_where_data_say()), Space.SHARED, write=True)
        if a.mechanism == "atomic"
    )
    assert 0 < added.transactions < 4 * SWAP_WAVEFRONTS


def test_a_branch_with_divisions_waits_for_its_load() -> None:
    # the windows of an image of 33 do not fill the tiles, so each row has a condition of its own
    producer = role(read(kernels.windows_of_an_image(33, 128, edge=True)), "producer")
    (loop,) = [p for p in producer.phases if p.is_loop]
    assert (loop.trips.mean, loop.pipeline_depth) == (32, 1)
    assert (loop.work.load_branches, loop.work.divided_addresses) == (4, 4)  # of each warp


def test_branches_with_divisions_under_one_condition_are_joined() -> None:
    producer = role(read(kernels.windows_of_an_image(38, 128, edge=False)), "producer")
    assert not any(p.is_loop for p in producer.phases)
    assert sum(p.work.load_branches for p in producer.phases) == pytest.approx(128 / 5)
    assert sum(p.work.divided_addresses for p in producer.phases) == 128  # rows of a tile, of a warp each


def test_loads_beside_divisions_wait_in_each_iteration() -> None:
    branches = {d: total(read(kernels.scaled_channels(d)), "load_branches") for d in (False, True)}
    assert branches == {False: 0, True: 2 * 96 * 4}  # groups, channels, warps
    fast = read(kernels.scaled_channels(True), flags=("--use_fast_math",))
    assert total(fast, "load_branches") == 0


def test_an_expression_loads_an_element_once() -> None:
    (load,) = accesses(read(kernels.leaky()))
    assert load.bytes == 128 * 4


@pytest.mark.parametrize(("written", "each"), [("maximum", 1), ("branch", 3), ("memory", 1)])
def test_comparisons_and_moves_under_a_condition_are_selections(written: str, each: int) -> None:
    profile = read(kernels.largest_element(written))
    assert total(profile, "selections") == each * 128 * 16
    assert total(profile, "vector_ops") == each * 128 * 16


def test_a_guarded_load_within_a_selection_is_a_branch() -> None:
    nested, single = (read(fragment_kernels.on_the_diagonal(nested)) for nested in (True, False))
    assert total(nested, "shared_branches") == 64 * 64 / 32  # of each warp, one for each of its values
    assert total(single, "shared_branches") == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_elements_that_branches_compute_have_a_register_each(dtype: str) -> None:
    each, packed = (
        read(fragment_kernels.on_the_diagonal(nested, dtype=dtype)).roles[0].local_registers
        for nested in (True, False)
    )
    assert (each, packed) == (64 * 64 / 128, 64 * 64 / 128 / 2)


def test_stores_of_lone_sectors_cost_both_halves_of_64_bytes() -> None:
    shares = {
        width: [a.alone_share for a in accesses(read(fragment_kernels.stripes(width)), write=True)]
        for width in (8, 16)
    }
    assert shares == {8: [1.0], 16: [0.0]}


@pytest.mark.parametrize(("width", "lines"), [(4, 32), (8, 16), (32, 4)])
def test_stores_touch_lines_of_128_bytes(width: int, lines: int) -> None:
    """A warp stores four, two or one bytes wide rows of a stripe, each in a line of its own."""
    for store in accesses(read(fragment_kernels.stripes(width)), write=True):
        assert store.lines / store.instructions == lines


@pytest.mark.parametrize(("width", "branches"), [(55, 16), (64, 0)])
def test_a_selection_with_several_divisions_is_a_branch(width: int, branches: int) -> None:
    # of images of 64, a quotient is a shift
    profile = read(kernels.windows_under_a_selection(width))
    (loop,) = [p for r in profile.roles for p in r.phases if p.is_loop and p.work.matrix]
    warps = 128 / 32
    assert (loop.work.load_branches, loop.work.divided_addresses) == (branches * warps, branches * warps)


def test_an_element_of_shared_memory_is_converted_once() -> None:
    profile = read(kernels.products_without_matrix_units())
    # for each of 32 steps, a column of B and half of the rows of A; then nothing
    assert total(profile, "convert_ops") == 128 * 32 * (1 + 32)


@pytest.mark.parametrize(("columns", "width"), [(64, 16), (128, 16), (136, 16), (131, 4)])
def test_a_loop_that_is_unrolled_in_part_joins_loads_from_shared_memory(columns: int, width: int) -> None:
    loads = [
        a for a in accesses(read(kernels.sums_of_shared_rows(columns)), Space.SHARED) if a.mechanism == "ld"
    ]
    assert [a.vector_bytes for a in loads] == [width]


def test_a_loop_that_is_too_long_to_be_unrolled_joins_none() -> None:
    profile = read(kernels.products_without_matrix_units())
    assert {a.vector_bytes for a in accesses(profile, Space.SHARED) if a.mechanism == "ld"} == {2}


@pytest.mark.parametrize(("dtype", "step"), [("float16", 2), ("float32", 4)])
def test_a_walk_over_a_row_stays_in_a_sector(dtype: str, step: int) -> None:
    (walk,) = accesses(read(kernels.sums_of_rows_by_a_thread_each(1000, dtype)))
    assert walk.step_bytes == step


@pytest.mark.parametrize(("function", "calls"), [("divide", 1), ("sigmoid", 2), ("sqrt", 1), ("exp", 0)])
def test_exact_divisions_and_roots_branch_to_routines(function: str, calls: int) -> None:
    exact, fast = (read(kernels.quotients(function), flags=flags) for flags in ((), ("--use_fast_math",)))
    assert total(exact, "routine_calls") == calls * 4 * 128 / 32  # of each warp, for each of four values
    assert total(fast, "routine_calls") == 0


def test_each_condition_on_an_array_in_local_memory_is_waited_for() -> None:
    warps = 128 / 32
    for twice in (False, True):
        profile = read(kernels.steps_that_a_mask_chooses(1024, twice))
        assert total(profile, "shared_branches") == warps * 1024 * (1 + twice)


def test_loads_that_share_sectors_move_them_once() -> None:
    """The first-level cache has the fields of a record that an earlier statement has loaded one of."""
    loads = accesses(read(kernels.fields_of_records()))
    assert [load.sector_bytes for load in loads] == [0.0, 1.0, 1.0, 1.0]
    assert len({load.transactions for load in loads}) == 1


def test_copies_of_a_loop_that_stays_a_loop_load_for_themselves() -> None:
    loads = accesses(read(kernels.products_of_columns()))
    assert [load.bytes for load in loads] == [4 * 128 * 4] * 2  # a column and a factor, for each of four


@pytest.mark.parametrize(("excluded", "loads"), [(True, 1), (False, 4)])
def test_iterations_under_conditions_that_exclude_each_other_share_no_load(
    excluded: bool, loads: int
) -> None:
    """A thread has an element of one of four taps, or of each: machine code divides and loads four times."""
    (load,) = accesses(read(kernels.strided_taps(excluded)))
    assert load.bytes == loads * 128 * 4


@pytest.mark.parametrize(("converted", "trips"), [(True, 1 / HELD_PREDICATES), (False, 0.0)])
def test_loads_whose_predicates_are_needed_again_wait(converted: bool, trips: float) -> None:
    profile = read(kernels.guarded_elements(converted))
    assert total(profile, "load_branches") == pytest.approx(16 * 128 / 32 * trips)


@pytest.mark.parametrize(("function", "warps"), [(twice, 4), (sine, 1)])
def test_all_warps_issue_what_becomes_predicates(function: Callable[[Any], Any], warps: int) -> None:
    """A branch around a function stays one, which the other warps pass over."""
    some, every = (total(read(kernels.first_threads(count, function)), "vector_ops") for count in (32, 128))
    assert some == every * warps / 4


def test_a_condition_on_an_unrolled_counter_is_no_branch() -> None:
    """Of 16 copies of an iteration, the compiler keeps those for which the condition holds."""
    executed = total(read(kernels.first_copies(4)), "vector_ops")
    assert executed == pytest.approx(4 * 128, rel=0.05)  # iterations are sampled


def test_an_array_whose_index_derives_from_data_lies_in_local_memory() -> None:
    """Both places are constants in each copy of the loop, but data choose one of them."""
    chosen, reversed_ = (read(kernels.chosen_elements(chooses)) for chooses in (True, False))
    assert [a.bytes for a in accesses(chosen, Space.LOCAL)] == [128 * 8 * 4]
    assert [a.bytes for a in accesses(chosen, Space.LOCAL, write=True)] == [128 * 8 * 4]
    assert not accesses(reversed_, Space.LOCAL)


def test_a_loop_over_numbers_tells_the_tiles_of_a_block() -> None:
    """Blocks of a row of tiles share one of their operands, which a loop without data finds."""
    tiles = 16
    loads = accesses(read(kernels.tiles_below_the_diagonal(tiles)))
    assert len(loads) == 2
    for load in loads:
        assert len(set(load.tile_ids)) == tiles
        assert len(load.tile_ids) == tiles * (tiles + 1) // 2


@pytest.mark.parametrize("smallest", [False, True])
def test_extremes_of_floats_in_device_memory_load_and_swap(smallest: bool) -> None:
    warps = 128 / 32
    floats, numbers = (read(kernels.largest_of_columns(t, smallest)) for t in ("float32", "int32"))
    assert total(floats, "load_branches") == SWAP_TRIPS * 4 * warps
    assert total(numbers, "load_branches") == 0


@pytest.mark.parametrize(
    ("divisions", "late", "trips"),
    [(0, True, 0), (1, False, 1), (4, True, 1.5), (16, True, 2), (16, False, 1)],
)
def test_loads_stay_behind_the_exact_divisions_before_their_use(
    divisions: int, late: bool, trips: float
) -> None:
    """With four divisions two copies of a step follow each other."""
    exact, fast = (
        read(kernels.steps_with_quotients(divisions, late), flags=flags)
        for flags in ((), ("--use_fast_math",))
    )
    warps = 128 / 32
    assert total(exact, "load_branches") == warps * 128 * trips
    assert total(fast, "load_branches") == 0


@pytest.mark.parametrize(("divided", "copies"), [("number", 1), ("element", 16), ("root", 16)])
def test_branches_keep_their_functions(divided: str, copies: int) -> None:
    profile = read(kernels.shares_of_the_largest(divided))
    assert total(profile, "routine_calls") == copies * 128 / 32


def test_loads_that_are_bound_to_variables_keep_a_loop_as_others_do() -> None:
    for bound in (True, False):
        (loop,) = [p for p in role(read(kernels.filtered(bound)), "all").phases if p.is_loop]
        assert loop.trips.mean == 11
