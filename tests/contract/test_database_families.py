"""Kept profiles, on every kind of database: the suite of tests/unit/database, with this folder's fixtures."""

from tests.unit.database.test_families import (
    test_a_family_that_cannot_be_read_is_left_out,
    test_families_come_back_under_their_key_alone,
    test_keeping_twice_or_nothing_changes_nothing,
    test_what_is_known_later_takes_the_place_of_what_was_known,
)

__all__ = [
    "test_a_family_that_cannot_be_read_is_left_out",
    "test_families_come_back_under_their_key_alone",
    "test_keeping_twice_or_nothing_changes_nothing",
    "test_what_is_known_later_takes_the_place_of_what_was_known",
]
