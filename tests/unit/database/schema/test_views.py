"""How SQLite runs the views: without a pass over all trials where a query needs few of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.support.sessions import add_session
from tests.unit.database import samples
from tilesight.database import Store, open_store
from tilesight.database.schema.descriptions import QUERIES
from tilesight.records.session import Decision

# names in the views of the tables that have a row for each candidate or more
LARGE = {"t", "x", "y", "b", "c", "p", "m"}


@pytest.fixture(params=[False, True], ids=["no statistics", "statistics"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/x.db") as opened:
        trials = [samples.verified(number, 10.0 + number) for number in range(1, 20)]
        add_session(opened, samples.context(), *trials, decision=Decision(samples.config(1)))
        if request.param:
            opened.database.write(lambda connection: connection.execute(text("ANALYZE")))
        yield opened


def steps(store: Store, sql: str) -> list[str]:
    explained = text(f"EXPLAIN QUERY PLAN {sql}")
    values = dict.fromkeys(re.findall(r":(\w+)", sql), "M0")
    return store.database.read(
        lambda connection: [str(row.detail) for row in connection.execute(explained, values)]
    )


def scanned(found: list[str]) -> set[str]:
    """What is read from its beginning to its end, without keys."""
    return {step.split()[1] for step in found if step.startswith("SCAN ")}


def test_best_reads_the_fastest_trials_of_each_session(store: Store) -> None:
    found = steps(store, "SELECT * FROM best")
    assert not scanned(found) & LARGE, found
    assert "SEARCH t USING INDEX ix_trials_measured (session_id=? AND measured_us>?)" in found
    assert any(step.startswith("SCAN s") for step in found)


def test_canned_queries_of_best_do_not_pass_over_all_trials(store: Store) -> None:
    assert not scanned(steps(store, QUERIES["against_the_vendor"].sql)) & LARGE


@pytest.mark.parametrize(
    "condition", ["workload = 'w'", "shape = 'M0'", "operator = 'matmul'", "target = 'h'"]
)
def test_the_leaderboard_of_some_workloads_reads_their_sessions(store: Store, condition: str) -> None:
    found = steps(store, f"SELECT * FROM leaderboard WHERE {condition}")
    assert not scanned(found) & LARGE, found
    assert any(re.fullmatch(r"SEARCH t USING PRIMARY KEY \(session_id=\?\)", step) for step in found), found


def test_the_canned_query_of_a_workload(store: Store) -> None:
    assert not scanned(steps(store, QUERIES["fastest_of_a_workload"].sql)) & LARGE


def test_a_pass_over_trials_is_noticed(store: Store) -> None:
    assert scanned(steps(store, "SELECT * FROM trials t WHERE t.fingerprint = 'f'")) == {"t"}
