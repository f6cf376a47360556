"""Why a tuning call is answered, or which part of its context differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.unit.database import samples
from tests.unit.database.stocked import LARGE, add_session
from tilesight.database import Store, open_layers, open_store
from tilesight.database.exchange.json_lines import export_everything, import_everything
from tilesight.database.maintenance.why import MEANINGS, ContextReport, Holding, why
from tilesight.errors import FailureKind
from tilesight.records.session import Context, Effort, SessionState

SOFTWARE = {"tilelang": "0.1.15", "nvcc": "13.0", "driver": "570.1", "torch": "2.13"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(samples.empty_database(tmp_path / "x.db")) as opened:
        add_session(
            opened,
            samples.context(software=SOFTWARE),
            samples.verified(1, 10.0),
            samples.predicted(2),
            samples.failed(3, FailureKind.RUN_ERROR),
        )
        yield opened


def report(store: Store, **changes: object) -> ContextReport:
    return why(store, samples.context(**{"software": SOFTWARE, **changes}))


def parts(found: ContextReport) -> dict[str, tuple[str, str]]:
    return {d.part: (d.recorded, d.now) for d in found.near[0].differences}


def test_an_answered_question(store: Store) -> None:
    found = report(store)
    (seen,) = found.answers
    assert (seen.effort, seen.state, seen.verified, seen.layer, seen.differences) == (
        "quick",
        SessionState.COMPLETE,
        1,
        store.name,
        (),
    )
    assert (found.near, found.unfinished) == ((), ())
    assert found.holds == Holding(predictions=3, builds=2, measurements=1, failures=1)


def test_an_interrupted_session(store: Store) -> None:
    add_session(
        store,
        samples.context(software=SOFTWARE),
        samples.predicted(1),
        effort=Effort.FULL,
        state=SessionState.INTERRUPTED,
    )
    found = report(store)
    assert [seen.effort for seen in found.answers] == ["quick"]
    assert [(seen.effort, seen.state) for seen in found.unfinished] == [("full", SessionState.INTERRUPTED)]


@pytest.mark.parametrize(
    ("changes", "expected", "meaning", "holds"),
    [
        (
            {"template_version": "9a"},
            {"template_version": ("0123456789ab", "9a")},
            "its code changed",
            (0, 0, 0),
        ),
        ({"template": "other"}, {"template": ("matmul_hopper", "other")}, "another kernel", (0, 0, 0)),
        (
            {"software": {**SOFTWARE, "nvcc": "12.8"}},
            {"nvcc": ("13.0", "12.8")},
            "can change the generated code",
            (0, 0, 0),
        ),
        (
            {"software": {**SOFTWARE, "driver": "580"}},
            {"driver": ("570.1", "580")},
            "can change times",
            (3, 2, 0),
        ),
        (
            {"software": {**SOFTWARE, "torch": "2.14"}},
            {"torch": ("2.13", "2.14")},
            "neither code nor times",
            (3, 2, 1),
        ),
        (
            {"software": {k: v for k, v in SOFTWARE.items() if k != "torch"}},
            {"torch": ("2.13", "")},
            "neither code",
            (3, 2, 1),
        ),
        (
            {"device": "NVIDIA H200 NVL"},
            {"device": ("NVIDIA H200", "NVIDIA H200 NVL")},
            "on another device",
            (3, 2, 0),
        ),
        ({"protocol": "warm"}, {"protocol": ("cold", "warm")}, "under other conditions", (3, 2, 0)),
        (
            {"target_fingerprint": "beef"},
            {"target_fingerprint": ("f00d", "beef")},
            "figures changed",
            (0, 2, 1),
        ),
        (
            {"model": "analytical-2"},
            {"model": ("analytical-1", "analytical-2")},
            "the model changed",
            (0, 2, 1),
        ),
        ({"space": "other"}, {"space": ("another one", "other")}, "chose among other configs", (3, 2, 1)),
        ({"dynamic": ("m",)}, {"dynamic": ("", "m")}, "at run time is another kernel", (0, 0, 0)),
        ({"arch": "sm_100a"}, {"arch": ("sm_90a", "sm_100a")}, "another architecture", (0, 0, 0)),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_the_part_that_differs(
    store: Store,
    changes: dict[str, object],
    expected: dict[str, tuple[str, str]],
    meaning: str,
    holds: tuple[int, int, int],
) -> None:
    found = report(store, **changes)
    assert found.answers == ()
    assert parts(found) == expected
    assert meaning in found.near[0].differences[0].meaning
    assert (found.holds.predictions, found.holds.builds, found.holds.measurements) == holds


def test_the_nearest_comes_first(store: Store) -> None:
    add_session(store, samples.context(software=SOFTWARE, workload=LARGE), samples.verified(1, 20.0))
    add_session(store, samples.context(software=SOFTWARE, device="other"), samples.verified(1, 20.0))
    add_session(store, samples.context(software=SOFTWARE, template_version="old"), samples.verified(1, 20.0))
    found = report(store, model="analytical-2")
    assert [tuple(d.part for d in seen.differences) for seen in found.near] == [
        ("model",),
        ("model", "device"),
        ("template_version", "model"),
    ]
    assert parts(report(store, workload=replace(LARGE, dims={"m": 1, "n": 1, "k": 1}))).keys() == {"workload"}


def test_another_operator_is_not_near(store: Store) -> None:
    found = report(store, workload=replace(LARGE, operator="gemv"))
    assert (found.answers, found.near, found.holds) == ((), (), Holding(0, 0, 0, 0))


def test_an_import_is_near_and_never_an_answer(store: Store, tmp_path: Path) -> None:
    export_everything(store, tmp_path / "x.jsonl")
    with open_store(samples.empty_database(tmp_path / "y.db")) as other:
        import_everything(other, tmp_path / "x.jsonl", origin="lab 3")
        found = report(other)
        assert (found.answers, found.holds) == ((), Holding(0, 0, 0, 0))
        assert parts(found)["imported"] == ("lab 3", "")
        assert any("imported without trust" in d.meaning for d in found.near[0].differences)


def test_layers_are_looked_at_and_named(store: Store, tmp_path: Path) -> None:
    store.close()
    with open_layers(samples.empty_database(tmp_path / "own.db"), [store.name]) as layered:
        found = report(layered)
        assert [seen.layer for seen in found.answers] == [store.name]
        assert found.holds.measurements == 1


def test_every_part_of_a_context_has_a_meaning() -> None:
    """Every field of a context is compared."""
    assert {field.name for field in fields(Context)} - {"software"} <= set(MEANINGS)
