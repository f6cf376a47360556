"""Hostile text and numbers in every field: stored as they are, or refused with the field's name. All other
records can still be read."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.support.sessions import rows
from tests.unit.database import samples
from tilesight.database import Store, overview
from tilesight.database.engine.text_checks import cleaned
from tilesight.database.schema.views import VIEWS
from tilesight.errors import Failure, FailureKind, InputError
from tilesight.problem.space import Census, Config
from tilesight.problem.workload import Workload
from tilesight.records.session import Baseline, Context, Decision, Effort, SessionState
from tilesight.records.trial import BuildResult, Measurement, Prediction, Status, TrialRecord
from tilesight.records.winners import Miss

MOMENT = datetime(2026, 1, 1)
TEXTS = {
    "SQL": "x'); DROP TABLE trials; --",
    "quotes": "\"'`[]; DELETE FROM trials",
    "parameters": "%s %(a)s ? :x {} $1 \\",
    "control": "\t\r\n\x01\x1b[31m\x7f",
    "wide": "日本語🜂\u202e\ufeff\U0010ffff",
    "escapes": "\\u0000 \\ud800 \\",
    "JSON": '{"a": [NaN, null]}',
    "empty": "",
    "NUL": "a\0b",
    "half": "a\ud800b",
    "other half": "\udfff",
}
LONG = "spam" * 25_000


def context_of(text: str, name: str) -> Context:
    return Context(
        template=text,
        template_version=text,
        workload=Workload(name, {name: 4}, name, {name: True}, text),
        target=text,
        target_fingerprint=text,
        arch=name,
        model=text,
        space=text,
        software={text: text},
        device=text,
        protocol=text,
        dynamic=(name,),
    )


def trial_of(text: str) -> TrialRecord:
    why = Failure(FailureKind.WRONG_RESULT, text, text)
    return TrialRecord(
        config=Config({"p": 1}),
        status=Status.FAILED,
        prediction=Prediction(1.0, {text: 0.5}, text, {text: 1.0}, 0.1, (text, text), text),
        build=BuildResult(text or "k", None, text, {text: 1}, text, 1.0, text),
        measurement=Measurement((1.0, 2.0), None, 0.5, {text: text}, {text: text}, {text: 1.0}),
        failure=why,
        fingerprint=text,
    )


def as_stored(value: Any) -> Any:
    """A value with all its text cleaned for databases."""
    if isinstance(value, Config):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{field.name: as_stored(getattr(value, field.name)) for field in fields(value) if field.init},
        )
    if isinstance(value, tuple):
        return tuple(as_stored(member) for member in value)
    return value if isinstance(value, FailureKind | Status) else cleaned(value)


def begin(store: Store, context: Context | None = None, **changes: Any) -> int:
    values: dict[str, Any] = {
        "effort": Effort.QUICK,
        "seed": 0,
        "options": {},
        "census": Census(1, 1, {}),
        **changes,
    }
    return store.begin(context or samples.context(), **values)


def assert_all_is_well(store: Store) -> None:
    """All views, and all methods for another context, still work."""
    for view in VIEWS:
        rows(store, f"SELECT * FROM {view}")
    store.best()
    store.misses()
    good = samples.context(template="good")
    session_id = begin(store, good, options={"good": True})
    store.record(session_id, good, samples.verified(1, 10.0))
    store.finish(session_id, SessionState.COMPLETE, decision=Decision(samples.config(1)))
    assert store.recall(good) == {samples.config(1).key: samples.verified(1, 10.0)}
    winner = samples.winner(store, good)
    assert winner is not None
    assert winner.latency_us == 10.0


# ---- text


@pytest.mark.parametrize("text", [*TEXTS.values(), LONG], ids=[*TEXTS, "100 kB"])
def test_text_in_every_field_is_kept(store: Store, text: str) -> None:
    name = text if len(text) < 100 else text[:100]
    context, trial = context_of(text, name), trial_of(text)
    options: dict[str, str | int | float | bool | None] = {text: text}
    session_id = begin(store, context, options=options, census=Census(1, 1, {text: 1}))
    fast = replace(samples.verified(7, 5.0), fingerprint=text)
    store.record_many(session_id, context, [trial, fast])
    baselines = (Baseline(text, (1.0,)),)
    store.record_baselines(session_id, baselines)
    store.finish(
        session_id, SessionState.COMPLETE, [text], 1.0, decision=Decision(samples.config(7), (), text)
    )

    assert store.recall(context) == {
        trial.config.key: as_stored(trial),
        samples.config(7).key: as_stored(fast),
    }
    result = store.find_complete(context, Effort.QUICK, options)
    assert result is not None
    assert {found.config.key: found for found in result.trials} == store.recall(context)
    assert result.baselines == as_stored(baselines)
    assert (result.messages, result.decision) == (
        (cleaned(text),),
        Decision(samples.config(7), (), cleaned(text)),
    )
    assert result.census.rejected == {cleaned(text): 1}
    winner = samples.winner(store, context)
    assert winner is not None
    assert (winner.config, winner.workload) == (samples.config(7), as_stored(context.workload))
    assert store.winners(context, {name: 4}) == [winner]
    assert [(best.operator, best.target) for best in store.best()] == [(cleaned(name), cleaned(text))]

    store.record_misses(
        [Miss(context.workload, text, text, text, 1, Config({"p": 1}), text, 1.0, MOMENT, MOMENT)]
    )
    (miss,) = store.misses()
    assert (miss.workload, miss.target, miss.source) == (
        as_stored(context.workload),
        cleaned(text),
        cleaned(text),
    )
    assert store.misses(operator=name, target=text) == [miss]
    assert store.forget_misses([context.workload.key]) == 1
    assert_all_is_well(store)


@pytest.mark.parametrize("name", [LONG, "\U0001f702" * 201], ids=["100 kB", "wide"])
@pytest.mark.parametrize("place", ["operator", "dtype", "dim", "attr", "published name"])
def test_a_workloads_names_are_names(store: Store, name: str, place: str) -> None:
    """Names are in indexes, whose entries have at most a few kilobytes."""
    values: dict[str, Any] = {
        "operator": "matmul",
        "dtype": "float16",
        "dims": {"m": 4},
        "attrs": {"a": True},
        "name": "M0",
    }
    values.update(
        {"dim": {"dims": {name: 4}}, "attr": {"attrs": {name: True}}, "published name": {"name": name}}.get(
            place, {place: name}
        )
    )
    workload = Workload(**values)
    if place == "published name":
        begin(store, samples.context(workload=workload))
        return
    with pytest.raises(InputError, match=r"workload .* name .* 200 characters"):
        begin(store, samples.context(workload=workload))
    with pytest.raises(InputError, match=r"workload .* name .* 200 characters"):
        store.record_misses([Miss(workload, "h200", "", "t", 1, Config({}), "model", None, MOMENT, MOMENT)])
    assert overview(store).tables["workloads"] == 0


@pytest.mark.parametrize("text", [TEXTS["NUL"], TEXTS["half"], TEXTS["other half"]])
def test_a_config_that_no_database_can_hold_is_refused(store: Store, text: str) -> None:
    """A candidate is identified by its config, so the config's text is not cleaned."""
    context = samples.context()
    session_id = begin(store)
    for config in (Config({text: 1}), Config({"p": text})):
        trial = TrialRecord(config, Status.PREDICTED, samples.prediction())
        with pytest.raises(InputError, match="must be text without NUL"):
            store.record(session_id, context, trial)
    for good in ("\\u0000", "🜂", "x" * 1_000_000):
        trial = TrialRecord(Config({"p": good}), Status.PREDICTED, samples.prediction())
        store.record(session_id, context, trial)
        assert store.recall(context)[trial.config.key] == trial


