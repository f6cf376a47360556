"""Misses of dispatch, on each kind of database."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

from tests.unit.database import samples
from tilesight.database import Store, open_store, overview, query
from tilesight.database.schema import tables as schema
from tilesight.database.tables.miss_rows import MOST, add, miss_rows
from tilesight.errors import DatabaseReadOnlyError, InputError
from tilesight.problem.workload import Workload
from tilesight.records.winners import Miss

NOON = datetime(2026, 11, 21, 12)
HOUR = timedelta(hours=1)


def miss(m: int = 100, **changes: Any) -> Miss:
    values: dict[str, Any] = {
        "workload": Workload(
            "matmul", {"m": m, "n": 8192, "k": 8192}, "bfloat16", {"transposed": True}, "M7"
        ),
        "target": "h200",
        "device": "NVIDIA H200",
        "template": "matmul_hopper",
        "count": 3,
        "config": samples.config(1),
        "source": "neighbour",
        "expected_us": 20.0,
        "first_at": NOON,
        "last_at": NOON + HOUR,
    }
    return Miss(**{**values, **changes})


def test_what_was_recorded_comes_back_most_costly_first(store: Store) -> None:
    cheap, dear, unknown = (
        miss(1, count=100, expected_us=1.0),
        miss(2, count=2, expected_us=100.0),
        miss(3, expected_us=None, count=10**6),
    )
    store.record_misses([cheap, unknown, dear])
    assert store.misses() == [dear, cheap, unknown]
    assert store.misses("matmul", "h200") == [dear, cheap, unknown]
    assert store.misses("matmul", "h100") == store.misses("gemv") == []
    store.record_misses([])
    assert overview(store).tables["dispatch_misses"] == 3


def test_counts_add_up_and_the_last_to_serve_is_kept(store: Store) -> None:
    store.record_misses(
        [
            miss(),
            miss(
                count=4, config=samples.config(2), source="model", expected_us=None, last_at=NOON + 3 * HOUR
            ),
        ]
    )
    store.record_misses([miss(count=1, config=samples.config(5), source="default", expected_us=7.0)])
    assert store.misses() == [
        miss(count=8, config=samples.config(5), source="default", expected_us=7.0, last_at=NOON + 3 * HOUR)
    ]


def test_a_batch_that_is_written_again_counts_once(store: Store) -> None:
    """As after a commit whose answer was lost."""
    _, batch = miss_rows([miss(), miss(2, count=1)])
    _, later = miss_rows([miss(count=10)])
    store.record_misses([miss(count=1), miss(2, count=1)])
    insert = store.database.insert(schema.dispatch_misses)
    for rows in (batch, batch, later, later):
        store.database.write(partial(add, insert=insert, rows=rows))
    assert {found.workload.dims["m"]: found.count for found in store.misses()} == {100: 14, 2: 2}


@pytest.mark.parametrize(
    "changes", [{"target": "h200-calibrated"}, {"device": "other"}, {"template": "other"}]
)
def test_another_place_is_another_miss(store: Store, changes: dict[str, str]) -> None:
    store.record_misses([miss(), miss(**changes)])
    assert [found.count for found in store.misses()] == [3, 3]


def test_a_clock_that_is_set_back_leaves_first_before_last(store: Store) -> None:
    store.record_misses([miss(first_at=NOON, last_at=NOON - HOUR)])
    assert [(found.first_at, found.last_at) for found in store.misses()] == [(NOON - HOUR, NOON)]
    store.record_misses([miss(first_at=NOON - 5 * HOUR, last_at=NOON - 4 * HOUR)])
    assert [(found.first_at, found.last_at) for found in store.misses()] == [(NOON - 5 * HOUR, NOON)]
    store.record_misses([miss(first_at=NOON + HOUR, last_at=NOON + 2 * HOUR)])
    assert [(found.first_at, found.last_at) for found in store.misses()] == [
        (NOON - 5 * HOUR, NOON + 2 * HOUR)
    ]


def test_times_of_any_zone_are_kept_as_utc(store: Store) -> None:
    berlin = timezone(2 * HOUR)
    store.record_misses(
        [miss(first_at=(NOON + 2 * HOUR).replace(tzinfo=berlin), last_at=(NOON + HOUR).replace(tzinfo=UTC))]
    )
    assert store.misses() == [miss()]


@pytest.mark.parametrize("count", [0, -1, 2**53 + 1, True, 1.5])
def test_a_count_that_is_none_is_refused(store: Store, count: Any) -> None:
    with pytest.raises(
        InputError, match=r"miss of matmul\(m=100.*count=.* must be a whole number in 1 \.\. 2\*\*53"
    ):
        store.record_misses([miss(7), miss(count=count)])
    assert store.misses() == [], "all or nothing"


@pytest.mark.parametrize("expected_us", [math.nan, math.inf, -math.inf, -1.0])
def test_a_time_that_is_none_is_refused(store: Store, expected_us: float) -> None:
    with pytest.raises(
        InputError, match=r"miss of matmul.*expected_us=.* must (be finite to be recorded|not be below 0)"
    ):
        store.record_misses([miss(expected_us=expected_us)])


def test_counts_stop_at_the_most_that_readers_of_json_can_hold(store: Store) -> None:
    store.record_misses([miss(count=MOST - 1)])
    store.record_misses([miss(count=5)])
    assert [found.count for found in store.misses()] == [MOST]


def test_forgetting_leaves_the_others(store: Store) -> None:
    store.record_misses([miss(1), miss(1, target="h100"), miss(2)])
    assert store.forget_misses([miss(1).workload.key, "never seen", miss(1).workload.key]) == 2
    assert store.misses() == [miss(2)]
    assert store.forget_misses([]) == 0
    store.record_misses([miss(1, count=1)])
    assert {found.count for found in store.misses()} == {1, 3}


def test_forgetting_those_of_a_target_leaves_the_others(store: Store) -> None:
    evil = "x'; --\0"
    store.record_misses(
        [miss(1), miss(1, device="other"), miss(1, target="h100"), miss(1, target=evil), miss(2)]
    )
    key = miss(1).workload.key
    assert store.forget_misses([key], "a100") == 0
    assert store.forget_misses([key], "h200") == 2
    assert store.forget_misses([key], evil) == 1
    assert {(found.workload.dims["m"], found.target) for found in store.misses()} == {
        (1, "h100"),
        (2, "h200"),
    }


def test_the_view_of_misses(store: Store) -> None:
    store.record_misses([miss(), miss(2, expected_us=None)])
    sql = "SELECT operator, shape, calls, cost_us, source FROM misses ORDER BY cost_us DESC"
    assert query(store, sql)[1] == [
        ("matmul", "M7", 3, 60.0, "neighbour"),
        ("matmul", "M7", 3, 0.0, "neighbour"),
    ]


def test_hostile_text(store: Store) -> None:
    evil = "x'); DROP TABLE dispatch_misses; --\0\ud800" + "long " * 50_000
    found = miss(target=evil, device=evil, template=evil, source=evil)
    store.record_misses([found, found])
    (kept,) = store.misses(target=evil)
    assert kept == replace(
        found,
        count=6,
        **{
            name: evil.replace("\0\ud800", "\ufffd\ufffd")
            for name in ("target", "device", "template", "source")
        },
    )


def test_only_a_database_that_may_be_written_counts(store: Store) -> None:
    store.record_misses([miss()])
    with open_store(store.database.url, read_only=True) as reader:
        assert reader.misses() == [miss()]
        with pytest.raises(DatabaseReadOnlyError):
            reader.record_misses([miss()])
        with pytest.raises(DatabaseReadOnlyError):
            reader.forget_misses([miss().workload.key])
