"""What the model says of configs at shapes where nothing was lowered, from the profiles that are kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.unit.test_families import TEMPLATE, config_of
from tests.unit.test_kept import Lowerer, full, lower
from tilesight import kernels
from tilesight.database import Store, open_store
from tilesight.dispatch.choice import Source
from tilesight.dispatch.forecast import Forecaster
from tilesight.dispatch.problem import Problem, problem_of
from tilesight.dispatch.records import Records
from tilesight.dispatch.selector import Selector
from tilesight.families import FamilyKey, ProfileFamily
from tilesight.kept import KeptExecutor
from tilesight.known import Known
from tilesight.profile import KernelProfile
from tilesight.space import Config
from tilesight.target import Target, load_target
from tilesight.trial import Prediction

MATMUL = kernels.operator("matmul")
TARGET = load_target("a100")
WIDE, NARROW = full(config_of(128, 128)), full(config_of(64, 128))
LEARNED = MATMUL.workload("m=4096,n=1024,k=8192"), MATMUL.workload("m=8192,n=1024,k=8192")


class BlocksModel:
    """A microsecond a block row; blocks of 64 rows cost 0.6 of one of 128."""

    version = "blocks"

    def __init__(self) -> None:
        self.asked = 0

    def predict(self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None) -> Prediction:
        self.asked += 1
        rows = kernels[0].grid[1]
        loads = kernels[0].roles[0].phases[1].work.accesses[0].bytes
        return Prediction(rows * (0.6 if loads < 16384 else 1.0), {}, "blocks")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/x.db") as opened:
        yield opened


@pytest.fixture
def kept(store: Store) -> Store:
    """With families that know how their numbers follow the dimensions."""
    executor = KeptExecutor(Lowerer(), store)
    for workload in LEARNED:
        lower(executor, workload, WIDE, NARROW)
    return store


def problem() -> Problem:
    return problem_of(TEMPLATE, TARGET, "bfloat16", {}, {"n": 1024, "k": 8192}, ())


def test_a_shape_of_another_class_is_looked_at_in_whole_tiles(kept: Store) -> None:
    made = problem()
    forecaster = Forecaster(made, kept, BlocksModel())
    forecaster.recall(LEARNED[:1])
    at = {m: forecaster.at(WIDE, made.workload((m,)), LEARNED[0]) for m in (4096, 1000, 1024, 5, 200)}
    assert at == {4096: 32.0, 1000: 8.0, 1024: 8.0, 5: 2.0, 200: 2.0}  # two blocks at least: one leaves no loop over blocks
    assert forecaster.at(NARROW, made.workload((1000,)), LEARNED[0]) == pytest.approx(0.6 * 16)


def test_orders_of_blocks_share_what_is_kept_of_their_base(kept: Store) -> None:
    made = problem()
    swizzled = Config({**WIDE, "swizzle": 8})
    assert Forecaster(made, kept, BlocksModel()).at(swizzled, made.workload((1024,)), LEARNED[0]) == 8.0


def test_what_is_not_kept_is_not_known(kept: Store) -> None:
    made = problem()
    forecaster = Forecaster(made, kept, BlocksModel())
    assert forecaster.at(full(config_of(256, 128)), made.workload((1000,)), LEARNED[0]) is None
    assert forecaster.at(WIDE, made.workload((1000,)), made.workload((1000,))) is None  # nothing is kept of that class


def test_the_same_blocks_are_predicted_once(kept: Store) -> None:
    made, model = problem(), BlocksModel()
    forecaster = Forecaster(made, kept, model)
    for m in range(897, 1025):
        assert forecaster.at(WIDE, made.workload((m,)), LEARNED[0]) == 8.0
    assert model.asked <= 2  # shapes of the class itself are others than those that are rounded to them


def test_what_does_not_fit_the_target_takes_for_ever(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = problem()
    monkeypatch.setattr("tilesight.costmodel.occupancy.misfit", lambda *_: "needs more shared memory than there is")
    assert Forecaster(made, kept, BlocksModel()).at(WIDE, made.workload((1000,)), LEARNED[0]) == math.inf


def test_neighbours_are_put_in_order_by_it(kept: Store) -> None:
    made = problem()
    forecaster = Forecaster(made, kept, BlocksModel())
    records = Records(made, [Known(LEARNED[0], WIDE, 64.0), Known(LEARNED[1], NARROW, 76.8)])
    chosen = next(Selector(made, records, forecaster).choices(made.workload((5000,))))
    # WIDE takes twice what is predicted there (40 rows: 80 us), NARROW exactly what is predicted (79 rows: 47.4 us)
    assert (chosen.config, chosen.source) == (NARROW, Source.NEIGHBOUR)
    assert chosen.expected_us == pytest.approx(47.4)


def test_without_records_the_model_chooses_among_what_is_kept(kept: Store) -> None:
    made, model = problem(), BlocksModel()
    forecaster = Forecaster(made, kept, model)
    forecaster.survey(LEARNED[:1])
    asked = model.asked
    chosen = next(Selector(made, Records(made), forecaster).choices(made.workload((1000,))))
    assert (chosen.source, chosen.config) == (Source.MODEL, WIDE)
    assert chosen.expected_us == pytest.approx(8.0)
    assert model.asked - asked <= 6  # not the whole class again
    nowhere = Forecaster(made, kept, model)
    assert nowhere.first_choices(made.workload((1001,))) == []


def test_damaged_families_are_passed_over(kept: Store) -> None:
    class Damaged:
        def kept_families(self, key: FamilyKey) -> list[ProfileFamily]:
            return [
                ProfileFamily(f.config, f.structure, tuple(type(s)(s.dims, s.fingerprint, [{}]) for s in f.seen), f.rules)
                for f in kept.kept_families(key)
            ]

        def keep_families(self, key: FamilyKey, families: Iterable[ProfileFamily]) -> None:
            raise AssertionError("nothing is kept here")

    class Dead(Damaged):
        def kept_families(self, key: FamilyKey) -> list[ProfileFamily]:
            raise OSError("the disk is gone")

    made = problem()
    assert Forecaster(made, Damaged(), BlocksModel()).at(WIDE, made.workload((1000,)), LEARNED[0]) is None
    dead = Forecaster(made, Dead(), BlocksModel())
    dead.recall(LEARNED)
    dead.survey(LEARNED)
    assert dead.first_choices(made.workload((1000,))) == []