# ---- numbers


WRONG = {"NaN": math.nan, "inf": math.inf, "-inf": -math.inf, "10**400": 10**400, "-10**5000": -(10**5000)}
FAR = {"least": 5e-324, "most": sys.float_info.max, "zero": 0.0, "negative": -1e300, "64 bits": 2**64}


def build_with(**changes: Any) -> BuildResult:
    return replace(samples.build(), **changes)


def measured_with(**changes: Any) -> Measurement:
    return replace(samples.measurement(1.0), **changes)


FIELDS: Mapping[str, Callable[[TrialRecord, Any], TrialRecord]] = {
    r"config\[p\]": lambda trial, bad: replace(trial, config=Config({"p": bad})),
    "lowering_seconds": lambda trial, bad: replace(trial, lowering_seconds=bad),
    "prediction.uncertainty": lambda trial, bad: replace(
        trial, prediction=replace(samples.prediction(), uncertainty=bad)
    ),
    r"prediction.utilization\[a\]": lambda trial, bad: replace(
        trial, prediction=replace(samples.prediction(), utilization={"a": bad})
    ),
    r"prediction.terms_us\[a\]": lambda trial, bad: replace(
        trial, prediction=replace(samples.prediction(), terms_us={"a": bad})
    ),
    "build.seconds": lambda trial, bad: replace(trial, build=build_with(seconds=bad)),
    r"build.resources\[a\]": lambda trial, bad: replace(trial, build=build_with(resources={"a": bad})),
    r"measurement.samples_us\[1\]": lambda trial, bad: replace(
        trial, measurement=measured_with(samples_us=(1.0, bad))
    ),
    "measurement.relative_error": lambda trial, bad: replace(
        trial, measurement=measured_with(relative_error=bad)
    ),
    r"measurement.protocol\[a\]": lambda trial, bad: replace(
        trial, measurement=measured_with(protocol={"a": bad})
    ),
    r"measurement.observed\[a\]": lambda trial, bad: replace(
        trial, measurement=measured_with(observed={"a": bad})
    ),
}


