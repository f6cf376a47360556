"""Observers of a session. The tuner calls them at each event; they record results and show progress."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from ..records.session import Baseline, SessionResult
from ..records.trial import Status, TrialRecord
from ..reports.numbers import duration, number

if TYPE_CHECKING:
    from rich.console import Console

    from ..problem.space import Config

TICK_S = 10.0  # seconds between lines on a running phase, where no terminal shows a bar


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

    def job_began(self, stage: str, config: Config) -> None:
        """Work on a candidate begins. `stage` is lowering, building or measuring."""

    def job_ended(self, stage: str, config: Config) -> None:
        """This work is done; its result follows as a trial."""

    def trial(self, record: TrialRecord) -> None:
        """A candidate was predicted, built or measured, or failed."""

    def trials(self, records: Sequence[TrialRecord]) -> None:
        """Several candidates changed together; calls `trial` for each."""
        for record in records:
            self.trial(record)

    def detail(self, text: str) -> None:
        """An item of work is done that is no trial of a session; a line for people who want all of them."""

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

    def job_began(self, stage: str, config: Config) -> None:
        self._notify("job_began", stage, config)

    def job_ended(self, stage: str, config: Config) -> None:
        self._notify("job_ended", stage, config)

    def trial(self, record: TrialRecord) -> None:
        self._notify("trial", record)

    def trials(self, records: Sequence[TrialRecord]) -> None:
        self._notify("trials", records)

    def detail(self, text: str) -> None:
        self._notify("detail", text)

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
    """Writes one line per phase, for logs and pipes; `ticking` adds lines on the running phase."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._name, self._begin = "", 0.0  # no name: no phase runs
        self._done = 0
        self._total: int | None = None
        self._measured_us = math.inf
        self._predicted_us = math.inf, math.inf  # of the best: score by which candidates rank, time

    def started(self, title: str) -> None:
        self._measured_us, self._predicted_us = math.inf, (math.inf, math.inf)
        self._write(title)

    def phase(self, name: str, total: int | None) -> None:
        self._name, self._begin = name, time.monotonic()
        self._done, self._total = 0, total

    def advanced(self, count: int = 1) -> None:
        self._done += count

    def phase_done(self, summary: str) -> None:
        self._write(f"  {self._name}: {summary} ({time.monotonic() - self._begin:.1f} s)")
        self._name = ""

    def trial(self, record: TrialRecord) -> None:
        self._measured_us = min(self._measured_us, record.measured_us or math.inf)
        if record.status is not Status.FAILED:
            ranking_us, predicted_us = record.ranking_us or math.inf, record.predicted_us or math.inf
            self._predicted_us = min(self._predicted_us, (ranking_us, predicted_us))

    def message(self, text: str) -> None:
        self._write(f"  {text}")

    @property
    def best(self) -> str:
        """The best time so far as a text; "" before the first one."""
        if self._measured_us < math.inf:
            return f"best {number(self._measured_us)} us"
        _, predicted_us = self._predicted_us
        return f"best predicted {number(predicted_us)} us" if predicted_us < math.inf else ""

    @property
    def left_s(self) -> float | None:
        """Seconds that the phase still takes, if it goes on as before; None if that is not known."""
        if not self._total or not 0 < self._done <= self._total:
            return None
        return (time.monotonic() - self._begin) / self._done * (self._total - self._done)

    @property
    def left(self) -> str:
        """The time that the phase still takes as a text; "" if that is not known."""
        left_s = self.left_s
        return "" if left_s is None else f"about {duration(left_s)} left"

    def tick(self) -> None:
        """Write one line on the running phase, if one runs."""
        if self._name:
            count = f"{self._done} of {self._total}" if self._total else f"{self._done} done"
            self._write(f"  {self._name}: {', '.join(filter(None, [count, self.best, self.left]))}")

    @contextmanager
    def ticking(self, every_s: float = TICK_S) -> Iterator[Self]:
        """Within the block `tick` is called every `every_s` seconds, by a thread."""
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(every_s):
                self.tick()

        thread = threading.Thread(target=run, name="progress", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()


class EventLines(Lines):
    """Writes one line per event: each candidate and each item of work, too."""

    def phase(self, name: str, total: int | None) -> None:
        super().phase(name, total)
        self._write(f"  {name} begins" + (f", {total} to do" if total else ""))

    def trial(self, record: TrialRecord) -> None:
        super().trial(record)
        self._write(f"    {record.summary}")

    def detail(self, text: str) -> None:
        self._write(f"    {text}")

    def baselines(self, found: Sequence[Baseline]) -> None:
        for baseline in found:
            self._write(f"    vendor: {baseline.name} {number(baseline.latency_us)} us")


class Bars(Lines):
    """Shows a progress bar for the running phase and one line per finished phase, for terminals.

    Beside the bar stand the best time so far and the time that the phase still takes.
    """

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
            BarColumn(30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._task = self._progress.add_task(name, total=total, note=self.best)
        self._progress.start()

    def advanced(self, count: int = 1) -> None:
        super().advanced(count)
        if self._progress is not None:
            self._progress.update(self._task, advance=count, note=self._note())

    def trial(self, record: TrialRecord) -> None:
        before = self.best
        super().trial(record)
        if self._progress is not None and self.best != before:
            self._progress.update(self._task, note=self._note())

    def phase_done(self, summary: str) -> None:
        self._clear()
        super().phase_done(summary)

    def _note(self) -> str:
        return ", ".join(filter(None, [self.best, self.left]))

    def _clear(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
