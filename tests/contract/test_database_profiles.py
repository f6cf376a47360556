"""Cached profiles on each kind of database: the suite of tests/unit/database with the fixtures of this
folder."""

from tests.unit.database.tables.test_profile_rows import (
    test_a_profile_that_cannot_be_read_is_left_out,
    test_keeping_twice_or_nothing_changes_nothing,
    test_profiles_come_back_under_their_key_alone,
    test_what_is_known_later_takes_the_place_of_what_was_known,
)

__all__ = [
    "test_a_profile_that_cannot_be_read_is_left_out",
    "test_keeping_twice_or_nothing_changes_nothing",
    "test_profiles_come_back_under_their_key_alone",
    "test_what_is_known_later_takes_the_place_of_what_was_known",
]
