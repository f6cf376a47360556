"""Views for people and their SQL; later views use earlier ones. docs/database.md describes each column.

They use only SQL that both SQLite and PostgreSQL have. A change here needs a new schema revision; a test
checks that.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Rates and ratios are NULL for absurd times and amounts (0, 1e300): one division by 0 would make
# PostgreSQL refuse the whole view.
_RECORDS = """
SELECT t.session_id, s.effort, s.state AS session_state, w.operator, w.key AS workload, w.name AS shape,
       w.dtype, w.dims, w.attrs, k.name AS template, k.version AS template_version, g.name AS target,
       g.fingerprint AS target_fingerprint, c.arch, e.device, v.versions AS software, s.model, c.config,
       c.dynamic,
       t.status, p.latency_us AS predicted_us, p.ranking_us, p.limiting, p.uncertainty, p.utilization,
       p.terms_us,
       p.notes AS prediction_notes,
       CASE WHEN t.status = 'verified' THEN m.latency_us END AS measured_us,
       CASE WHEN t.status = 'verified' AND m.latency_us BETWEEN 1e-9 AND 1e18 AND s.flops BETWEEN 1 AND 1e60
            THEN s.flops / m.latency_us / 1e6 END AS tflops,
       CASE WHEN t.status = 'verified' AND m.latency_us BETWEEN 1e-9 AND 1e18
                 AND s.min_bytes BETWEEN 1 AND 1e60
            THEN s.min_bytes / m.latency_us / 1e3 END AS gb_per_s,
       m.relative_error, m.sample_count, m.samples_us, m.protocol, s.protocol AS protocol_key, m.observed,
       o.observed AS environment,
       b.artifact, b.binary, b.compiler, b.resources, b.seconds AS build_seconds,
       f.kind AS failure_kind, f.message AS failure_message, f.detail AS failure_detail,
       t.fingerprint, t.lowering_seconds, t.recorded_at,
       t.candidate_id, t.prediction_id, t.build_id, t.measurement_id, s.workload_id, s.target_id,
       s.environment_id
FROM trials t
JOIN sessions s ON s.id = t.session_id
JOIN candidates c ON c.id = t.candidate_id
JOIN workloads w ON w.id = s.workload_id
JOIN templates k ON k.id = s.template_id
JOIN targets g ON g.id = s.target_id
JOIN environments e ON e.id = s.environment_id
JOIN software v ON v.id = e.software_id
LEFT JOIN predictions p ON p.id = t.prediction_id
LEFT JOIN builds b ON b.id = t.build_id
LEFT JOIN measurements m ON m.id = t.measurement_id
LEFT JOIN environments o ON o.id = m.environment_id
LEFT JOIN failure_reasons f ON f.id = t.failure_id
"""

# Conditions on a verified trial `t` of a session `s` on a target `g`. Each is looked up by the key of the
# candidate, which few trials have, so a view with them reads no more trials than it is asked for.
_SUPERSEDED = """EXISTS (
        SELECT 1 FROM trials x
        JOIN sessions xs ON xs.id = x.session_id
        JOIN targets xg ON xg.id = xs.target_id
        WHERE x.candidate_id = t.candidate_id AND x.session_id > s.id AND x.status = 'verified'
        AND xs.environment_id = s.environment_id AND xs.protocol = s.protocol AND xg.name = g.name
    )"""


def _wrong(candidate: str, environment: str) -> str:
    """A candidate that was ever wrong on a device is left out: a race shows only sometimes."""
    return f"""EXISTS (
        SELECT 1 FROM trials x
        JOIN sessions xs ON xs.id = x.session_id
        JOIN failure_reasons f ON f.id = x.failure_id
        WHERE x.candidate_id = {candidate} AND xs.environment_id = {environment}
        AND x.status = 'failed' AND f.kind IN ('wrong_result', 'nondeterministic')
    )"""


# The window function runs over narrow rows; only the rows that a query takes are joined to the wide view.
# Columns of the workload are in the window so that a condition on them selects sessions first. CROSS JOIN
# makes SQLite read the tables in this order.
_LEADERBOARD = f"""
WITH placed AS (
    SELECT t.session_id, t.candidate_id, w.operator, w.key AS workload, w.name AS shape, w.dtype,
           g.name AS target,
           RANK() OVER (
               PARTITION BY s.workload_id, g.name, s.environment_id, s.protocol, w.operator, w.key, w.name,
                            w.dtype
               ORDER BY t.measured_us
           ) AS place
    FROM workloads w
    CROSS JOIN sessions s
    CROSS JOIN targets g
    CROSS JOIN trials t
    WHERE s.workload_id = w.id AND g.id = s.target_id AND t.session_id = s.id AND t.status = 'verified'
    AND NOT {_SUPERSEDED}
    AND NOT {_wrong("t.candidate_id", "s.environment_id")}
)
SELECT placed.operator, placed.workload, placed.shape, placed.dtype, placed.target, r.device, r.protocol_key,
       placed.place,
       r.template, r.template_version, r.config, r.dynamic, r.measured_us, r.tflops, r.gb_per_s,
       r.predicted_us,
       r.limiting, r.relative_error, r.sample_count, r.software, r.model, r.session_id, r.recorded_at,
       r.candidate_id, r.measurement_id, r.workload_id, r.environment_id
