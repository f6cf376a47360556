"""Observers of a session. The tuner calls them at each event; they record results and show progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..records.session import Baseline, SessionResult
from ..records.trial import TrialRecord

if TYPE_CHECKING:
    from rich.console import Console


class Observer:
    """The events of a session. Each method does nothing; a subclass overrides the events that it needs."""

    def started(self, title: str) -> None:
        """A session begins. `title` names its workload and target."""

    def phase(self, name: str, total: int | None) -> None:
        """A phase begins. `total` is the expected number of candidates, None if it is not known."""

    def advanced(self, count: int = 1) -> None:
        """`count` more candidates of the phase are done."""

    def phase_done(self, summary: str) -> None:
        """The phase is over. `summary` is one line on its results."""

    def trial(self, record: TrialRecord) -> None:
        """A candidate was predicted, built or measured, or failed."""

    def trials(self, records: Sequence[TrialRecord]) -> None:
        """Several candidates changed together; calls `trial` for each."""
        for record in records:
            self.trial(record)

    def baselines(self, found: Sequence[Baseline]) -> None:
        """The vendor's implementations were measured."""

    def message(self, text: str) -> None:
        """A message for the user."""

    def finished(self, result: SessionResult) -> None:
        """The session ended, complete or interrupted."""

    def answered(self, result: SessionResult) -> None:
        """The result of a workload is known, from a session or from the database."""


class Observers(Observer):
    """Passes each event to several observers, in their order."""

    def __init__(self, members: Sequence[Observer]) -> None:
        self._members = tuple(members)

    def started(self, title: str) -> None:
        self._notify("started", title)

    def phase(self, name: str, total: int | None) -> None:
        self._notify("phase", name, total)

    def advanced(self, count: int = 1) -> None:
        self._notify("advanced", count)

    def phase_done(self, summary: str) -> None:
        self._notify("phase_done", summary)

    def trial(self, record: TrialRecord) -> None:
        self._notify("trial", record)

    def trials(self, records: Sequence[TrialRecord]) -> None:
        self._notify("trials", records)

    def baselines(self, found: Sequence[Baseline]) -> None:
        self._notify("baselines", found)

    def message(self, text: str) -> None:
        self._notify("message", text)

    def finished(self, result: SessionResult) -> None:
        self._notify("finished", result)

    def answered(self, result: SessionResult) -> None:
        self._notify("answered", result)

    def _notify(self, event: str, *arguments: Any) -> None:
        for member in self._members:
            getattr(member, event)(*arguments)


class Lines(Observer):
    """Writes one line per phase, for logs and pipes."""

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
    """Shows a progress bar for the running phase and one line per finished phase, for terminals."""

    def __init__(self, console: Console) -> None:
        super().__init__(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        self._console = console
        self._progress: Any = None

    @contextmanager
    def shown(self) -> Iterator[Bars]:
        """Removes the bar when the block ends, also after an exception."""
        try:
            yield self
        finally:
            self._clear()

    def phase(self, name: str, total: int | None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        super().phase(name, total)
        self._clear()
        columns = (
            TextColumn("  {task.description:<8}"),
            BarColumn(40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
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
