"""The state of the session that runs in this process, collected from its events."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

from ..problem.space import Config
from ..records.progress import SessionProgress
from ..records.session import Baseline, SessionResult, SessionState
from ..records.trial import Status, TrialRecord
from .observers import Lines

# what the candidates of a phase are counted in
_COUNTED = {"explore": "lowerings", "build": "builds", "measure": "measurements"}
_RANKS = {Status.VERIFIED: 0, Status.MEASURED: 1, Status.NOISY: 2}


class LiveSession(Lines):
    """Collects what the events say, and tells it at any moment, in any thread: `progress`.

    `budget_s` is the time limit of the whole call, which began when this was made.
    """

    def __init__(self, write: Callable[[str], None], budget_s: float | None = None) -> None:
        super().__init__(write)
        self._title, self._session_began = "", time.monotonic()
        self._state = SessionState.RUNNING
        self._end = None if budget_s is None else time.monotonic() + budget_s
        self._statuses: dict[Config, Status] = {}
        self._best: TrialRecord | None = None
        self._vendor_us: float | None = None
        self._trying: dict[tuple[str, Config], None] = {}
        self._last = ""

    def started(self, title: str) -> None:
        self._title, self._session_began = title, time.monotonic()
        self._state = SessionState.RUNNING
        self._statuses, self._best, self._vendor_us, self._last = {}, None, None, ""
        self._trying = {}
        super().started(title)

    def job_began(self, stage: str, config: Config) -> None:
        self._trying = {**self._trying, (stage, config): None}

    def job_ended(self, stage: str, config: Config) -> None:
        self._trying = {job: None for job in self._trying if job != (stage, config)}

    def trial(self, record: TrialRecord) -> None:
        super().trial(record)
        self._statuses[record.config] = record.status
        self._last = record.summary
        if _order(record) < _order(self._best):
            self._best = record

    def baselines(self, found: Sequence[Baseline]) -> None:
        self._vendor_us = min((baseline.latency_us for baseline in found), default=None)

    def finished(self, result: SessionResult) -> None:
        self._state = result.state
        self._trying = {}
        self._best = result.best or self._best

    @property
    def progress(self) -> SessionProgress:
        """The session at this moment."""
        left = None if self._total is None or not self._name else max(0, self._total - self._done)
        return SessionProgress(
            title=self._title,
            state=self._state,
            seconds=time.monotonic() - self._session_began,
            phase=self._name,
            counts=Counter(status.value for status in tuple(self._statuses.values())),
            best=self._best,
            vendor_us=self._vendor_us,
            trying=tuple(f"{stage}: {config}" for stage, config in self._trying),
            last=self._last,
            left=left,
            of=self._total,
            left_what=_COUNTED.get(self._name, "candidates"),
            left_s=self._seconds_left(),
        )

    def _seconds_left(self) -> float | None:
        """Seconds that the phase still takes, or that the budget still leaves if that is less."""
        known = [self.left_s, None if self._end is None else max(0.0, self._end - time.monotonic())]
        return min((seconds for seconds in known if seconds is not None), default=None)


class LiveLines(LiveSession):
    """The same as lines for logs and pipes: each tick writes `line` of the state."""

    def __init__(
        self,
        write: Callable[[str], None],
        line: Callable[[SessionProgress], str],
        budget_s: float | None = None,
    ) -> None:
        super().__init__(write, budget_s)
        self._line = line

    def tick(self) -> None:
        if self._name:
            self._write(f"  {self._line(self.progress)}")

    def trial(self, record: TrialRecord) -> None:
        before = self._best
        super().trial(record)
        if self._best is not before and self._best is not None and self._best.measured_us is not None:
            self.tick()


def _order(record: TrialRecord | None) -> tuple[int, float]:
    """The order of `SessionResult.best`, by time within a rank; the least is the best."""
    if record is None or record.status is Status.FAILED:
        return 4, 0.0
    if record.timed_us is not None:
        return _RANKS[record.status], record.timed_us
    return 3, record.ranking_us or math.inf
