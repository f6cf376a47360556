"""Search spaces: parameters with their values, constraints with their reasons, and the legal configs."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..errors import ConfigError, UnknownNameError
from ..reports.report import Report, Reported
from .config import Config, TrackedConfig, Value, read_config
from .rejections import Rejected

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Census", "Config", "Constraint", "Parameter", "SearchSpace", "Value", "Violation"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tunable parameter of a template.

    Attributes:
        name: of the parameter.
        values: in their natural order.
        meaning: in one line.
        default: a value that configs leave out, for a parameter that came when measurements had been
            recorded: their configs do not have it. None: every config has the parameter.
    """

    name: str
    values: tuple[Value, ...]
    meaning: str = ""
    default: Value | None = None

    def of(self, config: Mapping[str, Value]) -> Value | None:
        """The value in `config`; the default where the config leaves it out."""
        return config.get(self.name, self.default)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule between parameters.

    Attributes:
        name: of the rule, for counts of rejected points.
        violation: a function of a config: None if the config follows the rule, else the reason with its
            numbers. It must depend on nothing but the values that it reads from the config.
        is_waste: a config that breaks the rule works, but another config of the space is as fast or faster. A
            kernel that is built for many sizes may break the rule at some of them.
    """

    name: str
    violation: Callable[[Config], str | None]
    is_waste: bool = False


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a config breaks, and the reason."""

    constraint: str
    reason: str


@dataclass(frozen=True, slots=True)
class Census:
    """Numbers of points of a space: all, legal, and rejected by the first constraint that they break."""

    size: int
    legal: int
    rejected: Mapping[str, int]

    def __str__(self) -> str:
        most_first = sorted(self.rejected.items(), key=lambda item: -item[1])
        why = ", ".join(f"{name} {count}" for name, count in most_first)
        broken = f"; rules that the others break: {why}" if why else ""
        return f"{self.legal} of {self.size} configs are legal{broken}"


