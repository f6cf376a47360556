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

# A candidate that was ever wrong on a device is left out: a race shows only sometimes.
# Window functions run over narrow rows; only the rows that they select are joined to the wide view.
_LEADERBOARD = """
WITH runs AS (
    SELECT t.session_id, t.candidate_id, t.status,
           ROW_NUMBER() OVER (
               PARTITION BY t.candidate_id, g.name, s.environment_id, s.protocol, t.status
               ORDER BY t.session_id DESC
           ) AS recency,
           SUM(CASE WHEN t.status = 'failed' THEN 1 ELSE 0 END)
               OVER (PARTITION BY t.candidate_id, s.environment_id) AS wrong
    FROM trials t
    JOIN sessions s ON s.id = t.session_id
    JOIN targets g ON g.id = s.target_id
    LEFT JOIN failure_reasons f ON f.id = t.failure_id
    WHERE t.status = 'verified' OR f.kind IN ('wrong_result', 'nondeterministic')
)
SELECT r.operator, r.workload, r.shape, r.dtype, r.target, r.device, r.protocol_key,
       RANK() OVER (
           PARTITION BY r.workload_id, r.target, r.environment_id, r.protocol_key ORDER BY r.measured_us
       ) AS place,
       r.template, r.template_version, r.config, r.dynamic, r.measured_us, r.tflops, r.gb_per_s,
       r.predicted_us,
       r.limiting, r.relative_error, r.sample_count, r.software, r.model, r.session_id, r.recorded_at,
       r.candidate_id, r.measurement_id, r.workload_id, r.environment_id
FROM runs
JOIN records r ON r.session_id = runs.session_id AND r.candidate_id = runs.candidate_id
WHERE runs.status = 'verified' AND runs.recency = 1 AND runs.wrong = 0
"""

# A decision holds for the measurements that it was made on, while its winner is in the leaderboard.
# Times by the first version's protocol (its key is empty) are used only if there are no others.
_BEST = """
WITH board AS (
    SELECT * FROM leaderboard
), beaten AS (
    SELECT DISTINCT t.candidate_id, t.measurement_id
    FROM sessions s
    JOIN board w ON w.candidate_id = s.winner_id AND w.environment_id = s.environment_id
    JOIN trials t ON t.session_id = s.id
    WHERE t.status = 'verified' AND t.candidate_id <> s.winner_id
), verified AS (
    SELECT * FROM (
        SELECT board.*, ROW_NUMBER() OVER (
                   PARTITION BY board.workload_id, board.target, board.protocol_key
                   ORDER BY measured_us, session_id DESC, board.candidate_id
               ) AS turn,
               MAX(board.protocol_key) OVER (PARTITION BY board.workload_id, board.target) AS last_key
        FROM board
        WHERE (board.candidate_id, board.measurement_id)
              NOT IN (SELECT candidate_id, measurement_id FROM beaten)
    ) AS measured WHERE turn = 1 AND (protocol_key <> '' OR last_key = '')
), predicted AS (
    SELECT session_id, candidate_id FROM (
        SELECT t.session_id, t.candidate_id,
               ROW_NUMBER() OVER (
                   PARTITION BY s.workload_id, g.name ORDER BY t.session_id DESC, p.ranking_us, t.candidate_id
               ) AS turn
        FROM trials t
        JOIN predictions p ON p.id = t.prediction_id
        JOIN sessions s ON s.id = t.session_id
        JOIN targets g ON g.id = s.target_id
        WHERE t.status IN ('predicted', 'built', 'measured', 'noisy')
    ) AS ranked WHERE turn = 1
)
SELECT operator, workload, shape, dtype, target, device, protocol_key, 'verified' AS status,
       measured_us AS latency_us, tflops, gb_per_s,
       (SELECT MIN(n.latency_us) FROM baselines n JOIN sessions s ON s.id = n.session_id
        WHERE s.workload_id = verified.workload_id AND s.environment_id = verified.environment_id
        AND s.protocol = verified.protocol_key) AS vendor_us,
       predicted_us, limiting, relative_error, template, template_version, config, dynamic, software, model,
       session_id, recorded_at
FROM verified
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
FROM predicted p
JOIN records r ON r.session_id = p.session_id AND r.candidate_id = p.candidate_id
JOIN sessions s ON s.id = p.session_id
LEFT JOIN verified v ON v.workload_id = r.workload_id AND v.target = r.target
WHERE v.workload_id IS NULL
"""

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
        "best": _BEST.strip(),
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
