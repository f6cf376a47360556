"""The progress of a session in a terminal: a block of lines that is drawn again and again, or single lines
where the output is no terminal or cannot move its cursor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from ..records.progress import SessionProgress
from ..records.session import SessionState
from ..records.trial import Prediction, TrialRecord
from ..reports.numbers import duration, number, percent
from ..tuner.observers import TICK_S

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..tuner.live import LiveSession

MOST_TRYING = 6  # jobs that are shown by name
_LABEL = 8  # columns
_MEASURED, _PREDICTED, _PLAIN = "cyan", "yellow", ""  # styles: no prediction looks like a measurement
_REFRESHES = 4  # a second


def moves_cursor(stream: IO[str]) -> bool:
    """Whether lines that were written to `stream` can be drawn again."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def block(found: SessionProgress) -> Iterator[tuple[str, str, str]]:
    """The lines of the block: label, text and style."""
    yield "", found.title, "bold"
    effort = "" if found.effort is None else f"effort {found.effort.value}, "
    yield "", f"{effort}{_state(found)}", _PLAIN
    yield from _best(found)
    counted = [f"{count} {status}" for status, count in sorted(found.counts.items())]
    yield "tried", ", ".join(counted) or "nothing yet", _PLAIN
    more = len(found.trying) - MOST_TRYING
    for number_, text in enumerate(found.trying[:MOST_TRYING]):
        yield "" if number_ else "now", text, _PLAIN
    if more > 0:
        yield "", f"and {more} more", _PLAIN
    if found.last:
        yield "last", found.last, _PLAIN
    if found.state is SessionState.RUNNING:
        yield "left", _left(found) or "not known yet", _PLAIN


def line(found: SessionProgress) -> str:
    """The same in one line."""
    best, vendor = found.best, found.vendor_us
    parts = [found.phase or _state(found)]
    if best is not None:
        limits = f", limits: {best.prediction.limiting} (predicted)" if best.prediction else ""
        parts.append(f"best {_time(best)}{limits}")
    if vendor is not None:
        parts.append(f"vendor {number(vendor)} us")
    parts += [f"{count} {status}" for status, count in sorted(found.counts.items())]
    if found.state is SessionState.RUNNING and (left := _left(found)):
        parts.append(f"left: {left}")
    if best is not None:
        parts.append(f"best config: {best.config}")
    return _shown(", ".join(parts))


def _best(found: SessionProgress) -> Iterator[tuple[str, str, str]]:
    best = found.best
    if best is None:
        yield "best", "none yet", _PLAIN
        return
    style = _PREDICTED if best.timed_us is None else _MEASURED
    vendor = "" if found.vendor_us is None else f"; vendor {number(found.vendor_us)} us"
    yield "best", _time(best) + vendor, style
    yield "", str(best.config), _PLAIN
    if best.prediction is not None:
        yield "limits", _limits(best.prediction), _PREDICTED


def _time(best: TrialRecord) -> str:
    predicted = "-" if best.prediction is None else f"{number(best.predicted_us)} us"
    if best.timed_us is None:
        return f"{predicted} predicted, nothing measured yet"
    return f"{number(best.timed_us)} us {best.status.value} (predicted {predicted})"


def _limits(prediction: Prediction) -> str:
    """What sets the pace of the best one, as the model sees it."""
    from ..pages.candidates import next_limit

    busy = prediction.utilization.get(prediction.limiting)
    text = f"{prediction.limiting}" + ("" if busy is None else f", busy {percent(busy)} of the time")
    following = next_limit(prediction)
    if following is not None:
        text += f"; without it {following[0]} leaves at least {number(following[1])} us"
    return f"{text} (predicted)"


def _state(found: SessionProgress) -> str:
    of_phase = f", phase {found.phase}" if found.phase else ""
    for_ = "for" if found.state is SessionState.RUNNING else "after"
    number_ = "" if found.session_id is None else f"session {found.session_id} "
    return f"{number_}{found.state.value} {for_} {duration(found.seconds)}{of_phase}"


def _left(found: SessionProgress) -> str:
    parts = []
    if found.left == 0:
        return f"none of {found.of} {found.left_what}"
    if found.left is not None:
        parts.append(f"at most {found.left} of {found.of} {found.left_what}")
    if found.left_s is not None:
        parts.append(f"about {duration(found.left_s)}")
    return ", ".join(parts)


def _shown(text: str) -> str:
    """A text of records as one line that cannot steer the terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def renderable(found: SessionProgress) -> Text:
    """The block for a terminal; what does not fit into a line is cut."""
    from rich.text import Text

    lines = Text(no_wrap=True, overflow="ellipsis")
    for place, (label, text, style) in enumerate(block(found)):
        lines.append("\n" if place else "")
        lines.append(f"{label:<{_LABEL}}" if place > 1 else "", style="dim")
        lines.append(_shown(text), style=style)
    return lines


class Plain:
    """Writes a line where something is new: a state, a phase or a best time; else one now and then."""

    def __init__(self, write: Callable[[str], None], every_s: float = TICK_S) -> None:
        self._write, self._every_s = write, every_s
        self._written_s: float | None = None
        self._title = self._news = ""

    def show(self, found: SessionProgress) -> None:
        if found.title != self._title:
            self._title = found.title
            self._write(_shown(found.title))
        best = None if found.best is None else (found.best.config.key, found.best.timed_us)
        news, text, now = f"{found.state} {found.phase} {best}", line(found), time.monotonic()
        if news != self._news or self._written_s is None or now - self._written_s >= self._every_s:
            self._news, self._written_s = news, now
            self._write(f"  {text}")

    def say(self, text: str) -> None:
        if text != self._news:
            self._news = text
            self._write(text)


class Screen:
    """Shows a session in a terminal, in place; `Plain` has the same methods."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def show(self, found: SessionProgress) -> None:
        self._live.update(renderable(found), refresh=True)

    def say(self, text: str) -> None:
        from rich.text import Text

        self._live.update(Text(_shown(text)), refresh=True)

    @contextmanager
    def shown(self) -> Iterator[Screen]:
        """Within the block the terminal shows it; at the end its last state stays there."""
        try:
            with self._live:
                yield self
        finally:
            last = self._live.get_renderable()
            if str(last):
                self._console.print(last)


@contextmanager
def live_block(console: Console, session: LiveSession) -> Iterator[None]:
    """Show the session of this process while the block runs; nothing of it stays."""
    from rich.live import Live

    with Live(
        console=console,
        get_renderable=lambda: renderable(session.progress),
        refresh_per_second=_REFRESHES,
        transient=True,
    ):
        yield
