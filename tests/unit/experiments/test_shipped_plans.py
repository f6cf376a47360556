"""experiments/shipped: candidates of plans that one machine lowers need no lowering on another."""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.fakes import FakeExecutor
from tilesight.database import open_layers
from tilesight.executor.caching_executor import CachingExecutor
from tilesight.executor.jobs import Event, Job, LowerDone, LowerJob
from tilesight.executor.profile_cache import ProfileCache
from tilesight.executor.tasks import Profiled
from tilesight.machine.placement import locate
from tilesight.planner.plan_options import PlanLimits
from tilesight.problem.candidate import Candidate
from tilesight.profile.values import KernelProfile, Phase, Role, Trips, Work
from tilesight.records.trial import Prediction
from tilesight.target.spec import Target
from tilesight.tuner.observers import Observer

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "shipped"
LIMITS = PlanLimits(explore=12, promising=2, listed=4, measure=8, compare=4)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "plans", raising=False)
    plans = importlib.import_module("plans")
    monkeypatch.setattr("tilesight.costmodel.default_model", lambda: Model())
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

    def event(self, job: Job) -> Event:
        assert isinstance(job, LowerJob)
        self.asked.append(job.candidate)
        config = job.candidate.config
        work = Work(vector_ops=10.0 + zlib.crc32(config.key.encode()) % 100)
        role = Role("all", 1, (Phase(Trips((4.0,)), work, 1, is_loop=True),))
        profile = KernelProfile("cuda", "sm_90a", (1, 1, 1), 1, 128, 0, (role,), ())
        return LowerDone(job, Profiled((profile,), f"code-{config}", 0.01))


def lowered_by(
    plans: Any, out: Path, *have: Path, n: int = 4096, until_none_is_left: bool = True
) -> tuple[list[Candidate], str]:
    """The candidates that a plan without a GPU lowers, with the databases of earlier calls in `have`.

    With `until_none_is_left`, as often as `build.py lower` plans; else once.
    """
    out.mkdir()
    run = plans.PlanRun(
        out=out,
        layers=tuple(str(path) for folder in have for path in sorted(folder.glob("*.db"))),
        workers=1,
        sizes=4,
        kernels=2,
        limits=LIMITS,
        plan_s=0.0,  # it is the limit of plans that measure
        end=0.0,
        measures=False,
    )
    job = plans.PlanJob("h200", n, 4096, "bfloat16", "nn")
    executor = Lowering()
    with (
        open_layers(str(out / "plans0.db"), run.layers, shipped=False) as measured,
        open_layers(str(out / plans.PROFILES), run.layers, shipped=False) as profiles,
    ):

        def caching() -> CachingExecutor:
            return CachingExecutor(executor, ProfileCache(profiles))

        placement = locate(job.target, measures=run.measures)
        make = partial(plans.make_plan, job, placement, caching, measured, run, 0.0)
        said = plans.lower_candidates(make, Observer()) if until_none_is_left else make(Observer())
    return executor.asked, said


def test_what_one_machine_has_lowered_another_one_finds(plans: ModuleType, tmp_path: Path) -> None:
    here, said = lowered_by(plans, tmp_path / "here")
    assert len(here) >= LIMITS.explore
    assert said.startswith("lowered ")
    assert ", 0; " in said, "the last plan had nothing to lower"
    assert "built 0" in said
    assert not list((tmp_path / "here").glob("*.json")), "nothing was measured, so there is no table"
    there, same = lowered_by(plans, tmp_path / "there", tmp_path / "here", until_none_is_left=False)
    assert not there
    assert same == said.split("; ", 1)[1]


def test_one_plan_leaves_some_to_be_lowered(plans: ModuleType, tmp_path: Path) -> None:
    """The search of a second plan knows more, and takes some other configs."""
    here, _ = lowered_by(plans, tmp_path / "here", until_none_is_left=False)
    there, _ = lowered_by(plans, tmp_path / "there", tmp_path / "here", until_none_is_left=False)
    assert 0 < len(there) < len(here)
