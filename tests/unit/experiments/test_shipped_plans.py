"""experiments/shipped: a plan starts from configs that another machine chose and lowered."""

from __future__ import annotations

import importlib
import json
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.fakes import FakeExecutor
from tilesight.database import open_layers
from tilesight.database.shipped_plans import PLANS, PlanArchive
from tilesight.executor.caching_executor import CachingExecutor
from tilesight.executor.jobs import (
    BuildDone,
    BuildJob,
    Event,
    Job,
    LowerDone,
    LowerJob,
    MeasureDone,
    MeasureJob,
)
from tilesight.executor.profile_cache import ProfileCache
from tilesight.executor.tasks import Profiled
from tilesight.kernels import templates
from tilesight.machine.devices import Device
from tilesight.machine.placement import Placement, locate
from tilesight.planner.plan_options import PlanLimits
from tilesight.planner.result import PlanResult
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.profile.values import KernelProfile, Phase, Role, Trips, Work
from tilesight.records.trial import BuildResult, Measurement, Prediction
from tilesight.target.spec import Target
from tilesight.tuner.observers import Observer

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "shipped"
LIMITS = PlanLimits(explore=12, promising=2, listed=8, measure=8, compare=4)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "plans", raising=False)
    monkeypatch.delitem(sys.modules, "candidates", raising=False)
    plans = importlib.import_module("plans")
    plans.candidates = importlib.import_module("candidates")
    return plans


class Model:
    version = "test-1"

    def predict(self, kernels: Sequence[KernelProfile], target: Target, built: object = None) -> Prediction:
        time_us = kernels[0].roles[0].phases[0].work.vector_ops
        return Prediction(time_us, {}, "vector", {}, uncertainty=0.1, model=self.version)


