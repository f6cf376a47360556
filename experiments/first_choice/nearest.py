"""A tool's own config, put onto the project's template: the nearest config that TileLang can build."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from tilesight.problem.config import Config, Value
from tilesight.problem.template import KernelTemplate
from tilesight.problem.workload import Workload
from tilesight.target.spec import Target

STAGE_WEIGHT = 0.25  # of a stage, beside |log2| of the ratio of two sizes


def nearest(
    template: KernelTemplate,
    workload: Workload,
    target: Target,
    wanted: Mapping[str, int],
    preferred: Mapping[str, Sequence[Value]],
) -> tuple[Config, dict[str, str]]:
    """(the nearest config that works, the changed values as "wanted -> taken").

    Rules of the search space against waste do not count: a tool may want what the project would not try.

    Args:
        template: Of the project.
        workload: What it computes.
        target: The chip.
        wanted: Sizes and stages, by name of the template's parameter.
        preferred: Values of the other parameters, best first.

    Raises:
        ValueError: no config works.
    """
    space = template.space(workload, target)
    # a parameter with a default is left out: the others' schedules have none of that kind
    values = {p.name: p.values for p in space.parameters if p.default is None}
    sizes = sorted(
        itertools.product(*(map(int, values[name]) for name in wanted)),
        key=lambda point: sum(
            _distance(name, want, got) for (name, want), got in zip(wanted.items(), point, strict=True)
        ),
    )
    for point in sizes:
        numbers = dict(zip(wanted, point, strict=True))
        for others in itertools.product(*preferred.values()):
            config = Config({**numbers, **dict(zip(preferred, others, strict=True))})
            if set(config) != set(values):
                raise ValueError(f"parameters {set(values) ^ set(config)} have no value, or are none")
            if space.works(config):
                changed = {n: f"{wanted[n]} -> {numbers[n]}" for n in wanted if wanted[n] != numbers[n]}
                return config, changed
    raise ValueError(f"no config of {template.name} works on {target.name}")


def _distance(name: str, want: int, got: int) -> float:
    if name == "num_stages":
        return STAGE_WEIGHT * abs(want - got)
    return abs(math.log2(max(1, want) / got))
