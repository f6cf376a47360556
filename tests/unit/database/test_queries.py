"""The views for people, SQL that reads only, and files."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.database import samples
from tilesight.database import Store, export, frame, open_store, overview, query
from tilesight.errors import FailureKind, InputError, ToolchainError, UnknownNameError
from tilesight.session import Baseline, Context, Decision, Effort, State, ranked
from tilesight.space import Census
from tilesight.trial import ORDER_TERM, Status, TrialRecord
from tilesight.workload import Workload

SMALL = Workload("matmul", {"m": 64, "n": 64, "k": 64}, "float16")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(samples.empty_database(tmp_path / "x.db")) as opened:
        yield opened


def told(store: Store, context: Context, *trials: TrialRecord, vendor_us: float | None = None, decision: Decision | None = None) -> int:
    session_id = store.begin(context, Effort.QUICK, 0, {}, Census(9, 9, {}), flops=2_000_000_000, min_bytes=30_000_000)
    store.record_many(session_id, context, trials)
    if vendor_us is not None:
        store.record_baselines(session_id, [Baseline("slow", (2 * vendor_us,)), Baseline("cuBLAS", (vendor_us,))])
    store.finish(session_id, State.COMPLETE, decision=decision)
    return session_id


def rows(store: Store, sql: str) -> list[tuple[Any, ...]]:
    return query(store, sql)[1]


# ---- views


def test_leaderboard_ranks_what_was_verified(store: Store) -> None:
    context = samples.context()
    told(
        store,
        context,
        samples.verified(1, 12.0),
        samples.verified(2, 10.0, 10.0, 99.0),
        samples.measured(3, 1.0),
        samples.predicted(4, 2.0),
    )
    told(store, context, samples.verified(5, 10.0), samples.failed(6, FailureKind.RUN_ERROR))
    told(store, samples.context(workload=SMALL), samples.verified(1, 20.0))
    found = rows(store, "SELECT shape, place, config, measured_us, tflops, gb_per_s FROM leaderboard ORDER BY measured_us, config")
    assert [(shape, place, json.loads(config)["block_m"], us) for shape, place, config, us, _, _ in found] == [
        ("M0", 1, 2, 10.0),
        ("M0", 1, 5, 10.0),
        ("M0", 3, 1, 12.0),
        (None, 1, 1, 20.0),
    ]
    assert found[0][4:] == (pytest.approx(200.0), pytest.approx(3000.0))


def test_leaderboard_takes_the_latest_time_of_a_candidate_on_each_device(store: Store) -> None:
    other = samples.context(device="NVIDIA H200 NVL")
    told(store, samples.context(), samples.verified(1, 10.0))
    told(store, samples.context(), samples.verified(1, 11.0))
    told(store, other, samples.verified(1, 20.0))
    assert rows(store, "SELECT device, place, measured_us FROM leaderboard ORDER BY device") == [
        ("NVIDIA H200", 1, 11.0),
        ("NVIDIA H200 NVL", 1, 20.0),
    ]


@pytest.mark.parametrize("kind", [FailureKind.WRONG_RESULT, FailureKind.NONDETERMINISTIC])
@pytest.mark.parametrize("wrong_first", [True, False])
def test_a_candidate_that_was_ever_wrong_leaves_the_board_of_its_device(store: Store, wrong_first: bool, kind: FailureKind) -> None:
    sessions = [(samples.failed(1, kind), "warm"), (samples.verified(1, 10.0), "cold")]
    for trial, protocol in sessions if wrong_first else reversed(sessions):
        told(store, samples.context(protocol=protocol), trial)
    told(store, samples.context(device="other"), samples.verified(1, 30.0))
    told(store, samples.context(), samples.verified(2, 20.0))
    assert rows(store, "SELECT device, measured_us FROM leaderboard ORDER BY measured_us") == [("NVIDIA H200", 20.0), ("other", 30.0)]
    assert [row.latency_us for row in store.best()] == [20.0]


def test_best_has_one_row_for_each_workload_and_target(store: Store) -> None:
    told(store, samples.context(), samples.verified(1, 12.0), samples.verified(2, 10.0), samples.predicted(3, 1.0), vendor_us=9.0)
    told(store, samples.context(device=""), samples.predicted(4, 0.5))
    told(store, samples.context(target="h100", target_fingerprint="h", device=""), samples.predicted(1, 8.0), samples.predicted(2, 7.0))
    told(
        store,
        samples.context(target="h100", target_fingerprint="h", device="", model="new"),
        samples.predicted(1, 9.0),
        samples.predicted(2, 9.5),
    )
    told(store, samples.context(workload=SMALL, device=""), samples.failed(1, FailureKind.LOWER_ERROR))
    verified, predicted = store.best(target="h200")[0], store.best(target="h100")[0]
    assert len(store.best()) == 2
    assert (verified.status, verified.latency_us, verified.vendor_us, verified.config) == (Status.VERIFIED, 10.0, 9.0, samples.config(2))
    assert verified.tflops == pytest.approx(200.0)
    assert (verified.predicted_us, verified.relative_error) == (10.0, 1e-3)
    # of predictions the latest session's count: an older model's are not comparable
    assert (predicted.status, predicted.latency_us, predicted.vendor_us, predicted.device) == (Status.PREDICTED, 9.0, None, "")
    assert predicted.config == samples.config(1)


def test_the_winner_of_a_comparison_is_best_and_not_the_least_median(store: Store) -> None:
    close = Decision(samples.config(2), (samples.config(1),), "fewer stages")
    told(store, samples.context(), samples.verified(1, 10.0), samples.verified(2, 10.01), samples.verified(3, 12.0), decision=close)
    assert [(row.config, row.latency_us) for row in store.best()] == [(samples.config(2), 10.01)]
    # a session that goes on from it does not bring the loser back, whether it ends or not
    recalled = store.recall(samples.context()).values()
    session_id = store.begin(samples.context(), Effort.FULL, 0, {}, Census(9, 9, {}))
    store.record_many(session_id, samples.context(), recalled)
    assert [row.config for row in store.best()] == [samples.config(2)]
    # what is found later and faster is best, and another decision outdoes the first
    store.record(session_id, samples.context(), samples.verified(4, 9.0))
    assert [row.config for row in store.best()] == [samples.config(4)]
    again = [samples.verified(1, 9.4), samples.verified(2, 9.3), samples.verified(4, 9.2)]
    store.record_many(session_id, samples.context(), again)
    store.finish(session_id, State.COMPLETE, decision=Decision(samples.config(1), (samples.config(4),)))
    assert [row.config for row in store.best()] == [samples.config(1)]


@pytest.mark.parametrize("wrong_elsewhere", [True, False])
def test_a_decision_falls_with_its_winner(store: Store, wrong_elsewhere: bool) -> None:
    decision = Decision(samples.config(2), (samples.config(1),))
    told(store, samples.context(), samples.verified(1, 10.0), samples.verified(2, 10.01), decision=decision)
    told(store, samples.context(device="other" if wrong_elsewhere else "NVIDIA H200"), samples.failed(2, FailureKind.WRONG_RESULT))
    assert [row.config for row in store.best()] == [samples.config(2 if wrong_elsewhere else 1)]


def test_protocols_are_not_compared(store: Store) -> None:
    told(store, samples.context(protocol=""), samples.verified(1, 5.0), vendor_us=1.0)
    assert [(row.protocol_key, row.latency_us) for row in store.best()] == [("", 5.0)]
    told(store, samples.context(), samples.verified(1, 10.0), samples.verified(2, 11.0), vendor_us=9.0)
    told(store, samples.context(protocol="warm"), samples.verified(1, 8.0), samples.verified(2, 7.0), vendor_us=6.0)
    told(store, samples.context(device="", protocol="", model="newer"), samples.predicted(3, 1.0))
    best = [(row.protocol_key, row.config, row.latency_us, row.vendor_us) for row in store.best()]
    assert best == [("cold", samples.config(1), 10.0, 9.0), ("warm", samples.config(2), 7.0, 6.0)]
    board = rows(store, "SELECT protocol_key, place, measured_us FROM leaderboard ORDER BY protocol_key, place")
    assert board == [("", 1, 5.0), ("cold", 1, 10.0), ("cold", 2, 11.0), ("warm", 1, 7.0), ("warm", 2, 8.0)]


def test_predicted_candidates_are_best_in_the_order_of_rank(store: Store) -> None:
    trials = [samples.predicted(number, latency_us) for number, latency_us in ((1, 10.0), (2, 11.0), (3, 9.0))]
    for number, order_us in ((1, -2.0), (2, -2.5), (3, 0.5)):
        trial = trials[number - 1]
        assert trial.prediction is not None
        trials[number - 1] = replace(trial, prediction=replace(trial.prediction, terms_us={ORDER_TERM: order_us}))
    told(store, samples.context(device="", protocol=""), *trials)
    (best,) = store.best()
    assert best.config == ranked({trial.config.key: trial for trial in trials})[0].config == samples.config(1)
    assert (best.latency_us, best.predicted_us) == (10.0, 10.0)


def test_best_of_one_kernel_or_target(store: Store) -> None:
    told(store, samples.context(), samples.verified(1, 12.0))
    assert store.best("matmul", "h200") == store.best("matmul_hopper") == store.best()
    with pytest.raises(InputError, match=r"nothing is recorded for kernel 'matmull'; did you mean matmul"):
        store.best("matmull")
    with pytest.raises(InputError, match=r"nothing is recorded for target 'h100'; did you mean h200"):
        store.best("matmul", "h100")


def test_rates_are_empty_where_the_work_is_not_known(store: Store) -> None:
    context = samples.context()
    store.record(store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {})), context, samples.verified(1, 10.0))
    assert (store.best()[0].tflops, store.best()[0].gb_per_s) == (None, None)


def test_failures_say_what_and_why(store: Store) -> None:
    told(store, samples.context(), samples.verified(1, 12.0), samples.failed(2, FailureKind.DOES_NOT_FIT))
    assert rows(store, "SELECT operator, kind, message, detail FROM failures") == [
        ("matmul", "does_not_fit", "refused", "the tail of its output")
    ]


def test_prediction_error_counts_each_pair_once(store: Store) -> None:
    context = samples.context()
    told(store, context, samples.verified(1, 8.0), samples.measured(2, 9.0))
    told(store, context, *store.recall(context).values())
    found = rows(store, "SELECT predicted_us, measured_us, relative_error, absolute_relative_error, model FROM prediction_error")
    assert found == [(10.0, 8.0, 0.25, 0.25, "analytical-1")]


def test_records_have_a_wrong_results_samples_but_no_measured_time(store: Store) -> None:
    wrong = replace(samples.failed(1, FailureKind.WRONG_RESULT), measurement=samples.measurement(1.0, 2.0, 3.0, relative_error=0.5))
    told(store, samples.context(), wrong)
    assert rows(store, "SELECT status, measured_us, samples_us, relative_error FROM records") == [("failed", None, "[1.0, 2.0, 3.0]", 0.5)]


# ---- reading only


WRITES = [
    "DELETE FROM trials",
    "UPDATE trials SET status = 'verified'",
    "INSERT INTO templates VALUES (1, 'a', 'b')",
    "INSERT INTO templates VALUES (1, 'a', 'b') RETURNING id",
    "DROP VIEW best",
    "CREATE TABLE mine (a)",
    "CREATE TEMP TABLE mine (a)",
    "ATTACH 'other.db' AS other",
    "VACUUM INTO 'other.db'",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA writable_schema = ON",
    "COMMIT",
    "BEGIN",
    "SELECT load_extension('x')",
]


@pytest.mark.parametrize("sql", WRITES)
def test_writes_are_refused(store: Store, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told(store, samples.context(), samples.predicted(1))
    before = overview(store)
    with pytest.raises(InputError, match=r"query refused: .*write one reading statement over records, leaderboard, best"):
        query(store, sql)
    assert overview(store) == before
    assert not (tmp_path / "other.db").exists()
    told(store, samples.context(), samples.predicted(2))  # the store itself goes on writing


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("", "returns no rows"),
        ("-- nothing", "returns no rows"),
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM nowhere", "no such table: nowhere"),
        ("SELECT absent FROM best", "no such column: absent"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELECT 1; DROP TABLE trials", "one statement at a time"),
    ],
)
def test_sql_that_is_wrong(store: Store, sql: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        query(store, sql)


def test_reading_is_not_disturbed_by_what_looks_like_parameters(store: Store) -> None:
    assert query(store, "SELECT '%s ? :name {}' AS a, 2 AS b -- %") == (["a", "b"], [("%s ? :name {}", 2)])
    assert rows(store, "WITH one AS (SELECT 1 AS x) SELECT x FROM one") == [(1,)]
    assert len(rows(store, "PRAGMA table_info(trials)")) == 10
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500) SELECT i FROM n"
    assert [i for (i,) in rows(store, many)] == list(range(1, 2501))


def test_ctrl_c_ends_a_long_query(store: Store) -> None:
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        query(store, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n")
    timer.join()
    told(store, samples.context(), samples.predicted(1))  # the store goes on


def test_a_store_for_reading_answers_while_another_writes(store: Store) -> None:
    told(store, samples.context(), samples.predicted(1))
    with (
        open_store(f"sqlite:///{store.name}", read_only=True) as reader,
        closing(sqlite3.connect(store.name, isolation_level=None)) as writer,
    ):
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM trials")
        assert rows(reader, "SELECT COUNT(*) FROM trials") == [(1,)]


# ---- frames and files


def test_frame_takes_a_name_or_sql(store: Store) -> None:
    told(store, samples.context(), samples.verified(1, 12.0), samples.failed(2, FailureKind.RUN_ERROR))
    assert list(frame(store, "leaderboard")["measured_us"]) == [12.0]
    assert frame(store, "SELECT COUNT(*) AS n FROM trials").to_dict("records") == [{"n": 2}]
    assert list(frame(store, "prediction_error").columns)[:3] == ["operator", "workload", "shape"]
    with pytest.raises(UnknownNameError, match=r"'leaderbord'; did you mean leaderboard"):
        frame(store, "leaderbord")


def test_export_to_csv(store: Store, tmp_path: Path) -> None:
    told(store, samples.context(), samples.verified(1, 1 / 3), samples.failed(2, FailureKind.RUN_ERROR))
    path = tmp_path / "out.CSV"
    path.write_text("what was there before")
    assert export(store, path) == 2
    with path.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert {row["status"] for row in found} == {"verified", "failed"}
    verified = next(row for row in found if row["status"] == "verified")
    assert float(verified["measured_us"]) == 1 / 3
    assert json.loads(verified["samples_us"]) == [1 / 3]
    assert [file.name for file in tmp_path.glob("out*")] == ["out.CSV"]


def test_export_to_json_lines_keeps_json_as_json(store: Store, tmp_path: Path) -> None:
    awkward = samples.Draw(3).text() + '\n\u2028,"'
    told(store, samples.context(device=awkward), samples.verified(1, 10.0))
    assert export(store, str(tmp_path / "out.txt"), "jsonl") == 1
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")
    assert len(lines) == 2
    found = json.loads(lines[0])
    assert (found["device"], found["config"], found["samples_us"]) == (awkward, dict(samples.config(1)), [10.0])
    assert found["dims"] == {"m": 4096, "n": 1024, "k": 8192}


def test_export_of_another_view(store: Store, tmp_path: Path) -> None:
    told(store, samples.context(), samples.verified(1, 10.0))
    assert export(store, tmp_path / "best.jsonl", view="best") == 1
    with pytest.raises(UnknownNameError, match="unknown view or table 'bst'; did you mean best"):
        export(store, tmp_path / "x.csv", view="bst")
    with pytest.raises(UnknownNameError):
        export(store, tmp_path / "x.csv", view="best; DROP TABLE trials")


def test_export_to_parquet(store: Store, tmp_path: Path) -> None:
    told(store, samples.context(), samples.verified(1, 10.0))
    if importlib.util.find_spec("pyarrow") or importlib.util.find_spec("fastparquet"):
        assert export(store, tmp_path / "x.parquet") == 1
        assert (tmp_path / "x.parquet").read_bytes()[:4] == b"PAR1"
    else:
        with pytest.raises(ToolchainError, match="pip install pyarrow"):
            export(store, tmp_path / "x.parquet")
        assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize("name", ["out.xlsx", "out", "out.csv.gz"])
def test_export_to_an_unknown_format(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"no known format; name a file that ends in \.csv, \.jsonl"):
        export(store, tmp_path / name)


def test_export_to_a_place_that_will_not_do(store: Store, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for path in (tmp_path / "missing" / "x.csv", tmp_path / "folder.csv", tmp_path / "x.db" / "x.csv"):
        with pytest.raises(InputError, match=r"export to '.*' failed: "):
            export(store, path)
    assert sorted(file.name for file in tmp_path.glob("*.partial")) == []


def test_overview_counts(store: Store) -> None:
    told(store, samples.context(), samples.verified(1, 10.0), samples.predicted(2))
    found = overview(store)
    assert (found.revision, found.trials, found.sessions) == ("0003", {"predicted": 1, "verified": 1}, {"complete": 1})
    assert found.size_bytes % 4096 == 0
    assert found.tables["candidates"] == 2
