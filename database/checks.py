"""What goes into every database alike: finite numbers, and text without the characters that some refuse."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from ..errors import InputError
from ..trial import TrialRecord
from ..workload import Workload

_SUBJECT = 200  # characters of a message that may be the subject's
_SUSPECT = ("\\u0000", "\\ud")  # in JSON: NUL, and half a surrogate pair or a whole one
_FAR = 1 << 1023
_LONGEST_NAME = 200  # characters: four bytes each at the most, and PostgreSQL's indexes take 2,700
_encode = json.JSONEncoder(allow_nan=False).encode


def check_finite(trial: TrialRecord) -> None:
    """Raise `InputError` that names the first number of `trial` which is NaN, infinite or beyond floating point, and where its
    config's text is none that every database can hold: a config is what a candidate is known by, and cannot be mended."""
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
        raise InputError(f"{subject}: its names and values must be text without NUL and half surrogate pairs; name them otherwise")


def refuse_unless_finite(subject: object, values: Mapping[str, object]) -> None:
    """Raise `InputError` where one of `values`, or a member of one, is NaN, infinite or beyond floating point."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            if all(_is_plain(member) for member in value.values()):
                continue  # nearly always, and the names below take their time
            refuse_unless_finite(subject, {f"{name}[{str(key)[:_SUBJECT]}]": member for key, member in value.items()})
        elif isinstance(value, list | tuple):
            if all(_is_plain(member) for member in value):
                continue
            refuse_unless_finite(subject, {f"{name}[{index}]": member for index, member in enumerate(value)})
        elif isinstance(value, Real) and not _is_finite(value):
            shown = f" (a whole number of {value.bit_length()} bits)" if isinstance(value, int) else f"={value}"
            raise InputError(f"{subject}: {name}{shown} must be finite to be recorded; leave out what could not be computed")


def check_names(workload: Workload) -> None:
    """Raise `InputError` for names that are too long for an index: they are to be names, not texts."""
    parts = {"operator": [workload.operator], "dtype": [workload.dtype], "dimension": workload.dims, "attribute": workload.attrs}
    for kind, names in parts.items():
        for name in names:
            check_name(f"workload '{clean(workload.operator[:40])}'", kind, name)


def check_name(subject: str, kind: str, name: str) -> None:
    if len(name) > _LONGEST_NAME:
        raise InputError(
            f"{subject}: the name of its {kind} has {len(name)} characters and must have at most {_LONGEST_NAME} characters "
            "to be recorded; shorten it"
        )


def clean(text: str) -> str:
    """`text` as every database can hold it: NUL and halves of surrogate pairs become U+FFFD."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def refused_text(text: str) -> str | None:
    """Why no driver takes `text`, None where it may be sent."""
    return None if clean(text) == text else "it holds NUL or half a surrogate pair"


def cleaned(value: Any) -> Any:
    """`value`, which JSON can hold, with all its text cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {cleaned(name): cleaned(member) for name, member in value.items()}
    return [cleaned(member) for member in value] if isinstance(value, list | tuple) else value


def json_text(value: Any) -> str:
    """JSON as every database can hold it. Raises `InputError` for what is none, so that nothing of the kind gets in where a
    value was not looked at before."""
    try:
        text = _encode(value)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"a value to be recorded is no JSON ({error}); its numbers must be finite: leave out what could not be computed"
        ) from error
    return _encode(cleaned(value)) if is_suspect(text) else text


def is_suspect(json_text: str) -> bool:
    """Whether this JSON, in ASCII, may have text that is to be cleaned."""
    return any(escape in json_text for escape in _SUSPECT)


def _is_plain(value: object) -> bool:
    """Whether it needs no further look."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is str or type(value) is bool or (type(value) is int and -_FAR < value < _FAR)


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class _Subject:
    """What messages call a trial; made only for a message."""

    def __init__(self, trial: TrialRecord) -> None:
        self._trial = trial

    def __str__(self) -> str:
        try:
            shown = str(self._trial.config)
        except ValueError:  # a number of more digits than Python writes
            shown = ",".join(self._trial.config)
        return f"trial '{clean(shown) if len(shown) <= _SUBJECT else clean(shown[:_SUBJECT]) + '...'}'"
