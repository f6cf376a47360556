"""The figures of a session: roofline, finalists, errors, the search, utilization, landscapes, failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from ..records.intervals import median_interval
from ..records.session import SessionResult
from ..records.trial import Status
from ..reports.numbers import number, percent
from ..reports.numbers import sigma as sigma_text
from .levels import MemoryLevel
from .values import (
    Axis,
    Band,
    Bar,
    BarChart,
    Line,
    Matrix,
    PageColumn,
    PageFigure,
    PageTable,
    Parallel,
    Plane,
    Points,
    Source,
    Steps,
)

MOST_SHOWN = 12  # candidates in the figure of utilization
MOST_ALONE = 5  # candidates beside other implementations, if no finalists were compared
CANDIDATES, FINALISTS, FAILURES, UTILIZATION = "candidates", "finalists", "failures", "utilization"
_ABOUT = ("rank", "status", "measured_us", "predicted_us", "sigma", "limiting", "next_limit", "left_us")


def roofline(result: SessionResult, table: PageTable, where: Sequence[MemoryLevel]) -> Iterator[PageFigure]:
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
        layers: list[Points | Steps | Line | Band] = [
            Line(f"limit: {number(level.gb_per_s)} GB/s, {number(peak)} TFLOP/s", Source.LIMIT, roof),
            Points(
                "predicted, not measured", Source.PREDICTED, level.key, "predicted_rate", unless="measured_us"
            ),
            Points("measured", Source.MEASURED, level.key, "measured_rate"),
        ]
        if any(trial.noisy_us is not None for trial in result.trials):
            layers.append(Points("noisy", Source.NOISY, level.key, "noisy_rate"))
        x = Axis(f"operations per byte of {level.name}, as the model counts them", "FLOP/B", is_log=True)
        charts[level.name] = Plane(x, Axis("rate", "TFLOP/s", is_log=True), tuple(layers))
    if not charts:
        return
    typical = (
        "" if result.limit.is_known else " The limits are those of a typical processor, not of this one."
    )
    yield PageFigure(
        "roofline",
        "Roofline",
        "How far each candidate is from the limits of the hardware. Left of the bend the bandwidth of the "
        "level limits, right of it the arithmetic. Bytes are always the model's count: the busy time of the "
        "level times its bandwidth. Hints say what limits a candidate, and the least time without "
        f"it.{typical}",
        CANDIDATES,
        charts,
        (*_ABOUT, "measured_rate", "predicted_rate", *(level.key for level in where), *table.parameters),
        choice="memory level",
    )


def finalist_table(result: SessionResult) -> PageTable | None:
    """Finalists and other implementations, with intervals of their medians.

    If no finalists were compared, the best measured candidates, which were timed alone.
    """
    timed = [
        (place, trial, trial.measurement)
        for place, trial in enumerate(result.trials, 1)
        if trial.measurement is not None and trial.measurement.samples_us
    ]
    compared = [each for each in timed if each[2].observed.get("in_turns")]
    rows: list[tuple[str, str, Source, Sequence[float]]] = [
        (
            f"candidate {place}" if compared else f"candidate {place}, timed alone",
            str(trial.config),
            Source.NOISY if trial.status is Status.NOISY else Source.MEASURED,
            measurement.samples_us,
        )
        for place, trial, measurement in compared or timed[:MOST_ALONE]
    ]
    rows += [(b.name, "", Source.VENDOR, b.samples_us) for b in result.baselines]
    if not rows:
        return None
    times = [median(samples) for *_, samples in rows]
    intervals = [median_interval(samples) for *_, samples in rows]

    def of(*sources: Source) -> list[float | None]:
        return [us if row[2] in sources else None for row, us in zip(rows, times, strict=True)]

    return PageTable(
        "implementations",
        {
            "name": PageColumn("implementation", [name for name, *_ in rows]),
            "measured_us": PageColumn("measured time", of(Source.MEASURED), "us", Source.MEASURED),
            "noisy_us": PageColumn("noisy time", of(Source.NOISY), "us", Source.NOISY),
            "vendor_us": PageColumn("time of another implementation", of(Source.VENDOR), "us", Source.VENDOR),
            "low_us": PageColumn("95 % interval from", [low for low, _ in intervals], "us"),
            "high_us": PageColumn("to", [high for _, high in intervals], "us"),
            "samples": PageColumn("samples", [len(samples) for *_, samples in rows]),
            "config": PageColumn("config", [config or None for _, config, *_ in rows]),
        },
    )


def finalist_figure() -> PageFigure:
    series = (
        Bar("candidate, measured", Source.MEASURED, "measured_us", "low_us", "high_us"),
        Bar("candidate, noisy", Source.NOISY, "noisy_us", "low_us", "high_us"),
        Bar("other implementation, measured", Source.VENDOR, "vendor_us", "low_us", "high_us"),
    )
    return PageFigure(
        "finalists",
        "Finalists and other implementations",
        "Timed in turns on the same inputs, unless a name says otherwise. Whiskers are 95 % intervals of "
        "the median; six samples are needed for one. Finalists whose samples cannot be told apart are "
        "decided by simplicity.",
        FINALISTS,
        {"": BarChart(Axis("time", "us"), "name", series)},
        ("name", "measured_us", "noisy_us", "vendor_us", "low_us", "high_us", "samples", "config"),
    )


def error_figure(result: SessionResult, table: PageTable) -> PageFigure:
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
            f"one sigma, {sigma_text(sigma)} (median)",
            Source.LIMIT,
            tuple((us, us / (1 + sigma), us * (1 + sigma)) for us in ends),
        ),
        Line("equal", Source.LIMIT, tuple((us, us) for us in ends), is_dashed=True),
        Points(
            "predicted time of a measured candidate",
            Source.PREDICTED,
            "measured_us",
            "predicted_us",
            error="sigma",
        ),
    )
    axes = Axis("measured time", "us", is_log=True), Axis("predicted time", "us", is_log=True)
    return PageFigure(
        "errors",
        "Predicted against measured",
        f"{inside} of {len(both)} measured candidates ({percent(inside / len(both))}) lie within their own "
        "one sigma; 68 % are expected. The measured ones were chosen for their predictions, so they are no "
        "even sample of the space.",
        CANDIDATES,
        {"": Plane(*axes, layers)},
        (*_ABOUT, *table.parameters),
    )


def progress_figures(table: PageTable) -> Iterator[PageFigure]:
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
        yield PageFigure(
            "progress",
            "Best so far",
            "Each candidate when it was predicted or measured, and the best until then; predictions and "
            "measurements are counted separately. Results that the session recalled from earlier ones stand "
            "at its beginning. Finalists stand where they were timed last.",
            CANDIDATES,
            charts,
            ("rank", "status", "measured_us", "predicted_us", *moments, *table.parameters),
            choice="over",
        )


def utilization_table(result: SessionResult) -> PageTable | None:
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
    columns = {
        name: PageColumn(name, values) for name, values in zip(names, zip(*rows, strict=True), strict=True)
    }
    columns["busy"] = PageColumn("busy share, predicted", columns["busy"].values, "%", Source.PREDICTED)
    return PageTable("resources of candidates", columns)


def utilization_figure() -> PageFigure:
    values = (Bar("predicted busy share", Source.PREDICTED, "busy"),)
    return PageFigure(
        "utilization",
        "Utilization of the best candidates",
        "The predicted share of the kernel's time in which each resource is busy, of the best candidates in "
        "their order. The brighter a cell, the busier the resource.",
        UTILIZATION,
        {
            "": Matrix(
                ("candidate",), ("resource",), values, "busy share, predicted", "%", is_least_best=False
            )
        },
        ("candidate", "resource", "busy", "limiting", "config"),
    )


def landscape_figures(table: PageTable) -> Iterator[PageFigure]:
    """The landscape over two parameters, and parallel coordinates, of parameters with several values."""
    varied = tuple(key for key in table.parameters if len(set(table.columns[key].values)) > 1)
    values = (
        Bar("measured", Source.MEASURED, "measured_us"),
        Bar("predicted", Source.PREDICTED, "predicted_us"),
    )
    columns = ("rank", "status", "measured_us", "predicted_us", "limiting", *table.parameters)
    if len(varied) > 1:
        yield PageFigure(
            "landscape",
            "Landscape over two parameters",
            "The best time of all candidates with these two values. A measured time stands for a cell that "
            "has one; otherwise the cell is hatched and shows a predicted time, with ~ before it. The "
            "brighter a cell, the faster.",
            CANDIDATES,
            {"": Matrix(varied, varied, values, "best time", "us")},
            columns,
        )
    if varied:
        yield PageFigure(
            "parallel",
            "Parallel coordinates",
            "A line for each candidate: its parameters, and its time at the right. Thick lines end at a "
            "measured time, thin ones at a predicted time; those are dashed where there is room. The "
            "filters apply to all figures of candidates.",
            CANDIDATES,
            {"": Parallel(varied, values, "time", "us")},
            columns,
        )


def failure_table(result: SessionResult) -> PageTable | None:
    """Failures by kind and message, the most frequent first."""
    counted = Counter((t.failure.kind.value, t.failure.message) for t in result.trials if t.failure)
    if not counted:
        return None
    rows = counted.most_common()
    return PageTable(
        "failures",
        {
            "kind": PageColumn("kind of failure", [kind for (kind, _), _ in rows]),
            "count": PageColumn("candidates", [count for _, count in rows]),
            "message": PageColumn("message", [message for (_, message), _ in rows]),
        },
    )


def failure_figure() -> PageFigure:
    series = (Bar("candidates", Source.PLAIN, "count"),)
    return PageFigure(
        "failures",
        "Failures by kind",
        "Candidates that failed, by stage and kind, with the messages in the table.",
        FAILURES,
        {"": BarChart(Axis("candidates"), "kind", series)},
        ("kind", "count", "message"),
    )
