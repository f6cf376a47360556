"""Ids and times of strangers, and of wrong clocks, harm neither the numbering nor the files of a database."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.database import samples
from tests.unit.database.stocked import FAMILY, LARGE, add_session, stock, stocked
from tilesight.database import Store, open_store, overview, query
from tilesight.database.exchange.json_lines import export_everything, import_everything
from tilesight.database.exchange.t4_reader import import_t4
from tilesight.database.exchange.t4_writer import export_t4
from tilesight.database.maintenance.check import check
from tilesight.database.maintenance.gc import Rules, gc
from tilesight.database.tables.rows import content_id
from tilesight.errors import InputError
from tilesight.records.session import Effort

Line = dict[str, Any]
MOST = 2**53
FAR_IDS = {
    "the greatest that JSON holds": MOST - 1,
    "the greatest of all": 2**63 - 1,
    "2109": 9_007_000_000_000_000,
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(samples.empty_database(tmp_path / "here.db")) as opened:
        yield opened


def export_of(folder: Path, change: Callable[[list[Line]], None]) -> Path:
    """An export of another database, after `change` of its lines."""
    with open_store(stocked(folder / "theirs.db")) as theirs:
        export_everything(theirs, folder / "x.jsonl")
    lines = [json.loads(line) for line in (folder / "x.jsonl").read_text(encoding="utf-8").splitlines()]
    change(lines)
    (folder / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "x.jsonl"


def renumbered(lines: list[Line], last: int) -> None:
    """Give the sessions of a file the ids up to `last`."""
    ids = sorted(line["row"]["id"] for line in lines if line.get("table") == "sessions")
    moved = {old: last - len(ids) + place for place, old in enumerate(ids, 1)}
    for line in lines:
        row = line.get("row", {})
        if line.get("table") == "sessions":
            row["id"] = moved[row["id"]]
        if "session_id" in row:
            row["session_id"] = moved[row["session_id"]]


def assert_goes_on(store: Store, folder: Path, *, trusted: bool = True) -> None:
    """Own sessions are recorded, checked, exported and imported, each later one with a greater id."""
    ids = [add_session(store, samples.context(), samples.verified(1, 20.0 - number)) for number in range(3)]
    assert ids == sorted(set(ids))
    assert ids[-1] < MOST
    found = store.find_complete(samples.context(), Effort.QUICK, {})
    assert found is not None
    assert found.trials[0].measured_us == 18.0
    assert check(store).faults == ()
    export_everything(store, folder / "own.jsonl")
    with open_store(samples.empty_database(folder / "again.db")) as again:
        import_everything(again, folder / "own.jsonl", trusted=trusted)
        assert overview(again).tables["sessions"] == overview(store).tables["sessions"]
        assert not sum(import_everything(again, folder / "own.jsonl", trusted=trusted).written.values())
        add_session(again, samples.context(), samples.verified(1, 5.0))
        assert check(again).faults == ()


@pytest.mark.parametrize(
    ("name", "trusted"),
    [("the greatest that JSON holds", True), ("the greatest of all", False), ("2109", True)],
)
def test_ids_of_a_file_do_not_number_the_own_sessions(
    store: Store, tmp_path: Path, name: str, trusted: bool
) -> None:
    file = export_of(tmp_path, lambda lines: renumbered(lines, FAR_IDS[name]))
    import_everything(store, file, trusted=trusted)
    before = overview(store).tables
    assert not sum(import_everything(store, file, trusted=trusted).written.values())
    assert overview(store).tables == before
    ((last,),) = query(store, "SELECT MAX(id) FROM sessions")[1]
    assert last < MOST - 2**48
    assert_goes_on(store, tmp_path, trusted=trusted)


def test_sessions_of_a_stranger_keep_their_order(store: Store, tmp_path: Path) -> None:
    import_everything(store, export_of(tmp_path, lambda lines: renumbered(lines, MOST - 1)))
    with open_store(str(tmp_path / "theirs.db")) as theirs:
        order = "SELECT seed, effort, started_at FROM sessions ORDER BY id"
        assert query(store, order)[1] == query(theirs, order)[1]


def test_a_trusted_file_keeps_its_ids(store: Store, tmp_path: Path) -> None:
    import_everything(store, export_of(tmp_path, lambda _: None), trusted=True)
    with open_store(str(tmp_path / "theirs.db")) as theirs:
        assert query(store, "SELECT id FROM sessions")[1] == query(theirs, "SELECT id FROM sessions")[1]


@pytest.mark.parametrize(
    ("moment", "trusted"),
    [("2109-06-01T00:00:00", True), ("9999-12-31T23:59:59.999999", False), ("0001-01-01T00:00:00", True)],
)
def test_times_of_a_file_are_kept_and_harm_nothing(
    store: Store, tmp_path: Path, moment: str, trusted: bool
) -> None:
    def change(lines: list[Line]) -> None:
        for line in lines:
            for name in line.get("row", {}):
                if name.endswith("_at"):
                    line["row"][name] = moment

    import_everything(store, export_of(tmp_path, change), trusted=trusted)
    stamps = query(store, "SELECT DISTINCT started_at FROM sessions")[1]
    assert [str(stamp)[:19] for (stamp,) in stamps] == [moment.replace("T", " ")[:19]]
    gc(store, Rules({"matmul_hopper": "changed"}, FAMILY.reader), dry_run=True)
    assert_goes_on(store, tmp_path, trusted=trusted)


@pytest.mark.parametrize("year", [1, 1969, 2150, 9999])
def test_a_clock_that_was_wrong_once(
    store: Store, tmp_path: Path, year: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_session(store, samples.context(), samples.verified(1, 30.0))
    moment = datetime(year, 6, 1)
    with monkeypatch.context() as wrong:
        for module in ("rows", "session_rows", "profile_rows"):
            wrong.setattr(f"tilesight.database.tables.{module}.now", lambda: moment)
        seconds = (moment - datetime(1970, 1, 1)).total_seconds()
        wrong.setattr(time, "time_ns", lambda: int(seconds * 1e9))
        stock(store)
    assert_goes_on(store, tmp_path)


def test_an_id_that_an_earlier_version_imported_is_not_counted_on(store: Store, tmp_path: Path) -> None:
    session_id = add_session(store, samples.context(model="theirs"), samples.predicted(1))

    def far(connection: Any) -> None:
        connection.exec_driver_sql("PRAGMA defer_foreign_keys=ON")
        connection.exec_driver_sql(f"UPDATE sessions SET id = {MOST - 1} WHERE id = {session_id}")
        connection.exec_driver_sql(f"UPDATE trials SET session_id = {MOST - 1}")

    store.database.write(far)
    assert_goes_on(store, tmp_path)


def test_a_session_of_another_host_in_the_future_does_not_run_for_ever(store: Store) -> None:
    add_session(store, samples.context(), samples.verified(1, 10.0))
    later = datetime.now(UTC).replace(tzinfo=None) + timedelta(days=40_000)
    store.database.write(
        lambda connection: connection.exec_driver_sql(
            "UPDATE sessions SET state = 'running', owner = 'elsewhere|1|1', "
            f"started_at = '{later:%Y-%m-%d %H:%M:%S.%f}'"
        )
    )
    gc(store, Rules())


# ---- what an import leaves


def test_an_import_is_undone_wholly(store: Store, tmp_path: Path) -> None:
    add_session(store, samples.context(workload=LARGE), samples.verified(1, 10.0))  # of no published name
    export_everything(store, tmp_path / "before.jsonl")

    def change(lines: list[Line]) -> None:
        for line in lines:
            if line.get("table") == "workloads":
                line["row"]["name"] = "theirs"

    import_everything(store, export_of(tmp_path, change))
    with open_store(str(tmp_path / "theirs.db")) as theirs:
        export_t4(
            theirs, tmp_path / "x.json", add_session(theirs, samples.context(), samples.verified(1, 9.0))
        )
    import_t4(store, tmp_path / "x.json")
    assert overview(store).tables["sessions"] == 5
    assert query(store, "SELECT name FROM workloads WHERE name IS NOT NULL")[1] == []
    gc(store, Rules(imported=True))
    export_everything(store, tmp_path / "after.jsonl")
    assert (tmp_path / "after.jsonl").read_bytes() == (tmp_path / "before.jsonl").read_bytes()
    assert check(store).faults == ()


def test_the_name_of_an_operator_is_short_in_a_file_as_it_is_here(store: Store, tmp_path: Path) -> None:
    def change(lines: list[Line]) -> None:
        row = next(line for line in lines if line.get("table") == "workloads")["row"]
        row["key"] = row["key"].replace(row["operator"], "7" * 5000)
        row["operator"] = "7" * 5000
        row["id"] = content_id("workloads", row["key"])

    with pytest.raises(
        InputError, match="the name of its operator has 5000 characters and must have at most"
    ):
        import_everything(store, export_of(tmp_path, change), trusted=True)
