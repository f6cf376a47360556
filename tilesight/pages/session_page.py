"""The page of a session: where its candidates stand, how it found the best, and under which conditions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from ..errors import InputError
from ..records.intervals import median_interval
from ..records.recorded_session import RecordedSession
from ..records.session import SessionResult, SessionState
from ..records.trial import Status, TrialRecord
from ..reports.numbers import number, percent
from ..reports.numbers import value as value_text
from .candidates import PARAMETER, candidate_table
from .levels import Level, levels
from .values import (
    Axis,
    Band,
    Bar,
    Bars,
    Column,
    Facts,
    Figure,
    Line,
    Matrix,
    Page,
    Parallel,
    Plane,
    Points,
    Source,
    Steps,
    Table,
    Texts,
)

MOST_SHOWN = 12  # candidates in the figure of utilization
CANDIDATES, FINALISTS, FAILURES, UTILIZATION = "candidates", "finalists", "failures", "utilization"
_ABOUT = ("rank", "status", "measured_us", "predicted_us", "sigma", "limiting", "next_limit", "left_us")


def session_page(found: RecordedSession) -> Page:
    """The page of a recorded session. Raises `InputError` if it has no candidates."""
    result, summary = found.result, found.summary
    if not result.trials:
        raise InputError(
            f"session {summary.id} has no candidates yet: there is nothing to draw; "
            "`tilesight sessions` lists the sessions with the number of their candidates"
        )
    chip = result.chip
    where = levels(chip) if chip is not None else ()
    tables = {CANDIDATES: candidate_table(found, where)}
    parts: list[Figure | Facts | Texts] = [_summary(found)]
    if warnings := list(_warnings(found)):
        parts.append(Texts("What to know first", warnings, is_warning=True))
    parts += _roofline(result, tables[CANDIDATES], where)
    if finalists := _finalists(result):
        tables[FINALISTS] = finalists
        parts.append(_finalist_figure())
    if any(t.measured_us is not None and t.predicted_us is not None for t in result.trials):
        parts.append(_errors(result, tables[CANDIDATES]))
    parts += _progress(tables[CANDIDATES])
    if used := _utilization(result):
        tables[UTILIZATION] = used
        parts.append(_utilization_figure())
    parts += _landscapes(tables[CANDIDATES])
    if failed := _failures(result):
        tables[FAILURES] = failed
        parts.append(_failure_figure())
    parts += [*_conditions(found), _legend()]
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
            interval = f"{number(best.predicted_us)} us, give or take {percent(best.prediction.uncertainty)}"
            rows.append(("its predicted time (one sigma)", interval))
            rows.append(("what limits it, predicted", best.prediction.limiting))
        rows.append(("best config", str(best.config)))
        if result.flops and us:
            rows.append((f"its rate, {known}", f"{number(floor.tflops(us))} TFLOP/s"))
        if floor.is_known and us:
            share = f"{number(floor.latency_us)} us, of which it reaches {percent(floor.share(us))}"
            rows.append(("limit of the hardware", share))
    fastest = result.fastest_baseline
    if fastest is not None:
        rows.append(("fastest other implementation, measured", f"{fastest.name}: {number(fastest.latency_us)} us"))
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
        yield "Nothing was measured and verified: all times here are predicted, except those marked otherwise."
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


def _roofline(result: SessionResult, table: Table, where: Sequence[Level]) -> Iterator[Figure]:
    """The roofline at each level, if operations are counted and the target is known."""
    chip = result.chip
    if not result.flops or chip is None:
        return
    peak = chip.matrix_tflops(result.context.workload.dtype)
    charts = {}
    for level in where:
        known = [x for x in table.columns[level.key].values if isinstance(x, int | float) and x > 0]
        if not known:
            continue
        ridge = 1e3 * peak / level.gb_per_s
        first, last = min(*known, ridge) / 2, max(*known, ridge) * 2
        roof = ((first, first * level.gb_per_s / 1e3), (ridge, peak), (last, peak))
        layers = (
            Line(f"limit: {number(level.gb_per_s)} GB/s, {number(peak)} TFLOP/s", Source.LIMIT, roof),
            Points("predicted, not measured", Source.PREDICTED, level.key, "predicted_rate", unless="measured_us"),
            Points("measured", Source.MEASURED, level.key, "measured_rate"),
        )
        x = Axis(f"operations per byte of {level.name}, as the model counts them", "FLOP/B", is_log=True)
        charts[level.name] = Plane(x, Axis("rate", "TFLOP/s", is_log=True), layers)
    if not charts:
        return
    typical = "" if result.limit.is_known else " The limits are those of a typical processor, not of this one."
    yield Figure(
        "roofline",
        "Roofline",
        "How far each candidate is from the limits of the hardware. Left of the bend the bandwidth of the "
        "level limits, right of it the arithmetic. Bytes are always the model's count: the busy time of the "
        f"level times its bandwidth. Hints say what limits a candidate, and the least time without it.{typical}",
        CANDIDATES,
        charts,
        (*_ABOUT, "measured_rate", "predicted_rate", *(level.key for level in where), *table.parameters),
        choice="memory level",
    )


def _finalists(result: SessionResult) -> Table | None:
    """Finalists, which were timed in turns, and other implementations, with intervals of their medians."""
    rows: list[tuple[str, str, Source, Sequence[float]]] = []
    for place, trial in enumerate(result.trials, 1):
        measured = trial.measurement
        if measured is not None and measured.samples_us and measured.observed.get("in_turns"):
            source = Source.NOISY if trial.status is Status.NOISY else Source.MEASURED
            rows.append((f"candidate {place}", str(trial.config), source, measured.samples_us))
    rows += [(b.name, "", Source.VENDOR, b.samples_us) for b in result.baselines]
    if not rows:
        return None
    times = [median(samples) for *_, samples in rows]
    intervals = [median_interval(samples) for *_, samples in rows]

    def of(*sources: Source) -> list[float | None]:
        return [us if row[2] in sources else None for row, us in zip(rows, times, strict=True)]

    return Table(
        "implementations",
        {
            "name": Column("implementation", [name for name, *_ in rows]),
            "measured_us": Column("measured time", of(Source.MEASURED), "us", Source.MEASURED),
            "noisy_us": Column("noisy time", of(Source.NOISY), "us", Source.NOISY),
            "vendor_us": Column("time of another implementation", of(Source.VENDOR), "us", Source.VENDOR),
            "low_us": Column("95 % interval from", [low for low, _ in intervals], "us"),
            "high_us": Column("to", [high for _, high in intervals], "us"),
            "samples": Column("samples", [len(samples) for *_, samples in rows]),
            "config": Column("config", [config or None for _, config, *_ in rows]),
        },
    )


def _finalist_figure() -> Figure:
    series = (
        Bar("candidate, measured", Source.MEASURED, "measured_us", "low_us", "high_us"),
        Bar("candidate, noisy", Source.NOISY, "noisy_us", "low_us", "high_us"),
        Bar("other implementation, measured", Source.VENDOR, "vendor_us", "low_us", "high_us"),
    )
    return Figure(
        "finalists",
        "Finalists and other implementations",
        "Timed in turns on the same inputs. Whiskers are 95 % intervals of the median; six samples are needed "
        "for one. Finalists whose samples cannot be told apart are decided by simplicity.",
        FINALISTS,
        {"": Bars(Axis("time", "us"), "name", series)},
        ("name", "measured_us", "noisy_us", "vendor_us", "low_us", "high_us", "samples", "config"),
    )


def _errors(result: SessionResult, table: Table) -> Figure:
    """Predicted against measured times with the band of one sigma."""
    both = [
        (t.measured_us, t.predicted_us, t.prediction.uncertainty)
        for t in result.trials
        if t.measured_us is not None and t.predicted_us is not None and t.prediction is not None
    ]
    sigma = median(s for *_, s in both)
    inside = sum(max(p / m, m / p) <= 1 + s for m, p, s in both)
    times = [us for pair in both for us in pair[:2]]
    ends = (min(times) / 1.1, max(times) * 1.1)
    layers = (
        Band(
            f"one sigma, {percent(sigma)} (median)",
            Source.LIMIT,
            tuple((us, us / (1 + sigma), us * (1 + sigma)) for us in ends),
        ),
        Line("equal", Source.LIMIT, tuple((us, us) for us in ends), is_dashed=True),
        Points("predicted time of a measured candidate", Source.PREDICTED, "measured_us", "predicted_us", error="sigma"),
    )
    axes = Axis("measured time", "us", is_log=True), Axis("predicted time", "us", is_log=True)
    return Figure(
        "errors",
        "Predicted against measured",
        f"{inside} of {len(both)} measured candidates ({percent(inside / len(both))}) lie within their own one "
        "sigma; 68 % are expected. The measured ones were chosen for their predictions, so they are no even "
        "sample of the space.",
        CANDIDATES,
        {"": Plane(*axes, layers)},
        (*_ABOUT, *table.parameters),
    )


def _progress(table: Table) -> Iterator[Figure]:
    """The best so far, if it is known when candidates were predicted or measured."""
    charts = {}
    for choice, unit, key in (("candidates", "", "number"), ("seconds", "s", "second")):
        layers: list[Points | Steps] = []
        for name, source in (("predicted", Source.PREDICTED), ("measured", Source.MEASURED)):
            x = f"{name}_{key}"
            if any(value is not None for value in table.columns[x].values):
                layers.append(Points(name, source, x, f"{name}_us"))
                layers.append(Steps(f"best {name} so far", source, x, f"{name}_best_us"))
        if layers:
            axis = Axis("since the session began" if unit else "candidates so far", unit)
            charts[choice] = Plane(axis, Axis("time of the candidate", "us", is_log=True), tuple(layers))
    if charts:
        moments = [f"{n}_{k}" for n in ("predicted", "measured") for k in ("number", "second", "best_us")]
        yield Figure(
            "progress",
            "Best so far",
            "Each candidate when it was predicted or measured, and the best until then; predictions and "
            "measurements are counted separately. Results that the "
            "session recalled from earlier ones stand at its beginning. Finalists stand where they were timed "
            "last.",
            CANDIDATES,
            charts,
            ("rank", "status", "measured_us", "predicted_us", *moments, *table.parameters),
            choice="over",
        )


def _utilization(result: SessionResult) -> Table | None:
    """The predicted busy share of each resource, of the best candidates."""
    shown = [t for t in result.trials if t.prediction is not None and t.status is not Status.FAILED]
    rows = [
        (f"{place}", resource, 100 * share, trial.prediction.limiting, str(trial.config))
        for place, trial in enumerate(shown[:MOST_SHOWN], 1)
        if trial.prediction is not None
        for resource, share in trial.prediction.utilization.items()
    ]
    if not rows:
        return None
    names = ("candidate", "resource", "busy", "limiting", "config")
    columns = {name: Column(name, values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
    columns["busy"] = Column("busy share, predicted", columns["busy"].values, "%", Source.PREDICTED)
    return Table("resources of candidates", columns)


def _utilization_figure() -> Figure:
    values = (Bar("predicted busy share", Source.PREDICTED, "busy"),)
    return Figure(
        "utilization",
        "Utilization of the best candidates",
        "The predicted share of the kernel's time in which each resource is busy, of the best candidates in "
        "their order. The brighter a cell, the busier the resource.",
        UTILIZATION,
        {"": Matrix(("candidate",), ("resource",), values, "busy share, predicted", "%", is_least_best=False)},
        ("candidate", "resource", "busy", "limiting", "config"),
    )


def _landscapes(table: Table) -> Iterator[Figure]:
    """The landscape over two parameters, and parallel coordinates, of parameters with several values."""
    varied = tuple(key for key in table.parameters if len(set(table.columns[key].values)) > 1)
    values = (
        Bar("measured", Source.MEASURED, "measured_us"),
        Bar("predicted", Source.PREDICTED, "predicted_us"),
    )
    columns = ("rank", "status", "measured_us", "predicted_us", "limiting", *table.parameters)
    if len(varied) > 1:
        yield Figure(
            "landscape",
            "Landscape over two parameters",
            "The best time of all candidates with these two values. A measured time stands for a cell that has "
            "one; otherwise the cell is hatched and shows a predicted time, with ~ before it. The brighter a cell, "
            "the faster.",
            CANDIDATES,
            {"": Matrix(varied, varied, values, "best time", "us")},
            columns,
        )
    if varied:
        yield Figure(
            "parallel",
            "Parallel coordinates",
            "A line for each candidate: its parameters, and its time at the right. Solid lines end at a measured "
            "time, thin dashed ones at a predicted time. The filters apply to all figures of candidates.",
            CANDIDATES,
            {"": Parallel(varied, values, "time", "us")},
            columns,
        )


def _failures(result: SessionResult) -> Table | None:
    """Failures by kind and message, the most frequent first."""
    counted = Counter((t.failure.kind.value, t.failure.message) for t in result.trials if t.failure)
    if not counted:
        return None
    rows = counted.most_common()
    return Table(
        "failures",
        {
            "kind": Column("kind of failure", [kind for (kind, _), _ in rows]),
            "count": Column("candidates", [count for _, count in rows]),
            "message": Column("message", [message for (_, message), _ in rows]),
        },
    )


def _failure_figure() -> Figure:
    series = (Bar("candidates", Source.PLAIN, "count"),)
    return Figure(
        "failures",
        "Failures by kind",
        "Candidates that failed, by stage and kind, with the messages in the table.",
        FAILURES,
        {"": Bars(Axis("candidates"), "kind", series)},
        ("kind", "count", "message"),
    )


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
        for name, value in each.environment.items():
            environment.setdefault(name, set()).add(str(value))
    known = {name for name, _ in rows}
    rows += [(n, ", ".join(sorted(values))) for n, values in environment.items() if n not in known]
    yield Facts("Environment", rows)
    protocol: dict[str, set[str]] = {}
    for each in measured:
        for name, value in each.protocol.items():
            protocol.setdefault(name, set()).add(value_text(value))
    if protocol:
        yield Facts("Protocol of the measurements", [(n, " or ".join(sorted(v))) for n, v in protocol.items()])
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
            "A filled blue circle or bar is a measured time of a candidate whose results were checked. A hollow "
            "orange diamond, a dashed line or a hatched cell is predicted and was never measured. Green squares "
            "are measured times of other implementations. Grey lines are limits, from figures of the target.",
        ),
    )


__all__ = ["CANDIDATES", "PARAMETER", "session_page"]
