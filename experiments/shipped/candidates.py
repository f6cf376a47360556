"""The file of chosen configs: those that a call without a GPU found promising for each plan, best first.

A plan on a GPU starts from them and explores nothing. A plan for a chip may also start from what is known of
a similar one: the kernels of its plan come first, then those that the model prefers among all configs that
were chosen for it. And the kernels of all plans are a pool, from which the model chooses for each plan.
"""

from __future__ import annotations

import fcntl
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
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


def write_candidates(
    folder: Path, plan: str, found: Mapping[Config, Mapping[int, float]], model: str
) -> None:
    """Add the configs of a plan to the file, with the model's times, and the code that they are of."""
    line = {
        "plan": plan,
        "template": _template_version(),
        "reader": reader_version(),
        "model": model,
        "configs": [[dict(config), list(times), list(times.values())] for config, times in found.items()],
    }
    with (folder / CANDIDATES).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # other processes write, too
        file.write(json.dumps(line) + "\n")


def chosen_configs(folders: Sequence[Path], plan: str, model: str = "") -> dict[Config, dict[int, float]]:
    """The configs of a plan and their times, from the last folder that has any of the present template.

    Args:
        folders: with files of configs, or without.
        plan: the name of its table.
        model: if given, only configs with the times of this model, of profiles by the present code.
    """
    for folder in reversed(folders):
        path = folder / CANDIDATES
        line = _lines(path, path.stat().st_size).get(plan) if path.exists() else None
        if line is None or line["template"] != _template_version():
            continue
        if not model or (line["reader"], line["model"]) == (reader_version(), model):
            return {Config(values): dict(zip(at, us, strict=True)) for values, at, us in line["configs"]}
    return {}


def given_configs(
    job: PlanJob, folders: Sequence[Path], sister: str = "", model: str = ""
) -> GivenConfigs | None:
    """What a plan starts from; None if nothing was chosen for it.

    Configs with the times of the model begin with the kernels of the plan of the sister, or of the plan that
    this one replaces.

    Args:
        job: the plan.
        folders: of earlier calls.
        sister: a similar chip; its plan is in a folder, or ships with the package.
        model: whose times are taken over, if the configs were chosen with it.
    """
    other = replace(job, target=sister)
    kernels = _kernels(other, folders) if sister else []
    predicted = chosen_configs(folders, job.name, model) if model else {}
    if predicted:
        first = kernels if sister else _kernels(job, folders)
        return GivenConfigs(list(predicted), [one for one in first if one in predicted], predicted)
    chosen = chosen_configs(folders, other.name) if sister else {}
    found = list(dict.fromkeys([*kernels, *chosen_configs(folders, job.name), *chosen]))
    return GivenConfigs(found, kernels) if found else None


def pooled_configs(job: PlanJob, folders: Sequence[Path]) -> GivenConfigs | None:
    """The kernels of all plans of one dtype and layout, those of this plan first; None if there are none.

    A search of a few hundred configs for one plan misses configs that the searches for others have found.
    """
    own = _kernels(job, folders)
    pattern = f"matmul-*-{job.dtype}-{job.layout}-*.json"
    tables = [path.read_text() for folder in folders for path in sorted(folder.glob(pattern))]
    for (_, dtype, _, _, layout), texts in _shipped_tables(PACKAGE / PLANS).items():
        if (dtype, layout) == (job.dtype, job.layout):
            tables += texts
    found = dict.fromkeys([*own, *(kernel for table in tables for kernel in _kernels_of(table))])
    return GivenConfigs(list(found), own) if found else None


def predicted_loss(job: PlanJob, folders: Sequence[Path]) -> float:
    """What the kernels of the plan that this one replaces lose beside the configs that were chosen for it, by
    the times that came with these, in the mean of their sizes; 0 without such a plan."""
    times = chosen_configs(folders, job.name)
    present = [config for config in _kernels(job, folders) if config in times]

    def least(configs: Iterable[Config], size: int) -> float:
        return min((times[config].get(size, math.inf) for config in configs), default=math.inf)

    sizes = {size for of_config in times.values() for size in of_config}
    losses = [least(present, size) / least(times, size) - 1 for size in sizes]
    known = [loss for loss in losses if math.isfinite(loss)]
    return fmean(known) if known else 0.0


def _kernels(job: PlanJob, folders: Sequence[Path]) -> list[Config]:
    """The kernels of a plan that was made, none if there is no such plan of the present template."""
    tables = [(folder / job.name).read_text() for folder in folders if (folder / job.name).exists()]
    if not tables:
        key = job.target, job.dtype, job.n, job.k, job.layout
        tables = _shipped_tables(PACKAGE / PLANS).get(key, [])
    return next((kernels for table in tables if (kernels := _kernels_of(table))), [])


def _kernels_of(text: str) -> list[Config]:
    """The kernels of a table, none if it is of another version of the template."""
    table = json.loads(text)
    is_present = table["template"]["version"] == _template_version()
    return [Config(values) for values in table["kernels"]] if is_present else []


@cache
def _shipped_tables(path: Path) -> Mapping[tuple[object, ...], list[str]]:
    """The tables of the archive by target, dtype, n, k and layout; none if there is no archive."""
    if not path.exists():
        return {}
    archive, found = PlanArchive(path), defaultdict(list)
    for plan in archive.plans:
        n, k = plan.fixed["n"], plan.fixed["k"]
        found[plan.target, plan.dtype, n, k, plan.attrs.get("layout", "nn")].append(archive.text(plan))
    return dict(found)


@cache
def _lines(path: Path, size: int) -> Mapping[str, Any]:
    """The lines of a file of that size by plan, the last of each. Files only grow."""
    return {line["plan"]: line for line in map(json.loads, path.read_text()[:size].splitlines())}


@cache
def _template_version() -> str:
    return next(one.version for one in templates("matmul") if one.name == "matmul")
