"""The page of a session: where its candidates stand, how it found the best, and under which conditions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from ..errors import InputError
from ..records.recorded_session import RecordedSession
from ..records.session import SessionState
from ..records.session_timeline import session_timeline
from ..records.trial import Status, TrialRecord
from ..reports.numbers import number, percent, spread
from ..reports.numbers import value as value_text
from .candidates import candidate_table
from .levels import levels
from .session_figures import (
    CANDIDATES,
    FAILURES,
    FINALISTS,
    UTILIZATION,
    error_figure,
    failure_figure,
    failure_table,
    finalist_figure,
    finalist_table,
    landscape_figures,
    progress_figures,
    roofline,
    utilization_figure,
    utilization_table,
)
from .timeline_figures import session_timeline_parts
from .values import Facts, Page, PageFigure, Texts


def session_page(found: RecordedSession) -> Page:
    """The page of a recorded session. Raises `InputError` if it has no candidates."""
    result, summary = found.result, found.summary
    if not result.trials:
        raise InputError(
            f"session {summary.id} has no candidates yet: there is nothing to draw; `tilesight sessions` "
            "lists the sessions with the number of their candidates"
        )
    chip = result.chip
    where = levels(chip) if chip is not None else ()
    tables = {CANDIDATES: candidate_table(found, where)}
    parts: list[PageFigure | Facts | Texts] = [_summary(found)]
    if warnings := list(_warnings(found)):
        parts.append(Texts("What to know first", warnings, is_warning=True))
    parts += roofline(result, tables[CANDIDATES], where)
    if finalists := finalist_table(result):
        tables[FINALISTS] = finalists
        parts.append(finalist_figure())
    if any(t.measured_us is not None and t.predicted_us is not None for t in result.trials):
        parts.append(error_figure(result, tables[CANDIDATES]))
    parts += progress_figures(tables[CANDIDATES])
    if used := utilization_table(result):
        tables[UTILIZATION] = used
        parts.append(utilization_figure())
    parts += landscape_figures(tables[CANDIDATES])
    if failed := failure_table(result):
        tables[FAILURES] = failed
        parts.append(failure_figure())
    timeline, drawn = session_timeline_parts(session_timeline(found))
    tables |= drawn
    parts += [*timeline, *_conditions(found), _legend()]
    context = summary.context
    title = f"{context.workload.label} on {context.target if chip is None else chip.title}"
    return Page(title, f"Tuning session {summary.id}, {summary.started_at:%Y-%m-%d %H:%M} UTC", parts, tables)


def _summary(found: RecordedSession) -> Facts:
    result, summary, best, floor = found.result, found.summary, found.result.best, found.result.limit
    rows: list[tuple[str, str]] = []
    if best is not None:
        us = best.timed_us if best.timed_us is not None else best.predicted_us
        known = "measured" if best.timed_us is not None else "predicted"
        rows.append((f"best time, {known}", f"{number(us)} us"))
        if best.prediction is not None:
            interval = f"{number(best.predicted_us)} us, {spread(best.prediction.uncertainty)}"
            rows.append(("its predicted time", interval))
            rows.append(("what limits it, predicted", best.prediction.limiting))
        rows.append(("best config", str(best.config)))
        if result.flops and us:
            rows.append((f"its rate, {known}", f"{number(floor.tflops(us))} TFLOP/s"))
        if floor.is_known and us:
            share = f"{number(floor.latency_us)} us, of which it reaches {percent(floor.share(us))}"
            rows.append(("limit of the hardware", share))
    fastest = result.fastest_baseline
    if fastest is not None:
        rows.append(
            ("fastest other implementation, measured", f"{fastest.name}: {number(fastest.latency_us)} us")
        )
        if best is not None and best.measured_us is not None and not fastest.is_noisy:
            rows.append(("times as fast as that", number(fastest.latency_us / best.measured_us, 3)))
    if result.decision is not None:
        rows.append(("why it won", result.decision.reason))
    rows.append(("search space", str(result.census)))
    rows.append(("candidates", ", ".join(f"{count} {name}" for name, count in found.phases.items())))
    rows.append(("state", f"{summary.state.value}, effort {summary.effort.value}, {summary.seconds:.1f} s"))
    return Facts("Result", rows)


def _warnings(found: RecordedSession) -> Iterator[str]:
    result, state = found.result, found.summary.state
    if state is SessionState.RUNNING:
        yield "The session is still running: this is what it had recorded when this page was written."
    if state is SessionState.INTERRUPTED:
        yield "The session was interrupted: the page shows what it had recorded by then."
    if not result.is_measured:
        yield "Nothing was measured and verified: all times are predicted, except those marked otherwise."
    devices = Counter(
        t.measurement.environment.get("uuid", "") or t.measurement.environment.get("device", "")
        for t in result.trials
        if t.measurement is not None and t.measurement.samples_us
    )
    if len(devices) > 1:
        counted = ", ".join(f"{count} on {name or 'an unnamed one'}" for name, count in devices.most_common())
        yield f"Several devices measured: {counted}. Their times differ by some percent."
    noisy = sum(t.status is Status.NOISY for t in result.trials)
    if noisy:
        yield f"Other work on the machine disturbed {noisy} of the times; they are marked as noisy."
    reason = "" if result.decision is None else result.decision.reason
    yield from (message for message in result.messages if not reason or reason not in message)


def _conditions(found: RecordedSession) -> Iterator[Facts]:
    context = found.summary.context
    measured = [t.measurement for t in found.result.trials if t.measurement is not None]
    rows = [
        ("workload", context.workload.key),
        ("template", f"{context.template} {context.template_version}"),
        ("target", f"{context.target}, {context.arch}, figures {context.target_fingerprint}"),
        ("device", context.device or "none: nothing was measured"),
        ("model", context.model),
        ("seed", str(found.summary.seed)),
        *sorted(context.software.items()),
    ]
    environment: dict[str, set[str]] = {}
    for each in measured:
        for name, version in each.environment.items():
            environment.setdefault(name, set()).add(version)
    known = {name for name, _ in rows}
    rows += [(n, ", ".join(sorted(values))) for n, values in environment.items() if n not in known]
    yield Facts("Environment", rows)
    protocol: dict[str, set[str]] = {}
    for each in measured:
        for name, value in each.protocol.items():
            protocol.setdefault(name, set()).add(value_text(value))
    if protocol:
        yield Facts(
            "Protocol of the measurements", [(n, " or ".join(sorted(v))) for n, v in protocol.items()]
        )
    if observed := _observed(_measured_trials(found.result.trials)):
        yield Facts("Observed while measuring (least to largest)", observed)


def _measured_trials(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Those with samples."""
    return [t for t in trials if t.measurement is not None and t.measurement.samples_us]


def _observed(trials: Sequence[TrialRecord]) -> list[tuple[str, str]]:
    """The range of each observation."""
    ranges: dict[str, list[float]] = {}
    for trial in trials:
        for name, value in (trial.measurement.observed if trial.measurement else {}).items():
            if name != "input_seed" and math.isfinite(value):
                ranges.setdefault(name, []).append(value)
    return [
        (name, number(min(v)) if min(v) == max(v) else f"{number(min(v))} to {number(max(v))}")
        for name, v in ranges.items()
    ]


def _legend() -> Texts:
    return Texts(
        "Marks and colours",
        (
            "A filled blue circle or bar is a measured time of a candidate whose results were checked. A "
            "hollow orange diamond, a dashed line or a hatched cell is predicted and was never measured. "
            "Green squares are measured times of other implementations. Grey lines are limits, from figures "
            "of the target.",
        ),
    )
