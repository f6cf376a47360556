"""Decodes rows of files: the type, range and length of each field, by the schema's columns."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, DateTime, Double, Integer, LargeBinary, Table, Text

from ...errors import FailureKind
from ...problem.workload import MAX_DIMENSION
from ...records.session import Effort, SessionState
from ...records.trial import Status
from ..tables.rows import Row
from ..tables.strict_json import MAX_TEXT, shown

Check = Callable[[object], bool]


class FieldError(ValueError):
    """Names a field, `table.column`, and what is wrong with its value."""


def read_row(table: Table, found: Mapping[str, Any]) -> Row:
    """A row with the values of its columns.

    Raises `FieldError` for an unknown or missing field, or a wrong type or range.
    """
    unknown = sorted(set(found) - set(table.c.keys()))
    if unknown:
        raise FieldError(
            f"{table.name}: unknown field {shown(unknown[0])}; known: {', '.join(table.c.keys())}"
        )
    row: Row = {}
    for column in table.c:
        if column.name in found:
            row[column.name] = _read(table, column, found[column.name])
        elif column.nullable:
            row[column.name] = None
        elif column.server_default is None:
            raise FieldError(f"{table.name}.{column.name} is missing")
        else:  # a file of an older version
            default = str(column.server_default.arg)  # type: ignore[attr-defined]
            row[column.name] = json.loads(default.strip("'") or '""')
    return row


def _read(table: Table, column: Column[Any], value: Any) -> Any:
    name = f"{table.name}.{column.name}"
    if value is None:
        if not column.nullable:
            raise FieldError(f"{name} must not be null")
        return None
    if isinstance(column.type, JSON):
        shape, check = SHAPES.get(name, ("JSON", lambda _: True))
        if not check(value):
            raise FieldError(f"{name}={shown(value)} must be {shape}")
        return value
    if isinstance(column.type, Integer):  # or BigInteger, which is derived from it
        low, high = _bounds(column)
        if type(value) is not int or not low <= value <= high:
            raise FieldError(f"{name}={shown(value)} must be a whole number in {low} .. {high}")
        return value
    if isinstance(column.type, Double):
        if not number(value) or (name in _POSITIVE and value <= 0) or (name in _NOT_NEGATIVE and value < 0):
            rule = " above 0" if name in _POSITIVE else " of at least 0" if name in _NOT_NEGATIVE else ""
            raise FieldError(f"{name}={shown(value)} must be a finite number{rule}")
        return float(value)
    if isinstance(column.type, DateTime):
        return _moment(name, value)
    if isinstance(column.type, LargeBinary):
        return _bytes(name, value)
    assert isinstance(column.type, Text)
    if type(value) is not str or len(value) > MAX_TEXT:
        raise FieldError(f"{name}={shown(value)} must be a text")
    known = _NAMES.get(name)
    if known is not None and value not in known:
        raise FieldError(f"{name}={shown(value)} must be one of: {', '.join(known)}")
    return value


def _bounds(column: Column[Any]) -> tuple[int, int]:
    if column.primary_key or column.foreign_keys:
        return 0, 2**63 - 1
    if column.name == "size":
        return 1, MAX_DIMENSION
    return (-(2**63), 2**63 - 1) if isinstance(column.type, BigInteger) else (0, 2**31 - 1)


def _moment(name: str, value: object) -> datetime:
    try:
        found = datetime.fromisoformat(str(value)) if type(value) is str and len(value) <= 40 else None
    except ValueError:
        found = None
    if found is None or found.tzinfo is not None:
        raise FieldError(
            f"{name}={shown(value)} must be a time in UTC like 2026-01-31T12:00:00.5, without a zone"
        )
    return found


def _bytes(name: str, value: object) -> bytes:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else _refused()
    except (binascii.Error, ValueError):
        raise FieldError(f"{name}={shown(value)} must be base64") from None


def _refused() -> bytes:
    raise ValueError


# ---- members of JSON


def text(value: object) -> bool:
    return type(value) is str


def whole(value: object) -> bool:
    return type(value) is int


def number(value: object) -> bool:
    return (type(value) is float or (type(value) is int and abs(value) < 2**1000)) and math.isfinite(value)


def scalar(value: object) -> bool:
    return text(value) or number(value) or type(value) is bool


def positive(value: object) -> bool:
    return number(value) and value > 0  # type: ignore[operator]


def _dimension(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_DIMENSION


def _attribute(value: object) -> bool:
    return type(value) in (bool, int) or text(value)


def mapping(of: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(of(member) for member in value.values())


def listing(of: Check) -> Check:
    return lambda value: isinstance(value, list) and all(of(member) for member in value)


def _census(value: object) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"size", "legal", "rejected"}
        and whole(value["size"])
        and whole(value["legal"])
        and mapping(whole)(value["rejected"])
    )


def _decision(value: object) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"winner", "tied", "reason"}
        and mapping(scalar)(value["winner"])
        and listing(mapping(scalar))(value["tied"])
        and text(value["reason"])
    )


SHAPES: Mapping[str, tuple[str, Check]] = MappingProxyType(
    {
        "software.versions": ("an object of texts", mapping(text)),
        "environments.observed": ("an object of texts", mapping(text)),
        "workloads.dims": (f"an object of whole numbers in 1 .. {MAX_DIMENSION}", mapping(_dimension)),
        "workloads.attrs": ("an object of whole numbers, booleans and texts", mapping(_attribute)),
        "predictions.utilization": ("an object of numbers", mapping(number)),
        "predictions.terms_us": ("an object of numbers", mapping(number)),
        "predictions.notes": ("a list of texts", listing(text)),
        "builds.resources": ("an object of whole numbers", mapping(whole)),
        "measurements.samples_us": ("a list of numbers above 0", listing(positive)),
        "measurements.protocol": ("an object of texts, numbers and booleans", mapping(scalar)),
        "measurements.observed": ("an object of numbers", mapping(number)),
        "sessions.options": (
            "an object of texts, numbers, booleans and null",
            mapping(lambda value: value is None or scalar(value)),
        ),
        "sessions.census": ("an object of size, legal and rejected", _census),
        "sessions.counts": ("an object of whole numbers", mapping(whole)),
        "sessions.messages": ("a list of texts", listing(text)),
        "sessions.decision": ("an object of winner, tied and reason", _decision),
        "baselines.samples_us": (
            "a list of numbers above 0",
            lambda value: listing(positive)(value) and bool(value),
        ),
        "calibrations.figures": ("an object of numbers", mapping(number)),
        "calibrations.readings": ("an object of objects", mapping(lambda value: isinstance(value, dict))),
        "calibrations.notes": ("a list of texts", listing(text)),
    }
)
_POSITIVE = frozenset(
    {"predictions.latency_us", "measurements.latency_us", "baselines.latency_us", "trials.measured_us"}
)
_NOT_NEGATIVE = frozenset(
    {
        *(
            "measurements.relative_error",
            "builds.seconds",
            "sessions.seconds",
            "sessions.flops",
            "sessions.min_bytes",
        ),
        *("trials.lowering_seconds", "dispatch_misses.expected_us"),
    }
)
_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "trials.status": tuple(status.value for status in Status),
        "failure_reasons.kind": tuple(kind.value for kind in FailureKind),
        "sessions.effort": tuple(effort.value for effort in Effort),
        "sessions.state": tuple(state.value for state in SessionState),
    }
)
