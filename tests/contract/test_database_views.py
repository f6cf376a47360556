"""The views, on each kind of database."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sessions import SMALL, add_session, rows
from tests.unit.database import samples
from tilesight.database import Store, frame, open_store
from tilesight.errors import FailureKind, InputError, UnknownNameError
from tilesight.problem.space import Census
from tilesight.records.session import Decision, Effort, SessionState, ranked
from tilesight.records.trial import ORDER_TERM, Status


def test_leaderboard_ranks_what_was_verified(store: Store) -> None:
    context = samples.context()
    add_session(
        store,
        context,
        samples.verified(1, 12.0),
        samples.verified(2, 10.0, 10.0, 99.0),
        samples.measured(3, 1.0),
        samples.predicted(4, 2.0),
    )
    add_session(store, context, samples.verified(5, 10.0), samples.failed(6, FailureKind.RUN_ERROR))
    add_session(store, samples.context(workload=SMALL), samples.verified(1, 20.0))
    found = rows(
        store,
        "SELECT shape, place, config, measured_us, tflops, gb_per_s FROM leaderboard ORDER BY measured_us, "
        "config",
    )
    assert [
        (shape, place, json.loads(config)["block_m"], us) for shape, place, config, us, _, _ in found
    ] == [
        ("M0", 1, 2, 10.0),
        ("M0", 1, 5, 10.0),
        ("M0", 3, 1, 12.0),
        (None, 1, 1, 20.0),
    ]
    assert found[0][4:] == (pytest.approx(200.0), pytest.approx(3000.0))


def test_leaderboard_takes_the_latest_time_of_a_candidate_on_each_device(store: Store) -> None:
    other = samples.context(device="NVIDIA H200 NVL")
    add_session(store, samples.context(), samples.verified(1, 10.0))
    add_session(store, samples.context(), samples.verified(1, 11.0))
    add_session(store, other, samples.verified(1, 20.0))
    assert rows(store, "SELECT device, place, measured_us FROM leaderboard ORDER BY device") == [
        ("NVIDIA H200", 1, 11.0),
        ("NVIDIA H200 NVL", 1, 20.0),
    ]


@pytest.mark.parametrize("kind", [FailureKind.WRONG_RESULT, FailureKind.NONDETERMINISTIC])
@pytest.mark.parametrize("wrong_first", [True, False])
def test_a_candidate_that_was_ever_wrong_leaves_the_board_of_its_device(
    store: Store, wrong_first: bool, kind: FailureKind
) -> None:
    sessions = [(samples.failed(1, kind), "warm"), (samples.verified(1, 10.0), "cold")]
    for trial, protocol in sessions if wrong_first else reversed(sessions):
        add_session(store, samples.context(protocol=protocol), trial)
    add_session(store, samples.context(device="other"), samples.verified(1, 30.0))
    add_session(store, samples.context(), samples.verified(2, 20.0))
    assert rows(store, "SELECT device, measured_us FROM leaderboard ORDER BY measured_us") == [
        ("NVIDIA H200", 20.0),
        ("other", 30.0),
    ]
    assert [row.latency_us for row in store.best()] == [20.0]


def test_best_has_one_row_for_each_workload_and_target(store: Store) -> None:
    add_session(
        store,
        samples.context(),
        samples.verified(1, 12.0),
        samples.verified(2, 10.0),
        samples.predicted(3, 1.0),
        vendor_us=9.0,
    )
    add_session(store, samples.context(device=""), samples.predicted(4, 0.5))
    add_session(
        store,
        samples.context(target="h100", target_fingerprint="h", device=""),
        samples.predicted(1, 8.0),
        samples.predicted(2, 7.0),
    )
    add_session(
        store,
        samples.context(target="h100", target_fingerprint="h", device="", model="new"),
        samples.predicted(1, 9.0),
        samples.predicted(2, 9.5),
    )
    add_session(store, samples.context(workload=SMALL, device=""), samples.failed(1, FailureKind.LOWER_ERROR))
    verified, predicted = store.best(target="h200")[0], store.best(target="h100")[0]
    assert len(store.best()) == 2
    assert (verified.status, verified.latency_us, verified.vendor_us, verified.config) == (
        Status.VERIFIED,
        10.0,
        9.0,
        samples.config(2),
    )
    assert verified.tflops == pytest.approx(200.0)
    assert (verified.predicted_us, verified.relative_error) == (10.0, 1e-3)
    # of predictions the latest session's count: an older model's are not comparable
    assert (predicted.status, predicted.latency_us, predicted.vendor_us, predicted.device) == (
        Status.PREDICTED,
        9.0,
        None,
        "",
    )
    assert predicted.config == samples.config(1)


def test_only_the_measurements_that_a_decision_was_made_on_are_beaten(store: Store) -> None:
    warm = samples.context(protocol="warm")
    trials = [samples.verified(number, 10.0 + number) for number in range(6)]
    add_session(store, samples.context(), *trials, decision=Decision(samples.config(4), (samples.config(1),)))
    add_session(store, warm, *trials, decision=Decision(samples.config(2)))
    add_session(store, samples.context(workload=SMALL), *trials)
    add_session(
        store, samples.context(), samples.verified(3, 10.5)
    )  # measured anew: nothing was decided of that
    found = {
        (row.workload.partition(",")[0], row.protocol_key): (row.config, row.latency_us)
        for row in store.best()
    }
    assert found == {
        ("matmul(m=4096", "cold"): (samples.config(3), 10.5),
        ("matmul(m=4096", "warm"): (samples.config(2), 12.0),
        ("matmul(m=64", "cold"): (samples.config(0), 10.0),
    }


def test_the_best_takes_twice_the_work_for_twice_the_records(tmp_path: Path) -> None:
    """Counted in steps of SQLite's machine."""

    def steps(count: int) -> int:
        with open_store(samples.empty_database(tmp_path / f"{count}.db")) as store:
            trials = [samples.verified(number, 10.0 + number) for number in range(count)]
            add_session(store, samples.context(), *trials, decision=Decision(samples.config(0)))
        taken = [0]
        with closing(sqlite3.connect(tmp_path / f"{count}.db")) as connection:
            connection.set_progress_handler(lambda: taken.__setitem__(0, taken[0] + 1), 100)
            assert len(connection.execute("SELECT * FROM best").fetchall()) == 1
        return taken[0]

    assert steps(1000) < 2.6 * steps(500)


