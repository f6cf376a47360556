"""Winners for dispatch, on each kind of database: which one a workload has, and what never wins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.database import samples
from tilesight.database import Store
from tilesight.errors import FailureKind, InputError
from tilesight.problem.space import Census
from tilesight.problem.workload import Workload
from tilesight.records.session import Context, Decision, Effort, SessionState
from tilesight.records.trial import TrialRecord
from tilesight.records.winners import Winner


def matmul_context(m: int = 4096, n: int = 1024, k: int = 8192, **changes: Any) -> Context:
    return samples.context(
        **{
            "workload": Workload("matmul", {"m": m, "n": n, "k": k}, "bfloat16", {"transposed": True}),
            **changes,
        }
    )


def add_session(
    store: Store,
    context: Context,
    *trials: TrialRecord,
    winner: int | None = None,
    state: SessionState | None = SessionState.COMPLETE,
    at: int = 0,
) -> int:
    """Record a session with `trials` and the config `winner` as its decision; with state None it stays
    running."""
    session_id = store.begin(context, Effort.QUICK, at, {}, Census(1, 1, {}))
    store.record_many(session_id, context, trials)
    if state is not None:
        store.finish(session_id, state, decision=None if winner is None else Decision(samples.config(winner)))
    return session_id


def won(known: Winner | None) -> tuple[object, float] | None:
    return None if known is None else (known.config["block_m"], known.latency_us)


# ---- of one workload


def test_nothing_is_known_of_what_was_not_measured(store: Store) -> None:
    assert samples.winner(store, matmul_context()) is None
    add_session(
        store,
        matmul_context(),
        samples.predicted(1),
        samples.built(2),
        samples.measured(3, 5.0),
        samples.failed(4, FailureKind.RUN_ERROR),
    )
    assert samples.winner(store, matmul_context()) is None
    assert store.winners(matmul_context(), {}) == []


def test_the_decided_winner_goes_before_a_faster_candidate(store: Store) -> None:
    add_session(store, matmul_context(), samples.verified(1, 9.0), samples.verified(2, 10.0, 12.0), winner=2)
    found = samples.winner(store, matmul_context())
    assert found is not None
    assert (found.config, found.latency_us, found.dynamic, found.layer) == (samples.config(2), 11.0, (), "")
    assert found.workload == matmul_context().workload
    assert found.recorded_at is not None


def test_of_several_sessions_the_latest_complete_one_that_decided_counts(store: Store) -> None:
    add_session(store, matmul_context(), samples.verified(1, 9.0), winner=1)
    add_session(store, matmul_context(), samples.verified(2, 10.0), winner=2)
    add_session(store, matmul_context(), samples.verified(3, 8.0))  # compared nothing
    add_session(store, matmul_context(), samples.verified(4, 7.0), winner=4, state=SessionState.INTERRUPTED)
    add_session(store, matmul_context(), samples.predicted(5))
    assert won(samples.winner(store, matmul_context())) == (2, 10.0)


@pytest.mark.parametrize("state", [None, SessionState.INTERRUPTED, SessionState.COMPLETE])
def test_without_a_decision_the_fastest_verified_candidate_wins(
    store: Store, state: SessionState | None
) -> None:
    add_session(
        store,
        matmul_context(),
        samples.verified(1, 10.0),
        samples.verified(2, 9.0),
        samples.measured(3, 1.0),
        state=state,
    )
    add_session(store, matmul_context(), samples.verified(4, 9.5), state=state)
    assert won(samples.winner(store, matmul_context())) == (2, 9.0)


def test_of_a_candidate_that_was_measured_again_the_latest_time_counts(store: Store) -> None:
    add_session(store, matmul_context(), samples.verified(1, 5.0), samples.verified(2, 9.0))
    add_session(store, matmul_context(), samples.verified(1, 10.0))
    assert won(samples.winner(store, matmul_context())) == (2, 9.0)
    # under another protocol it is another time
    add_session(store, matmul_context(protocol="warm"), samples.verified(2, 90.0))
    assert won(samples.winner(store, matmul_context())) == (2, 9.0)


def test_where_many_of_the_fastest_were_wrong_the_next_wins(store: Store) -> None:
    add_session(
        store,
        matmul_context(),
        *(samples.verified(number, float(number)) for number in range(1, 31)),
        state=SessionState.INTERRUPTED,
    )
    add_session(
        store,
        matmul_context(protocol="warm"),
        *(samples.failed(number, FailureKind.WRONG_RESULT) for number in range(1, 28)),
    )
    assert won(samples.winner(store, matmul_context())) == (28, 28.0)


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize("kind", [FailureKind.WRONG_RESULT, FailureKind.NONDETERMINISTIC])
def test_a_candidate_that_was_ever_wrong_there_never_wins(
    store: Store, kind: FailureKind, decided: bool
) -> None:
    add_session(store, matmul_context(), samples.verified(3, 11.0), winner=3 if decided else None)
    add_session(
        store,
        matmul_context(),
        samples.verified(1, 9.0),
        samples.verified(2, 10.0),
        winner=1 if decided else None,
    )
    assert won(samples.winner(store, matmul_context())) == (1, 9.0)
    elsewhere = samples.failed(1, kind)
    add_session(store, matmul_context(device="NVIDIA H200 NVL"), elsewhere)
    add_session(store, matmul_context(software={"tilelang": "0.1.16", "nvcc": "13.0"}), elsewhere)
    assert won(samples.winner(store, matmul_context())) == (1, 9.0), "other code, or another device"
    # whatever the protocol, driver and torch
    add_session(
        store,
        matmul_context(
            protocol="warm", software={"tilelang": "0.1.15", "nvcc": "13.0", "driver": "9", "torch": "3"}
        ),
        elsewhere,
    )
    assert won(samples.winner(store, matmul_context())) == ((3, 11.0) if decided else (2, 10.0))
    add_session(store, matmul_context(), samples.verified(1, 8.0), winner=1)
    assert won(samples.winner(store, matmul_context())) == ((3, 11.0) if decided else (2, 10.0)), (
        "a race shows only sometimes"
    )


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"template": "other"}, False),
        ({"template_version": "new"}, False),
        ({"arch": "sm_80"}, False),
        ({"device": "NVIDIA H200 NVL"}, False),
        ({"protocol": "warm"}, False),
        ({"dynamic": ("m",)}, False),
        ({"software": {"tilelang": "0.1.16", "nvcc": "13.0"}}, False),
        ({"software": {"tilelang": "0.1.15", "nvcc": "13.0", "driver": "580"}}, False),
        ({"software": {"nvcc": "13.0", "tilelang": "0.1.15", "torch": "2.13"}}, True),
        (
            {
                "target_fingerprint": "beef",
                "model": "analytical-2",
                "space": "other",
                "target": "h200-calibrated",
            },
            True,
        ),
    ],
)
def test_a_winner_holds_where_its_time_does(store: Store, changes: dict[str, Any], known: bool) -> None:
    add_session(store, matmul_context(), samples.verified(1, 9.0), winner=1)
    add_session(store, matmul_context(m=2048), samples.verified(2, 5.0))
    there = replace(matmul_context(), **changes)
    assert (samples.winner(store, there) is not None) == known
    assert len(store.winners(there, {"m": 2048})) == int(known)


def test_kernels_of_dynamic_dimensions_are_known_apart(store: Store) -> None:
    static, dynamic, both = (
        matmul_context(),
        matmul_context(dynamic=("m",)),
        matmul_context(dynamic=("m", "n")),
    )
    add_session(store, static, samples.verified(1, 9.0), winner=1)
    add_session(store, dynamic, samples.verified(1, 9.5), samples.verified(2, 9.7), winner=2)
    assert won(samples.winner(store, static)) == (1, 9.0)
    found = samples.winner(store, dynamic)
    assert found is not None
    assert (won(found), found.dynamic) == ((2, 9.7), ("m",))
    assert samples.winner(store, both) is None
    for context in (static, dynamic, both):
        assert won(samples.winner(store, context, any_dynamic=True)) == (1, 9.0)
    # the same config is another candidate where a dimension is dynamic
    assert [trial.measured_us for trial in store.recall(static).values()] == [9.0]
    assert sorted(trial.measured_us or 0 for trial in store.recall(dynamic).values()) == [9.5, 9.7]
    add_session(store, matmul_context(m=100, dynamic=("m",)), samples.verified(3, 1.0))
    assert [known.dynamic for known in store.winners(matmul_context(), {"n": 1024}, any_dynamic=True)] == [
        ("m",),
        (),
    ]


def test_winners_are_of_the_same_operator_dtype_and_attributes(store: Store) -> None:
    dims = {"m": 4096, "n": 1024, "k": 4096}
    for workload in (
        Workload("matmul", dims, "float16", {"transposed": True}),
        Workload("matmul", dims, "bfloat16", {"transposed": False}),
        Workload("matmul", dims, "bfloat16"),
        Workload("other", dims, "bfloat16", {"transposed": True}),
        Workload("matmul", {**dims, "b": 2}, "bfloat16", {"transposed": True}),
    ):
        add_session(store, matmul_context(workload=workload), samples.verified(1, 9.0), winner=1)
    assert store.winners(matmul_context(), {}) == []
    add_session(store, matmul_context(k=1), samples.verified(1, 9.0), winner=1)
    assert len(store.winners(matmul_context(), {})) == 1


def test_many_sessions_on_one_workload_have_one_winner(store: Store) -> None:
    for number in range(60):
        add_session(store, matmul_context(m=64), samples.verified(number, 60.0 - number))
    add_session(store, matmul_context(m=65), samples.verified(1, 3.0))
    assert [won(known) for known in store.winners(matmul_context(m=63), {})] == [(59, 1.0), (1, 3.0)]


# ---- of all that agree


def test_all_that_agree_in_some_dimensions(store: Store) -> None:
    for m, n in ((8, 1024), (4, 1024), (4, 512), (16, 1024)):
        add_session(
            store, matmul_context(m=m, n=n), samples.verified(m, float(m)), winner=m if m != 16 else None
        )
    found = store.winners(matmul_context(), {"n": 1024, "k": 8192})
    assert [(known.workload.dims["m"], known.latency_us) for known in found] == [
        (4, 4.0),
        (8, 8.0),
        (16, 16.0),
    ]
    assert len(store.winners(matmul_context(), {})) == 4
    assert store.winners(matmul_context(), {"n": 1}) == []
    with pytest.raises(InputError, match="'h' is no dimension of matmul; it has m, n, k"):
        store.winners(matmul_context(), {"h": 1})
    for size in (0, 2**70, "8", True):
        with pytest.raises(InputError, match=r"matmul: n=.* must"):
            store.winners(matmul_context(), {"n": size})  # type: ignore[dict-item]


def test_sql_in_names_is_only_text(store: Store) -> None:
    evil = "x') OR 1=1; --"
    context = matmul_context(
        workload=Workload(evil, {evil: 4}, evil, {evil: True}, evil),
        device=evil,
        protocol=evil,
        dynamic=(evil,),
    )
    add_session(store, context, samples.verified(1, 9.0), winner=1)
    assert won(samples.winner(store, context)) == (1, 9.0)
    assert len(store.winners(context, {evil: 4})) == 1
    assert samples.winner(store, matmul_context()) is None
