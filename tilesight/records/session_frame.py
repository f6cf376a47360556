"""The candidates of a session as a table of pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .session_fields import trial_fields

if TYPE_CHECKING:
    from pandas import DataFrame

    from .session import SessionResult


def session_frame(result: SessionResult) -> DataFrame:
    """One row a candidate, in the order of the result; see `SessionResult.to_frame`."""
    import pandas as pd

    rows = []
    for place, trial in enumerate(result.trials, 1):
        fields = trial_fields(place, trial, result.limit)
        config = fields.pop("config")
        del fields["utilization"]
        failure = None if trial.failure is None else trial.failure.kind.value
        rows.append({**fields, "failure": failure, **config})
    return pd.DataFrame(rows)
