"""`sessions`, `session` and `compare_sessions`: what the database knows of tuning sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import InputError, UnknownNameError
from ..records.recorded_session import RecordedSession, SessionComparison, SessionSummary
from ..records.session import SessionResult
from ..settings import load_settings

if TYPE_CHECKING:
    from ..database.lookups.best import Best
    from ..database.store import Store


def sessions(
    kernel: str | None = None,
    target: str | None = None,
    *,
    limit: int | None = None,
    database: str | None = None,
) -> list[SessionSummary]:
    """The recorded tuning sessions, latest first.

    Args:
        kernel: Name of an operator or a template; None: all.
        target: Name of a target; None: all.
        limit: Largest number of sessions; None: all.
        database: As for `tune`.

    Raises:
        DatabaseError: the database cannot be read.
    """
    from ..database.engine.connection import exists, parse_url

    if not exists(parse_url(database or load_settings().database_url)):
        return []
    with opened(database) as store:
        return store.session_summaries(kernel, target, limit)


def session(session_id: int, *, database: str | None = None) -> RecordedSession:
    """One recorded session with its candidates, by its id.

    Raises:
        InputError: the database has no session of this id.
        DatabaseError: the database cannot be read, or does not exist.
    """
    found = undescribed_session(session_id, database)
    return replace(found, result=_described(found.result))


def undescribed_session(session_id: int, database: str | None = None) -> RecordedSession:
    """A session without what only its text says of its template. Raises what `session` raises."""
    with opened(database) as store:
        return store.recorded_session(session_id)


def best_records(kernel: str, target: str | None = None, database: str | None = None) -> list[Best]:
    """The best known config of each workload of a kernel; none without a database or records.

    Raises `DatabaseError` if the database cannot be read.
    """
    from ..database.engine.connection import exists, parse_url

    if not exists(parse_url(database or load_settings().database_url)):
        return []
    with opened(database) as store:
        try:
            return store.best(kernel, target)
        except InputError:  # it has no record of them
            return []


def compare_sessions(first: int, second: int, *, database: str | None = None) -> SessionComparison:
    """What sets two recorded sessions apart: contexts, winners and times. Raises what `session` raises."""
    with opened(database) as store:
        return SessionComparison(store.recorded_session(first), store.recorded_session(second))


def _described(result: SessionResult) -> SessionResult:
    """The result with what its report needs of its template and target, if they are known here."""
    from ..kernels import templates
    from ..tuner.recorded import described

    context, target = result.context, result.chip
    try:
        known = templates(context.workload.operator)
    except UnknownNameError:  # a function under @tilesight.autotune, or a kernel of another project
        return result
    wanted = context.template, context.template_version
    template = next((t for t in known if (t.name, t.version) == wanted), None)
    return result if template is None or target is None else described(result, template, target)


def opened(database: str | None) -> Store:
    from ..database import open_store
    from ..database.engine.connection import parse_url
    from ..errors import DatabaseVersionError

    url = parse_url(database or load_settings().database_url)
    try:
        return open_store(url, read_only=True)
    except DatabaseVersionError:
        return open_store(url)  # migrates a database of an older version, raises for a newer one
