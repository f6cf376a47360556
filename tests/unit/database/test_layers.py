"""The user's own database over read-only layers: which record wins, and errors for layers that cannot be
used."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.database import samples
from tests.unit.database.schema.test_migrations import older_database
from tests.unit.database.stocked import FAMILY, LARGE, add_session, miss, stocked
from tilesight.database import LayeredStore, Store, layers, open_layers, open_store
from tilesight.database.schema import tables as schema
from tilesight.errors import (
    DatabaseCorruptError,
    DatabaseError,
    DatabaseReadOnlyError,
    DatabaseVersionError,
    FailureKind,
    InputError,
)
from tilesight.profile.parametric import ParametricProfile, ProfileSample
from tilesight.records.session import Decision, Effort, SessionState
from tilesight.records.trial import Status, TrialRecord
from tilesight.settings import load_settings

Fill = Callable[[Store], object]
NOTHING: Fill = lambda _: None  # noqa: E731
STRONGER = [
    (samples.verified(1, 10.0), samples.measured(1, 5.0)),
    (samples.verified(1, 10.0), samples.failed(1, FailureKind.RUN_CRASH)),
    (samples.failed(1, FailureKind.RUN_ERROR), samples.built(1)),
    (samples.built(1), samples.failed(1, FailureKind.BUILD_TIMEOUT)),
    (samples.failed(1, FailureKind.BUILD_ERROR), samples.predicted(1)),
    (samples.predicted(1), samples.failed(1, FailureKind.LOWER_TIMEOUT)),
    (samples.failed(1, FailureKind.WRONG_RESULT), samples.verified(1, 10.0)),
    (samples.failed(1, FailureKind.NONDETERMINISTIC), samples.verified(1, 10.0)),
]


@pytest.fixture
def layered(tmp_path: Path) -> Callable[..., LayeredStore]:
    """Opens an own database over layers, each filled by a function."""
    stack = ExitStack()

    def make(own: Fill, *below: Fill) -> LayeredStore:
        for number, fill in enumerate((own, *below)):
            with open_store(samples.empty_database(tmp_path / f"{number}.db")) as store:
                fill(store)
        paths = [tmp_path / f"{number + 1}.db" for number in range(len(below))]
        return stack.enter_context(open_layers(str(tmp_path / "0.db"), paths, cache_dir=tmp_path / "cache"))

    with stack:
        yield make  # type: ignore[misc]


def fill(*trials: TrialRecord, **changes: object) -> Fill:
    return lambda store: add_session(store, samples.context(**changes), *trials)


def only(found: dict[str, TrialRecord]) -> TrialRecord:
    (record,) = found.values()
    return record


# ---- what is read


@pytest.mark.parametrize(("strong", "weak"), STRONGER)
@pytest.mark.parametrize("own_is_strong", [True, False])
def test_the_strongest_record_is_recalled_whatever_its_layer(
    layered: Callable[..., LayeredStore], strong: TrialRecord, weak: TrialRecord, own_is_strong: bool
) -> None:
    own, below = (strong, weak) if own_is_strong else (weak, strong)
    found = only(layered(fill(own), fill(below)).recall(samples.context()))
    assert (found.status, found.failure, found.measurement) == (
        strong.status,
        strong.failure,
        strong.measurement,
    )


def test_of_equals_the_own_record_wins_and_the_upper_layers_before_the_lower(
    layered: Callable[..., LayeredStore],
) -> None:
    store = layered(
        fill(samples.verified(1, 10.0)),
        fill(samples.verified(1, 8.0), samples.verified(2, 9.0)),
        fill(samples.verified(2, 7.0)),
    )
    found = store.recall(samples.context())
    assert {trial.config["block_m"]: trial.measured_us for trial in found.values()} == {1: 10.0, 2: 9.0}


def test_a_record_is_completed_by_what_another_layer_knows(layered: Callable[..., LayeredStore]) -> None:
    newer = samples.context(model="analytical-2")
    store = layered(fill(samples.predicted(1, 12.5), model="analytical-2"), fill(samples.verified(1, 10.0)))
    assert only(store.recall(newer)) == replace(
        samples.verified(1, 10.0), prediction=samples.prediction(12.5)
    )


def test_a_session_of_a_layer_answers_and_the_own_one_first(layered: Callable[..., LayeredStore]) -> None:
    context = samples.context()
    store = layered(NOTHING, fill(samples.verified(1, 8.0)))
    found = store.find_complete(context, Effort.QUICK, {})
    assert found is not None
    assert found.best is not None
    assert found.best.measured_us == 8.0
    assert store.find_complete(context, Effort.FULL, {}) is None
    add_session(store, context, samples.verified(1, 10.0))
    own = store.find_complete(context, Effort.QUICK, {})
    assert own is not None
    assert own.best is not None
    assert own.best.measured_us == 10.0


@pytest.mark.parametrize("wrong_is_own", [True, False])
def test_what_any_layer_saw_wrong_is_wrong_everywhere(
    layered: Callable[..., LayeredStore], wrong_is_own: bool
) -> None:
    wrong = fill(samples.failed(1, FailureKind.WRONG_RESULT), protocol="warm")
    right = fill(samples.verified(1, 8.0), samples.verified(2, 9.0))
    store = layered(*((wrong, right) if wrong_is_own else (right, wrong)))
    context = samples.context()
    assert store.find_complete(context, Effort.QUICK, {}) is None
    assert store.recall(context)[samples.config(1).key].status is Status.FAILED
    assert samples.winner(store, context) is None
    assert store.winners(context, {}) == []
    assert store.best() == []
    # on another device the result was right
    elsewhere = samples.context(device="NVIDIA H200 NVL")
    add_session(store, elsewhere, samples.verified(1, 7.0))
    known = samples.winner(store, elsewhere)
    assert known is not None
    assert known.latency_us == 7.0


OTHERS = {
    "another version": {"template_version": "ba9876543210"},
    "another compiler": {"software": {"tilelang": "0.1.15", "nvcc": "12.0"}},
    "dynamic": {"dynamic": ("m",)},
    "another architecture": {"arch": "sm_90"},
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("wrong_is_own", [True, False])
def test_what_another_kernel_did_wrong_leaves_the_best_alone(
    layered: Callable[..., LayeredStore], other: str, wrong_is_own: bool
) -> None:
    wrong = fill(samples.failed(1, FailureKind.WRONG_RESULT), **OTHERS[other])
    right = fill(samples.verified(1, 8.0))
    store = layered(*((wrong, right) if wrong_is_own else (right, wrong)))
    assert [row.latency_us for row in store.best()] == [8.0]
    assert samples.winner(store, samples.context()) is not None
    # the same kernel beside another torch and driver is the same
    add_session(
        store,
        samples.context(software={"tilelang": "0.1.15", "nvcc": "13.0", "driver": "1"}),
        samples.failed(1, FailureKind.WRONG_RESULT),
    )
    assert [row.latency_us for row in store.best()] == []


def test_the_best_of_all_layers(layered: Callable[..., LayeredStore]) -> None:
    other = {"target": "h100", "target_fingerprint": "h"}
    store = layered(
        fill(samples.verified(1, 12.0)),
        lambda below: (
            add_session(below, samples.context(), samples.verified(2, 5.0)),
            add_session(below, samples.context(workload=LARGE), samples.verified(3, 20.0)),
            add_session(below, samples.context(**other), samples.predicted(1, 3.0)),
        ),
    )
    found = {
        (row.workload.partition(",")[0], row.target): (row.status, row.latency_us) for row in store.best()
    }
    assert found == {
        ("matmul(m=4096", "h200"): (Status.VERIFIED, 12.0),  # the user's own, although a layer's is faster
        ("matmul(m=8192", "h200"): (Status.VERIFIED, 20.0),
        ("matmul(m=4096", "h100"): (Status.PREDICTED, 3.0),
    }
    assert [row.target for row in store.best(target="h100")] == ["h100"]
    with pytest.raises(InputError, match="nothing is recorded for target 'a100'"):
        store.best(target="a100")


def test_a_measured_best_of_a_layer_goes_before_an_own_prediction(
    layered: Callable[..., LayeredStore],
) -> None:
    store = layered(fill(samples.predicted(1, 2.0), device="", protocol=""), fill(samples.verified(2, 5.0)))
    assert [(row.status, row.latency_us) for row in store.best()] == [(Status.VERIFIED, 5.0)]


def test_dispatch_asks_all_layers_and_says_which_one_knew(
    layered: Callable[..., LayeredStore], tmp_path: Path
) -> None:
    near, far = (
        replace(LARGE, dims={"m": 5000, "n": 1024, "k": 8192}),
        replace(LARGE, dims={"m": 16, "n": 1024, "k": 8192}),
    )
    store = layered(
        fill(samples.verified(1, 8.0), workload=near),
        lambda below: (
            add_session(below, samples.context(), samples.verified(2, 5.0)),
            add_session(below, samples.context(workload=near), samples.verified(3, 1.0)),
            add_session(below, samples.context(workload=far), samples.verified(4, 2.0)),
        ),
    )
    context = samples.context()
    known = samples.winner(store, context)
    assert known is not None
    assert (known.latency_us, known.layer) == (5.0, str(tmp_path / "1.db"))
    found = store.winners(context, {"n": 1024})
    assert [(k.workload.dims["m"], k.latency_us) for k in found] == [(16, 2.0), (4096, 5.0), (5000, 8.0)]
    assert store.winners(context, {"n": 7}) == []


def test_kept_profiles_of_all_layers(layered: Callable[..., LayeredStore]) -> None:
    def family(number: int, structure: str) -> ParametricProfile:
        return ParametricProfile(
            samples.config(number), structure, (ProfileSample({"m": 1}, "f", [{"grid": [1]}]),)
        )

    store = layered(
        lambda own: own.cache_profiles(FAMILY, [family(1, "own")]),
        lambda below: below.cache_profiles(FAMILY, [family(1, "below"), family(2, "below")]),
    )
    assert {f.config["block_m"]: f.structure for f in store.cached_profiles(FAMILY)} == {1: "own", 2: "below"}


def test_misses_are_the_users_own(layered: Callable[..., LayeredStore]) -> None:
    store = layered(NOTHING, lambda below: below.record_misses([miss()]))
    assert store.misses() == []
    store.record_misses([miss(count=2)])
    assert [found.count for found in store.misses()] == [2]


# ---- what is written


def test_all_that_is_written_goes_to_the_own_database(
    layered: Callable[..., LayeredStore], tmp_path: Path
) -> None:
    store = layered(NOTHING, fill(samples.verified(1, 8.0)))
    before = (tmp_path / "1.db").read_bytes()
    context = samples.context()
    # a session records again what it recalled from a layer
    session_id = add_session(
        store,
        context,
        *store.recall(context).values(),
        state=SessionState.INTERRUPTED,
        decision=Decision(samples.config(1)),
    )
    store.cache_profiles(FAMILY, [])
    assert store.find_interrupted(context, Effort.QUICK, {}) == session_id
    store.close()
    assert (tmp_path / "1.db").read_bytes() == before
    with open_store(str(tmp_path / "0.db"), read_only=True) as own:
        assert len(own.recall(context)) == 1


def test_a_layer_is_never_written(layered: Callable[..., LayeredStore]) -> None:
    store = layered(NOTHING, NOTHING)
    with pytest.raises(DatabaseReadOnlyError):
        add_session(store.layers[0], samples.context())


# ---- where layers come from


def test_layers_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        samples.empty_database(tmp_path / f"{name}.db")
    monkeypatch.setenv(
        "TILESIGHT_LAYERS", f"{tmp_path}/a.db{os.pathsep}{os.pathsep}{tmp_path}/b.db{os.pathsep}"
    )
    assert load_settings().layers == (f"{tmp_path}/a.db", f"{tmp_path}/b.db")
    with open_layers(str(tmp_path / "own.db")) as store:
        assert [layer.name for layer in store.layers] == [f"{tmp_path}/a.db", f"{tmp_path}/b.db"]
    with open_layers(str(tmp_path / "own.db"), []) as store:
        assert store.layers == ()


def test_the_shipped_database_lies_below_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "shipped.db"
    stocked(shipped)
    samples.empty_database(tmp_path / "app.db")
    monkeypatch.setattr(layers, "shipped_file", lambda name: shipped if name == shipped.name else None)
    with open_layers(str(tmp_path / "own.db"), [tmp_path / "app.db"], shipped=True) as store:
        assert [Path(layer.name).name for layer in store.layers] == ["app.db", "shipped.db"]
    with open_layers(str(tmp_path / "own.db"), [], shipped=False) as store:
        assert store.layers == ()
    shipped.write_bytes(b"no database" * 100)
    with pytest.raises(
        DatabaseCorruptError, match=r"layer: .*shipped.db' is damaged.*--force-reinstall tilesight"
    ):
        open_layers(str(tmp_path / "own.db"), [], shipped=True)


# ---- layers that will not do


def test_a_missing_layer(tmp_path: Path) -> None:
    with pytest.raises(
        DatabaseError, match=r"layer '.*none.db' is not there; repair it, or take it out of TILESIGHT_LAYERS"
    ):
        open_layers(str(tmp_path / "own.db"), [tmp_path / "none.db"])


def test_a_damaged_layer(tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_bytes(b"garbage" * 999)
    with pytest.raises(
        DatabaseCorruptError, match=r"layer: database '.*bad.db' is damaged.*take it out of TILESIGHT_LAYERS"
    ):
        open_layers(str(tmp_path / "own.db"), [tmp_path / "bad.db"])


def test_a_newer_layer(tmp_path: Path) -> None:
    samples.empty_database(tmp_path / "new.db")
    with closing(sqlite3.connect(tmp_path / "new.db")) as other, other:
        other.execute("UPDATE tilesight_version SET version_num = '0042'")
    with pytest.raises(
        DatabaseVersionError,
        match=r"layer: .*new.db' has schema 0042.*pip install --upgrade tilesight.*TILESIGHT_LAYERS",
    ):
        open_layers(str(tmp_path / "own.db"), [tmp_path / "new.db"])


def test_an_older_layer_is_read_through_a_migrated_copy(tmp_path: Path) -> None:
    file = tmp_path / "old.db"
    older_database(file, schema.REVISIONS[0], [samples.verified(1, 10.0)])
    before, cache = file.read_bytes(), tmp_path / "cache"
    for _ in range(2):
        with open_layers(str(tmp_path / "own.db"), [file], cache_dir=cache) as store:
            assert store.layers[0].name == str(file)
            assert [row.latency_us for row in store.best()] == [10.0]
    (copy,) = (cache / "layers").glob("*.db")
    assert file.read_bytes() == before
    # a changed layer is copied again, and the old copy is deleted
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("UPDATE workloads SET name = 'renamed'")
    os.utime(file, ns=(1, 1))
    with open_layers(str(tmp_path / "own.db"), [file], cache_dir=cache) as store:
        assert [row.shape for row in store.best()] == ["renamed"]
    (again,) = (cache / "layers").glob("*.db")
    assert again != copy


def test_an_older_layer_and_no_place_for_its_copy(tmp_path: Path) -> None:
    older_database(tmp_path / "old.db", schema.REVISIONS[0], [])
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(
        DatabaseVersionError,
        match=r"layer '.*old.db' is of an older TileSight.*TILESIGHT_CACHE_DIR.*tilesight db status --db",
    ):
        open_layers(str(tmp_path / "own.db"), [tmp_path / "old.db"], cache_dir=tmp_path / "cache")


def test_a_layer_that_will_not_do_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError):
        open_layers(str(tmp_path / "own.db"), [tmp_path / "none.db"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.db"]  # its log went when it was closed
