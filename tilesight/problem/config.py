"""Configs: one assignment of values to the parameters of a template, and its text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from ..errors import InputError
from .assignments import parse_assignments

# of a parameter or an attribute; only attributes are fractions
Value = int | str | bool | float


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
        return ",".join(
            f"{name}={str(v).lower() if isinstance(v, bool) else v}" for name, v in self._values.items()
        )

    @property
    def key(self) -> str:
        """Canonical JSON: sorted names, no spaces."""
        return json.dumps(dict(self._values), sort_keys=True, separators=(",", ":"))

    def int(self, name: str, default: int | None = None) -> int:
        """The value of a whole-number parameter; `default` where the config leaves it out."""
        value = self[name] if default is None else self.get(name, default)
        assert isinstance(value, int), f"{name}={value!r} is not a whole number"
        return value

    def str(self, name: str, default: str | None = None) -> str:
        """The value of a named-choice parameter; `default` where the config leaves it out."""
        value = self[name] if default is None else self.get(name, default)
        assert isinstance(value, str), f"{name}={value!r} is not a name"
        return value


class TrackedConfig(Config):
    """A config that records the names of the values that are read (`read_names`)."""

    __slots__ = ("read_names",)

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.read_names: set[str] = set()
        self._values = _TrackedValues(dict(sorted(values.items())), self.read_names)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))


class _TrackedValues(Mapping[str, Value]):
    __slots__ = ("_read_names", "_values")

    def __init__(self, values: Mapping[str, Value], read_names: set[str]) -> None:
        self._values, self._read_names = values, read_names

    def __getitem__(self, name: str) -> Value:
        self._read_names.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def parameter_names(configs: Iterable[Config]) -> list[str]:
    """Names of all parameters of some configs, which may leave out a parameter's default."""
    return list(dict.fromkeys(name for config in configs for name in config))


def read_config(text: str, types: Mapping[str, type]) -> Config:
    """A config from `k=v,k=v` or a JSON object.

    Args:
        text: the config, as reports or `--json` show it.
        types: types of the parameters by name. A value that is none of its type stays a text.

    Raises:
        InputError: the text is neither, or a value of the object is no number, text or truth value.
    """
    if not text.lstrip().startswith("{"):
        raw = parse_assignments(text, "config")
        return Config({name: _read_value(value, types.get(name, str)) for name, value in raw.items()})
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"config '{text}' is not valid JSON: {error}; give an object or name=value,..."
        ) from error
    for name, value in found.items():
        if not isinstance(value, int | str):
            raise InputError(
                f"config '{text}': {name}={value!r} must be a whole number, a text or true or false"
            )
    return Config(found)


def _read_value(text: str, kind: type) -> Value:
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is int:
        try:
            return int(text)
        except ValueError:
            return text
    return text
