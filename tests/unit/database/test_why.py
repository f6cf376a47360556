"""Why a question is answered, or which part of its key is another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.unit.database import samples
from tests.unit.database.stocked import LARGE, told
from tilesight.database import Store, open_layers, open_store
from tilesight.database.transfer import export_everything, import_everything
from tilesight.database.why import MEANINGS, Holding, Why, why
from tilesight.errors import FailureKind
from tilesight.session import Context, Effort, State

SOFTWARE = {"tilelang": "0.1.15", "nvcc": "13.0", "driver": "570.1", "torch": "2.13"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(samples.empty_database(tmp_path / "x.db")) as opened:
        told(
            opened,
            samples.context(software=SOFTWARE),
            samples.verified(1, 10.0),
            samples.predicted(2),
            samples.failed(3, FailureKind.RUN_ERROR),
        )
        yield opened


def asked(store: Store, **changes: object) -> Why:
    return why(store, samples.context(**{"software": SOFTWARE, **changes}))


def parts(found: Why) -> dict[str, tuple[str, str]]:
    return {d.part: (d.recorded, d.now) for d in found.near[0].differences}


def test_an_answered_question(store: Store) -> None:
    found = asked(store)
    (seen,) = found.answers
    assert (seen.effort, seen.state, seen.verified, seen.layer, seen.differences) == ("quick", State.COMPLETE, 1, store.name, ())
    assert (found.near, found.unfinished) == ((), ())
    assert found.holds == Holding(predictions=3, builds=2, measurements=1, failures=1)


def test_an_interrupted_session(store: Store) -> None:
    told(store, samples.context(software=SOFTWARE), samples.predicted(1), effort=Effort.FULL, state=State.INTERRUPTED)
    found = asked(store)
    assert [seen.effort for seen in found.answers] == ["quick"]
    assert [(seen.effort, seen.state) for seen in found.unfinished] == [("full", State.INTERRUPTED)]


@pytest.mark.parametrize(
    ("changes", "expected", "meaning", "holds"),
    [
        ({"template_version": "9a"}, {"template_version": ("0123456789ab", "9a")}, "its code changed", (0, 0, 0)),
        ({"template": "other"}, {"template": ("matmul_hopper", "other")}, "another kernel", (0, 0, 0)),
        ({"software": {**SOFTWARE, "nvcc": "12.8"}}, {"nvcc": ("13.0", "12.8")}, "can change the generated code", (0, 0, 0)),
        ({"software": {**SOFTWARE, "driver": "580"}}, {"driver": ("570.1", "580")}, "can change times", (3, 2, 0)),
        ({"software": {**SOFTWARE, "torch": "2.14"}}, {"torch": ("2.13", "2.14")}, "neither code nor times", (3, 2, 1)),
        ({"software": {k: v for k, v in SOFTWARE.items() if k != "torch"}}, {"torch": ("2.13", "")}, "neither code", (3, 2, 1)),
        ({"device": "NVIDIA H200 NVL"}, {"device": ("NVIDIA H200", "NVIDIA H200 NVL")}, "on another device", (3, 2, 0)),
        ({"protocol": "warm"}, {"protocol": ("cold", "warm")}, "under other conditions", (3, 2, 0)),
        ({"target_fingerprint": "beef"}, {"target_fingerprint": ("f00d", "beef")}, "figures changed", (0, 2, 1)),
        ({"model": "analytical-2"}, {"model": ("analytical-1", "analytical-2")}, "the model changed", (0, 2, 1)),
        ({"space": "other"}, {"space": ("another one", "other")}, "chose among other configs", (3, 2, 1)),
        ({"open": ("m",)}, {"open": ("", "m")}, "open at run time", (0, 0, 0)),
        ({"arch": "sm_100a"}, {"arch": ("sm_90a", "sm_100a")}, "another architecture", (0, 0, 0)),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_the_part_that_differs(
    store: Store, changes: dict[str, object], expected: dict[str, tuple[str, str]], meaning: str, holds: tuple[int, int, int]
) -> None:
    found = asked(store, **changes)
    assert found.answers == ()
    assert parts(found) == expected
    assert meaning in found.near[0].differences[0].meaning
    assert (found.holds.predictions, found.holds.builds, found.holds.measurements) == holds


def test_the_nearest_comes_first(store: Store) -> None:
    told(store, samples.context(software=SOFTWARE, workload=LARGE), samples.verified(1, 20.0))
    told(store, samples.context(software=SOFTWARE, device="other"), samples.verified(1, 20.0))
    told(store, samples.context(software=SOFTWARE, template_version="old"), samples.verified(1, 20.0))
    found = asked(store, model="analytical-2")
    assert [tuple(d.part for d in seen.differences) for seen in found.near] == [
        ("model",),
        ("model", "device"),
        ("template_version", "model"),
    ]
    assert parts(asked(store, workload=replace(LARGE, dims={"m": 1, "n": 1, "k": 1}))).keys() == {"workload"}


def test_another_operator_is_not_near(store: Store) -> None:
    found = asked(store, workload=replace(LARGE, operator="gemv"))
    assert (found.answers, found.near, found.holds) == ((), (), Holding(0, 0, 0, 0))


def test_an_import_is_near_and_never_an_answer(store: Store, tmp_path: Path) -> None:
    export_everything(store, tmp_path / "x.jsonl")
    with open_store(samples.empty_database(tmp_path / "y.db")) as other:
        import_everything(other, tmp_path / "x.jsonl", origin="lab 3")
        found = asked(other)
        assert (found.answers, found.holds) == ((), Holding(0, 0, 0, 0))
        assert parts(found)["imported"] == ("lab 3", "")
        assert any("imported from strangers" in d.meaning for d in found.near[0].differences)


def test_layers_are_looked_at_and_named(store: Store, tmp_path: Path) -> None:
    store.close()
    with open_layers(samples.empty_database(tmp_path / "own.db"), [store.name]) as layered:
        found = asked(layered)
        assert [seen.layer for seen in found.answers] == [store.name]
        assert found.holds.measurements == 1


def test_every_part_of_a_context_has_a_meaning() -> None:
    """A new part of the key must be told of."""
    assert {field.name for field in fields(Context)} - {"software"} <= set(MEANINGS)
