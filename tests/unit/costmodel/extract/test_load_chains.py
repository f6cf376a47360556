"""Loads that wait for each other, loops that the compiler keeps, and conditions that it knows."""

from __future__ import annotations

import math

import pytest

from tilesight.profile.values import Space

from .. import chain_kernels, sample_kernels
from .reading import accesses, read, total

WARPS, THREADS = 4, 128


@pytest.mark.parametrize(("checked", "waits"), [(True, 2), (False, 0)])
def test_copies_behind_checks_of_loaded_numbers_wait_for_each_other(checked: bool, waits: int) -> None:
    """The loads of the numbers are none of these: they are equal for all threads of a block."""
    profile = read(chain_kernels.rows_of_pages(checked, tiles=64))
    assert total(profile, "load_branches") == 64 * waits * WARPS


@pytest.mark.parametrize(("by_atomics", "waits"), [(True, 16), (False, 0)])
def test_what_only_an_atomic_under_a_condition_uses_is_loaded_there(by_atomics: bool, waits: int) -> None:
    profile = read(chain_kernels.sums_of_rows(by_atomics, rows=16))
    assert total(profile, "load_branches") == waits * WARPS


@pytest.mark.parametrize(("chosen", "waits"), [(True, 8 * 2), (False, 2)])
def test_choices_within_choices_at_loaded_places_are_made_one_after_another(chosen: bool, waits: int) -> None:
    """The lowering adds a choice between the number and zero, for places beyond the tensor."""
    profile = read(chain_kernels.chosen_numbers(chosen, steps=8))
    assert total(profile, "load_branches") == waits * WARPS


def test_a_load_waits_for_the_loads_of_its_address() -> None:
    profile = read(chain_kernels.places_of_places(64))
    assert total(profile, "load_branches") == 64 * 3 * WARPS


@pytest.mark.parametrize(
    ("steps", "work", "is_kept"), [(240, "choices", True), (64, "choices", False), (240, "sums", False)]
)
def test_a_loop_is_kept_by_all_operations_of_its_iterations(steps: int, work: str, is_kept: bool) -> None:
    """The array of a loop that stays one lies in local memory."""
    profile = read(chain_kernels.steps_over_an_array(steps, work))
    found = [*accesses(profile, Space.LOCAL), *accesses(profile, Space.LOCAL, write=True)]
    assert bool(found) == is_kept


@pytest.mark.parametrize(("quotient", "different"), [(8, 4 * 8), (4, 3 * 8 + 16), (1, 3 * 8 + 64)])
def test_copies_of_a_loop_compare_once_what_is_equal_in_several(quotient: int, different: int) -> None:
    """Rows begin eight apart, so some have the same quotients. Eight stores add an address each."""
    profile = read(chain_kernels.triangle_of_rows(4, 64, quotient))
    assert total(profile, "integer_ops") == (different + 8) * THREADS


@pytest.mark.parametrize(("counted", "selections"), [(True, 0), (False, 64)])
def test_ones_are_counted_under_a_predicate(counted: bool, selections: int) -> None:
    assert total(read(chain_kernels.larger_ones(counted, steps=64)), "selections") == selections * THREADS


@pytest.mark.parametrize(("first", "left"), [(8, 8), (2, 2), (0, 0)])
def test_nothing_is_left_of_conditions_that_are_false_in_a_copy(first: int, left: int) -> None:
    """A comparison and a selection for each copy that is left."""
    assert total(read(chain_kernels.first_copies(first, steps=8)), "selections") == 2 * left * THREADS


def test_the_segments_of_a_running_sum_follow_each_other() -> None:
    """Two of eight rows for each of four warps, eight segments each."""
    profile = read(sample_kernels.running_sums(1024, 256, 8))
    assert total(profile, "exchange_steps") == 2 * 8 * math.log2(32)


@pytest.mark.parametrize(("in_loop", "waits"), [(True, 64), (False, 2)])
def test_loads_wait_between_exact_quotients(in_loop: bool, waits: int) -> None:
    """Each iteration of the loop has one; without a loop, the second divisor is loaded behind the first."""
    profile = read(chain_kernels.quotients_of_rows(in_loop, steps=64))
    assert total(profile, "load_branches") == waits * WARPS


def test_what_a_condition_loads_is_in_flight_as_well() -> None:
    """Two loads an iteration: 32 are in flight with 16 iterations."""
    (loop,) = [p for r in read(chain_kernels.bounds_reached(256)).roles for p in r.phases if p.is_loop]
    assert loop.pipeline_depth == 16


def test_iterations_that_load_together_join_their_neighbours_in_shared_memory() -> None:
    profile = read(chain_kernels.rows_in_shared_memory(256))
    assert [a.vector_bytes for a in accesses(profile, Space.SHARED)] == [16]


@pytest.mark.parametrize(("along", "waits", "near"), [("rows", 1, 1), ("diagonals", 1 / 4, 0)])
def test_what_the_step_before_touched_in_local_memory_is_near(along: str, waits: float, near: float) -> None:
    """Neighbours on a diagonal are loaded by four."""
    profile = read(chain_kernels.extremes_of_rows(along, rows=256, columns=16))
    steps = 2 * 256 * 16 * WARPS
    assert total(profile, "local_waits") == waits * steps
    assert total(profile, "near_local_waits") == near * steps