@pytest.mark.parametrize("bad", WRONG.values(), ids=WRONG)
def test_numbers_that_are_none_are_refused_in_every_field(store: Store, bad: float) -> None:
    context = samples.context()
    session_id = begin(store)
    good = samples.verified(1, 10.0)
    store.record(session_id, context, good)
    before = overview(store).tables
    for name, spoil in FIELDS.items():
        with pytest.raises(InputError, match=rf"trial '.*': {name}.*finite"):
            store.record(session_id, context, spoil(good, bad))
        with pytest.raises(InputError, match=name):
            store.record_many(session_id, context, [good, spoil(good, bad)])
    with pytest.raises(InputError, match=r"baseline 'cuBLAS': samples_us\[0\].*finite"):
        store.record_baselines(session_id, [Baseline("cuBLAS", (bad,))])
    with pytest.raises(InputError, match=rf"session {session_id}: seconds.*finite"):
        store.finish(session_id, SessionState.COMPLETE, seconds=bad)
    for changes in (
        {"options": {"budget": bad}},
        {"flops": bad},
        {"min_bytes": bad},
        {"census": Census(1, 1, {"a": bad})},
    ):
        with pytest.raises(InputError, match="finite"):
            begin(store, **changes)
    with pytest.raises(InputError, match="finite"):
        store.finish(
            session_id, SessionState.COMPLETE, decision=Decision(samples.config(1), (Config({"p": bad}),))
        )
    for changes in ({"expected_us": bad}, {"count": bad}):
        with pytest.raises(InputError, match=next(iter(changes))):
            store.record_misses([miss_with(**changes)])
    assert overview(store).tables == before
    assert_all_is_well(store)


@pytest.mark.parametrize("samples_us", [(0.0,), (1.0, -1.0)])
def test_a_vendor_time_that_is_none_is_refused(store: Store, samples_us: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="a time is above 0"):
        store.record_baselines(begin(store), [Baseline("cuBLAS", samples_us)])


@pytest.mark.parametrize("far", FAR.values(), ids=FAR)
def test_numbers_at_the_edge_are_kept_in_every_field(store: Store, far: float) -> None:
    context = samples.context()
    session_id = begin(store, flops=far, min_bytes=far)
    trials = []
    for number, (name, spoil) in enumerate(FIELDS.items()):
        config = Config({"p": far}) if name.startswith("config") else samples.config(number)
        trials.append(replace(spoil(samples.verified(number, 10.0), far), config=config))
    trials.append(replace(samples.verified(97, far), prediction=samples.prediction(abs(far) or 5e-324)))
    store.record_many(session_id, context, trials)
    baseline = Baseline("cuBLAS", (abs(far) or 5e-324,))
    store.record_baselines(session_id, [baseline])
    store.finish(session_id, SessionState.COMPLETE, seconds=far)
    found = store.recall(context)
    assert found == {trial.config.key: trial for trial in trials}
    result = store.find_complete(context, Effort.QUICK, {})
    assert result is not None
    assert (result.seconds, result.baselines) == (far, (baseline,))
    assert_all_is_well(store)


def miss_with(**changes: Any) -> Miss:
    values: dict[str, Any] = {
        "workload": samples.context().workload,
        "target": "h200",
        "device": "",
        "template": "t",
        "count": 1,
    }
    values |= {
        "config": Config({}),
        "source": "model",
        "expected_us": 1.0,
        "first_at": MOMENT,
        "last_at": MOMENT,
    }
    return Miss(**{**values, **changes})


@pytest.mark.parametrize("count", [0, -1, 2**53 + 1, 2**70, True, 1.5])
def test_counts_that_are_none_are_refused(store: Store, count: Any) -> None:
    with pytest.raises(InputError, match="count="):
        store.record_misses([miss_with(count=count)])
    store.record_misses([miss_with(count=2**53)] * 2)
    assert [miss.count for miss in store.misses()] == [2**53]


@pytest.mark.parametrize(
    "moment",
    [datetime.min, datetime.max, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC)],
)
def test_times_at_the_edge_are_kept(store: Store, moment: datetime) -> None:
    store.record_misses([miss_with(first_at=moment, last_at=moment)])
    assert [(miss.first_at, miss.last_at) for miss in store.misses()] == [(moment.replace(tzinfo=None),) * 2]
    assert_all_is_well(store)


@pytest.mark.parametrize(
    "moment",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    ],
)
def test_times_beyond_the_calendar_are_refused(store: Store, moment: datetime) -> None:
    with pytest.raises(InputError, match="first_at"):
        store.record_misses([miss_with(first_at=moment)])


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**400])
def test_seeds_beyond_64_bits_are_refused(store: Store, seed: int) -> None:
    with pytest.raises(InputError, match=r"seed.*64 bits"):
        begin(store, seed=seed)
    for edge in (2**63 - 1, -(2**63)):
        begin(store, seed=edge)


@pytest.mark.parametrize("session_id", [-1, 0, 2**63 - 1, 2**63, 2**70])
def test_sessions_that_never_were_are_named(store: Store, session_id: int) -> None:
    for call in (
        lambda: store.record(session_id, samples.context(), samples.predicted(1)),
        lambda: store.finish(session_id, SessionState.COMPLETE),
        lambda: store.record_baselines(session_id, []),
    ):
        with pytest.raises(Exception, match=f"session {session_id} is not in this database"):
            call()
