"""What goes into every database alike: finite numbers, and text without the characters that some refuse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

from ..errors import InputError
from ..trial import TrialRecord


def check_finite(trial: TrialRecord) -> None:
    """Raise `InputError` that names the first number of `trial` which is NaN or infinite."""
    p, b, m = trial.prediction, trial.build, trial.measurement
    refuse_unless_finite(
        f"trial '{trial.config}'",
        {
            "lowering_seconds": trial.lowering_seconds,
            "prediction.latency_us": p and p.latency_us,
            "prediction.uncertainty": p and p.uncertainty,
            "prediction.utilization": p and p.utilization,
            "prediction.terms_us": p and p.terms_us,
            "prediction.ranking_us": p and p.ranking_us,
            "build.seconds": b and b.seconds,
            "measurement.samples_us": m and m.samples_us,
            "measurement.relative_error": m and m.relative_error,
            "measurement.protocol": m and m.protocol,
            "measurement.observed": m and m.observed,
        },
    )


def refuse_unless_finite(subject: str, values: Mapping[str, object]) -> None:
    """Raise `InputError` where one of `values`, or a member of one, is NaN or infinite."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            if all(type(member) is float and math.isfinite(member) for member in value.values()):
                continue  # nearly always, and the names below take their time
            refuse_unless_finite(subject, {f"{name}[{key}]": member for key, member in value.items()})
        elif isinstance(value, list | tuple):
            refuse_unless_finite(subject, {f"{name}[{index}]": member for index, member in enumerate(value)})
        elif isinstance(value, Real) and not isinstance(value, int) and not math.isfinite(value):
            raise InputError(f"{subject}: {name}={value} must be finite to be recorded; leave out what could not be computed")


def clean(text: str) -> str:
    """`text` as every database can hold it: NUL and halves of surrogate pairs become U+FFFD."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
