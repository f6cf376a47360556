"""Checks and cleaning of values before they are stored: finite numbers, and text that every database can
hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from ...errors import InputError
from ...problem.workload import Workload
from ...records.trial import TrialRecord
from .faults import UnsoundRecordError

_SUBJECT = 200  # longest subject in a message
_SUSPECT = ("\\u0000", "\\ud")  # escapes in JSON of NUL, and of surrogates
_FAR = 1 << 1023
_LONGEST_NAME = 200  # characters: four bytes each at the most, and PostgreSQL's indexes take 2,700
_encode = json.JSONEncoder(allow_nan=False).encode


def check_finite(trial: TrialRecord) -> None:
    """Raise `InputError` for the first number of `trial` that is NaN, infinite or beyond floating point, and
    for a config with text that a database cannot hold: a candidate is identified by its config, so the text
    cannot be cleaned."""
    p, b, m = trial.prediction, trial.build, trial.measurement
    subject = _Subject(trial)
    refuse_unless_finite(
        subject,
        {
            "config": trial.config,
            "lowering_seconds": trial.lowering_seconds,
            "prediction.latency_us": p and p.latency_us,
            "prediction.uncertainty": p and p.uncertainty,
            "prediction.utilization": p and p.utilization,
            "prediction.terms_us": p and p.terms_us,
            "prediction.ranking_us": p and p.ranking_us,
            "build.resources": b and b.resources,
            "build.seconds": b and b.seconds,
            "measurement.samples_us": m and m.samples_us,
            "measurement.relative_error": m and m.relative_error,
            "measurement.protocol": m and m.protocol,
            "measurement.observed": m and m.observed,
        },
    )
    key = trial.config.key
    if is_suspect(key) and json.dumps(cleaned(json.loads(key)), separators=(",", ":")) != key:
        raise InputError(
            f"{subject}: its names and values must be text without NUL and half surrogate pairs; choose "
            "others"
        )


def refuse_unless_finite(subject: object, values: Mapping[str, object]) -> None:
    """Raise `InputError` if a value, or a member of a value, is NaN, infinite or beyond floating point."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            if all(_is_plain(member) for member in value.values()):
                continue  # the common case; the names below take time
            refuse_unless_finite(
                subject, {f"{name}[{str(key)[:_SUBJECT]}]": member for key, member in value.items()}
            )
        elif isinstance(value, list | tuple):
            if all(_is_plain(member) for member in value):
                continue
            refuse_unless_finite(subject, {f"{name}[{index}]": member for index, member in enumerate(value)})
        elif isinstance(value, Real) and not _is_finite(value):
            shown = (
                f" (a whole number of {value.bit_length()} bits)" if isinstance(value, int) else f"={value}"
            )
            raise InputError(
                f"{subject}: {name}{shown} must be finite to be recorded; leave out what could not be "
                "computed"
            )


def check_names(workload: Workload) -> None:
    """Raise `InputError` for names that are too long for an index."""
    parts = {
        "operator": [workload.operator],
        "dtype": [workload.dtype],
        "dimension": workload.dims,
        "attribute": workload.attrs,
    }
    for kind, names in parts.items():
        for name in names:
            check_name(f"workload '{clean(workload.operator[:40])}'", kind, name)


def check_name(subject: str, kind: str, name: str) -> None:
    if len(name) > _LONGEST_NAME:
        raise InputError(
            f"{subject}: the name of its {kind} has {len(name)} characters and must have at most "
            f"{_LONGEST_NAME} characters "
            "to be recorded; shorten it"
        )


def clean(text: str) -> str:
    """`text` for any database: NUL and halves of surrogate pairs become U+FFFD."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def refused_text(text: str) -> str | None:
    """Why no driver accepts `text`; None if it may be sent."""
    return None if clean(text) == text else "it contains NUL or half a surrogate pair"


def cleaned(value: Any) -> Any:
    """A JSON value with all its text cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {cleaned(name): cleaned(member) for name, member in value.items()}
    return [cleaned(member) for member in value] if isinstance(value, list | tuple) else value


def json_text(value: Any) -> str:
    """JSON text for any database. Raises `InputError` for a value that JSON cannot hold."""
    try:
        text = _encode(value)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"a value to be recorded is no JSON ({error}); its numbers must be finite: leave out what could "
            "not be computed"
        ) from error
    return _encode(cleaned(value)) if is_suspect(text) else text


def json_of(text: Any) -> Any:
    """The value of a stored JSON text. Raises `UnsoundRecordError`."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise UnsoundRecordError(f"JSON: {error}") from error


def is_suspect(json_text: str) -> bool:
    """Whether JSON in ASCII may contain text that must be cleaned."""
    return any(escape in json_text for escape in _SUSPECT)


def _is_plain(value: object) -> bool:
    """Whether the value is surely finite."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is str or type(value) is bool or (type(value) is int and -_FAR < value < _FAR)


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class _Subject:
    """The name of a trial in messages, made only when a message is."""

    def __init__(self, trial: TrialRecord) -> None:
        self._trial = trial

    def __str__(self) -> str:
        try:
            shown = str(self._trial.config)
        except ValueError:  # a number of more digits than Python writes
            shown = ",".join(self._trial.config)
        return f"trial '{clean(shown) if len(shown) <= _SUBJECT else clean(shown[:_SUBJECT]) + '...'}'"
