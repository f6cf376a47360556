"""Misses of dispatch: workloads that dispatchers had no record of, counted until they are tuned."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, case, delete, select

from ...errors import InputError
from ...problem.space import Config
from ...problem.workload import Workload
from ...records.winners import Miss
from ..engine.text_checks import clean, refuse_unless_finite
from ..schema import tables as schema
from .rows import Row, Rows, content_id, workload_rows
from .trial_rows import sound

MOST = 2**53  # the largest count: readers of JSON keep larger whole numbers as floating point
_CHUNK = 500

_TABLE = schema.dispatch_misses


def miss_rows(misses: Iterable[Miss]) -> tuple[Rows, list[Row]]:
    """Rows of the workloads, and one row for each missed kernel.

    Raises `InputError` for a wrong count or time.
    """
    workloads: Rows = []
    rows: dict[int, Row] = {}
    batch = secrets.randbits(63)
    for miss in misses:
        subject = f"miss of {clean(miss.workload.key[:200])}"
        _check(subject, miss)
        workloads += workload_rows(miss.workload)
        times = (_utc(subject, "first_at", miss.first_at), _utc(subject, "last_at", miss.last_at))
        row_id = content_id("dispatch_misses", miss.workload.key, miss.target, miss.device, miss.template)
        row = {
            "id": row_id,
            "workload_id": content_id("workloads", miss.workload.key),
            "target": clean(miss.target),
            "device": clean(miss.device),
            "template": clean(miss.template),
            "count": miss.count,
            "config": clean(miss.config.key),
            "source": clean(str(miss.source)),
            "expected_us": None if miss.expected_us is None else float(miss.expected_us),
            "first_at": min(times),  # a clock may have been set back between them
            "last_at": max(times),
            "batch": batch,
        }
        earlier = rows.get(row_id, row)
        if earlier is not row:
            row["count"] = min(MOST, earlier["count"] + row["count"])
            row["first_at"] = min(earlier["first_at"], row["first_at"])
            row["last_at"] = max(earlier["last_at"], row["last_at"])
        rows[row_id] = row
    return workloads, list(rows.values())


def _check(subject: str, miss: Miss) -> None:
    refuse_unless_finite(subject, {"count": miss.count, "expected_us": miss.expected_us})
    if isinstance(miss.count, bool) or not isinstance(miss.count, int) or not 1 <= miss.count <= MOST:
        raise InputError(
            f"{subject}: count={miss.count!r} must be a whole number in 1 .. 2**53 to be recorded"
        )
    if miss.expected_us is not None and miss.expected_us < 0:
        raise InputError(
            f"{subject}: expected_us={miss.expected_us} must not be below 0; pass None if it is unknown"
        )


def add(connection: Connection, insert: Any, rows: list[Row]) -> None:
    """Add to the recorded counts; the config, source and expected time are those of the latest batch.

    Adding a batch again changes nothing, unless another process added one of its own in between.
    """
    new, old = insert.excluded, _TABLE.c
    changes = {
        "count": case(
            (old.batch == new.batch, old["count"]),
            (old["count"] > MOST - new["count"], MOST),
            else_=old["count"] + new["count"],
        ),
        "first_at": case((new.first_at < old.first_at, new.first_at), else_=old.first_at),
        "last_at": case((new.last_at > old.last_at, new.last_at), else_=old.last_at),
        **{name: new[name] for name in ("config", "source", "expected_us", "batch")},
    }
    # sorted: two processes that add to the same rows lock them in the same order
    connection.execute(
        insert.on_conflict_do_update(index_elements=["id"], set_=changes),
        sorted(rows, key=lambda row: row["id"]),
    )


def misses(connection: Connection, operator: str | None, target: str | None) -> list[Miss]:
    """The recorded misses, most costly first, then most frequent first."""
    workloads = schema.workloads.c
    statement = select(
        _TABLE,
        workloads.operator,
        workloads.dims,
        workloads.dtype,
        workloads.attrs,
        workloads.name.label("shape"),
    ).join_from(_TABLE, schema.workloads)
    if operator is not None:
        statement = statement.where(workloads.operator == clean(operator))
    if target is not None:
        statement = statement.where(_TABLE.c.target == clean(target))
    found = []
    for row in connection.execute(statement.order_by(_TABLE.c.id)):
        with sound(row.config):
            found.append(_miss(row))
    with sound("of a miss"):
        return sorted(found, key=lambda miss: (-miss.cost_us, -miss.count))


def forget(connection: Connection, workload_keys: Iterable[str], target: str | None = None) -> int:
    """Delete the misses of these workloads on `target` (None: on all), on all devices; returns the number of
    rows."""
    ids = sorted({content_id("workloads", key) for key in workload_keys})
    parts = (ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK))
    chosen = () if target is None else (_TABLE.c.target == clean(target),)
    return sum(
        connection.execute(delete(_TABLE).where(_TABLE.c.workload_id.in_(part), *chosen)).rowcount
        for part in parts
    )


def _miss(row: Any) -> Miss:
    return Miss(
        workload=Workload(row.operator, row.dims, row.dtype, row.attrs, row.shape),
        target=row.target,
        device=row.device,
        template=row.template,
        count=row._mapping[_TABLE.c.count],  # `row.count` is a method
        config=Config(json.loads(row.config)),
        source=row.source,
        expected_us=row.expected_us,
        first_at=row.first_at,
        last_at=row.last_at,
    )


def _utc(subject: str, name: str, moment: datetime) -> datetime:
    """`moment` in UTC, without a time zone, as columns have it."""
    try:
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    except OverflowError as error:
        raise InputError(f"{subject}: {name}={moment} must be in the years 1 to 9999 in UTC") from error
