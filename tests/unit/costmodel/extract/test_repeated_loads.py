"""Loads, exchanges and conditions are counted as often as machine code has them, and wait where it waits."""

from __future__ import annotations

import pytest

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.extract.calls import DIVERGENT_STEPS
from tilesight.costmodel.extract.value_counts import SPILLED_IN_FLIGHT
from tilesight.profile.values import KernelProfile, Space
from tilesight.target.spec import load_target

from .. import repeated_kernels as kernels
from .reading import accesses, read, total

WARPS = 4  # of 128 threads


def shared_loads(profile: KernelProfile) -> list[float]:
    return [a.bytes for a in accesses(profile, Space.SHARED) if a.mechanism == "ld"]


def test_equal_exchanges_of_all_lanes_are_one() -> None:
    """A macro repeats its argument: the steps of a sum are 31 shuffles in the source, of which 5 are made."""
    assert total(read(kernels.sums_over_lanes(WARPS)), "shuffles") == 5 * 128


def test_exchanges_in_a_branch_are_made_each_one_after_another() -> None:
    profile = read(kernels.sums_over_lanes(1))
    assert total(profile, "shuffles") == 31 * 32  # of one warp
    # the other warps wait for it
    assert total(profile, "exchange_steps") == pytest.approx(31 * DIVERGENT_STEPS)
    assert total(read(kernels.sums_over_lanes(WARPS)), "exchange_steps") == 0


@pytest.mark.parametrize(("shared", "waits"), [(True, 2), (False, 0)])
def test_conditions_wait_for_shared_memory_that_their_loop_rewrites(shared: bool, waits: int) -> None:
    """The values and the places that are compared come from shared memory, one after the other."""
    profile = read(kernels.largest_by_one_thread(shared))
    assert total(profile, "shared_branches") == waits * 127 * WARPS


def test_copies_of_a_loop_load_two_halves_of_a_byte_once() -> None:
    (packed,) = shared_loads(read(kernels.halves_of_bytes()))
    assert packed == 1024 / 2 * 128


@pytest.mark.parametrize(("apart", "loads"), [(False, 3), (True, 16)])
def test_addresses_are_equal_only_if_they_are_for_all_threads(apart: bool, loads: int) -> None:
    """16 codes lie in three words. With a bit that depends on the thread, the compiler cannot know it."""
    words = [a for a in accesses(read(kernels.words_of_codes(apart))) if not a.write]
    assert [a.instructions for a in words] == [loads * WARPS]


def test_a_branch_has_what_its_condition_loaded() -> None:
    (load,) = accesses(read(kernels.first_largest()))
    assert load.bytes == 128 * 4  # of one iteration


@pytest.mark.parametrize(("rows", "joined"), [(6, 2), (16, 1)])
def test_products_that_share_an_operand_load_it_once(rows: int, joined: int) -> None:
    """Iterations are joined till 16 loads are in flight: two with 7 loads each, or one with 17."""
    (loop,) = [p for r in read(kernels.products_of_rows(rows)).roles for p in r.phases if p.is_loop]
    assert loop.pipeline_depth == joined


@pytest.mark.parametrize(("kept", "loads"), [("shared", 4), ("local", 1)])
def test_stores_to_shared_memory_keep_unrolled_iterations_from_sharing_loads(kept: str, loads: int) -> None:
    once = 256 * 128 * 4  # an element in each step
    found = shared_loads(read(kernels.sums_in_shared_memory(kept)))
    assert min(load for load in found if load >= once) == loads * once


@pytest.mark.parametrize(("in_place", "branches"), [(True, 16 * WARPS), (False, 0)])
def test_loads_wait_for_stores_in_place(in_place: bool, branches: int) -> None:
    assert total(read(kernels.turned_pairs(in_place)), "load_branches") == branches


def test_a_small_table_stays_in_the_first_level_cache() -> None:
    small, large = (kernels.looked_up(values) for values in (256, 1 << 20))
    model, target = AnalyticalModel(), load_target("h200")
    times = [model.predict((read(kernel),), target).terms_us for kernel in (small, large)]
    assert times[0]["l2"] < 0.6 * times[1]["l2"]
    assert times[0]["load latency"] < times[1]["load latency"]


def test_what_a_block_votes_on_is_loaded_and_decides_half_of_the_cases() -> None:
    profile = read(kernels.voted())
    (load,) = accesses(profile)
    assert load.bytes == 128 * 4  # in each step
    assert total(profile, "vector_ops") == 32 * (128 + 64 * 128 / 2)


def test_all_warps_issue_a_step_of_a_sum_in_shared_memory() -> None:
    some, every = (total(read(kernels.halves_of_sums(count)), "vector_ops") for count in (32, 128))
    assert some == every == 128


def test_unrolled_copies_share_a_function_of_what_none_of_them_changes() -> None:
    assert total(read(kernels.scaled_by_deviation()), "routine_calls") == WARPS


@pytest.mark.parametrize(("parts", "branches"), [(10, 4 * WARPS), (8, 0)])
def test_a_branch_that_loads_its_index_anew_waits(parts: int, branches: int) -> None:
    assert total(read(kernels.chosen_rows(parts)), "load_branches") == branches


def test_sectors_in_rows_of_their_own_take_a_cycle_each() -> None:
    target = load_target("h200")
    profile = read(kernels.transposed())
    (load,) = accesses(profile)
    assert load.transactions == 64 * 48  # of a block
    of_core = 65536 // 64 / target["core.count"] * load.transactions
    shared = AnalyticalModel().predict((profile,), target).terms_us["shared"]
    assert shared > of_core / target["core.clock_mhz"]


@pytest.mark.parametrize(("reflected", "kept"), [(True, True), (False, False)])
def test_the_branch_around_a_load_stays_one_if_its_address_is_a_selection(
    reflected: bool, kept: bool
) -> None:
    """Each of its copies waits, and divides anew."""
    profile = read(kernels.edges(reflected))
    assert (total(profile, "divided_addresses") > 0) == (total(profile, "load_branches") > 0) == kept


@pytest.mark.parametrize(("words", "waits"), [(512, 2 * 512 * 2 / SPILLED_IN_FLIGHT * WARPS), (64, 0)])
def test_spilled_values_are_waited_for_a_few_at_a_time(words: int, waits: float) -> None:
    assert total(read(kernels.more_than_the_registers(words)), "local_waits") == pytest.approx(waits)
