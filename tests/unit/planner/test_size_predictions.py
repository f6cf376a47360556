"""Predictions between sizes, and the short list."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.planner.rows_line import RowsExecutor, RowsModel, RowsTemplate, predicted_us
from tilesight.executor.tasks import Profiled
from tilesight.kernels import template_for
from tilesight.machine.placement import Placement, locate
from tilesight.planner.cover import greedily
from tilesight.planner.plan_problem import PlanProblem, base_workload
from tilesight.planner.shortlist import shortlist
from tilesight.planner.size_predictions import SizePredictions, _AnchorSearch
from tilesight.planner.sizes import SizeRange
from tilesight.problem.space import Config
from tilesight.records.protocol import MeasurementProtocol
from tilesight.target.spec import load_target
from tilesight.tuner.observers import Observer

N = 1024


@pytest.fixture
def predictions() -> SizePredictions:
    template, vary = RowsTemplate(), SizeRange("m", 1, 4096)
    placement = locate("cpu", measures=False, predicts=True)
    base = base_workload(template, load_target("cpu"), vary, f"n={N}", "float32")
    problem = PlanProblem(
        template,
        placement,
        base,
        vary,
        ("m",),
        MeasurementProtocol.named("default", placement.target),
        RowsModel.version,
    )
    return SizePredictions(problem, RowsModel(), RowsExecutor(), Observer())


def rows(block: int, width: int = 64, stages: int = 1) -> Config:
    return Config({"block": block, "width": width, "stages": stages})


def test_times_between_sizes_are_interpolated_in_whole_tiles(predictions: SizePredictions) -> None:
    """65 rows are two tiles of 64, and so are 128; 64 are one."""
    config = rows(64)
    predictions.predict([(config, 64), (config, 128), (config, 256)])
    at = predictions.row(config, [33, 65, 128, 129])
    assert at[0] == pytest.approx(predicted_us(config, {"m": 64, "n": N}))
    assert at[1] == at[2] == pytest.approx(predicted_us(config, {"m": 128, "n": N}))
    # three tiles: halfway between two and four, as 192 rows are
    assert at[3] == pytest.approx(
        np.exp(
            np.interp(
                np.log(192), np.log([128, 256]), np.log([at[2], predicted_us(config, {"m": 256, "n": N})])
            )
        )
    )
    assert np.isnan(predictions.row(config, [257])[0])


def test_promising_configs_begin_with_the_best_of_each_tile(predictions: SizePredictions) -> None:
    configs = [
        rows(block, width, stages) for block in (32, 64, 128) for width in (32, 64) for stages in (1, 2)
    ]
    predictions.predict((config, 512) for config in configs)
    predictions.configs.update(dict.fromkeys(configs))
    predictions.anchors = [512]
    times = predictions.times(configs, 512)
    near = [config for config in configs if times[config] <= 1.3 * min(times.values())]
    tiles = {config["block"] for config in near}
    assert len(tiles) > 1
    found = predictions.promising(400, len(near))
    assert set(found) == set(near)
    assert found[0] == min(near, key=lambda config: times[config])
    assert {config["block"] for config in found[: len(tiles)]} == tiles
    for tile in tiles:
        mine = [times[config] for config in found if config["block"] == tile]
        assert mine == sorted(mine)


class Surveyed:
    """Times by config, a column for each size."""

    def __init__(self, sizes: Sequence[int], times: dict[Config, Sequence[float]]) -> None:
        self._times = {config: dict(zip(sizes, row, strict=True)) for config, row in times.items()}
        self.configs = dict.fromkeys(times)

    def times(self, configs: Sequence[Config], size: int) -> dict[Config, float]:
        return {config: self._times[config][size] for config in configs}

    def prediction_at(self, config: Config, size: int) -> Any:
        return SimpleNamespace(lowered=Profiled((), config.key, 0.0))

    def row(self, config: Config, sizes: Sequence[int]) -> np.ndarray:
        return np.array([self._times[config][size] for size in sizes])


def test_the_best_config_of_one_size_is_listed_beside_many_similar_ones() -> None:
    """Forty configs are the fastest, one as good as the other, but at a single size that counts little, where
    another one is twice as fast."""
    sizes = [2**n for n in range(20)]
    many = {Config({"tile": 16 * (1 + n % 4), "depth": n}): [1.0 + 0.001 * n] * 20 for n in range(40)}
    one = Config({"tile": 7, "depth": 100})
    found: Any = Surveyed(sizes, {**many, one: [2.0] * 9 + [0.5] + [2.0] * 10})
    problem: Any = SimpleNamespace(default=lambda _: None, works=lambda *_: True, tile_sizes=(16,))
    weights = np.array([0.05] * 9 + [0.005] + [0.05] * 10)
    listed = shortlist(problem, found, sizes, weights, 8, seed=0)
    assert one in listed
    assert len(listed) == 8


def test_greedy_choice_adds_the_most_useful_row() -> None:
    cost = np.array([[1.0, 9.0, 9.0], [1.0, 8.0, 9.0], [9.0, 1.0, 1.0], [0.9, 9.0, 9.0]])
    assert greedily(cost, 1) == [2]
    assert greedily(cost, 2) == [2, 3]
    assert greedily(cost, 4) == [2, 3]  # the others lower nothing
    assert greedily(cost, 3, [0]) == [0, 2, 3]
    assert greedily(cost, 4, served=np.array([1.0, 1.0, 1.0])) == [3]
    assert greedily(cost, 4, served=np.zeros(3)) == []


def test_configs_that_take_long_to_lower_are_explored_for_fixed_sizes_alone() -> None:
    target = load_target("h200")
    template, vary = template_for("matmul", target, "bfloat16"), SizeRange("m", 2048, 2048)
    base = base_workload(template, target, vary, "n=4096,k=4096", "bfloat16")
    protocol = MeasurementProtocol.named("default", target)
    assert template.static_parameters == ("stream_k",)
    for dynamic in ((), ("m",)):
        problem = PlanProblem(template, Placement(target), base, vary, dynamic, protocol, RowsModel.version)
        assert any(config.get("stream_k") for config in problem.space(2048).configs())
        search = _AnchorSearch(problem, 2048, 0)
        asked = [*search.stratified(60, []), *search.promising(60)]
        assert len(asked) > 60
        assert any(config.get("stream_k") for config in asked) == (not dynamic)


def test_all_sizes_of_a_config_are_lowered_together(predictions: SizePredictions) -> None:
    configs = [rows(block) for block in (16, 32, 64)]
    executor = predictions._executor
    assert isinstance(executor, RowsExecutor)
    predictions.predict((config, size) for size in (512, 1024) for config in configs)
    assert executor.done["lower"] == [config for config in configs for _ in range(2)]
