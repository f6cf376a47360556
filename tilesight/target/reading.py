"""Reads the fields and figures of a target file; each error names the file and the field."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ..errors import TargetFileError, nearest_names
from .checks import checked_value
from .fields import PROVENANCES, Figure, FigureRule

_PARTS = ("value", "provenance", "source")  # of a figure


def read_text_field(raw: Mapping[str, Any], name: str, subject: str) -> str:
    """The text field of that name."""
    value = raw.get(name)
    if not isinstance(value, str) or not value:
        raise TargetFileError(f"{subject}: field '{name}' must be a non-empty text, found {value!r}")
    return value


def read_names(raw: Mapping[str, Any], name: str, default: list[str], subject: str) -> tuple[str, ...]:
    """The field of that name, a list of texts."""
    value = raw.get(name, default)
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise TargetFileError(f"{subject}: field '{name}' must be a list of texts, found {value!r}")
    return tuple(value)


def read_figures(
    level: str,
    table: Any,
    rules: Mapping[str, FigureRule],
    kind: str,
    origin: str,
    retired: Collection[str] = (),
) -> dict[str, Figure]:
    """The figures of a level by their paths.

    Args:
        level: name of the level, with which all paths begin.
        table: its table in the file.
        rules: the figures that there are.
        kind: kind of the target.
        origin: name of the file in messages.
        retired: paths of figures that are ignored.
    """
    return {
        path: _figure(path, entry, rules, kind, origin)
        for path, entry in _leaves(level, table, rules, origin, retired)
    }


def require(figures: Mapping[str, Figure], rules: Mapping[str, FigureRule], kind: str, subject: str) -> None:
    """Raise `TargetFileError` if a figure is missing that targets of this kind must give."""
    missing = [path for path, rule in rules.items() if kind in rule.required and path not in figures]
    if missing:
        path, rule = missing[0], rules[missing[0]]
        more = f" ({len(missing) - 1} more are missing)" if len(missing) > 1 else ""
        raise TargetFileError(f"{subject}: figure '{path}' is missing: {rule.meaning}, in {rule.unit}{more}")


def _leaves(
    prefix: str, table: Any, rules: Mapping[str, FigureRule], origin: str, retired: Collection[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Paths and raw entries of the figures at and below `prefix`, without retired ones."""
    if prefix in retired:
        return
    within = [path for path in rules if path.startswith(f"{prefix}.")]
    subject = f"target file '{origin}': '{prefix}'"
    if not isinstance(table, dict):
        if within:
            raise TargetFileError(f"{subject} must be a table of figures ({_some(within)}), found {table!r}")
        raise TargetFileError(
            f"{subject} must be a table or a figure "
            f'like {{ value = 132, provenance = "spec", source = "..." }}, found {table!r}'
        )
    parts = [part for part in _PARTS if part in table and not isinstance(table[part], dict)]
    if within and parts:
        raise TargetFileError(
            f"{subject} is a table of figures and has no {parts[0]} of its own; "
            f"its figures are {_some(within)}"
        )
    if not within and (parts or prefix in rules or not table):
        yield prefix, table
        return
    for key, entry in table.items():
        yield from _leaves(f"{prefix}.{key}", entry, rules, origin, retired)


def _some(paths: list[str]) -> str:
    return ", ".join(f"'{path}'" for path in paths[:3]) + (
        f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    )


def _figure(
    path: str, entry: Mapping[str, Any], rules: Mapping[str, FigureRule], kind: str, origin: str
) -> Figure:
    subject = f"target file '{origin}': figure '{path}'"
    rule = rules.get(path)
    if rule is None:
        near = nearest_names(path, rules)
        raise TargetFileError(f"{subject} is unknown" + (f"; did you mean '{near[0]}'?" if near else ""))
    extra = sorted(set(entry) - set(_PARTS))
    if "value" not in entry:
        found = f", but an unknown part '{extra[0]}'" if extra else ""
        raise TargetFileError(
            f"{subject} has no value{found}; give {{ value = ..., provenance = ... }}: "
            f"{rule.meaning}, in {rule.unit}"
        )
    if extra:
        raise TargetFileError(
            f"{subject} has an unknown part '{extra[0]}'; a figure has value, provenance and source"
        )
    value = checked_value(path, entry["value"], kind, subject, rules)
    provenance = entry.get("provenance")
    if provenance not in PROVENANCES:
        raise TargetFileError(f"{subject}: provenance {provenance!r} must be one of {', '.join(PROVENANCES)}")
    source = entry.get("source", "")
    if not isinstance(source, str):
        raise TargetFileError(f"{subject}: source must be a text, found {source!r}")
    return Figure(value, provenance, source)
