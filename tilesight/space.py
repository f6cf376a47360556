"""Search spaces: typed parameters, constraints that give their reason, and the configs between them."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .errors import ConfigError, UnknownNameError

Value = int | str | bool


class Config(Mapping[str, Value]):
    """One assignment of values to a template's parameters: immutable, hashable, with a canonical `key`."""

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values: Mapping[str, Value] = MappingProxyType(dict(sorted(values.items())))
        self._hash = hash(tuple(self._values.items()))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and dict(self._values) == dict(other._values)

    def __reduce__(self) -> tuple[object, ...]:
        return Config, (dict(self._values),)

    def __repr__(self) -> str:
        return f"Config({self})"

    def __str__(self) -> str:
        return ",".join(f"{name}={str(v).lower() if isinstance(v, bool) else v}" for name, v in self._values.items())

    @property
    def key(self) -> str:
        """Canonical JSON: sorted names, no spaces."""
        return json.dumps(dict(self._values), sort_keys=True, separators=(",", ":"))

    def int(self, name: str) -> int:
        """The value of a whole-number parameter."""
        value = self._values[name]
        assert isinstance(value, int), f"{name}={value!r} is not a whole number"
        return value

    def str(self, name: str) -> str:
        """The value of a named-choice parameter."""
        value = self._values[name]
        assert isinstance(value, str), f"{name}={value!r} is not a name"
        return value


class _Watched(Config):
    """A config that notes which of its values were looked at."""

    __slots__ = ("seen",)

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.seen: set[str] = set()
        self._values = _Noting(dict(sorted(values.items())), self.seen)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))


class _Noting(Mapping[str, Value]):
    __slots__ = ("_seen", "_values")

    def __init__(self, values: Mapping[str, Value], seen: set[str]) -> None:
        self._values, self._seen = values, seen

    def __getitem__(self, name: str) -> Value:
        self._seen.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tunable of a template: its values in their natural order, and what it means in a line."""

    name: str
    values: tuple[Value, ...]
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule between parameters. `violation(config)` is None where the rule holds, else the reason with its numbers; it
    depends on nothing but the values that it takes from the config. `is_waste`: what breaks it works, but another config of the
    space does as well or better; a kernel that is built for many sizes may break it at some of them."""

    name: str
    violation: Callable[[Config], str | None]
    is_waste: bool = False


@dataclass(frozen=True, slots=True)
class Violation:
    constraint: str
    reason: str


@dataclass(frozen=True, slots=True)
class Census:
    """How a space divides: `size` points in all, `legal` of them, and for the rest the first constraint that each breaks."""

    size: int
    legal: int
    rejected: Mapping[str, int]