FROM placed
CROSS JOIN records r
WHERE r.session_id = placed.session_id AND r.candidate_id = placed.candidate_id
"""

# A decision holds for the measurements that it was made on (`y`), while its winner has a right time.
_BEATEN = f"""EXISTS (
        SELECT 1 FROM trials y
        JOIN sessions ys ON ys.id = y.session_id
        WHERE y.candidate_id = t.candidate_id AND y.measurement_id = t.measurement_id
        AND y.status = 'verified' AND ys.winner_id <> y.candidate_id
        AND EXISTS (
            SELECT 1 FROM trials b
            JOIN sessions bs ON bs.id = b.session_id
            WHERE b.candidate_id = ys.winner_id AND bs.environment_id = ys.environment_id
            AND b.status = 'verified'
        )
        AND NOT {_wrong("ys.winner_id", "ys.environment_id")}
    )"""

# The fastest trial of each session is the first in the order of the index `ix_trials_measured` that meets the
# conditions, so few trials of a session are read, and the window function runs over sessions.
# Times by the first version's protocol (its key is empty) are used only if there are no others.


def best_of(sessions: str = "TRUE") -> str:
    """The statement of the view `best`, from those sessions `s` that meet a condition on their workloads."""
    return f"""
WITH fastest AS (
    SELECT s.id AS session_id, s.workload_id, g.name AS target, s.environment_id, s.protocol AS protocol_key,
           (
               SELECT t.candidate_id FROM trials t
               WHERE t.session_id = s.id AND t.measured_us IS NOT NULL AND t.status = 'verified'
               AND NOT {_SUPERSEDED}
               AND NOT {_wrong("t.candidate_id", "s.environment_id")}
               AND NOT {_BEATEN}
               ORDER BY t.measured_us, t.candidate_id LIMIT 1
           ) AS candidate_id
    FROM sessions s
    JOIN targets g ON g.id = s.target_id
    WHERE {sessions}
), verified AS (
    SELECT * FROM (
        SELECT f.*,
               ROW_NUMBER() OVER (
                   PARTITION BY f.workload_id, f.target, f.protocol_key
                   ORDER BY t.measured_us, f.session_id DESC, f.candidate_id
               ) AS turn,
               MAX(f.protocol_key) OVER (PARTITION BY f.workload_id, f.target) AS last_key
        FROM fastest f
        JOIN trials t ON t.session_id = f.session_id AND t.candidate_id = f.candidate_id
    ) AS measured WHERE turn = 1 AND (protocol_key <> '' OR last_key = '')
), latest AS (
    SELECT s.workload_id, g.name AS target, MAX(s.id) AS session_id
    FROM sessions s
    JOIN targets g ON g.id = s.target_id
    LEFT JOIN verified v ON v.workload_id = s.workload_id AND v.target = g.name
    WHERE {sessions} AND v.workload_id IS NULL AND EXISTS (
        SELECT 1 FROM trials t
        WHERE t.session_id = s.id AND t.prediction_id IS NOT NULL
        AND t.status IN ('predicted', 'built', 'measured', 'noisy')
    )
    GROUP BY s.workload_id, g.name
), predicted AS (
    SELECT session_id, candidate_id FROM (
        SELECT t.session_id, t.candidate_id,
               ROW_NUMBER() OVER (PARTITION BY t.session_id ORDER BY p.ranking_us, t.candidate_id) AS turn
        FROM latest l
        JOIN trials t ON t.session_id = l.session_id
        JOIN predictions p ON p.id = t.prediction_id
        WHERE t.status IN ('predicted', 'built', 'measured', 'noisy')
    ) AS ranked WHERE turn = 1
)
SELECT r.operator, r.workload, r.shape, r.dtype, r.target, r.device, r.protocol_key, 'verified' AS status,
       r.measured_us AS latency_us, r.tflops, r.gb_per_s,
       (SELECT MIN(n.latency_us) FROM baselines n JOIN sessions s ON s.id = n.session_id
        WHERE s.workload_id = verified.workload_id AND s.environment_id = verified.environment_id
        AND s.protocol = verified.protocol_key) AS vendor_us,
       r.predicted_us, r.limiting, r.relative_error, r.template, r.template_version, r.config, r.dynamic,
       r.software, r.model, r.session_id, r.recorded_at