def test_the_winner_of_a_comparison_is_best_and_not_the_least_median(store: Store) -> None:
    close = Decision(samples.config(2), (samples.config(1),), "fewer stages")
    add_session(
        store,
        samples.context(),
        samples.verified(1, 10.0),
        samples.verified(2, 10.01),
        samples.verified(3, 12.0),
        decision=close,
    )
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
    store.finish(
        session_id, SessionState.COMPLETE, decision=Decision(samples.config(1), (samples.config(4),))
    )
    assert [row.config for row in store.best()] == [samples.config(1)]


@pytest.mark.parametrize("wrong_elsewhere", [True, False])
def test_a_decision_falls_with_its_winner(store: Store, wrong_elsewhere: bool) -> None:
    decision = Decision(samples.config(2), (samples.config(1),))
    add_session(
        store, samples.context(), samples.verified(1, 10.0), samples.verified(2, 10.01), decision=decision
    )
    add_session(
        store,
        samples.context(device="other" if wrong_elsewhere else "NVIDIA H200"),
        samples.failed(2, FailureKind.WRONG_RESULT),
    )
    assert [row.config for row in store.best()] == [samples.config(2 if wrong_elsewhere else 1)]


def test_protocols_are_not_compared(store: Store) -> None:
    add_session(store, samples.context(protocol=""), samples.verified(1, 5.0), vendor_us=1.0)
    assert [(row.protocol_key, row.latency_us) for row in store.best()] == [("", 5.0)]
    add_session(store, samples.context(), samples.verified(1, 10.0), samples.verified(2, 11.0), vendor_us=9.0)
    add_session(
        store,
        samples.context(protocol="warm"),
        samples.verified(1, 8.0),
        samples.verified(2, 7.0),
        vendor_us=6.0,
    )
    add_session(store, samples.context(device="", protocol="", model="newer"), samples.predicted(3, 1.0))
    best = [(row.protocol_key, row.config, row.latency_us, row.vendor_us) for row in store.best()]
    assert best == [("cold", samples.config(1), 10.0, 9.0), ("warm", samples.config(2), 7.0, 6.0)]
    board = rows(
        store, "SELECT protocol_key, place, measured_us FROM leaderboard ORDER BY protocol_key, place"
    )
    assert board == [("", 1, 5.0), ("cold", 1, 10.0), ("cold", 2, 11.0), ("warm", 1, 7.0), ("warm", 2, 8.0)]


