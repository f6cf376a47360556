"""The SQL statements of `winners.py`, and how they are run.

A look-up takes a few statements of about 20 us each, and SQLAlchemy takes longer than that to run one. So
they are passed to the driver as constant text, which the driver keeps prepared. They use only SQL that both
SQLite and PostgreSQL have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection

from .recall import VERDICTS

LENGTHS = (1, 2, 8, 32)  # numbers of sessions in one statement
_ALL = 2**31 - 1
_FEW = 8  # fastest trials that are looked at first
_VERDICTS = ", ".join(f"'{kind}'" for kind in VERDICTS)

_WRONG = f"""EXISTS (
    SELECT 1 FROM trials x
    JOIN failure_reasons f ON f.id = x.failure_id
    JOIN sessions xs ON xs.id = x.session_id
    JOIN environments e ON e.id = xs.environment_id
    JOIN software v ON v.id = e.software_id
    WHERE x.candidate_id = {{candidate}} AND f.kind IN ({_VERDICTS})
    AND e.device = :device AND v.code_key = :code_key
)"""
# a winner without a verified time does not count
_SESSIONS = f"""
SELECT s.id, s.workload_id, s.dynamic, s.state, t.measured_us, t.recorded_at, c.config,
       w.operator, w.dims, w.dtype, w.attrs, w.name,
       CASE WHEN t.measured_us IS NULL THEN 1
            WHEN {_WRONG.format(candidate="s.winner_id")} THEN 1 ELSE 0 END AS is_out
FROM sessions s
JOIN workloads w ON w.id = s.workload_id
LEFT JOIN trials t ON t.session_id = s.id AND t.candidate_id = s.winner_id
LEFT JOIN candidates c ON c.id = s.winner_id
WHERE s.shape_family = :family {{condition}}
ORDER BY s.id DESC
"""
# only the few fastest trials are checked at first: PostgreSQL would check thousands of trials before it sorts
# them
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
_DYNAMIC = " AND s.dynamic = :dynamic"


class SessionRow(NamedTuple):
    """A session, its workload, and the trial of its winner.

    `is_out`: it has no winner with a right result.
    """

    id: int
    workload_id: int
    dynamic: str
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
    """The rows of a statement with values named `:name`. Raises the driver's own errors."""
    if connection.dialect.paramstyle != "qmark":
        # psycopg prepares a statement that ran a few times with the same types, and the type of a number
        # depends on its size
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


def sessions(condition: str, *, any_dynamic: bool) -> str:
    """A statement for the sessions of a shape family, latest first; `condition` is a further one in SQL."""
    return _SESSIONS.format(condition=condition if any_dynamic else condition + _DYNAMIC)


@lru_cache(maxsize=2 * len(LENGTHS))
def fastest(count: int, *, of_all: bool) -> str:
    """A statement for the fastest valid candidate of each of `count` sessions, among the few fastest or
    `of_all`."""
    return " UNION ALL ".join(_FASTEST.format(n=n, most=_ALL if of_all else _FEW) for n in range(count))