class Lowering(FakeExecutor):
    """Lowers every candidate to the same profile, but for a number that its config decides."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Candidate] = []
        self.built_configs: list[Config] = []

    def event(self, job: Job) -> Event:
        match job:
            case BuildJob(candidate):
                self.built_configs.append(candidate.config)
                key = candidate.config.key
                return BuildDone(job, BuildResult(f"/cache/{key}.so", entry="f", binary=key))
            case MeasureJob(candidate):
                time_us = 10.0 + zlib.crc32(candidate.key.encode()) % 10
                return MeasureDone(job, Measurement((time_us,) * 20, relative_error=0.0), 0.01)
        assert isinstance(job, LowerJob)
        self.asked.append(job.candidate)
        config = job.candidate.config
        work = Work(vector_ops=100.0 + zlib.crc32(config.key.encode()) % 100)
        role = Role("all", 1, (Phase(Trips((4.0,)), work, 1, is_loop=True),))
        profile = KernelProfile("cuda", "sm_90a", (1, 1, 1), 1, 128, 0, (role,), ())
        return LowerDone(job, Profiled((profile,), f"code-{config}", 0.01))


class Line:
    """Plans without GPUs by `build.py`, with the databases and files of earlier calls in `have`."""

    def __init__(self, plans: Any, out: Path, *have: Path, sister: str = "") -> None:
        out.mkdir()
        self._plans, self.executor = plans, Lowering()
        self.devices: tuple[Device, ...] = ()
        self.run = plans.PlanRun(
            out=out,
            layers=tuple(str(path) for folder in have for path in sorted(folder.glob("*.db"))),
            folders=(*have, out),
            sister=sister,
            workers=1,
            sizes=4,
            kernels=(2,),
            limits=LIMITS,
            plan_s=0.0,  # it is the limit of plans that measure
            end=0.0,
            measures=False,
        )

    def call(self, work: Callable[[Any, Any], Any], target: str = "h200") -> Any:
        """The result of `work`, which gets the job of a plan and a function that plans."""
        plans, run = self._plans, self.run
        job = plans.PlanJob(target, 4096, 4096, "bfloat16", "nn")
        with (
            open_layers(str(run.out / "plans0.db"), run.layers, shipped=False) as measured,
            open_layers(str(run.out / plans.PROFILES), run.layers, shipped=False) as profiles,
        ):

            def caching() -> CachingExecutor:
                return CachingExecutor(self.executor, ProfileCache(profiles))

            model = Model()
            placement = Placement(locate(target, measures=False).target, self.devices)
            problem = plans.problem_of(job, placement, model)
            return work(job, partial(plans.find_plan, problem, model, caching, measured, run))

    def lower(self, target: str = "h200") -> str:
        """What `build.py lower` does for one plan."""
        lower = self._plans.lower_candidates
        said: str = self.call(lambda job, plan: lower(job, plan, self.run, Observer(), Model.version), target)
        return said

    def plan(self, target: str = "h200") -> PlanResult:
        """A plan as the machine with the GPU begins it, without its measurements."""
        found: PlanResult = self.call(
            lambda job, plan: plan(
                Observer(),
                self._plans.given_configs(job, self.run.folders, self.run.sister, Model.version),
                self.run.kernels[0],
            ),
            target,
        )
        return found


NAME = "matmul-h200-bfloat16-nn-n4096-k4096.json"


def test_a_plan_with_chosen_configs_explores_and_lowers_nothing(plans: ModuleType, tmp_path: Path) -> None:
    here = Line(plans, tmp_path / "here")
    said = here.lower()
    assert len(here.executor.asked) >= LIMITS.explore
    assert said.startswith("lowered ")
    assert "built 0" in said
    assert not list((tmp_path / "here").glob("*.json")), "nothing was measured, so there is no table"
    chosen = plans.candidates.chosen_configs([tmp_path / "here"], NAME)
    assert len(chosen) >= LIMITS.listed
    there = Line(plans, tmp_path / "there", tmp_path / "here")
    found = there.plan()
    assert not there.executor.asked
    assert set(found.listed) <= set(chosen)
    assert len(found.listed) == LIMITS.listed


def test_without_chosen_configs_a_plan_explores(plans: ModuleType, tmp_path: Path) -> None:
    line = Line(plans, tmp_path / "here")
    found = line.plan()
    assert len(line.executor.asked) >= LIMITS.explore
    assert found.looked_at > LIMITS.listed


def test_configs_of_an_earlier_template_count_for_nothing(plans: ModuleType, tmp_path: Path) -> None:
    for key, usable in (("template", False), ("reader", True), ("model", True)):
        folder = tmp_path / key
        folder.mkdir()
        plans.candidates.write_candidates(folder, NAME, {Config({"block_m": 64}): {8: 1.5}}, "m")
        path = folder / plans.candidates.CANDIDATES
        path.write_text(json.dumps({**json.loads(path.read_text()), key: "0"}))
        assert bool(plans.candidates.chosen_configs([folder], NAME)) == usable
        assert not plans.candidates.chosen_configs([folder], NAME, "m"), "lowered and predicted again"


def test_the_last_folder_counts(plans: ModuleType, tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second", tmp_path / "none"]
    for number, folder in enumerate(folders[:2]):
        folder.mkdir()
        for block in (16, 32):
            found = {Config({"block_m": block + number}): {8: 1.5, 16: 2.5}}
            plans.candidates.write_candidates(folder, NAME, found, "m")
    assert plans.candidates.chosen_configs(folders, NAME, "m") == found


def test_kernels_of_a_similar_chip_come_first(plans: ModuleType, tmp_path: Path) -> None:
    here = Line(plans, tmp_path / "here")
    here.lower()
    chosen = plans.candidates.chosen_configs([tmp_path / "here"], NAME)
    last = list(chosen)[-1]
    version = next(one.version for one in templates("matmul") if one.name == "matmul")
    table = {"template": {"version": version}, "kernels": [dict(last)]}
    (tmp_path / "here" / NAME).write_text(json.dumps(table))
    there = Line(plans, tmp_path / "there", tmp_path / "here", sister="h200")
    job = plans.PlanJob("h100", 4096, 4096, "bfloat16", "nn")
    given = plans.given_configs(job, there.run.folders, "h200")
    assert given.first == [last]
    assert set(given.configs) == set(chosen)
    assert given.configs[0] == last
    found = there.plan("h100")
    assert last in found.listed
    assert plans.given_configs(replace(job, n=128), there.run.folders, "h200") is None


def test_configs_for_a_similar_chip_need_no_exploration(plans: ModuleType, tmp_path: Path) -> None:
    Line(plans, tmp_path / "here").lower()
    there = Line(plans, tmp_path / "there", tmp_path / "here", sister="h200")
    said = there.lower("h100")
    chosen = plans.candidates.chosen_configs([tmp_path / "here"], NAME)
    new = {candidate.config for candidate in there.executor.asked} - set(chosen)
    assert len(new) < LIMITS.explore // 2, "default configs of the other chip alone"
    own = plans.candidates.chosen_configs([tmp_path / "there"], NAME.replace("h200", "h100"))
    assert own
    assert set(own) & set(chosen)
    assert said.startswith("lowered ")


def test_kernels_of_a_shipped_plan_of_a_similar_chip(plans: ModuleType, tmp_path: Path) -> None:
    shipped = next(
        plan
        for plan in PlanArchive(plans.candidates.PACKAGE / PLANS).plans
        if (plan.target, plan.attrs) == ("h200", {"layout": "nt"})
    )
    job = plans.PlanJob("h100", shipped.fixed["n"], shipped.fixed["k"], "bfloat16", "nt")
    found = {Config({"block_m": 64}): {8: 1.5}}
    plans.candidates.write_candidates(tmp_path, replace(job, target="h200").name, found, "m")
    given = plans.given_configs(job, [tmp_path], "h200")
    assert len(given.first) == shipped.kernels
    assert len(given.configs) == shipped.kernels + 1


def measuring(plans: ModuleType, tmp_path: Path, *kernels: int) -> Line:
    """A plan that measures the configs that were lowered in the folder `here`."""
    Line(plans, tmp_path / "here").lower()
    there = Line(plans, tmp_path / "there", tmp_path / "here")
    end, limits = time.time() + 1e6, replace(LIMITS, compare=0)
    there.run = replace(there.run, measures=True, end=end, plan_s=1e6, limits=limits, kernels=kernels)
    there.devices = (Device("NVIDIA H200", "GPU-0", "1", "cuda", 0, 1 << 37),)
    return there


def make(plans: ModuleType, there: Line) -> str:
    said: str = there.call(lambda job, plan: plans.make_plan(job, plan, there.run, Observer(), Model.version))
    return said


def test_a_measured_plan_of_chosen_configs_writes_its_table(plans: ModuleType, tmp_path: Path) -> None:
    there = measuring(plans, tmp_path, 2)
    said = make(plans, there)
    table = json.loads((tmp_path / "there" / NAME).read_text())
    chosen = plans.candidates.chosen_configs([tmp_path / "here"], NAME)
    assert {Config(kernel) for kernel in table["kernels"]} <= set(chosen)
    assert not there.executor.asked
    assert set(there.executor.built_configs) <= set(chosen)
    assert "measured" in said
    [note] = (tmp_path / "there" / plans.MADE).read_text().splitlines()
    assert json.loads(note)["table"] == NAME


@pytest.mark.parametrize("few_are_enough", [True, False])
def test_a_plan_that_loses_much_is_made_with_more_kernels(
    plans: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_are_enough: bool
) -> None:
    monkeypatch.setattr(plans, "ENOUGH", 1e9 if few_are_enough else -1.0)
    there = measuring(plans, tmp_path, 1, 3)
    said = make(plans, there)
    table = json.loads((tmp_path / "there" / NAME).read_text())
    assert (len(table["kernels"]) == 1) == few_are_enough
    assert f"kernels {len(table['kernels'])}" in said
    recalled = int(said.split("recalled ")[1].split(",")[0])
    assert (recalled == 0) == few_are_enough, "what was measured is not measured again"
    [note] = (tmp_path / "there" / plans.MADE).read_text().splitlines()
    assert json.loads(note) == {"table": NAME, "made": json.loads(note)["made"], "summary": said}
