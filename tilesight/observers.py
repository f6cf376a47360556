"""Observers of a session: they see what happens and do the side effects, recording and progress among them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .session import Baseline, SessionResult
from .trial import TrialRecord

if TYPE_CHECKING:
    from rich.console import Console


class Observer:
    """Does nothing at each event; an observer overrides those that it is interested in."""

    def started(self, title: str) -> None:
        """A session begins on what `title` says."""

    def phase(self, name: str, total: int | None) -> None:
        """A phase begins; `total` candidates are expected (None: not known)."""

    def advanced(self, count: int = 1) -> None:
        """So many candidates of the phase are done."""

    def phase_done(self, summary: str) -> None:
        """The phase is over; a line on what it brought."""

    def trial(self, record: TrialRecord) -> None:
        """A candidate came further than before, or failed."""

    def trials(self, records: Sequence[TrialRecord]) -> None:
        """Many candidates came further at once."""
        for record in records:
            self.trial(record)

    def baselines(self, found: Sequence[Baseline]) -> None:
        """Vendor times were measured."""

    def message(self, text: str) -> None:
        """Something that the user should know."""

    def finished(self, result: SessionResult) -> None:
        """The session is over, complete or interrupted."""

    def answered(self, result: SessionResult) -> None:
        """A workload has its result, from a session or from the database."""


class Observers(Observer):
    """Several observers as one, told in their order."""

    def __init__(self, members: Sequence[Observer]) -> None:
        self._members = tuple(members)

    def started(self, title: str) -> None:
        self._tell("started", title)

    def phase(self, name: str, total: int | None) -> None:
        self._tell("phase", name, total)

    def advanced(self, count: int = 1) -> None:
        self._tell("advanced", count)

    def phase_done(self, summary: str) -> None:
        self._tell("phase_done", summary)

    def trial(self, record: TrialRecord) -> None:
        self._tell("trial", record)

    def trials(self, records: Sequence[TrialRecord]) -> None:
        self._tell("trials", records)

    def baselines(self, found: Sequence[Baseline]) -> None:
        self._tell("baselines", found)

    def message(self, text: str) -> None:
        self._tell("message", text)

    def finished(self, result: SessionResult) -> None:
        self._tell("finished", result)

    def answered(self, result: SessionResult) -> None:
        self._tell("answered", result)

    def _tell(self, event: str, *arguments: Any) -> None:
        for member in self._members:
            getattr(member, event)(*arguments)


class Lines(Observer):
    """A line a phase, for logs and pipes."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._name, self._begin = "", 0.0

    def started(self, title: str) -> None:
        self._write(title)

    def phase(self, name: str, total: int | None) -> None:
        self._name, self._begin = name, time.monotonic()

    def phase_done(self, summary: str) -> None:
        self._write(f"  {self._name}: {summary} ({time.monotonic() - self._begin:.1f} s)")

    def message(self, text: str) -> None:
        self._write(f"  {text}")


class Bars(Lines):
    """A moving bar for the phase that runs, and its line when it is over; for terminals."""

    def __init__(self, console: Console) -> None:
        super().__init__(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        self._console = console
        self._progress: Any = None

    @contextmanager
    def shown(self) -> Iterator[Bars]:
        """No bar outlives this block, however it ends."""
        try:
            yield self
        finally:
            self._clear()

    def phase(self, name: str, total: int | None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        super().phase(name, total)
        self._clear()
        columns = (TextColumn("  {task.description:<8}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._task = self._progress.add_task(name, total=total)
        self._progress.start()

    def advanced(self, count: int = 1) -> None:
        if self._progress is not None:
            self._progress.advance(self._task, count)

    def phase_done(self, summary: str) -> None:
        self._clear()
        super().phase_done(summary)

    def _clear(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
