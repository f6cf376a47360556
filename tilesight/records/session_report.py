"""The report of a tuning session, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..problem.space import Config
from ..reports.numbers import number, percent, spread
from ..reports.report import Report
from .roofline import Roofline
from .trial import Status, TrialRecord

if TYPE_CHECKING:
    from .session import SessionResult


def session_report(result: SessionResult, top: int, variants: bool = False) -> Report:
    """The candidates, the vendor's times, the limit of the hardware, and the winner.

    Args:
        result: Of a session.
        top: Largest number of rows of candidates.
        variants: Show configs that differ only in the order of blocks as rows of their own.
    """
    report, floor = Report(), result.limit
    chip = result.context.target if result.chip is None else result.chip.title
    measured_on = f", measured on {result.context.device}" if result.is_measured else ""
    dynamic = f", dynamic {', '.join(result.context.dynamic)}" if result.context.dynamic else ""
    report.text(f"{result.context.workload.label}{dynamic} on {chip}{measured_on}", bold=True)
    report.text(f"search space: {result.census}")
    report.text(_trials_line(result))
    groups = _groups(result, variants)[:top]
    shown = [group[0] for group in groups]
    orders = [len(group) for group in groups] if any(len(group) > 1 for group in groups) else []
    report.text()
    if any(t.timed_us is not None for t in shown):
        _add_measured(report, shown, floor, orders)
    else:
        _add_predicted(report, shown, floor, orders)
    if orders:
        report.text(
            "orders: a row stands for that many candidates that differ only in the order of blocks. It shows "
            "the best; --variants lists all."
        )
    report.text()
    for line in _vendor_lines(result, floor):
        report.text(line)
    report.text(_limit_line(result, floor))
    if not floor.is_compute and any(
        t.measured_us is not None and t.measured_us < floor.latency_us for t in shown if floor.is_known
    ):
        report.text(
            "Some times are below that limit: under this protocol, data that fits the cache stays there "
            "between launches."
        )
    notes = list(result.messages)
    if (
        not result.is_measured
        and result.best is not None
        and (prediction := result.best.prediction) is not None
    ):
        interval = spread(prediction.uncertainty)
        report.text(f"predicted time of the best config: {number(prediction.latency_us)} us, {interval}")
        notes += [f"the prediction of the best config is less certain: {note}" for note in prediction.notes]
    for note in notes:
        report.text(f"note: {note}")
    if result.best is not None:
        # not wrapped, so that they can be copied
        report.line(f"best config: {result.best.config}")
        report.line(f"as a dict: {result.arguments or dict(result.best.config)}")
        if result.usage:
            report.line(f"in Python: {result.usage}")
    return report


def _groups(result: SessionResult, variants: bool) -> list[list[TrialRecord]]:
    """The candidates that did not fail, best first, those that differ only in block order together."""
    found: dict[Config, list[TrialRecord]] = {}
    for trial in result.trials:
        if trial.status is not Status.FAILED:
            base = trial.config if variants else result.reordered.get(trial.config, trial.config)
            found.setdefault(base, []).append(trial)
    return list(found.values())


def _add_rows(
    report: Report, columns: list[str], rows: list[list[object]], right: Sequence[str], orders: Sequence[int]
) -> None:
    """A table whose last column is the config; before it stands the column `orders`, unless that is empty."""
    if orders:
        columns = [*columns[:-1], "orders", columns[-1]]
        rows = [[*row[:-1], count, row[-1]] for row, count in zip(rows, orders, strict=True)]
    report.table(columns, rows, right=[*right, "orders"], folded=["config"])


def _limit_line(result: SessionResult, floor: Roofline) -> str:
    """The least time that the hardware allows, and what sets it."""
    is_cpu = result.context.arch == "native"
    if floor.is_known:
        bounds = ("vector peak", "caches and memory") if is_cpu else ("matrix peak", "device memory")
        bound = bounds[0] if floor.compute_us >= floor.memory_us else bounds[1]
        return f"hardware limit: {number(floor.latency_us)} us ({bound})"
    if is_cpu:
        return (
            "hardware limit: not known, since target cpu has the figures of a typical core; "
            "`tilesight calibrate --target cpu` measures those of this machine"
        )
    return f"hardware limit: not known, since there is no target {result.context.target}"


def _add_measured(
    report: Report, shown: Sequence[TrialRecord], floor: Roofline, orders: Sequence[int]
) -> None:
    unit, rate = _rate(floor, min((us for t in shown if (us := t.timed_us) is not None), default=1.0))
    columns = ["#", "status", "measured us", unit, "of limit", "predicted us", "config"]
    rows: list[list[object]] = []
    compared = any(trial.measured_us and _in_turns(trial) for trial in shown)
    for place, trial in enumerate(shown, 1):
        us = trial.timed_us
        measured = ["-", "-", "-"]
        if us is not None and trial.noisy_us is None:
            alone = " *" if compared and not _in_turns(trial) else ""
            measured = [f"{number(us)}{alone}", number(rate(us)), percent(floor.share(us))]
        elif us is not None and trial.measurement is not None:
            measured[0] = f"{number(us)} ± {trial.measurement.spread:.0%}"
        rows.append([place, trial.status.value, *measured, number(trial.predicted_us), trial.config])
    _add_rows(report, columns, rows, ["#", "measured us", unit, "of limit", "predicted us"], orders)
    if any(trial.noisy_us is not None for trial in shown):
        report.text(
            "Other work on the machine disturbed the noisy times. They answer no later call: run the same "
            "command again when the machine is idle."
        )
    if compared and any(trial.measured_us and not _in_turns(trial) for trial in shown):
        report.text(
            "* timed alone and earlier. The finalists were timed in turns at the end; the winner and those "
            "that cannot be distinguished from it come first."
        )


def _in_turns(trial: TrialRecord) -> bool:
    """Whether its time is that of the comparison of the finalists."""
    return trial.measurement is not None and bool(trial.measurement.observed.get("in_turns"))


def _add_predicted(
    report: Report, shown: Sequence[TrialRecord], floor: Roofline, orders: Sequence[int]
) -> None:
    unit, rate = _rate(floor, min((t.predicted_us for t in shown if t.predicted_us), default=1.0))
    columns = ["#", "status", "predicted us", f"predicted {unit}", "of limit", "limiting", "config"]
    rows: list[list[object]] = []
    for place, trial in enumerate(shown, 1):
        us, limiting = trial.predicted_us, trial.prediction.limiting if trial.prediction else ""
        rates = [number(us), number(us and rate(us)), percent(us and floor.share(us))]
        rows.append([place, trial.status.value, *rates, limiting, trial.config])
    _add_rows(report, columns, rows, ["#", "predicted us", f"predicted {unit}", "of limit"], orders)
    times = [trial.predicted_us for trial in shown if trial.predicted_us is not None]
    if times != sorted(times):
        report.text(
            "Rows are ranked by the model's ranking score, which is more reliable than its time estimate, "
            "so the times may not be in order."
        )


def _rate(floor: Roofline, latency_us: float) -> tuple[str, Any]:
    """Unit of the rate that the hardware limits for this workload, and its function of a time in us."""
    if not floor.is_compute:
        return "GB/s", floor.gb_per_s
    if floor.tflops(latency_us) >= 1:
        return "TFLOP/s", floor.tflops
    return "GFLOP/s", lambda us: 1e3 * floor.tflops(us)


def _trials_line(result: SessionResult) -> str:
    measured = sum(t.measurement is not None for t in result.trials)
    failures = Counter(t.failure.kind.value for t in result.trials if t.failure)
    parts = [f"{len(result.trials)} candidates", *([f"{measured} measured"] if measured else [])]
    parts += [f"{count} {kind}" for kind, count in failures.most_common()]
    source = "from the database" if result.from_database else f"{result.seconds:.1f} s"
    return f"effort {result.effort.value}: {', '.join(parts)}; {source}"


def _interval(spread: float) -> str:
    """Half of a confidence interval; a wider one says nothing about the time."""
    return f"± {spread:.0%}" if spread <= 1 else "± more than 100%"


def _vendor_lines(result: SessionResult, floor: Roofline) -> list[str]:
    if not result.baselines or result.best is None:
        return []
    ours_us = result.best.measured_us
    unit, rate = _rate(floor, ours_us or result.baselines[0].latency_us)
    lines = []
    for baseline in sorted(result.baselines, key=lambda b: b.latency_us):
        us = number(baseline.latency_us)
        if ours_us is None or baseline.is_noisy or result.is_undecided:
            noise = f" {_interval(baseline.spread)}" if baseline.is_noisy else ""
            lines.append(f"vendor: {baseline.name} {us} us{noise}; too noisy to compare")
            continue
        times = baseline.latency_us / ours_us
        lines.append(
            f"vendor: {baseline.name} {us} us, {number(rate(baseline.latency_us))} {unit}; ours is "
            f"{number(times, 3)}x as fast"
        )
    return lines
