"""Which configs are legal for a shape, and the nearest legal one."""

from __future__ import annotations

from ...errors import TileSightError
from ...problem.space import Config, SearchSpace
from ..problem import DispatchProblem


def is_legal(config: Config, dynamic_dims: tuple[str, ...], space: SearchSpace) -> bool:
    """Whether a kernel of `config` may be used for the workload of `space`.

    A kernel with dynamic dimensions is built for many sizes, so it may be wasteful at some of them.
    """
    try:
        if config in space:
            return True
    except TileSightError:  # parameters of another space
        return False
    has_values = all(parameter.of(config) in parameter.values for parameter in space.parameters)
    return bool(dynamic_dims) and has_values and space.works(config)


def nearest_legal(config: Config, problem: DispatchProblem, space: SearchSpace) -> tuple[Config, str] | None:
    """The legal config nearest to `config`, and the change in words; None if there is none.

    It differs in nothing, in one parameter, or in a tile size and one more parameter.
    """
    if is_legal(config, problem.dynamic, space):
        return config, ""
    for other, changed in _variations(config, space):
        if other in space:
            return other, changed
    scales = problem.template.scales
    tiles = {name for dim in problem.free if dim in scales for name in scales[dim].tiles}
    for parameter in (parameter for parameter in space.parameters if parameter.name in tiles):
        for value in sorted((v for v in parameter.values if isinstance(v, int)), reverse=True):
            # Another tile often needs one more change, for example of the number of threads.
            for other, changed in _variations(space.config({**config, parameter.name: value}), space):
                if other in space:
                    return other, f" with {parameter.name}={value} and{changed.removeprefix(' with')}"
    return None


def _variations(config: Config, space: SearchSpace) -> list[tuple[Config, str]]:
    """Configs that differ from `config` in one parameter, with the change in words, smallest steps first."""
    steps: list[tuple[int, Config, str]] = []
    for parameter in space.parameters:
        current = parameter.of(config)
        if current is None or current not in parameter.values:
            return []
        own = parameter.values.index(current)
        for position, value in enumerate(parameter.values):
            if position != own:
                changed = space.config({**config, parameter.name: value})
                steps.append((abs(position - own), changed, f" with {parameter.name}={value}"))
    steps.sort(key=lambda step: step[0])
    return [(other, changed) for _, other, changed in steps]
