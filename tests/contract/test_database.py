"""The contract of `Store`, on each kind of database."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.unit.database import samples
from tilesight.database import Store, open_store, overview, query
from tilesight.database.lookups.recall import HOLDS
from tilesight.errors import DatabaseError, Failure, FailureKind, InputError
from tilesight.problem.space import Census, Config
from tilesight.problem.workload import Workload
from tilesight.records.session import Baseline, Context, Decision, Effort, SessionState, ranked
from tilesight.records.trial import Measurement, Prediction, Status, TrialRecord
from tilesight.target.spec import load_target

CENSUS = Census(10**20, 5, samples.CENSUS_REJECTED)
OPTIONS = {"top": 5, "budget": None, "share": 0.1, "order": "model", "cold": True}


def begin(store: Store, context: Context, effort: Effort = Effort.QUICK) -> int:
    return store.begin(context, effort, 7, OPTIONS, CENSUS, flops=2**50, min_bytes=3**30)


def add_session(store: Store, context: Context, *trials: TrialRecord) -> int:
    """A session that recorded `trials`."""
    session_id = begin(store, context)
    store.record_many(session_id, context, trials)
    return session_id


def only(records: dict[str, TrialRecord]) -> TrialRecord:
    assert len(records) == 1
    return next(iter(records.values()))


# ---- round trip


@pytest.mark.parametrize("seed", range(6))
def test_every_field_comes_back_as_it_went_in(store: Store, url: str, seed: int) -> None:
    draw = samples.Draw(seed)
    context = samples.context(
        device=draw.text(),
        model=draw.text(),
        software=draw.mapping(draw.text),
        template=draw.text(),
        protocol=draw.text(),
    )
    trials = [draw.trial(number) for number in range(25)]
    session_id = begin(store, context)
    for trial in trials[:5]:
        store.record(session_id, context, trial)
    store.record_many(session_id, context, trials[5:])
    baselines = (
        Baseline(draw.text(), (draw.positive(), draw.positive(), draw.positive())),
        Baseline("b", (1.0,)),
    )
    store.record_baselines(session_id, baselines)
    messages = [draw.text() for _ in range(3)]
    decision = Decision(trials[3].config, tuple(trial.config for trial in trials[: seed % 3]), draw.text())
    store.finish(session_id, SessionState.COMPLETE, messages, 1 / 3, decision=decision)

    with open_store(url) as again:
        result = again.find_complete(context, Effort.QUICK, OPTIONS)
    assert result is not None
    assert result.trials == ranked({trial.config.key: trial for trial in trials}, decision)
    for found in result.trials:
        wanted = next(trial for trial in trials if trial.config == found.config)
        assert repr(found) == repr(wanted)  # True is not 1, and mappings keep their order
    assert result.context == context
    assert result.census == CENSUS
    assert (result.baselines, result.messages, result.seconds) == (baselines, tuple(messages), 1 / 3)
    assert repr(result.decision) == repr(decision)
    assert (result.flops, result.min_bytes, result.state, result.effort) == (
        2**50,
        3**30,
        SessionState.COMPLETE,
        Effort.QUICK,
    )
    assert result.from_database


def test_text_that_no_database_can_hold_is_recorded_all_the_same(store: Store) -> None:
    context = samples.context()
    trial = samples.failed(1, FailureKind.LOWER_CRASH)
    assert trial.failure is not None
    trial = replace(trial, failure=replace(trial.failure, message="half a \ud800 pair", detail="NUL\0inside"))
    add_session(store, context, trial)
    found = only(store.recall(context)).failure
    assert found is not None
    assert (found.message, found.detail) == ("half a \ufffd pair", "NUL\ufffdinside")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused(store: Store, bad: float) -> None:
    context = samples.context()
    session_id = begin(store, context)
    good = samples.verified(1, 10.0)
    assert good.prediction is not None
    assert good.build is not None
    assert good.measurement is not None
    spoiled = {
        "lowering_seconds": replace(good, lowering_seconds=bad),
        "prediction.uncertainty": replace(good, prediction=replace(good.prediction, uncertainty=bad)),
        r"prediction.utilization\[dram\]": replace(
            good, prediction=replace(good.prediction, utilization={"dram": bad})
        ),
        r"prediction.terms_us\[dram\]": replace(
            good, prediction=replace(good.prediction, terms_us={"dram": bad})
        ),
        "build.seconds": replace(good, build=replace(good.build, seconds=bad)),
        r"measurement.samples_us\[1\]": replace(
            good, measurement=replace(good.measurement, samples_us=(1.0, bad))
        ),
        "measurement.relative_error": replace(
            good, measurement=replace(good.measurement, relative_error=bad)
        ),
        r"measurement.protocol\[x\]": replace(
            good, measurement=replace(good.measurement, protocol={"x": bad})
        ),
        r"measurement.observed\[x\]": replace(
            good, measurement=replace(good.measurement, observed={"x": bad})
        ),
    }
    for name, trial in spoiled.items():
        with pytest.raises(InputError, match=rf"block_m=1.*{name}=.*finite"):
            store.record(session_id, context, trial)
    with pytest.raises(InputError, match="cuBLAS"):
        store.record_baselines(session_id, [Baseline("cuBLAS", (bad,))])
    with pytest.raises(InputError, match="finite"):
        store.begin(context, Effort.QUICK, 0, {"budget": bad}, CENSUS)
    assert store.recall(context) == {}


# ---- recording


def test_recording_again_changes_nothing(store: Store) -> None:
    context = samples.context()
    trials = [samples.verified(1, 10.0, 11.0), samples.predicted(2), samples.failed(3, FailureKind.RUN_ERROR)]
    session_id = add_session(store, context, *trials)
    before = overview(store).tables
    for trial in trials:
        store.record(session_id, context, trial)
    store.record_many(session_id, context, trials + trials)
    assert overview(store).tables == before
    assert store.recall(context) == {trial.config.key: trial for trial in trials}


def test_a_trial_that_comes_further_takes_its_own_place(store: Store) -> None:
    context = samples.context()
    session_id = begin(store, context)
    for trial in (samples.predicted(1), samples.built(1), samples.verified(1, 10.0)):
        store.record(session_id, context, trial)
        assert only(store.recall(context)) == trial
    assert overview(store).trials == {"verified": 1}


def test_a_failed_measurement_keeps_its_prediction_and_build(store: Store) -> None:
    context = samples.context()
    trial = samples.failed(1, FailureKind.RUN_TIMEOUT)
    add_session(store, context, trial)
    assert only(store.recall(context)) == trial
    assert trial.prediction is not None
    assert trial.build is not None


def test_facts_are_shared_between_sessions(store: Store) -> None:
    context = samples.context()
    add_session(store, context, samples.verified(1, 10.0))
    before = overview(store).tables
    add_session(store, context, *store.recall(context).values())
    after = overview(store).tables
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"sessions", "trials"}


def test_another_context_or_an_unknown_session_is_refused(store: Store, url: str) -> None:
    session_id = begin(store, samples.context())
    with open_store(url) as other, pytest.raises(InputError, match="one context"):
        other.record(session_id, samples.context(model="analytical-2"), samples.predicted(1))
    with pytest.raises(DatabaseError, match="session 12 is not in this database"):
        store.record(12, samples.context(), samples.predicted(1))
    with pytest.raises(DatabaseError, match="session 12 is not"):
        store.finish(12, SessionState.COMPLETE)
    with pytest.raises(DatabaseError, match="session 12 is not"):
        store.record_baselines(12, [])
    with pytest.raises(InputError, match="not as running"):
        store.finish(session_id, SessionState.RUNNING)
    stranger = Decision(samples.config(3))
    with pytest.raises(InputError, match=r"its winner 'block_m=3.*' is no trial of it"):
        store.finish(session_id, SessionState.COMPLETE, decision=stranger)
    assert overview(store).tables["trials"] == 0
    assert overview(store).sessions == {"running": 1}


def test_huge_seed_is_refused_before_anything_is_written(store: Store) -> None:
    with pytest.raises(InputError, match=r"seed=.*64 bits"):
        store.begin(samples.context(), Effort.QUICK, 2**63, {}, CENSUS)
    assert overview(store).tables["sessions"] == 0


def test_a_workload_learns_its_published_name(store: Store) -> None:
    nameless = Workload("matmul", {"m": 1, "n": 2, "k": 3}, "float16")
    begin(store, samples.context(workload=nameless))
    begin(store, samples.context(workload=replace(nameless, name="M9")))
    begin(store, samples.context(workload=nameless))
    assert query(store, "SELECT name FROM workloads")[1] == [("M9",)]
    assert query(store, "SELECT dim, size FROM workload_dims ORDER BY dim")[1] == [
        ("k", 3),
        ("m", 1),
        ("n", 2),
    ]


# ---- recall


def test_nothing_is_recalled_of_another_kernel(store: Store) -> None:
    context = samples.context()
    add_session(store, context, samples.verified(1, 10.0))
    other = Workload("matmul", {"m": 4096, "n": 1024, "k": 4096}, "bfloat16")
    for changed in (
        {"template": "other"},
        {"template_version": "new"},
        {"workload": other},
        {"arch": "sm_80"},
        {"software": {"nvcc": "12"}},
    ):
        assert store.recall(samples.context(**changed)) == {}


@pytest.mark.parametrize("changes", [{"model": "analytical-2"}, {"target_fingerprint": "beef"}])
def test_a_new_model_or_calibration_keeps_builds_and_measurements(
    store: Store, changes: dict[str, str]
) -> None:
    trial = samples.verified(1, 10.0)
    add_session(store, samples.context(), trial, samples.predicted(2), samples.built(3))
    assert store.recall(samples.context(**changes)) == {
        samples.config(1).key: replace(trial, prediction=None),
        samples.config(3).key: replace(samples.built(3), prediction=None),
    }


@pytest.mark.parametrize("device", ["", "NVIDIA H200 NVL"])
def test_another_device_keeps_predictions_and_builds_but_no_measurement(store: Store, device: str) -> None:
    add_session(store, samples.context(), samples.verified(1, 10.0), samples.predicted(2))
    found = store.recall(samples.context(device=device))
    assert found[samples.config(1).key] == replace(
        samples.verified(1, 10.0), status=Status.BUILT, measurement=None
    )
    assert found[samples.config(2).key] == samples.predicted(2)


@pytest.mark.parametrize("protocol", ["", "warm"])
def test_another_protocol_keeps_predictions_and_builds_but_no_measurement(
    store: Store, protocol: str
) -> None:
    add_session(
        store, samples.context(), samples.verified(1, 10.0), samples.predicted(2), samples.measured(3, 10.0)
    )
    assert store.recall(samples.context(protocol=protocol)) == {
        samples.config(1).key: replace(samples.verified(1, 10.0), status=Status.BUILT, measurement=None),
        samples.config(2).key: samples.predicted(2),
        samples.config(3).key: replace(samples.measured(3, 10.0), status=Status.BUILT, measurement=None),
    }


def test_equal_samples_under_two_protocols_are_two_facts(store: Store) -> None:
    for protocol in ("cold", "warm"):
        add_session(store, samples.context(protocol=protocol), samples.verified(1, 10.0))
    found = query(
        store, "SELECT protocol_key, COUNT(*) FROM measurements GROUP BY protocol_key ORDER BY protocol_key"
    )[1]
    assert found == [("cold", 1), ("warm", 1)]


def test_predictions_made_without_a_device_serve_where_one_measures(store: Store) -> None:
    add_session(
        store, samples.context(device=""), samples.predicted(1), samples.failed(2, FailureKind.LOWER_ERROR)
    )
    assert store.recall(samples.context()) == store.recall(samples.context(device=""))
    assert len(store.recall(samples.context())) == 2


@pytest.mark.parametrize(
    ("kind", "changes", "holds"),
    [
        (FailureKind.LOWER_ERROR, {"model": "m2", "device": "d2", "target_fingerprint": "t2"}, True),
        (FailureKind.LOWER_TIMEOUT, {"device": "d2"}, True),
        (FailureKind.BUILD_ERROR, {"model": "m2", "device": "d2"}, True),
        (FailureKind.DOES_NOT_FIT, {"device": "d2"}, True),
        (FailureKind.DOES_NOT_FIT, {"target_fingerprint": "t2"}, False),
        (FailureKind.PROFILE_ERROR, {"model": "m2"}, False),
        (FailureKind.DUPLICATE, {"model": "m2"}, False),
        (FailureKind.RUN_ERROR, {"model": "m2", "target_fingerprint": "t2"}, True),
        (FailureKind.RUN_ERROR, {"device": "d2"}, False),
        (FailureKind.RUN_ERROR, {"protocol": "warm"}, False),
        (FailureKind.WRONG_RESULT, {"device": "d2"}, False),
        (FailureKind.WRONG_RESULT, {"protocol": "warm", "model": "m2"}, True),
        (FailureKind.NONDETERMINISTIC, {"device": "d2"}, False),
        (FailureKind.NONDETERMINISTIC, {"protocol": "warm"}, True),
        (FailureKind.LOWER_MEMORY, {}, False),
        (FailureKind.BUILD_MEMORY, {}, False),
        (FailureKind.RUN_MEMORY, {}, False),
    ],
)
def test_failures_hold_as_far_as_their_stage(
    store: Store, kind: FailureKind, changes: dict[str, str], holds: bool
) -> None:
    add_session(store, samples.context(), samples.failed(1, kind))
    found = store.recall(samples.context(**changes)).get(samples.config(1).key)
    assert (found is not None and found.status is Status.FAILED) == holds
    ran = kind.value.startswith("run") or kind in (FailureKind.WRONG_RESULT, FailureKind.NONDETERMINISTIC)
    if ran and not holds:
        assert found is not None
        assert (found.status, found.measurement, found.failure) == (Status.BUILT, None, None)


def test_a_duplicate_by_its_machine_code_holds_whatever_the_model(store: Store) -> None:
    why = samples.failure(FailureKind.DUPLICATE, "builds to the same binary as another")
    duplicate = replace(samples.built(1), status=Status.FAILED, failure=why)
    add_session(store, samples.context(), duplicate)
    add_session(store, samples.context(model="m2"), samples.predicted(1))  # has a lower precedence
    found = only(store.recall(samples.context(model="m2", device="d2", protocol="warm")))
    assert (found.status, found.failure, found.build) == (Status.FAILED, why, samples.build())
    # a config that another session kept is not a duplicate
    add_session(store, samples.context(), samples.verified(1, 10.0))
    assert only(store.recall(samples.context())).status is Status.VERIFIED


def test_every_failure_is_held_somewhere_or_nowhere() -> None:
    """Each kind of failure needs an entry in HOLDS."""
    assert set(HOLDS) == set(FailureKind)


def test_a_build_that_lacked_memory_leaves_the_prediction(store: Store) -> None:
    add_session(store, samples.context(), samples.failed(1, FailureKind.BUILD_MEMORY))
    found = only(store.recall(samples.context()))
    assert (found.status, found.prediction, found.build) == (Status.PREDICTED, samples.prediction(), None)


STRONGER = [
    (samples.verified(1, 10.0), samples.measured(1, 5.0)),
    (samples.verified(1, 10.0), samples.failed(1, FailureKind.RUN_CRASH)),
    (samples.measured(1, 10.0), samples.built(1)),
    (samples.failed(1, FailureKind.RUN_ERROR), samples.built(1)),
    (samples.built(1), samples.failed(1, FailureKind.BUILD_TIMEOUT)),
    (samples.failed(1, FailureKind.BUILD_ERROR), samples.predicted(1)),
    (samples.predicted(1), samples.failed(1, FailureKind.LOWER_TIMEOUT)),
    (samples.failed(1, FailureKind.WRONG_RESULT), samples.verified(1, 10.0)),
    (samples.failed(1, FailureKind.NONDETERMINISTIC), samples.verified(1, 10.0)),
    (samples.failed(1, FailureKind.NONDETERMINISTIC), samples.failed(1, FailureKind.RUN_CRASH)),
    (samples.verified(1, 10.0), samples.failed(1, FailureKind.RUN_MEMORY)),
    (samples.built(1), samples.failed(1, FailureKind.BUILD_MEMORY)),
    (samples.failed(1, FailureKind.BUILD_ERROR), samples.failed(1, FailureKind.BUILD_MEMORY)),
]


@pytest.mark.parametrize(("strong", "weak"), STRONGER)
@pytest.mark.parametrize("strong_first", [True, False])
def test_the_best_known_record_wins_whenever_it_came(
    store: Store, strong: TrialRecord, weak: TrialRecord, strong_first: bool
) -> None:
    context = samples.context()
    for trial in (strong, weak) if strong_first else (weak, strong):
        add_session(store, context, trial)
    found = only(store.recall(context))
    assert (found.status, found.failure, found.measurement) == (
        strong.status,
        strong.failure,
        strong.measurement,
    )


def test_of_equals_the_latest_is_recalled(store: Store) -> None:
    context = samples.context()
    for time_us in (10.0, 30.0, 20.0):
        add_session(store, context, samples.verified(1, time_us))
    assert only(store.recall(context)).measured_us == 20.0


def test_parts_of_several_sessions_make_one_record(store: Store) -> None:
    newer = samples.context(model="analytical-2")
    add_session(store, samples.context(), samples.verified(1, 10.0))
    add_session(store, newer, samples.predicted(1, 12.5))
    assert only(store.recall(newer)) == replace(
        samples.verified(1, 10.0), prediction=samples.prediction(12.5)
    )


def test_a_failed_build_is_not_lent_to_a_verified_trial(store: Store) -> None:
    context = samples.context()
    add_session(store, context, samples.failed(1, FailureKind.BUILD_TIMEOUT))
    add_session(store, context, replace(samples.verified(1, 10.0), build=None))
    assert only(store.recall(context)).build is None


# ---- sessions


def test_only_a_complete_session_of_the_same_question_answers(store: Store) -> None:
    context = samples.context()
    session_id = add_session(store, context, samples.verified(1, 10.0))
    assert store.find_complete(context, Effort.QUICK, OPTIONS) is None
    store.finish(session_id, SessionState.COMPLETE, [], 1.0)
    assert store.find_complete(context, Effort.QUICK, dict(reversed(OPTIONS.items()))) is not None
    assert store.find_complete(context, Effort.FULL, OPTIONS) is None
    assert store.find_complete(context, Effort.QUICK, {**OPTIONS, "top": 6}) is None
    assert store.find_complete(samples.context(device="other"), Effort.QUICK, OPTIONS) is None


def test_the_latest_complete_session_answers(store: Store) -> None:
    context = samples.context()
    for time_us in (10.0, 12.0):
        store.finish(add_session(store, context, samples.verified(1, time_us)), SessionState.COMPLETE)
    result = store.find_complete(context, Effort.QUICK, OPTIONS)
    assert result is not None
    assert result.best is not None
    assert result.best.measured_us == 12.0


def test_an_interrupted_session_is_taken_over_once(store: Store, url: str) -> None:
    context = samples.context()
    session_id = add_session(store, context, samples.predicted(1))
    assert store.find_interrupted(context, Effort.QUICK, OPTIONS) is None  # it runs in this process
    store.finish(session_id, SessionState.INTERRUPTED, ["Ctrl-C"], 1.0)
    with open_store(url) as other:
        assert other.find_interrupted(context, Effort.FULL, OPTIONS) is None
        assert other.find_interrupted(context, Effort.QUICK, OPTIONS) == session_id
        assert store.find_interrupted(context, Effort.QUICK, OPTIONS) is None
        other.record(session_id, context, samples.verified(1, 10.0))
        other.finish(session_id, SessionState.COMPLETE, [], 2.0)
    result = store.find_complete(context, Effort.QUICK, OPTIONS)
    assert result is not None
    assert result.is_measured
    assert query(store, "SELECT state FROM sessions")[1] == [("complete",)]


def test_baselines_replace_earlier_ones(store: Store) -> None:
    context = samples.context()
    session_id = add_session(store, context, samples.verified(1, 10.0))
    store.record_baselines(session_id, [Baseline("cuBLAS", (1.0,)), Baseline("other", (2.0,))])
    store.record_baselines(session_id, [Baseline("cuBLAS", (3.0, 5.0))])
    store.finish(session_id, SessionState.COMPLETE)
    result = store.find_complete(context, Effort.QUICK, OPTIONS)
    assert result is not None
    assert result.baselines == (Baseline("cuBLAS", (3.0, 5.0)),)
    with pytest.raises(InputError, match="no samples"):
        store.record_baselines(session_id, [Baseline("cuBLAS", ())])


def test_finishing_counts_the_trials(store: Store) -> None:
    context = samples.context()
    session_id = add_session(
        store, context, samples.verified(1, 10.0), samples.predicted(2), samples.predicted(3)
    )
    store.finish(session_id, SessionState.COMPLETE)
    assert query(store, "SELECT counts FROM sessions")[1] == [('{"predicted": 2, "verified": 1}',)]


# ---- hostile names


def test_sql_in_a_name_is_only_text(store: Store) -> None:
    evil = "x'); DROP TABLE trials; --"
    workload = Workload(evil, {evil: 4}, evil, {evil: True}, evil)
    context = samples.context(
        template=evil, target=evil, workload=workload, device=evil, software={evil: evil}
    )
    trial = TrialRecord(Config({evil: evil}), Status.PREDICTED, Prediction(1.0, {evil: 0.5}, evil))
    add_session(store, context, trial, replace(trial, config=Config({evil: 1})))
    assert store.recall(context)[trial.config.key] == trial
    assert [row.operator for row in store.best()] == [evil]


def test_a_megabyte_of_text_is_kept(store: Store) -> None:
    context = samples.context()
    why = replace(samples.failure(FailureKind.BUILD_ERROR), detail="spam " * 200_000)
    add_session(
        store,
        context,
        TrialRecord(samples.config(1), Status.FAILED, failure=why, measurement=Measurement(failure=why)),
    )
    assert only(store.recall(context)).failure == why


# ---- contexts for rechecks


def test_one_context_of_each_family_that_a_device_measured(store: Store) -> None:
    h200 = load_target("h200")
    base = samples.context()
    small = replace(base.workload, dims={"m": 64, "n": 64, "k": 64}, name=None)
    later = {"tilelang": "0.2", "nvcc": "13.0"}
    for context in (
        base,
        replace(base, workload=small),
        replace(base, software=later),
        replace(base, software=later, dynamic=("m",)),
        replace(base, target="h200-calibrated", target_fingerprint="beef"),
        replace(base, device="NVIDIA H100"),
        replace(base, device="", protocol=""),
        replace(base, arch="sm_80"),
    ):
        add_session(store, context, samples.verified(1, 10.0))

    def found(device: str) -> list[tuple[str, str, tuple[str, ...]]]:
        contexts = store.measured_contexts(h200, device)
        return [(one.software["tilelang"], one.device, one.dynamic) for one in contexts]

    of_h200 = [
        ("0.1.15", "NVIDIA H200", ()),
        ("0.2", "NVIDIA H200", ("m",)),
        ("0.2", "NVIDIA H200", ()),
    ]
    assert found("NVIDIA H200") == of_h200, "the latest first, of any target with this architecture"
    assert found("") == [("0.1.15", "NVIDIA H100", ()), *of_h200[1:], of_h200[0]], (
        "those of the target's name"
    )
    assert found("NVIDIA A100") == []


def test_the_configs_that_a_model_predicted_best(store: Store) -> None:
    def predicted(number: int, us: float, model: str = "analytical-1") -> TrialRecord:
        return TrialRecord(Config({"n": number}), Status.PREDICTED, Prediction(us, {}, "dram", model=model))

    base, failed = samples.context(), Failure(FailureKind.BUILD_ERROR, "no")
    wrong = TrialRecord(Config({"n": 9}), Status.FAILED, predicted(9, 1.0).prediction, failure=failed)
    add_session(store, base, predicted(1, 30.0), predicted(2, 20.0), predicted(3, 10.0), wrong)
    add_session(store, replace(base, software={"tilelang": "0.2"}), predicted(1, 5.0))
    add_session(store, replace(base, model="other"), predicted(4, 1.0, "other"))
    add_session(store, replace(base, dynamic=("m",)), predicted(5, 1.0))
    assert [config["n"] for config in store.best_predicted(base, 10)] == [1, 3, 2]
    assert [config["n"] for config in store.best_predicted(base, 2)] == [1, 3]
