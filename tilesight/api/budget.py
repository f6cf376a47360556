"""A time budget that several sessions share."""

from __future__ import annotations

import time


class SharedBudget:
    """Wall-clock seconds for a whole call, from its construction on. None: no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def share(self, sessions_left: int) -> float | None:
        """Seconds for the next of `sessions_left` sessions: an equal part of what is left; None: no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic()) / sessions_left
