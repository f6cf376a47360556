"""Selection: which config serves a shape, and why; the most certain source first, and only what is legal there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import TileSightError
from ..known import Known
from ..space import Config, SearchSpace
from ..workload import Workload
from .choice import Choice, Source
from .forecast import Forecaster
from .problem import Problem
from .records import Records

if TYPE_CHECKING:
    from .table import DispatchTable

NEIGHBOURS = 4  # recorded shapes that are looked at


@dataclass(frozen=True, slots=True)
class _Neighbour:
    known: Known
    config: Config  # its own, or the nearest legal one
    expected_us: float | None  # at the shape that is asked for: predicted, times how the prediction was off at its own
    changed: str = ""  # what had to be changed to make it legal


class Selector:
    """`records` may be replaced at any time."""

    def __init__(self, problem: Problem, records: Records, forecaster: Forecaster, table: DispatchTable | None = None) -> None:
        self.problem, self.records, self.forecaster, self.table = problem, records, forecaster, table
        self._own: dict[tuple[Config, str], float | None] = {}  # what the model says of a record at its own shape

    def choices(self, workload: Workload) -> Iterator[Choice]:
        """What may serve `workload`, the best first: the first one that can be built is taken. Looked for one by one."""
        space = self.problem.space(workload)
        seen: set[tuple[Config, tuple[str, ...]]] = set()
        for found in self._all(workload, space):
            if (found.config, found.open) not in seen:
                seen.add((found.config, found.open))
                yield found

    def _all(self, workload: Workload, space: SearchSpace) -> Iterator[Choice]:
        yield from self._recorded(workload, space)
        yield from self._tabled(workload, space)
        yield from self._neighbours(workload, space)
        yield from self._predicted(workload, space)
        yield from self._default(workload, space)

    def _recorded(self, workload: Workload, space: SearchSpace) -> Iterator[Choice]:
        for known in self.records.exact(workload):
            if self.is_legal(known.config, known.open, space):
                layer = f" in {known.layer}" if known.layer else ""
                reason = f"tuned: measured at {known.latency_us:.4g} us{layer}"
                yield Choice(workload, known.config, Source.RECORD, reason, known.latency_us, True, known.open)

    def _tabled(self, workload: Workload, space: SearchSpace) -> Iterator[Choice]:
        table = self.table
        if table is None or not table.covers(workload):
            return
        size = workload.dims[table.vary]
        chosen = table.choose(size)
        if self.is_legal(chosen.config, table.open, space):
            span = f"{table.vary}={chosen.segment.first}..{chosen.segment.last}"
            yield Choice(workload, chosen.config, Source.TABLE, f"the table has it for {span}", None, False, table.open)

    def _neighbours(self, workload: Workload, space: SearchSpace) -> Iterator[Choice]:
        """In the order of their expected times; those of which the model knows nothing after them, nearest first."""
        found: list[_Neighbour] = []
        for known in self.records.nearest(workload, NEIGHBOURS):
            legal = self._made_legal(known.config, workload, space)
            if legal is not None and all(other.config != legal[0] for other in found):
                found.append(_Neighbour(known, legal[0], self._expected(known, legal[0], workload), legal[1]))
        fitting = [n for n in found if n.expected_us != math.inf]
        fitting.sort(key=lambda n: math.inf if n.expected_us is None else n.expected_us)  # stable: else nearest first
        for one in fitting:
            yield Choice(workload, one.config, Source.NEIGHBOUR, self._why(one, len(fitting)), one.expected_us, False, self.problem.open)

    def _why(self, one: _Neighbour, count: int) -> str:
        where = ", ".join(f"{name}={one.known.workload.dims[name]}" for name in self.problem.free)
        kind = f"the winner of {where}{one.changed}"
        if one.expected_us is None:
            return f"{kind}, the nearest recorded shape; no kept profile says what the model thinks of it here"
        among = f" of {count} neighbours' winners" if count > 1 else ""
        return f"{kind}: the model expects {one.expected_us:.4g} us here{', the least' if among else ''}{among}"

    def _expected(self, known: Known, config: Config, workload: Workload) -> float | None:
        here = self.forecaster.at(config, workload, known.workload)
        if here is None or here == math.inf:
            return here
        key = known.config, known.workload.key
        there = self._own.get(key)
        if there is None:
            there = self._own[key] = self.forecaster.at(known.config, known.workload, known.workload)
        if not there or there == math.inf:
            return here
        return here * known.latency_us / there

    def unpredicted(self, workload: Workload) -> list[tuple[Config, Workload]]:
        """Configs of neighbours, and the shapes for which the model lacks their profiles: there and at their own."""
        space = self.problem.space(workload)
        found: dict[tuple[Config, str], tuple[Config, Workload]] = {}
        for known in self.records.nearest(workload, NEIGHBOURS):
            legal = self._made_legal(known.config, workload, space)
            if legal is None:
                continue
            for config, shape in ((legal[0], workload), (known.config, known.workload)):
                if self.forecaster.at(config, shape, known.workload) is None:
                    found[config, shape.key] = config, shape
        return list(found.values())

    def _predicted(self, workload: Workload, space: SearchSpace) -> Iterator[Choice]:
        def is_legal(config: Config) -> bool:
            return self.is_legal(config, self.problem.open, space)

        for config, us in self.forecaster.first_choices(workload, is_legal):
            reason = f"the model's choice among kept profiles: it expects {us:.4g} us"
            yield Choice(workload, config, Source.MODEL, reason, us, False, self.problem.open)

    def _default(self, workload: Workload, space: SearchSpace) -> Iterator[Choice]:
        name, which = self.problem.template.name, "the default config"
        config = self.problem.template.default_config(workload, self.problem.target)
        if config is None:  # not every template names one
            config, which = next(iter(space.configs()), None), "in place of a default config the first legal one"
        if config is not None:
            known = "is recorded near it and legal here" if len(self.records) else f"of {self.problem.operator.name} is recorded"
            reason = f"{which} of {name}: nothing {known}, and no profile is kept"
            yield Choice(workload, config, Source.DEFAULT, reason, None, False, self.problem.open)

    # ---- what is legal

    def is_legal(self, config: Config, open_dims: tuple[str, ...], space: SearchSpace) -> bool:
        """Whether a kernel of `config` may serve the workload of `space`. One with open dimensions, which is built for many sizes, may be
        wasteful at some of them."""
        try:
            if config in space:
                return True
        except TileSightError:  # parameters of another space
            return False
        values = all(config[parameter.name] in parameter.values for parameter in space.parameters)
        return bool(open_dims) and values and space.works(config)

    def _made_legal(self, config: Config, workload: Workload, space: SearchSpace) -> tuple[Config, str] | None:
        """`config`, or the legal one nearest to it that differs in one parameter; None where there is none."""
        if self.is_legal(config, self.problem.open, space):
            return config, ""
        for other, changed in _near(config, space):
            if other in space:
                return other, changed
        tiles = {name for dim in self.problem.free for name in self._tiles(dim)}
        for parameter in (parameter for parameter in space.parameters if parameter.name in tiles):
            for value in sorted((v for v in parameter.values if isinstance(v, int)), reverse=True):
                # another tile often needs one more thing to be different, such as the number of threads
                for other, changed in _near(Config({**config, parameter.name: value}), space):
                    if other in space:
                        return other, f" with {parameter.name}={value} and{changed.removeprefix(' with')}"
        return None

    def _tiles(self, dim: str) -> tuple[str, ...]:
        scale = self.problem.template.scales.get(dim)
        return scale.tiles if scale is not None else ()


def _near(config: Config, space: SearchSpace) -> list[tuple[Config, str]]:
    """Configs that differ from `config` in one parameter, and how, the smallest steps along its values first."""
    steps: list[tuple[int, Config, str]] = []
    for parameter in space.parameters:
        if config.get(parameter.name) not in parameter.values:
            return []
        at = parameter.values.index(config[parameter.name])
        for place, value in enumerate(parameter.values):
            if place != at:
                steps.append((abs(place - at), Config({**config, parameter.name: value}), f" with {parameter.name}={value}"))
    steps.sort(key=lambda step: step[0])
    return [(other, changed) for _, other, changed in steps]
