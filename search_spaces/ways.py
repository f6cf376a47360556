"""The ways to compute an operator of several ranks: one search space has all of them.

The parameter `algorithm` names the way. `sequential` is the kernel of one device with all its schedules, and
the library's collective. Kernels of the other ways reach the devices of one host only, so of a pod all but
`sequential` are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..problem.group_operator import MOST_RANKS
from ..problem.rejections import Rejected
from ..problem.space import Config, Constraint, Parameter, SearchSpace, Value
from ..target.spec import Target

SEQUENTIAL, PUSH = "sequential", "push"
ANOTHER_WAY = "way"  # rule: a way has its own values
WITHIN_REACH = "one host"  # rule: a kernel reaches the devices of its host
LEAST_CORES = 72  # for kernels with blocks that wait: these are resident, and others run beside them


class SpaceOfWays(SearchSpace):
    """A space whose ways have different parameters.

    All combinations of all values would be many, of which next to none is legal. So the legal ones are looked
    for among the values that each way may have. `constraints` have rules for the others.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        constraints: Sequence[Constraint],
        of_ways: Sequence[Mapping[str, tuple[Value, ...]]],
    ) -> None:
        """`of_ways`: values of the parameters that a way may have, in the order of the ways."""
        super().__init__(parameters, constraints)
        self._of_ways = of_ways

    def _enumerate(self) -> tuple[list[tuple[int, ...]], Rejected]:
        points: list[tuple[int, ...]] = []
        rejected = Rejected()
        left = self.size
        for values in self._of_ways:
            part = SearchSpace(
                [Parameter(p.name, values[p.name], default=p.default) for p in self.parameters],
                self.constraints,
            )
            for config in part.configs():
                found = [(p, p.of(config)) for p in self.parameters]
                points.append(
                    tuple(next(i for i, v in enumerate(p.values) if v == value) for p, value in found)
                )
            of_part = part.rejected()
            for name, count in of_part.counts.items():
                rejected.add(name, count, of_part.examples[name])
            left -= part.size
        if left:
            rejected.add(ANOTHER_WAY, left, self._with_a_value_of_another_way())
        return points, rejected

    def _with_a_value_of_another_way(self) -> str:
        """The reason given for a config that has a value of another way."""
        for values in self._of_ways:
            own = {p.name: values[p.name][0] for p in self.parameters}
            for parameter in self.parameters:
                for value in parameter.values:
                    config = self.config({**own, parameter.name: value})
                    for broken in self.violations(config)[:1]:
                        if broken.constraint == ANOTHER_WAY:
                            return broken.reason
        raise AssertionError("no rule refuses what no way has")


def own_values(
    parameter: Parameter, of_ways: Mapping[str, Mapping[str, tuple[Value, ...]]], kernels: str
) -> Constraint:
    """A way has its own values of a parameter. One rule for each, so that it reads no others.

    Args:
        parameter: the parameter.
        of_ways: its values, and those of others, by way.
        kernels: what the kernels of one device compute, for messages.
    """

    def violation(config: Config) -> str | None:
        way, value = config.str("algorithm"), parameter.of(config)
        values = of_ways[way][parameter.name]
        if value in values:
            return None
        is_alone = way != SEQUENTIAL and value in of_ways[SEQUENTIAL][parameter.name]
        what = f"is of {kernels} of 1 device"
        if not is_alone:
            others = [other for other, known in of_ways.items() if value in known[parameter.name]]
            ways = "1 other way" if len(others) == 1 else f"{len(others)} other ways"
            what = f"is of {ways}, algorithm={' or '.join(others)}"
        elif parameter.name == "persistent":
            what = (
                "has a block a tile, and blocks that wait for ranks hold their cores, so all must be resident"
            )
        return (
            f"{parameter.name}={value} {what}: take {parameter.name}={str(values[0]).lower()} with "
            f"algorithm={way}"
        )

    return Constraint(ANOTHER_WAY, violation)


def with_ways(
    alone: SearchSpace, ways: Mapping[str, str], target: Target, rules: Sequence[Constraint] = ()
) -> SearchSpace:
    """The space of one rank's kernel, and the ways in which ranks exchange what it takes or leaves.

    Args:
        alone: the space of the kernel.
        ways: `sequential` and others, with their meaning.
        target: the target.
        rules: further rules.
    """
    some = tuple(ways) if target.int("core.count") >= LEAST_CORES else (SEQUENTIAL,)
    algorithm = Parameter("algorithm", some, "; ".join(ways[way] for way in some))
    return SearchSpace((algorithm, *alone.parameters), (*within_reach(target), *rules, *alone.constraints))


def within_reach(target: Target) -> tuple[Constraint, ...]:
    """The rule that only `sequential` is legal, on a target of which a kernel does not reach all devices."""
    beyond = _out_of_reach(target)

    def violation(config: Config) -> str | None:
        way = config.str("algorithm")
        return None if way == SEQUENTIAL else f"algorithm={way} {beyond}: take algorithm={SEQUENTIAL}"

    return (Constraint(WITHIN_REACH, violation),) if beyond else ()


def _out_of_reach(target: Target) -> str | None:
    """Why a kernel cannot store to all ranks; None if it can."""
    level = target.unreached
    if level is not None:
        return (
            f"stores at addresses of peers, which kernels have within 1 host, and level '{level.name}' "
            f"of target {target.name} is {level.devices} of them"
        )
    if target.world > MOST_RANKS:
        return f"takes the tensors of {MOST_RANKS} ranks at most, and target {target.name} has {target.world}"
    return None
