"""The times of other implementations that sessions measured beside their finalists."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, func, select

from ..schema import tables as schema

_CHUNK = 500  # keys in one statement; SQLite takes 999 at the least


def vendor_times(
    connection: Connection, workload_keys: Iterable[str], target: str, device: str, protocol: str
) -> dict[str, float]:
    """The time of the fastest other implementation, in microseconds, by the key of the workload.

    It is that of the latest session that measured one, of each workload on the device under the protocol.
    """
    workloads, sessions, baselines = schema.workloads.c, schema.sessions.c, schema.baselines.c
    statement = (
        select(workloads.key, func.min(baselines.latency_us))
        .join_from(schema.workloads, schema.sessions, sessions.workload_id == workloads.id)
        .join(schema.targets, schema.targets.c.id == sessions.target_id)
        .join(schema.environments, schema.environments.c.id == sessions.environment_id)
        .join(schema.baselines, baselines.session_id == sessions.id)
        .where(
            schema.targets.c.name == target,
            schema.environments.c.device == device,
            sessions.protocol == protocol,
        )
        .group_by(workloads.key, sessions.id)
        .order_by(sessions.id)
    )
    keys = sorted(set(workload_keys))
    found: dict[str, float] = {}
    for start in range(0, len(keys), _CHUNK):
        part = statement.where(workloads.key.in_(keys[start : start + _CHUNK]))
        found |= {key: float(us) for key, us in connection.execute(part)}
    return found
