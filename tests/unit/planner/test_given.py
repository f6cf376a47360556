"""Plans that start from given configs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.planner.rows_line import RowsExecutor, RowsModel, RowsTemplate
from tilesight.database.store import open_store
from tilesight.machine.placement import locate
from tilesight.planner.plan_options import GivenConfigs, PlanLimits, PlanOptions
from tilesight.planner.plan_problem import PlanProblem, base_workload
from tilesight.planner.planner import Planner
from tilesight.planner.record_sessions import PlanRecorder
from tilesight.planner.result import PlanResult
from tilesight.planner.shortlist import shortlist
from tilesight.planner.size_predictions import SizePredictions
from tilesight.planner.sizes import SizeRange
from tilesight.problem.space import Config
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import Effort
from tilesight.tuner.observers import Observer

SPACE = [
    Config({"block": block, "width": width, "stages": stages})
    for block in (8, 16, 32, 64, 128, 256)
    for width in (32, 64)
    for stages in (1, 2)
]


@pytest.fixture
def problem() -> PlanProblem:
    template, vary = RowsTemplate(), SizeRange("m", 1, 4096)
    placement = locate("cpu", measures=False, predicts=True)
    base = base_workload(template, placement.target, vary, "n=1024", "float32")
    protocol = MeasurementProtocol.named("default", placement.target)
    return PlanProblem(template, placement, base, vary, ("m",), protocol, RowsModel.version)


def plan(problem: PlanProblem, executor: RowsExecutor, path: Path, given: GivenConfigs | None) -> PlanResult:
    options, limits = PlanOptions(4, 8, Effort.QUICK), PlanLimits(64, 8, 4, 0, 0)
    with open_store(str(path / "plans.db")) as store:
        recorder = PlanRecorder(problem, store, options.effort, options.seed)
        return Planner(problem, options, RowsModel(), executor, recorder, Observer(), limits, given).run()


def test_only_given_and_default_configs_are_lowered(problem: PlanProblem, tmp_path: Path) -> None:
    given, executor = SPACE[4:12], RowsExecutor()
    found = plan(problem, executor, tmp_path, GivenConfigs(given))
    defaults = {problem.default(size) for size in problem.vary.all()}
    assert set(executor.done["lower"]) <= {*given, *defaults}
    assert {Config(kernel) for kernel in found.table.kernels} <= {*given, *defaults}
    assert set(found.listed) & set(given)


def test_a_plan_without_given_configs_explores(problem: PlanProblem, tmp_path: Path) -> None:
    executor = RowsExecutor()
    plan(problem, executor, tmp_path, None)
    assert len(set(executor.done["lower"])) > 12


def test_the_listed_configs_of_a_plan_make_the_same_table(problem: PlanProblem, tmp_path: Path) -> None:
    first = plan(problem, RowsExecutor(), tmp_path, None)
    again = plan(problem, RowsExecutor(), tmp_path, GivenConfigs(list(first.listed)))
    assert list(again.table.kernels) == list(first.table.kernels)


def test_first_configs_are_listed_although_others_are_better(problem: PlanProblem, tmp_path: Path) -> None:
    slowest = Config({"block": 8, "width": 32, "stages": 1})
    assert slowest not in plan(problem, RowsExecutor(), tmp_path, GivenConfigs(SPACE)).listed
    assert slowest in plan(problem, RowsExecutor(), tmp_path, GivenConfigs(SPACE, [slowest])).listed


def test_wanted_configs_count_among_the_listed_ones(problem: PlanProblem) -> None:
    predictions, sizes = SizePredictions(problem, RowsModel(), RowsExecutor(), Observer()), [512, 2048]
    predictions.take(SPACE)
    predictions.predict((config, size) for config in SPACE for size in sizes)
    wanted = SPACE[:3]
    listed = shortlist(problem, predictions, sizes, np.array([0.5, 0.5]), 5, 0, wanted)
    assert set(wanted) <= set(listed)
    assert len(listed) <= 5


def test_illegal_given_configs_are_left_out(problem: PlanProblem, tmp_path: Path) -> None:
    crowded = Config({"block": 256, "width": 128, "stages": 1})
    found = plan(problem, RowsExecutor(), tmp_path, GivenConfigs([*SPACE, crowded], [crowded]))
    assert crowded not in found.listed


def test_whether_a_config_works_at_a_size_is_computed_once(problem: PlanProblem) -> None:
    config, asked = SPACE[0], 0
    works = problem.space(512).works

    def count(config: Config) -> bool:
        nonlocal asked
        asked += 1
        return works(config)

    problem.space(512).works = count  # type: ignore[method-assign]
    assert problem.works(512, config)
    assert problem.works(512, config)
    assert asked == 1


def test_with_predicted_times_nothing_is_lowered(problem: PlanProblem, tmp_path: Path) -> None:
    first, executor = plan(problem, RowsExecutor(), tmp_path, None), RowsExecutor()
    again = plan(problem, executor, tmp_path, GivenConfigs(list(first.listed), (), first.listed))
    assert not executor.done["lower"]
    assert list(again.table.kernels) == list(first.table.kernels)
    assert again.listed == first.listed
