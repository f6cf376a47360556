"""Shapes that dispatchers were asked for and had no record of: counted, put in order by what they cost, forgotten once tuned."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, case, delete, select

from ..errors import InputError
from ..known import Miss
from ..space import Config
from ..workload import Workload
from . import schema
from .checks import clean, refuse_unless_finite
from .rows import Row, Rows, content_id, workload_rows
from .trials import sound

MOST = 2**53  # no count goes beyond: readers of JSON keep whole numbers no further
_CHUNK = 500

_TABLE = schema.dispatch_misses


def miss_rows(misses: Iterable[Miss]) -> tuple[Rows, list[Row]]:
    """Rows of the workloads, and of the misses themselves. Raises `InputError` for a count or a time that is none."""
    workloads: Rows = []
    rows = []
    for miss in misses:
        subject = f"miss of {clean(miss.workload.key[:200])}"
        refuse_unless_finite(subject, {"count": miss.count})
        if isinstance(miss.count, bool) or not isinstance(miss.count, int) or not 1 <= miss.count <= MOST:
            raise InputError(f"{subject}: count={miss.count!r} must be a whole number in 1 .. 2**53 to be recorded")
        refuse_unless_finite(subject, {"expected_us": miss.expected_us})
        if miss.expected_us is not None and miss.expected_us < 0:
            raise InputError(f"{subject}: expected_us={miss.expected_us} must not lie below 0 to be recorded; None where unknown")
        workload_id = content_id("workloads", miss.workload.key)
        workloads += workload_rows(miss.workload)
        times = (_utc(subject, "first_at", miss.first_at), _utc(subject, "last_at", miss.last_at))
        rows.append(
            {
                "id": content_id("dispatch_misses", miss.workload.key, miss.target, miss.device, miss.template),
                "workload_id": workload_id,
                "target": clean(miss.target),
                "device": clean(miss.device),
                "template": clean(miss.template),
                "count": miss.count,
                "config": clean(miss.config.key),
                "source": clean(str(miss.source)),
                "expected_us": None if miss.expected_us is None else float(miss.expected_us),
                "first_at": min(times),  # a clock may have been set back between them
                "last_at": max(times),
            }
        )
    return workloads, rows


def add(connection: Connection, insert: Any, rows: list[Row]) -> None:
    """Add to the counts that are there. What served last, and was expected of it, takes the place of what was there."""
    new, old = insert.excluded, _TABLE.c
    changes = {
        "count": case((old.count > MOST - new.count, MOST), else_=old.count + new.count),
        "first_at": case((new.first_at < old.first_at, new.first_at), else_=old.first_at),
        "last_at": case((new.last_at > old.last_at, new.last_at), else_=old.last_at),
        **{name: new[name] for name in ("config", "source", "expected_us")},
    }
    # two processes that add to the same rows lock them in one order
    connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_=changes), sorted(rows, key=lambda row: row["id"]))


def misses(connection: Connection, operator: str | None, target: str | None) -> list[Miss]:
    """Most costly first, then most frequent first."""
    workloads = schema.workloads.c
    statement = select(
        _TABLE, workloads.operator, workloads.dims, workloads.dtype, workloads.attrs, workloads.name.label("shape")
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
    """Forget the misses of these workloads on `target` (None: on whatever target), whatever device; how many there were."""
    ids = sorted({content_id("workloads", key) for key in workload_keys})
    parts = (ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK))
    chosen = () if target is None else (_TABLE.c.target == clean(target),)
    return sum(connection.execute(delete(_TABLE).where(_TABLE.c.workload_id.in_(part), *chosen)).rowcount for part in parts)


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
    """As columns have it: UTC, and not marked so."""
    try:
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    except OverflowError as error:
        raise InputError(f"{subject}: {name}={moment} must lie within the years 1 to 9999 in UTC; pass when it was seen") from error
