"""The user's configs, or values with constraints, as a search space of plain values.

A config of TileLang may hold any object (policies, dtypes, options of passes). In a search space each object
has a label, the same in every process; `Choices.values` gives the objects back."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import InputError, UnknownNameError
from ..problem.space import Config, Constraint, Parameter, SearchSpace, Value
from .content import content_hash
from .user_function import PASS_CONFIGS

_LONGEST = 80  # characters of a label
_UNSET = "(default)"  # label of a parameter that a config does not set


class Choices:
    """A search space and the objects behind its labels."""

    def __init__(
        self, space: SearchSpace, objects: Mapping[str, Mapping[Value, Any]], signature: inspect.Signature
    ) -> None:
        self.space, self._objects = space, objects
        self.names = tuple(p.name for p in space.parameters)
        defaults = {
            name: self._label(name, signature.parameters[name].default)
            for name in self.names
            if name in signature.parameters
            and signature.parameters[name].default is not inspect.Parameter.empty
        }
        self._default = (
            Config({n: v for n, v in defaults.items() if v is not None})
            if set(defaults) == set(self.names)
            else None
        )

    @property
    def first(self) -> Config | None:
        """The default config: the defaults of the signature if the space has them, else its first config."""
        if (
            self._default is not None
            and set(self._default) == set(self.names)
            and self._default in self.space
        ):
            return self._default
        return next(iter(self.space.configs()), None)

    def values(self, config: Mapping[str, Value]) -> dict[str, Any]:
        """The arguments that a config stands for."""
        found = {name: self._objects.get(name, {}).get(value, value) for name, value in config.items()}
        return {
            name: value for name, value in found.items() if not (isinstance(value, str) and value == _UNSET)
        }

    def config(self, values: Mapping[str, Any]) -> Config:
        """The config of the space that stands for these arguments; a value that the space has not is kept."""
        found: dict[str, Value] = {}
        for name, value in values.items():
            label, plain = self._label(name, value), _plain(value)
            found[name] = label if label is not None else plain if plain is not None else _text(value)
        return Config(found)

    def _label(self, name: str, value: Any) -> Value | None:
        """The label of `value` in the space; None if the space has no such value."""
        known = self._objects.get(name, {})
        for label, found in known.items():
            if type(found) is type(value) and found == value:
                return label
        plain = _plain(value)
        return plain if not known and plain is not None else None


def read_choices(
    configs: Any, space: Any, constraints: Iterable[Any], signature: inspect.Signature, subject: str
) -> Choices:
    """The choices of a decorator; one of `configs` and `space` is None.

    Args:
        configs: a list of mappings, or a mapping of values.
        space: a `SearchSpace`, or a mapping of values.
        constraints: rules that configs must keep.
        signature: of the user's function.
        subject: its name, for messages.

    Raises:
        InputError: `configs` or `space` is something else, or names no argument of the function.
    """
    rules = [_constraint(rule, number) for number, rule in enumerate(constraints)]
    given = configs if configs is not None else space
    if isinstance(given, SearchSpace):
        found = SearchSpace(given.parameters, (*given.constraints, *rules)) if rules else given
        _check_names([p.name for p in found.parameters], signature, subject)
        return Choices(found, {}, signature)
    if isinstance(given, Mapping):
        if not given:
            raise InputError(f"{subject}: the space is empty; give values for at least one argument")
        return _product(
            {str(name): _values(subject, name, values) for name, values in given.items()},
            rules,
            signature,
            subject,
        )
    if isinstance(given, str) or not isinstance(given, Iterable):
        found_type = type(given).__name__
        raise InputError(
            f"{subject}: configs must be a list of dictionaries or a dictionary of values, not {found_type}"
        )
    listed = list(given)
    if not listed:
        raise InputError(f"{subject}: there are no configs to choose from")
    for config in listed:
        if not isinstance(config, Mapping):
            found_type = f"{type(config).__name__}: {str(config)[:80]}"
            raise InputError(f"{subject}: a config must be a dictionary of arguments, not {found_type}")
    return _list(listed, rules, signature, subject)


def _product(
    values: Mapping[str, list[Any]], rules: Sequence[Constraint], signature: inspect.Signature, subject: str
) -> Choices:
    _check_names(list(values), signature, subject)
    objects = {name: _labelled(found) for name, found in values.items()}
    parameters = [Parameter(name, tuple(objects[name])) for name in values]
    held = {
        name: labels
        for name, labels in objects.items()
        if any(label is not value for label, value in labels.items())
    }
    return Choices(SearchSpace(parameters, [_unlabelled(rule, held) for rule in rules]), objects, signature)


def _list(
    listed: Sequence[Mapping[str, Any]],
    rules: Sequence[Constraint],
    signature: inspect.Signature,
    subject: str,
) -> Choices:
    names = list(dict.fromkeys(str(name) for config in listed for name in config))
    _check_names(names, signature, subject)
    missing = [name for name in names if any(name not in config for config in listed)]
    for name in missing:
        parameter = signature.parameters.get(name)
        if name != PASS_CONFIGS and parameter is not None and parameter.default is inspect.Parameter.empty:
            raise InputError(
                f"{subject}: some configs lack {name}, which has no default; name it in all of them"
            )
    columns = {name: [config.get(name, _UNSET) for config in listed] for name in names}
    objects = {name: _labelled(column) for name, column in columns.items()}
    labels = {name: {id(value): label for label, value in known.items()} for name, known in objects.items()}
    rows = []
    for place in range(len(listed)):
        row = {}
        for name, column in columns.items():
            value = column[place]
            label = labels[name].get(id(value))
            row[name] = (
                label if label is not None else next(k for k, v in objects[name].items() if _same(v, value))
            )
        rows.append(Config(row))
    held = {
        name: known
        for name, known in objects.items()
        if any(label is not value for label, value in known.items())
    }
    legal = [row for row in rows if all(_unlabelled(rule, held).violation(row) is None for rule in rules)]
    if not legal:
        raise InputError(f"{subject}: none of {len(rows)} configs keeps the constraints")
    parameters = [Parameter(name, tuple(objects[name])) for name in names]
    return Choices(SearchSpace(parameters, listed=legal), objects, signature)


def _check_names(names: Sequence[str], signature: inspect.Signature, subject: str) -> None:
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    for name in names:
        if name not in signature.parameters and name != PASS_CONFIGS and not takes_any:
            raise UnknownNameError(f"argument of {subject}", name, [*signature.parameters, PASS_CONFIGS])


def _values(subject: str, name: object, values: Any) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InputError(f"{subject}: the values of {name} must be a list, e.g. [{values!r}]")
    found = list(values)
    if not found:
        raise InputError(f"{subject}: {name} has no values")
    return found


def _labelled(values: Iterable[Any]) -> dict[Value, Any]:
    """Each distinct value under its label, in order."""
    distinct: list[Any] = []
    for value in values:
        if not any(_same(value, known) for known in distinct):
            distinct.append(value)
    mixed = any(isinstance(v, bool) for v in distinct) and any(
        isinstance(v, int) and not isinstance(v, bool) for v in distinct
    )
    labels: dict[Value, Any] = {}
    for value in distinct:
        plain = None if mixed and isinstance(value, bool) else _plain(value)
        label: Value = plain if plain is not None else _text(value)
        while label in labels:
            label = f"{label}'"
        labels[label] = value
    return labels


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and _equal(a, b))


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # some objects cannot be compared
        return False


def _plain(value: Any) -> Value | None:
    """The value itself if a search space can hold it, else None."""
    if type(value) in (bool, int, str):
        found: Value = value
        return found
    return None


def _text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, float | str | int):
        return str(value)
    if isinstance(value, Mapping):
        text = ",".join(
            f"{getattr(n, 'value', n)}={_text(v)}"
            for n, v in sorted(value.items(), key=lambda item: str(item[0]))
        )
    elif isinstance(value, list | tuple):
        text = f"({','.join(_text(v) for v in value)})"
    else:
        text = f"{type(value).__name__}#{content_hash(value)[:8]}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 9]}#{content_hash(text)[:8]}"


def _constraint(rule: Any, number: int) -> Constraint:
    """A `Constraint`, or a function of a config that returns whether it is legal, or why not (text)."""
    if isinstance(rule, Constraint):
        return rule
    if not callable(rule):
        raise InputError(f"autotune: a constraint must be a function of a config, not {type(rule).__name__}")
    function: Callable[[Any], Any] = rule
    name = getattr(rule, "__name__", "")
    name = name if name.isidentifier() else f"constraint {number + 1}"

    def violation(config: Mapping[str, Any]) -> str | None:
        try:
            found = function(config)
        except Exception as error:  # e.g. the config has no such argument
            raise InputError(
                f"autotune: the constraint {name} raised for {dict(config)}: {error!r}"
            ) from error
        if found is None or isinstance(found, str):
            return found or None
        return None if found else f"{name} does not hold"  # also for truth values of numpy

    return Constraint(name, violation)


class _Objects(Mapping[str, Any]):
    """A config with objects in place of their labels."""

    def __init__(self, config: Mapping[str, Value], objects: Mapping[str, Mapping[Value, Any]]) -> None:
        self._config, self._objects = config, objects

    def __getitem__(self, name: str) -> Any:
        value = self._config[name]
        return self._objects[name].get(value, value) if name in self._objects else value

    def __iter__(self) -> Any:
        return iter(self._config)

    def __len__(self) -> int:
        return len(self._config)


def _unlabelled(rule: Constraint, objects: Mapping[str, Mapping[Value, Any]]) -> Constraint:
    if not objects:
        return rule
    return Constraint(
        rule.name,
        lambda config: rule.violation(_Objects(config, objects)),  # type: ignore[arg-type]
    )
