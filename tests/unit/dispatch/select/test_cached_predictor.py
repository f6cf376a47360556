"""Predictions of configs at shapes where nothing was lowered, from cached profiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.unit.executor.test_caching_executor import Lowerer, full, lower
from tests.unit.profile.test_parametric import TEMPLATE, config_of
from tilesight import kernels
from tilesight.database import Store, open_store
from tilesight.dispatch.problem import DispatchProblem, make_problem
from tilesight.dispatch.select.cached_predictor import CachedPredictor
from tilesight.dispatch.select.choice import ChoiceSource
from tilesight.dispatch.select.loaded_sources import LoadedSources
from tilesight.dispatch.select.selector import Selector
from tilesight.dispatch.select.winner_index import WinnerIndex
from tilesight.executor.caching_executor import CachingExecutor
from tilesight.executor.profile_cache import ProfileCache
from tilesight.problem.space import Config
from tilesight.profile.parametric import ParametricProfile, ProfileKey
from tilesight.profile.values import KernelProfile
from tilesight.records.trial import Prediction
from tilesight.records.winners import Winner
from tilesight.target.spec import Target, load_target

MATMUL = kernels.operator("matmul")
TARGET = load_target("a100")
WIDE, NARROW = full(config_of(128, 128)), full(config_of(64, 128))
LEARNED = MATMUL.workload("m=4096,n=1024,k=8192"), MATMUL.workload("m=8192,n=1024,k=8192")


class BlocksModel:
    """Predicts 1 us per row of blocks, or 0.6 us if blocks have 64 rows."""

    version = "blocks"

    def __init__(self) -> None:
        self.asked = 0

    def predict(
        self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None
    ) -> Prediction:
        self.asked += 1
        rows = kernels[0].grid[1]
        loads = kernels[0].roles[0].phases[1].work.accesses[0].bytes
        return Prediction(rows * (0.6 if loads < 16384 else 1.0), {}, "blocks")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/x.db") as opened:
        yield opened


@pytest.fixture
def cached(store: Store) -> Store:
    """A store with parametric profiles that have scaling laws."""
    executor = CachingExecutor(Lowerer(), ProfileCache(store))
    for workload in LEARNED:
        lower(executor, workload, WIDE, NARROW)
    return store


def problem() -> DispatchProblem:
    return make_problem(TEMPLATE, TARGET, "bfloat16", {}, {"n": 1024, "k": 8192}, ())


def test_a_shape_of_another_class_is_predicted_in_whole_tiles(cached: Store) -> None:
    made = problem()
    predictor = CachedPredictor(made, cached, BlocksModel())
    predictor.load(LEARNED[:1])
    at = {m: predictor.predict(WIDE, made.workload((m,)), LEARNED[0]) for m in (4096, 1000, 1024, 5, 200)}
    assert at == {
        4096: 32.0,
        1000: 8.0,
        1024: 8.0,
        5: 2.0,
        200: 2.0,
    }  # at least two blocks: a single one leaves no loop over blocks
    assert predictor.predict(NARROW, made.workload((1000,)), LEARNED[0]) == pytest.approx(0.6 * 16)


def test_rasterization_variants_share_the_cached_profile_of_their_base(cached: Store) -> None:
    made = problem()
    swizzled = Config({**WIDE, "swizzle": 8})
    assert (
        CachedPredictor(made, cached, BlocksModel()).predict(swizzled, made.workload((1024,)), LEARNED[0])
        == 8.0
    )


def test_without_a_cached_profile_there_is_no_prediction(cached: Store) -> None:
    made = problem()
    predictor = CachedPredictor(made, cached, BlocksModel())
    assert predictor.predict(full(config_of(256, 128)), made.workload((1000,)), LEARNED[0]) is None
    assert (
        predictor.predict(WIDE, made.workload((1000,)), made.workload((1000,))) is None
    )  # no profile of this class is cached


def test_the_same_blocks_are_predicted_once(cached: Store) -> None:
    made, model = problem(), BlocksModel()
    predictor = CachedPredictor(made, cached, model)
    for m in range(897, 1025):
        assert predictor.predict(WIDE, made.workload((m,)), LEARNED[0]) == 8.0
    assert model.asked <= 2  # one for shapes of the class itself, one for those rounded to it


def test_a_kernel_that_does_not_fit_the_target_has_infinite_time(
    cached: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = problem()
    monkeypatch.setattr(
        "tilesight.costmodel.analytical.occupancy.misfit", lambda *_: "needs more shared memory than there is"
    )
    assert (
        CachedPredictor(made, cached, BlocksModel()).predict(WIDE, made.workload((1000,)), LEARNED[0])
        == math.inf
    )


def test_the_model_puts_neighbours_in_order(cached: Store) -> None:
    made = problem()
    predictor = CachedPredictor(made, cached, BlocksModel())
    records = WinnerIndex(made, [Winner(LEARNED[0], WIDE, 64.0), Winner(LEARNED[1], NARROW, 76.8)])
    chosen = next(Selector(made, LoadedSources(records), predictor).choices(made.workload((5000,))))
    # WIDE takes twice the predicted time (40 rows: 80 us), NARROW exactly that (79 rows: 47.4 us).
    assert (chosen.config, chosen.source) == (NARROW, ChoiceSource.NEIGHBOUR)
    assert chosen.expected_us == pytest.approx(47.4)


def test_without_records_the_model_chooses_among_cached_profiles(cached: Store) -> None:
    made, model = problem(), BlocksModel()
    predictor = CachedPredictor(made, cached, model)
    predictor.load_ranking(LEARNED[:1])
    asked = model.asked
    chosen = next(Selector(made, LoadedSources(WinnerIndex(made)), predictor).choices(made.workload((1000,))))
    assert (chosen.source, chosen.config) == (ChoiceSource.MODEL, WIDE)
    assert chosen.expected_us == pytest.approx(8.0)
    assert model.asked - asked <= 6  # the class is not ranked again
    nowhere = CachedPredictor(made, cached, model)
    assert nowhere.best_configs(made.workload((1001,))) == []


def test_damaged_profiles_are_ignored(cached: Store) -> None:
    class Damaged:
        def cached_profiles(self, key: ProfileKey) -> list[ParametricProfile]:
            return [
                ParametricProfile(
                    f.config,
                    f.structure,
                    tuple(type(s)(s.dims, s.fingerprint, [{}]) for s in f.samples),
                    f.laws,
                )
                for f in cached.cached_profiles(key)
            ]

        def cache_profiles(self, key: ProfileKey, profiles: Iterable[ParametricProfile]) -> None:
            raise AssertionError("nothing is cached here")

    class Dead(Damaged):
        def cached_profiles(self, key: ProfileKey) -> list[ParametricProfile]:
            raise OSError("the disk is gone")

    made = problem()
    assert (
        CachedPredictor(made, Damaged(), BlocksModel()).predict(WIDE, made.workload((1000,)), LEARNED[0])
        is None
    )
    dead = CachedPredictor(made, Dead(), BlocksModel())
    dead.load(LEARNED)
    dead.load_ranking(LEARNED)
    assert dead.best_configs(made.workload((1000,))) == []