def test_predicted_candidates_are_best_in_the_order_of_rank(store: Store) -> None:
    trials = [
        samples.predicted(number, latency_us) for number, latency_us in ((1, 10.0), (2, 11.0), (3, 9.0))
    ]
    for number, order_us in ((1, -2.0), (2, -2.5), (3, 0.5)):
        trial = trials[number - 1]
        assert trial.prediction is not None
        trials[number - 1] = replace(
            trial, prediction=replace(trial.prediction, terms_us={ORDER_TERM: order_us})
        )
    add_session(store, samples.context(device="", protocol=""), *trials)
    (best,) = store.best()
    assert best.config == ranked({trial.config.key: trial for trial in trials})[0].config == samples.config(1)
    assert (best.latency_us, best.predicted_us) == (10.0, 10.0)


def test_best_of_one_kernel_or_target(store: Store) -> None:
    add_session(store, samples.context(), samples.verified(1, 12.0))
    assert store.best("matmul", "h200") == store.best("matmul_hopper") == store.best()
    with pytest.raises(InputError, match=r"nothing is recorded for kernel 'matmull'; did you mean matmul"):
        store.best("matmull")
    with pytest.raises(InputError, match=r"nothing is recorded for target 'h100'; did you mean h200"):
        store.best("matmul", "h100")


def test_rates_are_empty_where_the_work_is_not_known(store: Store) -> None:
    context = samples.context()
    store.record(
        store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {})), context, samples.verified(1, 10.0)
    )
    assert (store.best()[0].tflops, store.best()[0].gb_per_s) == (None, None)


def test_failures_say_what_and_why(store: Store) -> None:
    add_session(
        store, samples.context(), samples.verified(1, 12.0), samples.failed(2, FailureKind.DOES_NOT_FIT)
    )
    assert rows(store, "SELECT operator, kind, message, detail FROM failures") == [
        ("matmul", "does_not_fit", "refused", "the tail of its output")
    ]


def test_prediction_error_counts_each_pair_once(store: Store) -> None:
    context = samples.context()
    add_session(store, context, samples.verified(1, 8.0), samples.measured(2, 9.0))
    add_session(store, context, *store.recall(context).values())
    found = rows(
        store,
        "SELECT predicted_us, measured_us, relative_error, absolute_relative_error, model FROM "
        "prediction_error",
    )
    assert found == [(10.0, 8.0, 0.25, 0.25, "analytical-1")]


def test_records_have_a_wrong_results_samples_but_no_measured_time(store: Store) -> None:
    wrong = replace(
        samples.failed(1, FailureKind.WRONG_RESULT),
        measurement=samples.measurement(1.0, 2.0, 3.0, relative_error=0.5),
    )
    add_session(store, samples.context(), wrong)
    assert rows(store, "SELECT status, measured_us, samples_us, relative_error FROM records") == [
        ("failed", None, "[1.0, 2.0, 3.0]", 0.5)
    ]


def test_frame_takes_a_name_or_sql(store: Store) -> None:
    add_session(store, samples.context(), samples.verified(1, 12.0), samples.failed(2, FailureKind.RUN_ERROR))
    assert list(frame(store, "leaderboard")["measured_us"]) == [12.0]
    assert frame(store, "SELECT COUNT(*) AS n FROM trials").to_dict("records") == [{"n": 2}]
    assert list(frame(store, "prediction_error").columns)[:3] == ["operator", "workload", "shape"]
    with pytest.raises(UnknownNameError, match=r"'leaderbord'; did you mean leaderboard"):
        frame(store, "leaderbord")
