"""`watch`: how a session that another process runs comes on, from the database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..records.progress import SessionProgress
from ..records.session import SessionState
from ..settings import load_settings
from .history import opened

if TYPE_CHECKING:
    from ..database.lookups.progress import Pace
    from ..database.store import Store

EVERY_S = 1.0
_LATEST = 16  # measurements by which the pace is judged


def watch(
    session_id: int | None = None, *, database: str | None = None, every_s: float = EVERY_S
) -> Iterator[SessionProgress | None]:
    """How a session comes on, every `every_s` seconds until it ends; the last value is that of its end.

    Args:
        session_id: the session; None: the latest that runs, or the next one. Until one runs, None is yielded.
        database: as for `tune`.
        every_s: seconds between two looks into the database.

    Raises:
        InputError: the database has no session of this id.
        DatabaseError: the database cannot be read, or, where a session is named, does not exist.
    """
    from ..database.engine.connection import is_made, parse_url

    url = parse_url(database or load_settings().database_url)
    while session_id is None and not is_made(url):
        yield None
        time.sleep(every_s)
    with opened(database) as store:
        while session_id is None:
            session_id = next(iter(store.running_sessions()), None)
            if session_id is None:
                yield None
                time.sleep(every_s)
        while True:
            found = progress_of(store, session_id)
            yield found
            if found.state is not SessionState.RUNNING:
                return
            time.sleep(every_s)


def progress_of(store: Store, session_id: int) -> SessionProgress:
    """How far a session has come, with what is left of its effort."""
    found, pace = store.session_progress(session_id)
    is_running = found.state is SessionState.RUNNING and found.effort is not None
    return _with_left(found, pace) if is_running else found


def _with_left(found: SessionProgress, pace: Pace) -> SessionProgress:
    """With what the effort still allows, by the pace so far.

    The database does not know the phase of a session. Once something was measured, measurements count.
    """
    from ..tuner.request import EFFORT_LIMITS

    assert found.effort is not None
    limits = EFFORT_LIMITS[found.effort]
    each_s: float | None = None
    if limits.measure != 0 and pace.measured:
        what, of, done = "measurements", min(limits.measure or pace.legal, pace.legal), pace.measured
        latest = pace.measured_at[-_LATEST:]
        if len(latest) > 1:
            each_s = (latest[-1] - latest[0]).total_seconds() / (len(latest) - 1)
    else:
        what, of, done = "lowerings", min(limits.explore or pace.legal, pace.legal), pace.lowered
        if pace.first_at is not None and pace.lowered_here:
            each_s = (pace.read_at - pace.first_at).total_seconds() / pace.lowered_here
    left = max(0, of - done)
    left_s = None if each_s is None else left * each_s
    return replace(found, left_what=what, left=left, of=of, left_s=left_s)
