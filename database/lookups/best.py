"""The best known candidate of each workload on each target."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, RowMapping, and_, or_, select, text

from ...errors import InputError, nearest_names
from ...problem.space import Config
from ...records.trial import Status
from ..schema import tables as schema
from ..tables.trial_rows import sound

_CHUNK = 200  # rows that one statement looks for
_VERIFIED = Status.VERIFIED.value
_TEXTS = (
    "operator",
    "workload",
    "shape",
    "dtype",
    "target",
    "device",
    "protocol_key",
    "template",
    "config",
    "dynamic",
)
_NUMBERS = ("latency_us", "tflops", "gb_per_s", "vendor_us", "predicted_us", "relative_error", "session_id")


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest verified candidate of a workload on a target under a protocol, with any recorded device and
    software.

    If a session compared its finalists, its winner represents all that it measured. If nothing was verified,
    this is the best prediction of the latest session, and `status` is predicted."""

    operator: str
    workload: str  # canonical key
    shape: str | None  # published name
    dtype: str
    target: str
    device: str  # "" if nothing was measured
    protocol_key: str  # `Context.protocol`; "" for the first version's protocol, and if nothing was measured
    status: Status  # verified or predicted
    latency_us: float  # measured or predicted, by `status`
    tflops: float | None
    gb_per_s: float | None  # rate of the bytes that must cross device memory
    vendor_us: float | None  # the fastest vendor library, measured on the same workload, device and software
    predicted_us: float | None
    limiting: str | None
    relative_error: float | None
    template: str
    config: Config
    dynamic: tuple[str, ...]  # dimensions that the kernel takes at run time
    in_turns: bool  # whether `latency_us` is of a comparison of finalists, which were timed in turns
    session_id: int
    recorded_at: datetime


def best(connection: Connection, kernel: str | None = None, target: str | None = None) -> list[Best]:
    """The rows of the view `best`, ordered by operator, workload, target and protocol.

    `kernel` is the name of an operator or a template. Raises `InputError` for a kernel or target without
    records.
    """
    rows = [row._mapping for row in connection.execute(text("SELECT * FROM best"))]
    in_turns = _timed_in_turns(
        connection, {(row["session_id"], row["latency_us"]) for row in rows if row["status"] == _VERIFIED}
    )
    found = []
    for row in rows:
        with sound(row["config"]):
            _check_types(row)
            values = {name: row[name] for name in Best.__slots__ if name != "in_turns"}
            moment = row["recorded_at"]  # SQLite returns a computed time as text
            found.append(
                Best(
                    **{
                        **values,
                        "config": Config(json.loads(row["config"])),
                        "dynamic": tuple(row["dynamic"].split(",")) if row["dynamic"] else (),
                        "status": Status(row["status"]),
                        "in_turns": row["status"] == _VERIFIED
                        and (row["session_id"], row["config"]) in in_turns,
                        "recorded_at": datetime.fromisoformat(moment) if isinstance(moment, str) else moment,
                    }
                )
            )
    return chosen(found, kernel, target)


def _check_types(row: RowMapping) -> None:
    """Raise `TypeError` for a value of another type, which SQLite may hold."""
    for name in _TEXTS:
        if not isinstance(row[name], str) and not (name == "shape" and row[name] is None):
            raise TypeError(f"{name} must be a text")
    for name in _NUMBERS:
        if row[name] is not None and not isinstance(row[name], float | int):
            raise TypeError(f"{name} must be a number")


def _timed_in_turns(connection: Connection, times: set[tuple[int, float]]) -> set[tuple[int, str]]:
    """Session and config of those trials with these sessions and times whose time is of a comparison of
    finalists. They are found by the index of times: a session may have thousands of other trials.
    """
    trials, measurements = schema.trials.c, schema.measurements.c
    statement = (
        select(trials.session_id, schema.candidates.c.config, measurements.observed)
        .join_from(schema.trials, schema.candidates)
        .join(schema.measurements, measurements.id == trials.measurement_id)
        .where(trials.status == _VERIFIED)
    )
    listed = list(times)
    parts = [listed[start : start + _CHUNK] for start in range(0, len(listed), _CHUNK)]
    found = set()
    with sound("of a measurement"):
        for part in parts:
            for session_id, config, observed in connection.execute(
                statement.where(
                    # SQLite would pass over the whole index for a list of pairs
                    or_(*(and_(trials.session_id == s, trials.measured_us == us) for s, us in part))
                )
            ):
                if observed.get("in_turns"):
                    found.add((session_id, config))
    return found


def chosen(found: Iterable[Best], kernel: str | None, target: str | None) -> list[Best]:
    """The rows of `kernel` and `target`, ordered and checked as `best` does it."""
    # sorted here, since databases sort NULL differently
    rows = sorted(
        found, key=lambda row: (row.operator, row.shape or "", row.workload, row.target, row.protocol_key)
    )
    if kernel is not None:
        _check("kernel", kernel, {name for row in rows for name in (row.operator, row.template)})
        rows = [row for row in rows if kernel in (row.operator, row.template)]
    if target is not None:
        _check("target", target, {row.target for row in rows})
        rows = [row for row in rows if row.target == target]
    return rows


def _check(kind: str, name: str, known: set[str]) -> None:
    if name not in known:
        near = nearest_names(name, known)
        have = (
            f"did you mean {' or '.join(near)}?"
            if near
            else f"recorded: {', '.join(sorted(known)) or 'nothing yet'}."
        )
        raise InputError(
            f"nothing is recorded for {kind} '{name}'; {have} `tilesight tune KERNEL --target T` records"
        )
