"""Winners for dispatch, on each kind of database: which one a workload has, which workloads are near, and what never wins."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.database import samples
from tilesight.database import Store, shapes
from tilesight.errors import FailureKind, InputError
from tilesight.known import Known
from tilesight.session import Context, Decision, Effort, State
from tilesight.space import Census
from tilesight.trial import TrialRecord
from tilesight.workload import Workload


def asked(m: int = 4096, n: int = 1024, k: int = 8192, **changes: Any) -> Context:
    return samples.context(**{"workload": Workload("matmul", {"m": m, "n": n, "k": k}, "bfloat16", {"transposed": True}), **changes})


def told(
    store: Store, context: Context, *trials: TrialRecord, winner: int | None = None, state: State | None = State.COMPLETE, at: int = 0
) -> int:
    """A session that recorded `trials` and decided for the config `winner`; one of state None runs on."""
    session_id = store.begin(context, Effort.QUICK, at, {}, Census(1, 1, {}))
    store.record_many(session_id, context, trials)
    if state is not None:
        store.finish(session_id, state, decision=None if winner is None else Decision(samples.config(winner)))
    return session_id


def won(known: Known | None) -> tuple[object, float] | None:
    return None if known is None else (known.config["block_m"], known.latency_us)


# ---- of one workload


def test_nothing_is_known_of_what_was_not_measured(store: Store) -> None:
    assert store.winner(asked()) is None
    told(store, asked(), samples.predicted(1), samples.built(2), samples.measured(3, 5.0), samples.failed(4, FailureKind.RUN_ERROR))
    assert store.winner(asked()) is None
    assert store.nearest(asked(m=8)) == []
    assert store.winners(asked(), {}) == []


def test_the_decided_winner_goes_before_a_faster_candidate(store: Store) -> None:
    told(store, asked(), samples.verified(1, 9.0), samples.verified(2, 10.0, 12.0), winner=2)
    found = store.winner(asked())
    assert found is not None
    assert (found.config, found.latency_us, found.open, found.layer) == (samples.config(2), 11.0, (), "")
    assert found.workload == asked().workload
    assert found.recorded_at is not None


def test_of_several_sessions_the_latest_complete_one_that_decided_counts(store: Store) -> None:
    told(store, asked(), samples.verified(1, 9.0), winner=1)
    told(store, asked(), samples.verified(2, 10.0), winner=2)
    told(store, asked(), samples.verified(3, 8.0))  # compared nothing
    told(store, asked(), samples.verified(4, 7.0), winner=4, state=State.INTERRUPTED)
    told(store, asked(), samples.predicted(5))
    assert won(store.winner(asked())) == (2, 10.0)


@pytest.mark.parametrize("state", [None, State.INTERRUPTED, State.COMPLETE])
def test_without_a_decision_the_fastest_verified_candidate_wins(store: Store, state: State | None) -> None:
    told(store, asked(), samples.verified(1, 10.0), samples.verified(2, 9.0), samples.measured(3, 1.0), state=state)
    told(store, asked(), samples.verified(4, 9.5), state=state)
    assert won(store.winner(asked())) == (2, 9.0)


def test_of_a_candidate_that_was_measured_again_the_latest_time_counts(store: Store) -> None:
    told(store, asked(), samples.verified(1, 5.0), samples.verified(2, 9.0))
    told(store, asked(), samples.verified(1, 10.0))
    assert won(store.winner(asked())) == (2, 9.0)
    # under another protocol it is another time
    told(store, asked(protocol="warm"), samples.verified(2, 90.0))
    assert won(store.winner(asked())) == (2, 9.0)


def test_where_many_of_the_fastest_were_wrong_the_next_wins(store: Store) -> None:
    told(store, asked(), *(samples.verified(number, float(number)) for number in range(1, 31)), state=State.INTERRUPTED)
    told(store, asked(protocol="warm"), *(samples.failed(number, FailureKind.WRONG_RESULT) for number in range(1, 28)))
    assert won(store.winner(asked())) == (28, 28.0)


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize("kind", [FailureKind.WRONG_RESULT, FailureKind.NONDETERMINISTIC])
def test_a_candidate_that_was_ever_wrong_there_never_wins(store: Store, kind: FailureKind, decided: bool) -> None:
    told(store, asked(), samples.verified(3, 11.0), winner=3 if decided else None)
    told(store, asked(), samples.verified(1, 9.0), samples.verified(2, 10.0), winner=1 if decided else None)
    assert won(store.winner(asked())) == (1, 9.0)
    elsewhere = samples.failed(1, kind)
    told(store, asked(device="NVIDIA H200 NVL"), elsewhere)
    told(store, asked(software={"tilelang": "0.1.16", "nvcc": "13.0"}), elsewhere)
    assert won(store.winner(asked())) == (1, 9.0), "other code, or another device"
    # whatever the protocol, driver and torch
    told(store, asked(protocol="warm", software={"tilelang": "0.1.15", "nvcc": "13.0", "driver": "9", "torch": "3"}), elsewhere)
    assert won(store.winner(asked())) == ((3, 11.0) if decided else (2, 10.0))
    told(store, asked(), samples.verified(1, 8.0), winner=1)
    assert won(store.winner(asked())) == ((3, 11.0) if decided else (2, 10.0)), "a race shows only sometimes"


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"template": "other"}, False),
        ({"template_version": "new"}, False),
        ({"arch": "sm_80"}, False),
        ({"device": "NVIDIA H200 NVL"}, False),
        ({"protocol": "warm"}, False),
        ({"open": ("m",)}, False),
        ({"software": {"tilelang": "0.1.16", "nvcc": "13.0"}}, False),
        ({"software": {"tilelang": "0.1.15", "nvcc": "13.0", "driver": "580"}}, False),
        ({"software": {"nvcc": "13.0", "tilelang": "0.1.15", "torch": "2.13"}}, True),
        ({"target_fingerprint": "beef", "model": "analytical-2", "space": "other", "target": "h200-calibrated"}, True),
    ],
)
def test_a_winner_holds_where_its_time_does(store: Store, changes: dict[str, Any], known: bool) -> None:
    told(store, asked(), samples.verified(1, 9.0), winner=1)
    told(store, asked(m=2048), samples.verified(2, 5.0))
    there = replace(asked(), **changes)
    assert (store.winner(there) is not None) == known
    assert len(store.nearest(there)) == len(store.winners(there, {"m": 2048})) == int(known)


def test_kernels_of_open_dimensions_are_known_apart(store: Store) -> None:
    closed, opened, both = asked(), asked(open=("m",)), asked(open=("m", "n"))
    told(store, closed, samples.verified(1, 9.0), winner=1)
    told(store, opened, samples.verified(1, 9.5), samples.verified(2, 9.7), winner=2)
    assert won(store.winner(closed)) == (1, 9.0)
    found = store.winner(opened)
    assert found is not None
    assert (won(found), found.open) == ((2, 9.7), ("m",))
    assert store.winner(both) is None
    for context in (closed, opened, both):
        assert won(store.winner(context, any_open=True)) == (1, 9.0)
    # the same config is another candidate where it is open
    assert [trial.measured_us for trial in store.recall(closed).values()] == [9.0]
    assert sorted(trial.measured_us or 0 for trial in store.recall(opened).values()) == [9.5, 9.7]
    told(store, asked(m=100, open=("m",)), samples.verified(3, 1.0))
    assert [known.open for known in store.nearest(asked(m=99), any_open=True)] == [("m",), ()]
    assert [known.open for known in store.nearest(asked(m=99))] == [()]
    assert [known.open for known in store.winners(asked(), {"n": 1024}, any_open=True)] == [("m",), ()]


# ---- of the nearest


def test_nearest_first_and_never_itself(store: Store) -> None:
    for m in (16, 4096, 8192, 5000, 4097):
        told(store, asked(m=m), samples.verified(m, 9.0), winner=m)
    told(store, asked(m=4100), samples.predicted(1))  # knows no winner
    found = store.nearest(asked(), 3)
    assert [known.workload.dims["m"] for known in found] == [4097, 5000, 8192]
    assert [known.config["block_m"] for known in found] == [4097, 5000, 8192]
    assert [known.workload.dims["m"] for known in store.nearest(asked(m=1), 9)] == [16, 4096, 4097, 5000, 8192]
    assert [known.workload.dims["m"] for known in store.nearest(asked())][-1] == 16, "four by default"


def test_nearest_are_of_the_same_operator_dtype_and_attributes(store: Store) -> None:
    dims = {"m": 4096, "n": 1024, "k": 4096}
    for workload in (
        Workload("matmul", dims, "float16", {"transposed": True}),
        Workload("matmul", dims, "bfloat16", {"transposed": False}),
        Workload("matmul", dims, "bfloat16"),
        Workload("other", dims, "bfloat16", {"transposed": True}),
        Workload("matmul", {**dims, "b": 2}, "bfloat16", {"transposed": True}),
    ):
        told(store, asked(workload=workload), samples.verified(1, 9.0), winner=1)
    assert store.nearest(asked()) == []
    told(store, asked(k=1), samples.verified(1, 9.0), winner=1)
    assert len(store.nearest(asked())) == 1


def test_nearest_of_many_are_those_that_looking_at_all_would_find(store: Store) -> None:
    rng = random.Random(3)
    dims = []
    for number in range(150):
        drawn = {name: int(2 ** (14 * rng.random())) for name in "mnk"}
        if number % 5 == 0:
            drawn = {**dims[-1], "m": dims[-1]["m"] + 1} if dims else drawn
        if drawn not in dims:
            dims.append(drawn)
            # every third verified nothing: it is passed over
            trial = samples.predicted(1) if number % 3 == 1 else samples.verified(1, 9.0)
            told(store, asked(**drawn), trial)
    known = [known.workload.dims for known in store.winners(asked(), {})]
    assert len(known) == pytest.approx(100, abs=3)
    for _ in range(10):
        wanted = {name: int(2 ** (14 * rng.random())) for name in "mnk"}
        by_distance = sorted(shapes.distance(wanted, one) for one in known if one != wanted)
        for count in (1, 4, 40):
            found = [shapes.distance(wanted, one.workload.dims) for one in store.nearest(asked(**wanted), count)]
            assert found == pytest.approx(by_distance[:count], abs=1e-12)


def test_of_many_that_verified_nothing_the_few_that_did_are_found(store: Store) -> None:
    for m in range(1000, 1060):
        told(store, asked(m=m), samples.predicted(1))
    for m in (1, 16384):
        told(store, asked(m=m), samples.verified(m, 9.0))
    assert [known.workload.dims["m"] for known in store.nearest(asked(m=1030), 2)] == [16384, 1]


def test_many_sessions_on_one_shape_are_one_neighbour(store: Store) -> None:
    for number in range(60):
        told(store, asked(m=64), samples.verified(number, 60.0 - number))
    told(store, asked(m=65), samples.verified(1, 3.0))
    assert [won(known) for known in store.nearest(asked(m=63))] == [(59, 1.0), (1, 3.0)]


def test_no_neighbours_are_none(store: Store) -> None:
    with pytest.raises(InputError, match="count=0 of nearest workloads must be at least 1"):
        store.nearest(asked(), 0)


# ---- of all that agree


def test_all_that_agree_in_some_dimensions(store: Store) -> None:
    for m, n in ((8, 1024), (4, 1024), (4, 512), (16, 1024)):
        told(store, asked(m=m, n=n), samples.verified(m, float(m)), winner=m if m != 16 else None)
    found = store.winners(asked(), {"n": 1024, "k": 8192})
    assert [(known.workload.dims["m"], known.latency_us) for known in found] == [(4, 4.0), (8, 8.0), (16, 16.0)]
    assert len(store.winners(asked(), {})) == 4
    assert store.winners(asked(), {"n": 1}) == []
    with pytest.raises(InputError, match="'h' is no dimension of matmul; it has m, n, k"):
        store.winners(asked(), {"h": 1})
    for size in (0, 2**70, "8", True):
        with pytest.raises(InputError, match=r"matmul: n=.* must"):
            store.winners(asked(), {"n": size})  # type: ignore[dict-item]


def test_sql_in_names_is_only_text(store: Store) -> None:
    evil = "x') OR 1=1; --"
    context = asked(workload=Workload(evil, {evil: 4}, evil, {evil: True}, evil), device=evil, protocol=evil, open=(evil,))
    told(store, context, samples.verified(1, 9.0), winner=1)
    assert won(store.winner(context)) == (1, 9.0)
    assert len(store.winners(context, {evil: 4})) == 1
    assert store.winner(asked()) is None
