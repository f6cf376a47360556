"""The best that is known of each workload on each target, as a value."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from ..errors import InputError, nearest_names
from ..space import Config
from ..trial import Status
from .trials import sound


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest verified candidate of a workload on a target under a protocol, on any device and software of it that was
    recorded. Where a session compared its finalists, the one that it decided for stands for all that it measured; where
    nothing was verified, the one predicted best in the latest session, with `status` saying so."""

    operator: str
    workload: str  # canonical key
    shape: str | None  # published name
    dtype: str
    target: str
    device: str  # "" where nothing was measured
    protocol_key: str  # `Context.protocol`; "" for the first version's protocol and where nothing was measured
    status: Status  # verified or predicted
    latency_us: float  # measured or predicted, as `status` says
    tflops: float | None
    gb_per_s: float | None  # of the bytes that must cross device memory
    vendor_us: float | None  # the fastest vendor library, measured on the same workload, device and software
    predicted_us: float | None
    limiting: str | None
    relative_error: float | None
    template: str
    config: Config
    open: tuple[str, ...]  # dimensions that the kernel takes at run time
    session_id: int
    recorded_at: datetime


def best(connection: Connection, kernel: str | None = None, target: str | None = None) -> list[Best]:
    """Rows of the view `best`, by operator, workload, target and protocol. `kernel` is an operator's or a template's name.

    Raises `InputError` for a kernel or target of which nothing is recorded.
    """
    rows = [row._mapping for row in connection.execute(text("SELECT * FROM best"))]
    found = []
    for row in rows:
        with sound(row["config"]):
            values = {name: row[name] for name in Best.__slots__}
            moment = row["recorded_at"]  # SQLite gives the text of a time that it computed
            found.append(
                Best(
                    **{
                        **values,
                        "config": Config(json.loads(row["config"])),
                        "open": tuple(row["open"].split(",")) if row["open"] else (),
                        "status": Status(row["status"]),
                        "recorded_at": datetime.fromisoformat(moment) if isinstance(moment, str) else moment,
                    }
                )
            )
    return chosen(found, kernel, target)


def chosen(found: Iterable[Best], kernel: str | None, target: str | None) -> list[Best]:
    """Those of `kernel` and `target`, in the order and with the errors of `best`."""
    # databases do not agree on where NULL comes in an order
    rows = sorted(found, key=lambda row: (row.operator, row.shape or "", row.workload, row.target, row.protocol_key))
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
        have = f"did you mean {' or '.join(near)}?" if near else f"recorded: {', '.join(sorted(known)) or 'nothing yet'}."
        raise InputError(f"nothing is recorded for {kind} '{name}'; {have} `tilesight tune KERNEL --target T` records")
