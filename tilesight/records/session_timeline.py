"""The timeline of a recorded session: when its candidates were lowered, predicted, built and measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from .recorded_session import RecordedSession, TrialTimes
from .timeline import Note, NoteKind, Span, SpanKind, Timeline, TimelinePart, TimelineRow, View
from .trial import DEVICE_S, Measurement, TrialRecord

_SECOND_US = 1e6
_NOTES = (
    "Each span ends when its result was recorded, which may be somewhat later than its end.",
    "Which worker lowered or built a candidate is not recorded: rows are as many as were busy at once.",
)
_MOMENTS = (
    "A measurement without a duration is drawn as a moment: {count} of {all} do not state for how long they "
    "held their device (those of older versions, and comparisons of finalists)."
)
_RECALLED = "{count} results are older than the session, which recalled them; they are left out."


def session_timeline(found: RecordedSession) -> Timeline:
    """The timeline of a session. Its parts have no lanes if no time is known."""
    began = found.summary.started_at
    pairs = [(trial, found.trial_times.get(trial.config, TrialTimes())) for trial in found.result.trials]
    spans = list(_spans(pairs, began))
    in_time = [(stage, span) for stage, span in spans if span.end_us >= 0]
    lanes = [
        lane
        for stage in dict.fromkeys(sorted((stage for stage, _ in in_time), key=_order))
        for lane in _lanes(stage, [span for of, span in in_time if of == stage])
    ]
    notes = list(_NOTES)
    measured = [span for stage, span in in_time if stage.startswith("measuring")]
    if moments := sum(span.us == 0 for span in measured):
        notes.append(_MOMENTS.format(count=moments, all=len(measured)))
    if recalled := len(spans) - len(in_time):
        notes.append(_RECALLED.format(count=recalled))
    total = max((span.end_us for _, span in in_time), default=0.0)
    part = TimelinePart(View.SESSION, "stages", total, tuple(lanes))
    facts = (
        ("session", f"{found.summary.id}, {found.summary.state.value}, {found.summary.seconds:.1f} s"),
        ("began", f"{began:%Y-%m-%d %H:%M:%S} UTC"),
        ("candidates", ", ".join(f"{count} {name}" for name, count in found.phases.items())),
    )
    context = found.summary.context
    title = f"Timeline of session {found.summary.id}: {context.workload.label} on {context.target}"
    return Timeline(title, (part,), facts, tuple(Note(NoteKind.SIMPLIFIED, text) for text in notes))


def _order(stage: str) -> tuple[int, str]:
    return ("lowering", "predicted", "building", "measuring").index(stage.partition(" ")[0]), stage


def _spans(pairs: Iterable[tuple[TrialRecord, TrialTimes]], began: datetime) -> Iterator[tuple[str, Span]]:
    """Stages and spans; a start before the session is cut off, an end before it is negative."""
    for trial, times in pairs:
        failed = SpanKind.FAILED if trial.prediction is None else SpanKind.MEASURED
        if times.lowered_at is not None and trial.lowering_seconds:
            yield "lowering", _span(trial, times.lowered_at, trial.lowering_seconds, began, failed)
        if times.lowered_at is not None and trial.prediction is not None:
            yield "predicted", _span(trial, times.lowered_at, 0.0, began, SpanKind.MOMENT)
        if times.built_at is not None and trial.build is not None:
            kind = SpanKind.MEASURED if trial.build.failure is None else SpanKind.FAILED
            yield "building", _span(trial, times.built_at, trial.build.seconds, began, kind)
        if times.measured_at is not None and trial.measurement is not None:
            seconds = trial.measurement.observed.get(DEVICE_S, 0.0)
            known = SpanKind.MEASURED if seconds else SpanKind.MOMENT
            kind = known if trial.measurement.failure is None else SpanKind.FAILED
            stage = f"measuring on {_device(trial.measurement)}"
            yield stage, _span(trial, times.measured_at, seconds, began, kind)


def _span(trial: TrialRecord, ended: datetime, seconds: float, began: datetime, kind: SpanKind) -> Span:
    end = (ended - began).total_seconds()
    start = max(0.0, end - seconds) if end >= 0 else end
    return Span(str(trial.config), start * _SECOND_US, (end - start) * _SECOND_US, kind)


def _device(measurement: Measurement) -> str:
    known = measurement.environment
    name, uuid = known.get("device", ""), known.get("uuid", "")
    return " ".join(filter(None, (name, uuid))) or "an unnamed device"


def _lanes(stage: str, spans: Sequence[Span]) -> Iterator[TimelineRow]:
    """As few rows as the spans need without overlap."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start_us, span.end_us)):
        free = next((row for row in rows if row[-1].end_us <= span.start_us), None)
        if free is None:
            rows.append(free := [])
        free.append(span)
    for number, row in enumerate(rows, 1):
        yield TimelineRow(f"{stage}, {number} of {len(rows)}" if len(rows) > 1 else stage, tuple(row))
