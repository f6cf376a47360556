"""The bounded dictionary drops its oldest entries when it is full."""

from __future__ import annotations

import pickle

import pytest

from tilesight.bounded_dict import BoundedDict


def filled(capacity: int, count: int) -> BoundedDict[int, str]:
    table = BoundedDict[int, str](capacity)
    for key in range(count):
        table[key] = str(key)
    return table


def test_up_to_its_capacity_nothing_is_dropped() -> None:
    assert list(filled(8, 8)) == list(range(8))


def test_the_older_half_is_dropped_when_it_is_full() -> None:
    assert list(filled(8, 9)) == [4, 5, 6, 7, 8]


def test_replacing_a_value_drops_nothing() -> None:
    table = filled(8, 8)
    table[0] = "new"
    assert len(table) == 8
    assert table[0] == "new"


def test_it_is_pickled_with_its_capacity() -> None:
    table = pickle.loads(pickle.dumps(filled(4, 4)))
    table[4] = "4"
    assert list(table) == [2, 3, 4]


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_the_last_entry_is_present_in_the_smallest_tables(capacity: int) -> None:
    table = filled(capacity, 10)
    assert len(table) <= capacity
    assert table[9] == "9"