class SearchSpace(Reported):
    """The configs that a template admits for one workload on one target. `print` shows them."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        constraints: Sequence[Constraint] = (),
        listed: Iterable[Config] | None = None,
    ) -> None:
        """`listed`: the points of the space, in order; None: all combinations of the parameters' values."""
        self._listed = None if listed is None else dict.fromkeys(listed)
        rules = () if self._listed is None else (Constraint("listed", self._unlisted),)
        self.parameters = tuple(parameters)
        self.constraints = (*constraints, *rules)
        self._defaults = {p.name: p.default for p in self.parameters if p.default is not None}
        self._enumerated: tuple[list[tuple[int, ...]], Rejected] | None = None
        self._legal: tuple[Config, ...] | None = None

    def __repr__(self) -> str:
        return f"SearchSpace({', '.join(p.name for p in self.parameters)}: {self.size} configs)"

    def report(self) -> Report:
        """The parameters, the number of legal configs, and the rules that the others break."""
        from .space_report import space_report

        return space_report(self)

    def to_frame(self) -> DataFrame:
        """The legal configs as rows, with one column for each parameter."""
        import pandas as pd

        rows = [{p.name: p.of(config) for p in self.parameters} for config in self.configs()]
        return pd.DataFrame(rows, columns=[p.name for p in self.parameters])

    @property
    def size(self) -> int:
        """Points before constraints."""
        if self._listed is not None:
            return len(self._listed)
        total = 1
        for parameter in self.parameters:
            total *= len(parameter.values)
        return total

    def points(self) -> Iterator[Config]:
        """All configs, legal or not, in the order of the parameters' values."""
        if self._listed is not None:
            return iter(self._listed)
        names = [p.name for p in self.parameters]
        combinations = itertools.product(*(p.values for p in self.parameters))
        return (self.config(dict(zip(names, values, strict=True))) for values in combinations)

    def config(self, values: Mapping[str, Value]) -> Config:
        """The config with these values: it leaves out those that are a parameter's default."""
        return Config(self._kept(values))

    def _kept(self, values: Mapping[str, Value]) -> dict[str, Value]:
        return {name: value for name, value in values.items() if self._defaults.get(name) != value}

    def configs(self) -> tuple[Config, ...]:
        """All legal configs, in the order of the parameters' values; computed once."""
        if self._legal is None:
            names = [p.name for p in self.parameters]
            self._legal = tuple(
                self.config(
                    {name: p.values[at] for name, p, at in zip(names, self.parameters, point, strict=True)}
                )
                for point in self._legal_points
            )
        return self._legal

    @property
    def _found(self) -> tuple[list[tuple[int, ...]], Rejected]:
        """The legal points and the rejected ones; computed once."""
        if self._enumerated is None:
            self._enumerated = self._enumerate()
        return self._enumerated

    @property
    def _legal_points(self) -> list[tuple[int, ...]]:
        return self._found[0]

    @property
    def fingerprint(self) -> str:
        """Hash (12 hex digits) of parameters, values and legal points; wording does not count."""
        parts = [[[p.name, list(p.values)] for p in self.parameters], self._legal_points]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    def census(self) -> Census:
        points, rejected = self._found
        return Census(self.size, len(points), MappingProxyType(dict(rejected.counts)))

    def rejected(self) -> Rejected:
        """The configs that are not legal, by the constraint that each breaks first."""
        return self._found[1]

    def sample(self, count: int, seed: int = 0) -> list[Config]:
        """Up to `count` distinct legal configs, drawn uniformly; one seed gives one sample."""
        configs = self.configs()
        return random.Random(seed).sample(configs, min(count, len(configs)))

    def __contains__(self, config: object) -> bool:
        """Whether `config` is legal; a config that has other parameters is not."""
        try:
            return isinstance(config, Config) and not self.violations(config)
        except (UnknownNameError, ConfigError):
            return False

    def violations(self, config: Config) -> list[Violation]:
        """Every rule that `config` breaks; empty if it is legal.

        Raises:
            UnknownNameError: `config` has a parameter that the space has not.
            ConfigError: a parameter is missing.
        """
        names = [p.name for p in self.parameters]
        for name in config:
            if name not in names:
                raise UnknownNameError("parameter", name, names)
        missing = [p.name for p in self.parameters if p.of(config) is None]
        if missing:
            raise ConfigError(
                f"config '{config}' lacks {', '.join(missing)}; a config names all of: {', '.join(names)}"
            )
        outside = [
            Violation(p.name, f"{p.name}={value} is not one of {', '.join(map(str, p.values))}")
            for p in self.parameters
            if (value := p.of(config)) is not None and not _is_member(value, p.values)
        ]
        if outside:
            return outside
        return [
            Violation(c.name, reason) for c in self.constraints if (reason := c.violation(config)) is not None
        ]

    def works(self, config: Config) -> bool:
        """Whether `config`, with values of the parameters, breaks at most rules against waste."""
        return not any(not c.is_waste and c.violation(config) is not None for c in self.constraints)

    def check(self, config: Config) -> None:
        """Raise `ConfigError` with all broken rules and the nearest legal configs, if `config` is illegal."""
        violations = self.violations(config)
        if violations:
            reasons = "; ".join(v.reason for v in violations)
            near = " or ".join(str(c) for c in self.nearest(config, 2)) or "none: the space is empty"
            raise ConfigError(
                f"config '{config}' is outside the search space: {reasons}. Nearest legal: {near}"
            )

    def nearest(self, config: Config, count: int = 3) -> list[Config]:
        """Legal configs with the fewest changed parameters, then the smallest steps along their values."""
        import numpy as np

        configs = self.configs()
        changed, steps = np.zeros(len(configs), dtype=int), np.zeros(len(configs))
        for parameter, positions in zip(
            self.parameters, np.array(self._legal_points, dtype=int).T, strict=False
        ):
            wanted = parameter.of(config)
            changed += np.array([value != wanted for value in parameter.values])[positions]
            steps += np.array([_step(wanted, value) for value in parameter.values])[positions]
        return [configs[at] for at in np.lexsort((steps, changed))[:count]]

    def closest(self, config: Config) -> Config | None:
        """`config` if it is legal, else the nearest legal config; None if the space is empty."""
        return self.config(config) if config in self else next(iter(self.nearest(config, 1)), None)

    def parse(self, text: str) -> Config:
        """A legal config from its text, which must name all parameters. Raises as `read` and `check`."""
        config = self.read(text)
        self.check(config)
        return config

    def read(self, text: str) -> Config:
        """A config from `k=v,k=v` or a JSON object, legal or not, with values of the parameters' types.

        Raises:
            InputError: the text is neither.
        """
        types = {p.name: type(p.values[0]) for p in self.parameters}
        return self.config(read_config(text, types))

    def _enumerate(self) -> tuple[list[tuple[int, ...]], Rejected]:
        """The legal points, and the other points by the first constraint that each breaks.

        A point is a tuple of positions in the parameters' values. A constraint is evaluated once for each
        combination of the values that it reads; the result holds for all points with these values.
        """
        import numpy as np

        if self._listed is not None:
            return self._enumerate_listed()
        sizes = tuple(len(p.values) for p in self.parameters)
        legal = np.ones(sizes, dtype=bool)
        rejected = Rejected()
        for constraint in self.constraints:
            pending = legal.copy()
            flat = pending.reshape(-1)
            at = 0
            while at < flat.size and flat[at := at + int(flat[at:].argmax())]:
                point = _position(at, sizes)
                config = TrackedConfig(
                    self._kept({p.name: p.values[i] for p, i in zip(self.parameters, point, strict=True)})
                )
                reason = constraint.violation(config)
                alike = tuple(
                    i if p.name in config.read_names else slice(None)
                    for p, i in zip(self.parameters, point, strict=True)
                )
                pending[alike] = False
                if reason is not None:
                    rejected.add(constraint.name, int(np.count_nonzero(legal[alike])), reason)
                    legal[alike] = False
        rows = np.flatnonzero(legal)  # `argwhere` of an array with as many axes takes ten times as long
        axes = [positions.tolist() for positions in np.unravel_index(rows, sizes)] if sizes else []
        return list(zip(*axes, strict=True)) if axes else [()] * len(rows), rejected

    def _enumerate_listed(self) -> tuple[list[tuple[int, ...]], Rejected]:
        # values of other types may be equal: True and 1
        positions = [{(type(v), v): at for at, v in enumerate(p.values)} for p in self.parameters]
        points, rejected = [], Rejected()
        for config in self._listed or ():
            broken = next(
                ((c.name, reason) for c in self.constraints if (reason := c.violation(config)) is not None),
                None,
            )
            if broken is not None:
                rejected.add(broken[0], 1, broken[1])
                continue
            values = [value for p in self.parameters if (value := p.of(config)) is not None]
            points.append(tuple(at[type(v), v] for at, v in zip(positions, values, strict=True)))
        return points, rejected

    def _unlisted(self, config: Config) -> str | None:
        listed = self._listed is None or Config(config) in self._listed
        return None if listed else "it is none of the given configs"


def _step(wanted: Value | None, value: Value) -> float:
    """How far `value` is from the wanted one: up to 1."""
    if wanted == value:
        return 0.0
    if isinstance(wanted, int) and isinstance(value, int):
        return abs(wanted - value) / max(abs(wanted), abs(value), 1)
    return 1.0


def _position(index: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The point of that index, if the last parameter changes fastest."""
    found = []
    for size in reversed(sizes):
        index, at = divmod(index, size)
        found.append(at)
    return tuple(reversed(found))


def _is_member(value: Value, values: tuple[Value, ...]) -> bool:
    # True == 1 in Python: a flag must not pass for a number
    return any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in values)
