"""Idle lanes take slots, other warps wait for those that load, and stores hold up the loads after them."""

from __future__ import annotations

import pytest

from tests.unit.costmodel import lane_kernels as kernels
from tests.unit.costmodel.extract.reading import accesses, read, total
from tilesight.profile.values import Space


@pytest.mark.parametrize("lanes", [4, 32])
def test_a_warp_takes_its_slots_whatever_lanes_are_idle(lanes: int) -> None:
    profile = read(kernels.exponentials_of(lanes))
    assert total(profile, "special_ops") == 8 * 32
    (load,) = accesses(profile)
    assert load.bytes == load.footprint_bytes == 8 * lanes * 4
    assert (load.instructions, load.warp_share) == (8, 1 / 4)


def test_the_lanes_of_several_warps_share_their_loads() -> None:
    (load,) = accesses(read(kernels.exponentials_of(64)))
    assert (load.instructions, load.warp_share) == (16, 2 / 4)


@pytest.mark.parametrize(("steps", "bytes_a_step"), [(2, 16), (4, 8), (16, 4)])
def test_a_short_walk_at_a_place_that_data_chooses_has_a_sector(steps: int, bytes_a_step: float) -> None:
    walks = [a for a in accesses(read(kernels.rows_of_numbers(512, True, True, steps))) if a.tensor == "t1"]
    assert [a.step_bytes for a in walks] == [bytes_a_step]


def test_two_values_to_choose_from_are_computed_together() -> None:
    assert total(read(kernels.sines_or_cosines()), "special_ops") == 128


@pytest.mark.parametrize(("staged", "branches"), [(True, 16 * 4), (False, 0)])
def test_loads_at_places_read_from_shared_memory_follow_each_other(staged: bool, branches: int) -> None:
    assert total(read(kernels.gathered_rows(16, staged)), "load_branches") == branches


@pytest.mark.parametrize(("parts", "staged", "trips"), [(1, False, 2), (2, False, 3), (2, True, 2)])
def test_a_branch_on_a_loaded_number_waits_for_it_and_for_each_part_behind_it(
    parts: int, staged: bool, trips: int
) -> None:
    """Another branch, of the check whether the row exists, is in the branch. Shared memory takes no trip."""
    warps = 128 / 32
    assert total(read(kernels.valid_rows(64, parts, staged)), "load_branches") == trips * 64 * warps


@pytest.mark.parametrize(
    ("staged", "gathered", "trips"),
    [(False, False, 2 / 8), (False, True, 2), (True, True, 1), (True, False, 0)],
)
def test_a_branch_with_another_one_is_kept(staged: bool, gathered: bool, trips: float) -> None:
    """Each of its loads waits alone, and numbers in shared memory have no trip of their own.

    Of a branch without another one the compiler makes predicates, for 6 of the loads of 8 iterations.
    """
    profile = read(kernels.rows_of_numbers(512, staged, gathered))
    assert total(profile, "load_branches") == trips * 512 * 128 / 32


def test_a_check_that_the_branch_implies_is_no_branch() -> None:
    profile = read(kernels.rows_of_numbers(512, False, True, most=1 << 16))
    assert total(profile, "load_branches") == 2 / 8 * 512 * 128 / 32


def test_stores_behind_a_branch_on_a_loaded_number_wait_for_nothing() -> None:
    assert total(read(kernels.marked_rows(64)), "load_branches") == 0


@pytest.mark.parametrize(("together", "in_row"), [(True, 16), (False, 1)])
def test_loads_in_a_row_are_told_from_those_between_stores(together: bool, in_row: int) -> None:
    loads = accesses(read(kernels.shifted(16, together)), Space.SHARED)
    assert [load.in_row for load in loads] == [in_row, 16]


@pytest.mark.parametrize(
    ("values", "fewest", "most"),
    [(16, 1, 1), (32, 1, 1), (128, 2.3, 3.2), (1024, 2.7, 3.9)],  # means of many: 1, 1, 2.8, 3.4
)
def test_lookups_conflict_as_random_places_of_the_table_do(values: int, fewest: float, most: float) -> None:
    (load,) = accesses(read(kernels.looked_up(values)), Space.SHARED)
    assert fewest <= load.transactions / load.instructions <= most


def test_lanes_that_read_copies_of_a_table_conflict_with_few_others() -> None:
    """Lanes 16 apart alone share a copy, and half of its words are in the bank of the other lane."""
    (load,) = accesses(read(kernels.looked_up(256, copies=16)), Space.SHARED)
    assert 1.9 <= load.transactions / load.instructions <= 2


def test_fast_math_leaves_the_special_function_alone() -> None:
    exact, fast = (read(kernels.exponentials_of(32), flags=flags) for flags in ((), ("--use_fast_math",)))
    assert total(fast, "special_ops") == total(exact, "special_ops") == 8 * 32
    assert total(exact, "vector_ops") > total(fast, "vector_ops") == 0
