"""The contexts of recorded measurements: one of each family of shapes whose winners can be looked up."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from ...records.session import Context
from ..engine.text_checks import clean
from ..schema import tables as schema
from ..tables.trial_rows import sound
from .sessions import context_of, with_contexts


def measured_contexts(connection: Connection, target: str, arch: str, device: str) -> list[Context]:
    """The context of the latest session of each shape family and each set of dynamic dimensions, latest
    first.

    Args:
        connection: To the database.
        target: Name of the target.
        arch: Its architecture.
        device: Sessions that measured on this device, of any target of this architecture; "": sessions of the
            target that measured on any device.
    """
    sessions = schema.sessions.c
    latest = (
        select(func.max(sessions.id))
        .join_from(schema.sessions, schema.targets)
        .join(schema.environments, schema.environments.c.id == sessions.environment_id)
        .where(schema.targets.c.arch == clean(arch))
        .group_by(sessions.shape_family, sessions.dynamic)
    )
    if device:
        latest = latest.where(schema.environments.c.device == clean(device))
    else:
        latest = latest.where(schema.environments.c.device != "", schema.targets.c.name == clean(target))
    found = []
    for row in connection.execute(
        with_contexts().where(sessions.id.in_(latest)).order_by(sessions.id.desc())
    ):
        with sound(f"session {row.id}"):
            found.append(context_of(row))
    return found
