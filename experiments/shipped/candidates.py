"""The file of chosen configs: those that a call without a GPU found promising for each plan, best first.

A plan on a GPU starts from them and explores nothing. A plan for a chip may also start from what is known of
a similar one: the kernels of its plan come first, then those that the model prefers among all configs that
were chosen for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilesight.database.shipped_plans import PLANS, PlanArchive
from tilesight.executor.profile_cache import reader_version
from tilesight.kernels import templates
from tilesight.planner.plan_options import GivenConfigs
from tilesight.problem.space import Config

if TYPE_CHECKING:
    from plans import PlanJob

CANDIDATES = "candidates.jsonl"  # in the folder of the tables
PACKAGE = Path(__file__).resolve().parents[2] / "database"


def write_candidates(folder: Path, plan: str, configs: Iterable[Config]) -> None:
    """Add the configs of a plan to the file, with the code that they and their profiles are of."""
    line = {
        "plan": plan,
        "template": _template_version(),
        "reader": reader_version(),
        "configs": [dict(config) for config in configs],
    }
    with (folder / CANDIDATES).open("a") as file:
        file.write(json.dumps(line) + "\n")


def chosen_configs(folders: Sequence[Path], plan: str, *, with_profiles: bool = False) -> list[Config]:
    """The configs of a plan, from the last folder that has any of the present template.

    Args:
        folders: with files of configs, or without.
        plan: the name of its table.
        with_profiles: only those whose profiles the present code can use.
    """
    for folder in reversed(folders):
        path = folder / CANDIDATES
        line = _lines(path, path.stat().st_size).get(plan) if path.exists() else None
        if line is None or line["template"] != _template_version():
            continue
        if not with_profiles or line["reader"] == reader_version():
            return [Config(values) for values in line["configs"]]
    return []


def given_configs(job: PlanJob, folders: Sequence[Path], sister: str = "") -> GivenConfigs | None:
    """What a plan starts from; None if nothing was chosen for it.

    Args:
        job: the plan.
        folders: of earlier calls.
        sister: a similar chip; its plan is in a folder, or ships with the package.
    """
    own = chosen_configs(folders, job.name)
    if not sister:
        return GivenConfigs(own) if own else None
    other = replace(job, target=sister)
    kernels, chosen = _kernels(other, folders), chosen_configs(folders, other.name)
    found = list(dict.fromkeys([*kernels, *own, *chosen]))
    return GivenConfigs(found, kernels) if found else None


def _kernels(job: PlanJob, folders: Sequence[Path]) -> list[Config]:
    """The kernels of a plan that was made, none if there is no such plan of the present template."""
    tables = [(folder / job.name).read_text() for folder in folders if (folder / job.name).exists()]
    if not tables:
        tables = _shipped(job)
    for table in map(json.loads, tables):
        if table["template"]["version"] == _template_version():
            return [Config(values) for values in table["kernels"]]
    return []


def _shipped(job: PlanJob) -> list[str]:
    if not (PACKAGE / PLANS).exists():
        return []
    archive, fixed = PlanArchive(PACKAGE / PLANS), {"n": job.n, "k": job.k}
    return [
        archive.text(plan)
        for plan in archive.plans
        if (plan.target, plan.dtype, dict(plan.fixed)) == (job.target, job.dtype, fixed)
        and plan.attrs.get("layout", "nn") == job.layout
    ]


@cache
def _lines(path: Path, size: int) -> Mapping[str, Any]:
    """The lines of a file of that size by plan, the last of each. Files only grow."""
    return {line["plan"]: line for line in map(json.loads, path.read_text()[:size].splitlines())}


@cache
def _template_version() -> str:
    return next(one.version for one in templates("matmul") if one.name == "matmul")
