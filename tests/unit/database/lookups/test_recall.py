"""Which software versions and dynamic dimensions must be the same when results are used again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.database import samples
from tilesight.database import Store, open_store, query
from tilesight.database.tables import rows
from tilesight.errors import FailureKind
from tilesight.problem.space import Census
from tilesight.records.session import Context, Effort, SessionState
from tilesight.records.trial import Status, TrialRecord

SOFTWARE = {"tilelang": "0.1.15", "nvcc": "nvcc 13.0.88", "torch": "2.13.0", "driver": "580.159.04"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(samples.empty_database(tmp_path / "x.db")) as opened:
        yield opened


def context(**changes: str) -> Context:
    """A context with changed software versions; "" leaves one out."""
    versions = {**SOFTWARE, **changes}
    return samples.context(software={name: version for name, version in versions.items() if version})


def add_session(store: Store, context: Context, *trials: TrialRecord) -> int:
    session_id = store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}))
    store.record_many(session_id, context, trials)
    store.finish(session_id, SessionState.COMPLETE)
    return session_id


FIRST = samples.config(1).key


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, Status.VERIFIED),
        ({"torch": "2.14.0"}, Status.VERIFIED),
        ({"torch": ""}, Status.VERIFIED),
        ({"driver": "570.1"}, Status.BUILT),
        ({"driver": ""}, Status.BUILT),
        ({"tilelang": "0.1.16"}, None),
        ({"nvcc": "nvcc 13.1"}, None),
        ({"nvcc": ""}, None),
        ({"ptxas": "13.0"}, None),
    ],
)
def test_torch_counts_for_nothing_the_driver_for_times_all_else_for_code(
    store: Store, changes: dict[str, str], status: Status | None
) -> None:
    add_session(store, context(), samples.verified(1, 10.0))
    found = store.recall(context(**changes)).get(FIRST)
    assert (found and found.status) == status
    if status is Status.BUILT:
        assert found == replace(samples.verified(1, 10.0), status=Status.BUILT, measurement=None)


@pytest.mark.parametrize(
    ("kind", "changes", "holds"),
    [
        (FailureKind.BUILD_ERROR, {"driver": "570.1", "torch": "2.14.0"}, True),
        (FailureKind.LOWER_ERROR, {"driver": "", "torch": ""}, True),
        (FailureKind.DOES_NOT_FIT, {"driver": "570.1"}, True),
        (FailureKind.BUILD_ERROR, {"nvcc": "nvcc 13.1"}, False),
        (FailureKind.RUN_ERROR, {"torch": "2.14.0"}, True),
        (FailureKind.RUN_ERROR, {"driver": "570.1"}, False),
        (FailureKind.RUN_TIMEOUT, {"driver": "570.1"}, False),
        (FailureKind.WRONG_RESULT, {"driver": "570.1", "torch": ""}, True),
        (FailureKind.NONDETERMINISTIC, {"driver": "570.1"}, True),
        (FailureKind.WRONG_RESULT, {"tilelang": "0.1.16"}, False),
    ],
)
def test_failures_hold_for_the_software_of_their_stage(
    store: Store, kind: FailureKind, changes: dict[str, str], holds: bool
) -> None:
    add_session(store, context(), samples.failed(1, kind))
    found = store.recall(context(**changes)).get(FIRST)
    assert (found is not None and found.status is Status.FAILED) == holds


def test_predictions_made_where_nothing_measures_serve_with_any_driver(store: Store) -> None:
    add_session(store, replace(context(driver="", torch=""), device="", protocol=""), samples.predicted(1))
    assert store.recall(context())[FIRST] == samples.predicted(1)


def test_torch_counts_for_whole_sessions(store: Store) -> None:
    """The baselines of a session depend on torch."""
    add_session(store, context(), samples.verified(1, 10.0))
    assert store.find_complete(context(), Effort.QUICK, {}) is not None
    assert store.find_complete(context(torch="2.14.0"), Effort.QUICK, {}) is None


@pytest.mark.parametrize(
    ("recorded_dynamic", "requested_dynamic"),
    [((), ("m",)), (("m",), ()), (("m",), ("m", "n")), (("m", "n"), ("n", "m"))],
)
def test_nothing_of_a_kernel_of_other_dynamic_dimensions_is_recalled(
    store: Store, recorded_dynamic: tuple[str, ...], requested_dynamic: tuple[str, ...]
) -> None:
    there = replace(context(), dynamic=recorded_dynamic)
    add_session(store, there, samples.verified(1, 10.0), samples.failed(2, FailureKind.WRONG_RESULT))
    assert store.recall(replace(context(), dynamic=requested_dynamic)) == {}
    assert len(store.recall(there)) == 2
    assert store.find_complete(replace(context(), dynamic=requested_dynamic), Effort.QUICK, {}) is None
    for sql in (
        "SELECT DISTINCT dynamic FROM candidates",
        "SELECT dynamic FROM sessions",
        "SELECT DISTINCT dynamic FROM records",
    ):
        assert query(store, sql)[1] == [(",".join(recorded_dynamic),)]


def test_dynamic_dimensions_change_ids_only_where_there_are_some() -> None:
    static, _ = rows.context_rows(context())
    dynamic, _ = rows.context_rows(replace(context(), dynamic=("m",)))
    config = samples.config(1)
    natural = (static.template_id, static.workload_id, "sm_90a", config.key)
    assert rows.candidate_row(static, config)["id"] == rows.content_id("candidates", *natural)
    assert rows.candidate_row(dynamic, config)["id"] == rows.content_id("candidates", *natural, ("open", "m"))
    assert static.shape_family == dynamic.shape_family


@pytest.mark.parametrize(
    ("software", "observed", "wanted"),
    [
        (SOFTWARE, {}, ("", "580.159.04", "nvcc 13.0.88", "0.1.15", "2.13.0")),
        ({}, {}, ("", "", "", "", "")),
        (
            SOFTWARE,
            {"uuid": "GPU-1", "driver": "570.1", "compiler": "nvcc 12.9", "torch": "2.12.0", "cpus": "8"},
            ("GPU-1", "570.1", "nvcc 12.9", "0.1.15", "2.12.0"),
        ),
        ({"c++": "g++ 12"}, {"compiler": ""}, ("", "", "g++ 12", "", "")),
        ({"hipcc": "hipcc 6.4"}, {"uuid": "a\0b"}, ("a\ufffdb", "", "hipcc 6.4", "", "")),
    ],
)
def test_an_environment_says_what_was_observed_else_what_its_session_was_begun_with(
    store: Store, software: dict[str, str], observed: dict[str, Any], wanted: tuple[str, ...]
) -> None:
    trial = samples.verified(1, 10.0)
    assert trial.measurement is not None
    trial = replace(trial, measurement=replace(trial.measurement, environment=observed))
    add_session(store, samples.context(software=software), trial)
    columns = "e.uuid, e.driver, e.toolkit, e.tilelang, e.torch"
    sql = f"SELECT {columns} FROM measurements m JOIN environments e ON e.id = m.environment_id"
    assert query(store, sql)[1] == [wanted]


def test_facts_that_another_process_removed_are_written_again(store: Store) -> None:
    session_id = add_session(store, context(), samples.verified(1, 10.0))
    clean_up = ["trials", "measurements", "builds", "predictions", "candidates"]
    with open_store(store.name) as other:
        for table in clean_up:
            other.database.write(
                lambda connection, table=table: connection.exec_driver_sql(f"DELETE FROM {table}")
            )
    store.record(session_id, context(), samples.verified(1, 10.0))
    assert store.recall(context())[FIRST] == samples.verified(1, 10.0)
