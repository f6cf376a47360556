"""The best known candidate of each workload on each target."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from ...errors import InputError, nearest_names
from ...problem.space import Config
from ...records.trial import Status
from ..tables.trial_rows import sound


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
    session_id: int
    recorded_at: datetime


def best(connection: Connection, kernel: str | None = None, target: str | None = None) -> list[Best]:
    """The rows of the view `best`, ordered by operator, workload, target and protocol.

    `kernel` is the name of an operator or a template. Raises `InputError` for a kernel or target without
    records.
    """
    rows = [row._mapping for row in connection.execute(text("SELECT * FROM best"))]
    found = []
    for row in rows:
        with sound(row["config"]):
            values = {name: row[name] for name in Best.__slots__}
            moment = row["recorded_at"]  # SQLite returns a computed time as text
            found.append(
                Best(
                    **{
                        **values,
                        "config": Config(json.loads(row["config"])),
                        "dynamic": tuple(row["dynamic"].split(",")) if row["dynamic"] else (),
                        "status": Status(row["status"]),
                        "recorded_at": datetime.fromisoformat(moment) if isinstance(moment, str) else moment,
                    }
                )
            )
    return chosen(found, kernel, target)


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
