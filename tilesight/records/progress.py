"""How far a session has come: what `tilesight watch` and `tilesight tune --live` show of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .session import Effort, SessionState
from .trial import TrialRecord


@dataclass(frozen=True, slots=True)
class SessionProgress:
    """A session at one moment.

    Attributes:
        title: workload and target.
        state: of the session; one whose process died is interrupted.
        seconds: since it began, or how long it took.
        effort: None if it is not known.
        phase: the name of the running phase; "" if it is not known.
        counts: number of candidates by status.
        best: the fastest verified candidate, else the best predicted one.
        vendor_us: time of the fastest other implementation, once it was measured.
        trying: what is tried at this moment; one text for each job.
        last: what was tried last, and what came of it.
        left: number of candidates that are left to be lowered or measured, at most; None if it is not known.
        of: number of these candidates in all.
        left_what: what is left to be done with them, such as "measurements".
        left_s: seconds that they take if they go on as before; None if it is not known.
        session_id: in the database; None if it is not known.
    """

    title: str
    state: SessionState = SessionState.RUNNING
    seconds: float = 0.0
    effort: Effort | None = None
    phase: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    best: TrialRecord | None = None
    vendor_us: float | None = None
    trying: tuple[str, ...] = ()
    last: str = ""
    left: int | None = None
    of: int | None = None
    left_what: str = ""
    left_s: float | None = None
    session_id: int | None = None
