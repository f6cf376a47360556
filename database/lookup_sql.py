"""The statements of `lookups.py`, and how they are run.

A look-up is a few statements of some 20 us each; SQLAlchemy's way of running one takes longer than that. So they are handed to
the driver as text, always the same, which it keeps prepared. They are of the SQL that SQLite and PostgreSQL share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection

from . import shapes
from .recall import VERDICTS

LENGTHS = (1, 2, 8, 32)  # sessions that one statement looks through
_ALL = 2**31 - 1
_FEW = 8  # of the fastest trials
_VERDICTS = ", ".join(f"'{kind}'" for kind in VERDICTS)

_WRONG = f"""EXISTS (
    SELECT 1 FROM trials x
    JOIN failure_reasons f ON f.id = x.failure_id
    JOIN sessions xs ON xs.id = x.session_id
    JOIN environments e ON e.id = xs.environment_id
    JOIN software v ON v.id = e.software_id
    WHERE x.candidate_id = {{candidate}} AND f.kind IN ({_VERDICTS}) AND e.device = :device AND v.code_key = :code_key
)"""
# a winner that was not verified is none: its session compared nothing, or its verdict came later
_SESSIONS = f"""
SELECT s.id, s.workload_id, s.open, s.state, t.measured_us, t.recorded_at, c.config,
       w.operator, w.dims, w.dtype, w.attrs, w.name,
       CASE WHEN t.measured_us IS NULL THEN 1 WHEN {_WRONG.format(candidate="s.winner_id")} THEN 1 ELSE 0 END AS is_out
FROM sessions s
JOIN workloads w ON w.id = s.workload_id
LEFT JOIN trials t ON t.session_id = s.id AND t.candidate_id = s.winner_id
LEFT JOIN candidates c ON c.id = s.winner_id
WHERE s.shape_family = :family {{chosen}}
ORDER BY s.id DESC
"""
# what is not among the first few is looked for only where none of them will do: PostgreSQL would hold each of thousands against
# all that could be said against it, and sort them afterwards
_FASTEST = f"""SELECT * FROM (
    SELECT t.session_id, t.measured_us, t.recorded_at, c.config FROM (
        SELECT session_id, candidate_id, measured_us, recorded_at FROM trials
        WHERE session_id = :session{{n}} AND measured_us IS NOT NULL ORDER BY measured_us LIMIT {{most}}
    ) AS t
    JOIN candidates c ON c.id = t.candidate_id
    WHERE NOT EXISTS (
        SELECT 1 FROM trials y JOIN sessions ys ON ys.id = y.session_id
        WHERE y.candidate_id = t.candidate_id AND y.session_id > t.session_id AND y.measured_us IS NOT NULL
        AND ys.shape_family = :family
    )
    AND NOT {_WRONG.format(candidate="t.candidate_id")}
    ORDER BY t.measured_us LIMIT 1
) AS fastest{{n}}"""
_NEAR = """SELECT * FROM (
    SELECT DISTINCT {n} AS part, s.shape_code, s.workload_id FROM sessions s
    WHERE s.shape_family = :family AND s.shape_code {range} AND s.workload_id <> :own {chosen}
    ORDER BY s.shape_code {order}, s.workload_id {order} LIMIT {most}
) AS near{n}"""
_OPEN = " AND s.open = :open"


class SessionRow(NamedTuple):
    """A session, its workload, and the trial of the winner that it decided for. `is_out`: there is none, or it was wrong."""

    id: int
    workload_id: int
    open: str
    state: str
    measured_us: float | None
    recorded_at: Any
    config: str | None
    operator: str
    dims: Any
    dtype: str
    attrs: Any
    name: str | None
    is_out: int


class FastestRow(NamedTuple):
    session_id: int
    measured_us: float
    recorded_at: Any
    config: str


def run(connection: Connection, sql: str, values: Mapping[str, object]) -> list[Any]:
    """The rows of a statement whose values are named `:name`. Raises the driver's own errors."""
    if connection.dialect.paramstyle != "qmark":
        # psycopg's: it prepares a statement once that ran a few times with values of the same types, and the type of a number
        # would be another one for each number of digits
        sql, values = _pyformat(sql), {name: str(value) for name, value in values.items()}
    cursor: Any = connection.connection.cursor()
    try:
        cursor.execute(sql, values)
        return list(cursor.fetchall())
    finally:
        cursor.close()


@lru_cache(maxsize=256)
def _pyformat(sql: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", sql)


def sessions(chosen: str, *, any_open: bool) -> str:
    """Sessions of a family, latest first; `chosen` says in SQL which of them."""
    return _SESSIONS.format(chosen=chosen if any_open else chosen + _OPEN)


@lru_cache(maxsize=2)
def beside(*, any_open: bool) -> str:
    """The next shapes on both sides of a code."""
    common = {"chosen": "" if any_open else _OPEN, "most": shapes.BESIDE}
    after, before = (
        _NEAR.format(n=n, range=range_, order=order, **common) for n, (range_, order) in enumerate(((">= :code", ""), ("< :code", "DESC")))
    )
    return f"{after} UNION ALL {before}"


@lru_cache(maxsize=2)
def within(*, any_open: bool) -> str:
    """The shapes in several ranges; in one that is a single code all of them."""
    most = f"CASE WHEN CAST(:last{{n}} AS BIGINT) > CAST(:first{{n}} AS BIGINT) THEN {shapes.CROWD + 1} ELSE {_ALL} END"
    chosen = "" if any_open else _OPEN
    parts = (
        _NEAR.format(n=n, range=f"BETWEEN :first{n} AND :last{n}", order="", chosen=chosen, most=most.format(n=n))
        for n in range(shapes.TOGETHER)
    )
    return " UNION ALL ".join(parts)


@lru_cache(maxsize=2 * len(LENGTHS))
def fastest(count: int, *, of_all: bool) -> str:
    """The fastest candidate of each of so many sessions that has one: among the first few, or `of_all`."""
    return " UNION ALL ".join(_FASTEST.format(n=n, most=_ALL if of_all else _FEW) for n in range(count))
