"""Timelines: spans of time in rows, of a predicted kernel or of a recorded session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

NO_TIME = 1e-9  # share of a whole below which a span is a rounding error


class SpanKind(StrEnum):
    """What a span is."""

    WORK = "work"
    WAIT = "wait"
    MOMENT = "moment"  # of which only the end is known
    MEASURED = "measured"  # work whose duration was measured
    FAILED = "failed"  # the same, without a result


class View(StrEnum):
    """How much of a kernel a part shows."""

    KERNEL = "whole kernel"
    BLOCK = "one block"
    ITERATION = "one iteration"
    SESSION = "session"


class NoteKind(StrEnum):
    """What a note of a timeline is about."""

    SOURCE = "source"  # where its numbers come from
    SIMPLIFIED = "simplified"  # what is left out, or drawn as something simpler
    MODEL = "model"  # what the model says of its own prediction
    TRACE = "trace"  # a traced launch


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence that a reader of a timeline must know."""

    kind: NoteKind
    text: str


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time, in microseconds from the start of its part."""

    name: str
    start_us: float
    us: float
    kind: SpanKind = SpanKind.WORK

    @property
    def end_us(self) -> float:
        return self.start_us + self.us


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A row of spans, of which no two overlap.

    `adds_up`: its spans follow one another without gaps and add up to the time of its part; other rows show
    what happens meanwhile.
    """

    name: str
    spans: tuple[Span, ...]
    adds_up: bool = False

    @property
    def us(self) -> float:
        return sum(span.us for span in self.spans)


@dataclass(frozen=True, slots=True)
class TimelinePart:
    """Rows over one axis of time. `us` is the time that the model states for all of it, or that was traced.

    `title` is unique among the parts of a timeline. `trips`: of an iteration, how many of them a block has on
    average; 0 where there is no loop.
    """

    view: View
    title: str
    us: float
    lanes: tuple[TimelineRow, ...]
    trips: float = 0.0

    @property
    def summed(self) -> tuple[TimelineRow, ...]:
        """The rows that add up to `us`."""
        return tuple(lane for lane in self.lanes if lane.adds_up)


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a timeline shows.

    Attributes:
        title: of which kernel or session.
        parts: the first one is the whole.
        facts: names and values.
        findings: sentences on what costs a kernel time, as `explain` has them; the limit comes first.
        notes: where the numbers come from, and what is simplified or not known.
        traced: whether rows of a traced launch lie under those of the prediction.
        details: further parts, too large for a text or a page: a Chrome trace has them.
    """

    title: str
    parts: tuple[TimelinePart, ...]
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[Note, ...] = ()
    traced: bool = False
    details: tuple[TimelinePart, ...] = ()
    findings: tuple[str, ...] = ()

    def of(self, view: View) -> tuple[TimelinePart, ...]:
        return tuple(part for part in self.parts if part.view is view)


def in_turn(steps: Sequence[tuple[str, float, SpanKind]]) -> tuple[Span, ...]:
    """Spans one after another, from names, durations and kinds; those without a duration are left out."""
    spans, start = [], 0.0
    least = NO_TIME * sum(us for _, us, _ in steps)
    for name, us, kind in steps:
        if us > least:
            spans.append(Span(name, start, us, kind))
            start += us
    return tuple(spans)