class SearchSpace:
    """The configs that a template admits for one workload on one target."""

    def __init__(self, parameters: Sequence[Parameter], constraints: Sequence[Constraint] = ()) -> None:
        self.parameters = tuple(parameters)
        self.constraints = tuple(constraints)
        self._points: list[tuple[int, ...]] = []
        self._legal: tuple[Config, ...] | None = None
        self._rejected: Counter[str] = Counter()

    @property
    def size(self) -> int:
        """Points before constraints."""
        total = 1
        for parameter in self.parameters:
            total *= len(parameter.values)
        return total

    def configs(self) -> tuple[Config, ...]:
        """All legal configs, in the order of the parameters' values. Enumerated once, then kept."""
        if self._legal is None:
            self._points, self._rejected = self._divide()
            names = [p.name for p in self.parameters]
            self._legal = tuple(
                Config({name: p.values[at] for name, p, at in zip(names, self.parameters, point, strict=True)}) for point in self._points
            )
        return self._legal

    @property
    def fingerprint(self) -> str:
        """12 hex digits over the parameters with their values and which points are legal; wording does not matter."""
        self.configs()
        parts = [[[p.name, list(p.values)] for p in self.parameters], self._points]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    def census(self) -> Census:
        legal = len(self.configs())
        return Census(self.size, legal, MappingProxyType(dict(self._rejected)))

    def sample(self, count: int, seed: int = 0) -> list[Config]:
        """`count` distinct legal configs (all of them where there are fewer), uniformly; the same for the same seed."""
        configs = self.configs()
        return random.Random(seed).sample(configs, min(count, len(configs)))

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Config) and not self.why_not(config)

    def why_not(self, config: Config) -> list[Violation]:
        """Every rule that `config` breaks; empty where it is legal. Unknown or missing parameters raise."""
        known = [p.name for p in self.parameters]
        for name in config:
            if name not in known:
                raise UnknownNameError("parameter", name, known)
        missing = [name for name in known if name not in config]
        if missing:
            raise ConfigError(f"config '{config}' lacks {', '.join(missing)}; a config names all of: {', '.join(known)}")
        outside = [
            Violation(p.name, f"{p.name}={config[p.name]} is not one of {', '.join(map(str, p.values))}")
            for p in self.parameters
            if not _is_member(config[p.name], p.values)
        ]
        if outside:
            return outside
        return [Violation(c.name, reason) for c in self.constraints if (reason := c.violation(config)) is not None]

    def works(self, config: Config) -> bool:
        """Whether `config` breaks no rule but those against waste. Its values are those of the parameters."""
        return not any(not c.is_waste and c.violation(config) is not None for c in self.constraints)

    def check(self, config: Config) -> None:
        """Raise `ConfigError` with every broken rule and the nearest legal configs unless `config` is legal."""
        violations = self.why_not(config)
        if violations:
            reasons = "; ".join(v.reason for v in violations)
            near = " or ".join(str(c) for c in self.nearest(config, 2)) or "none: the space is empty"
            raise ConfigError(f"config '{config}' is outside the search space: {reasons}. Nearest legal: {near}")

    def nearest(self, config: Config, count: int = 3) -> list[Config]:
        """Legal configs with the fewest changed parameters, then the smallest steps along their values."""
        return sorted(self.configs(), key=lambda legal: self._distance(config, legal))[:count]

    def parse(self, text: str) -> Config:
        """A legal config from `k=v,k=v`. Parameters that are left out take no default: name them all."""
        config = self.read(text)
        self.check(config)
        return config

    def read(self, text: str) -> Config:
        """The config that `k=v,k=v` says, legal or not, with values of the parameters' types."""
        from .workload import parse_assignments

        raw = parse_assignments(text, "config")
        types = {p.name: type(p.values[0]) for p in self.parameters}
        return Config({name: _read_value(value, types.get(name, str)) for name, value in raw.items()})

    def _divide(self) -> tuple[list[tuple[int, ...]], Counter[str]]:
        """The legal points, as positions along the parameters' values; how many others break which constraint first.

        A rule is asked once for each set of values that it looks at, and its answer taken for all points that share them.
        """
        import numpy as np

        sizes = tuple(len(p.values) for p in self.parameters)
        legal = np.ones(sizes, dtype=bool)
        rejected: Counter[str] = Counter()
        for constraint in self.constraints:
            open_ = legal.copy()
            flat = open_.reshape(-1)
            at = 0
            while at < flat.size and flat[at := at + int(flat[at:].argmax())]:
                point = _position(at, sizes)
                config = _Watched({p.name: p.values[i] for p, i in zip(self.parameters, point, strict=True)})
                broken = constraint.violation(config) is not None
                alike = tuple(i if p.name in config.seen else slice(None) for p, i in zip(self.parameters, point, strict=True))
                open_[alike] = False
                if broken:
                    rejected[constraint.name] += int(np.count_nonzero(legal[alike]))
                    legal[alike] = False
        return [tuple(map(int, point)) for point in np.argwhere(legal)], rejected

    def _distance(self, wanted: Config, legal: Config) -> tuple[int, float]:
        changed, steps = 0, 0.0
        for parameter in self.parameters:
            a, b = wanted.get(parameter.name), legal[parameter.name]
            if a == b:
                continue
            changed += 1
            if isinstance(a, int) and isinstance(b, int):
                steps += abs(a - b) / max(abs(a), abs(b), 1)
            else:
                steps += 1
        return changed, steps


def _position(index: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The point with that number, where the last parameter changes fastest."""
    found = []
    for size in reversed(sizes):
        index, at = divmod(index, size)
        found.append(at)
    return tuple(reversed(found))


def _is_member(value: Value, values: tuple[Value, ...]) -> bool:
    # True == 1 in Python: a flag must not pass for a number
    return any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in values)


def _read_value(text: str, kind: type) -> Value:
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is int:
        try:
            return int(text)
        except ValueError:
            return text
    return text