FROM verified
CROSS JOIN records r
WHERE r.session_id = verified.session_id AND r.candidate_id = verified.candidate_id
UNION ALL
SELECT r.operator, r.workload, r.shape, r.dtype, r.target, r.device, r.protocol_key, 'predicted',
       r.predicted_us,
       CASE WHEN r.predicted_us BETWEEN 1e-9 AND 1e18 AND s.flops BETWEEN 1 AND 1e60
            THEN s.flops / r.predicted_us / 1e6 END,
       CASE WHEN r.predicted_us BETWEEN 1e-9 AND 1e18 AND s.min_bytes BETWEEN 1 AND 1e60
            THEN s.min_bytes / r.predicted_us / 1e3 END, NULL,
       r.predicted_us, r.limiting, NULL, r.template, r.template_version, r.config, r.dynamic, r.software,
       r.model,
       r.session_id, r.recorded_at
FROM predicted
CROSS JOIN records r
CROSS JOIN sessions s
WHERE r.session_id = predicted.session_id AND r.candidate_id = predicted.candidate_id
AND s.id = predicted.session_id
""".strip()


_FAILURES = """
SELECT operator, workload, shape, dtype, target, device, template, config, dynamic,
       failure_kind AS kind, failure_message AS message, failure_detail AS detail, session_id, recorded_at
FROM records
WHERE status = 'failed'
"""

_PREDICTION_ERROR = """
SELECT operator, workload, shape, dtype, target, device, template, config, dynamic, model, predicted_us,
       measured_us,
       predicted_us / measured_us - 1 AS relative_error,
       ABS(predicted_us / measured_us - 1) AS absolute_relative_error,
       uncertainty, limiting, session_id, recorded_at
FROM (
    SELECT records.*,
           ROW_NUMBER() OVER (PARTITION BY prediction_id, measurement_id ORDER BY session_id) AS turn
    FROM records
    WHERE status = 'verified' AND predicted_us BETWEEN 1e-9 AND 1e18 AND measured_us BETWEEN 1e-9 AND 1e18
) AS pairs
WHERE turn = 1
"""

_MISSES = """
SELECT w.operator, w.key AS workload, w.name AS shape, w.dtype, w.dims, w.attrs, d.target, d.device,
       d.template,
       d.count AS calls, d.expected_us,
       CASE WHEN d.expected_us < 1e280 THEN d.count * d.expected_us ELSE 0 END AS cost_us,
       d.source, d.config, d.first_at, d.last_at
FROM dispatch_misses d
JOIN workloads w ON w.id = d.workload_id
"""

VIEWS: Mapping[str, str] = MappingProxyType(
    {
        "records": _RECORDS.strip(),
        "leaderboard": _LEADERBOARD.strip(),
        "best": best_of(),
        "failures": _FAILURES.strip(),
        "prediction_error": _PREDICTION_ERROR.strip(),
        "misses": _MISSES.strip(),
    }
)

# the views' columns of JSON
JSON_COLUMNS = frozenset(
    (
        "dims",
        "attrs",
        "software",
        "config",
        "utilization",
        "terms_us",
        "prediction_notes",
        "samples_us",
        "protocol",
        "observed",
        "environment",
        "resources",
    )
)
