"""The report of a tuning session: a table for people, fields for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import NoCandidateError
from ..records.roofline import Roofline, roofline
from ..records.session import Decision, SessionResult
from ..records.trial import Status, TrialRecord
from ..target.spec import Target, load_target
from ..tuner.observers import Observer, Observers
from . import output
from .output import number, percent


class _Results(Observer):
    """Collects the fields of each result; prints the result at once unless JSON was requested."""

    def __init__(self, target: str, top: int, prints: bool) -> None:
        self._target, self._top, self._prints = target, top, prints
        self.fields: list[dict[str, Any]] = []

    def answered(self, result: SessionResult) -> None:
        target = target_of(result, self._target)
        if self._prints:
            if self.fields:
                output.print_text()
            print_result(result, target, self._top)
        self.fields.append(session_fields(result, target, self._top))


def show(
    kind: str,
    run: Callable[[Observer], object],
    target: str,
    top: int,
    as_json: bool,
    more: Callable[[], dict[str, Any]] = dict,
) -> None:
    """Run sessions, show their progress and print their results.

    Args:
        kind: Value of the JSON field `kind`.
        run: Runs the sessions and reports them to the observer.
        target: The target as the user gave it: a name or a file.
        top: Number of candidates to show of each session.
        as_json: Print one JSON object instead of tables.
        more: Returns further JSON fields beside `sessions`.
    """
    results = _Results(target, top, prints=not as_json)
    try:
        with output.progress() as progress:
            run(Observers([progress, results]))
    except NoCandidateError:
        if as_json and results.fields:
            output.print_json(kind, sessions=results.fields)
        raise
    if as_json:
        output.print_json(kind, sessions=results.fields, **more())


def target_of(result: SessionResult, given: str) -> Target:
    """The target of a result. `given` is the value of `--target`, which may be a file."""
    return load_target(given if given.endswith(".toml") or "/" in given else result.context.target)


def print_result(result: SessionResult, target: Target, top: int) -> None:
    workload = result.context.workload
    floor = roofline(target, workload.dtype, result.flops, result.min_bytes)
    measured_on = f", measured on {result.context.device}" if result.is_measured else ""
    dynamic = f", dynamic {', '.join(result.context.dynamic)}" if result.context.dynamic else ""
    output.print_text(f"{workload.label}{dynamic} on {target.title}{measured_on}", bold=True)
    output.print_text(_census_line(result))
    output.print_text(_trials_line(result))
    shown = [t for t in result.trials if t.status is not Status.FAILED][:top]
    output.print_text()
    has_noise = any(t.noisy_us is not None for t in shown)
    if result.is_measured or has_noise:
        _print_measured(shown, floor)
    else:
        _print_predicted(shown, floor)
    output.print_text()
    for line in _vendor_lines(result, floor):
        output.print_text(line)
    bound = "matrix peak" if floor.is_compute else "device memory"
    # the CPU target has the figures of a typical core, not of the present one
    name = "hardware limit" if result.context.arch != "native" else "nominal limit of one core"
    output.print_text(f"{name}: {number(floor.latency_us)} us ({bound})")
    if not floor.is_compute and any(
        t.measured_us is not None and t.measured_us < floor.latency_us for t in shown
    ):
        output.print_text(
            "Some times are below that limit: under this protocol, data that fits the cache stays there "
            "between launches."
        )
    notes = list(result.messages)
    if (
        not result.is_measured
        and result.best is not None
        and (prediction := result.best.prediction) is not None
    ):
        interval = f"give or take {percent(prediction.uncertainty)} (one sigma)"
        output.print_text(
            f"predicted time of the best config: {number(prediction.latency_us)} us, {interval}"
        )
        notes += [f"the prediction of the best config is less certain: {note}" for note in prediction.notes]
    for note in notes:
        output.print_text(f"note: {note}")
    if result.best is not None:
        # not wrapped, so that it can be copied
        output.print_line(f"best config: {result.best.config}")


def _print_measured(shown: Sequence[TrialRecord], floor: Roofline) -> None:
    known = [us for t in shown if (us := t.measured_us or t.noisy_us) is not None]
    unit, rate = _rate(floor, min(known, default=1.0))
    columns = ["#", "status", "measured us", unit, "of limit", "predicted us", "config"]
    rows = []
    compared = any(trial.measured_us and _in_turns(trial) for trial in shown)
    for place, trial in enumerate(shown, 1):
        us = trial.measured_us
        measured = ["-", "-", "-"]
        if us is not None:
            alone = " *" if compared and not _in_turns(trial) else ""
            measured = [f"{number(us)}{alone}", number(rate(us)), percent(floor.share(us))]
        elif trial.noisy_us is not None and trial.measurement is not None:
            measured[0] = f"{number(trial.noisy_us)} ± {trial.measurement.spread:.0%}"
        rows.append([place, trial.status.value, *measured, number(trial.predicted_us), trial.config])
    output.print_table(
        columns, rows, right=["#", "measured us", unit, "of limit", "predicted us"], folded=["config"]
    )
    if any(trial.noisy_us is not None for trial in shown):
        output.print_text(
            "Other work on the machine disturbed the noisy times. They answer no later call: run the same "
            "command again when the machine is idle."
        )
    if compared and any(trial.measured_us and not _in_turns(trial) for trial in shown):
        output.print_text(
            "* timed alone and earlier. The finalists were timed in turns at the end; the winner and those "
            "that cannot be distinguished from it come first."
        )


def _in_turns(trial: TrialRecord) -> bool:
    """Whether its time is that of the comparison of the finalists."""
    return trial.measurement is not None and bool(trial.measurement.observed.get("in_turns"))


def _print_predicted(shown: Sequence[TrialRecord], floor: Roofline) -> None:
    unit, rate = _rate(floor, min((t.predicted_us for t in shown if t.predicted_us), default=1.0))
    columns = ["#", "status", "predicted us", f"predicted {unit}", "of limit", "limiting", "config"]
    rows = []
    for place, trial in enumerate(shown, 1):
        us, limiting = trial.predicted_us, trial.prediction.limiting if trial.prediction else ""
        rates = [number(us), number(us and rate(us)), percent(us and floor.share(us))]
        rows.append([place, trial.status.value, *rates, limiting, trial.config])
    output.print_table(
        columns, rows, right=["#", "predicted us", f"predicted {unit}", "of limit"], folded=["config"]
    )
    times = [trial.predicted_us for trial in shown if trial.predicted_us is not None]
    if times != sorted(times):
        output.print_text(
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


def _census_line(result: SessionResult) -> str:
    census = result.census
    why = ", ".join(
        f"{name} {count}" for name, count in sorted(census.rejected.items(), key=lambda item: -item[1])
    )
    broken = f"; rules that the others break: {why}" if why else ""
    return f"search space: {census.legal} of {census.size} configs are legal{broken}"


def _trials_line(result: SessionResult) -> str:
    measured = sum(t.measurement is not None for t in result.trials)
    failures = Counter(t.failure.kind.value for t in result.trials if t.failure)
    parts = [f"{len(result.trials)} candidates", *([f"{measured} measured"] if measured else [])]
    parts += [f"{count} {kind}" for kind, count in failures.most_common()]
    source = "from the database" if result.from_database else f"{result.seconds:.1f} s"
    return f"effort {result.effort.value}: {', '.join(parts)}; {source}"


def _vendor_lines(result: SessionResult, floor: Roofline) -> list[str]:
    if not result.baselines or result.best is None:
        return []
    ours_us = result.best.measured_us
    unit, rate = _rate(floor, ours_us or result.baselines[0].latency_us)
    lines = []
    for baseline in sorted(result.baselines, key=lambda b: b.latency_us):
        us = number(baseline.latency_us)
        if ours_us is None or baseline.is_noisy:
            noise = f" ± {baseline.spread:.0%}" if baseline.is_noisy else ""
            lines.append(f"vendor: {baseline.name} {us}{noise} us; too noisy to compare")
            continue
        times = baseline.latency_us / ours_us
        lines.append(
            f"vendor: {baseline.name} {us} us, {number(rate(baseline.latency_us))} {unit}; ours is "
            f"{number(times, 3)}x as fast"
        )
    return lines


def session_fields(result: SessionResult, target: Target, top: int) -> dict[str, Any]:
    """JSON fields of one session; docs/cli.md lists them."""
    context, workload = result.context, result.context.workload
    floor = roofline(target, workload.dtype, result.flops, result.min_bytes)
    vendor, best = result.fastest_baseline, result.best
    return {
        "kernel": workload.operator,
        "template": context.template,
        "workload": workload.key,
        "shape": workload.name,
        "dims": workload.dims,
        "attrs": workload.attrs,
        "dtype": workload.dtype,
        "dynamic": list(context.dynamic),
        "target": context.target,
        "device": context.device or None,
        "protocol": context.protocol or None,
        "model": context.model,
        "software": context.software,
        "effort": result.effort.value,
        "state": result.state.value,
        "from_database": result.from_database,
        "seconds": result.seconds,
        "is_measured": result.is_measured,
        "is_noisy": result.is_noisy,
        "space": {
            "size": result.census.size,
            "legal": result.census.legal,
            "rejected": result.census.rejected,
        },
        "counts": Counter(t.status.value for t in result.trials),
        "failures": Counter(t.failure.kind.value for t in result.trials if t.failure),
        "flops": result.flops,
        "min_bytes": result.min_bytes,
        "limit_us": floor.latency_us,
        "candidates": [
            trial_fields(place, trial, floor)
            for place, trial in enumerate(
                [t for t in result.trials if t.status is not Status.FAILED][:top], 1
            )
        ],
        "vendor": [
            {"name": b.name, "latency_us": b.latency_us, "samples_us": b.samples_us} for b in result.baselines
        ],
        "decision": None if result.decision is None else decision_fields(result.decision),
        "speedup_over_vendor": vendor.latency_us / best.measured_us
        if vendor and not vendor.is_noisy and best and best.measured_us
        else None,
        "messages": result.messages,
    }


def decision_fields(decision: Decision) -> dict[str, Any]:
    return {
        "winner": dict(decision.winner),
        "tied": [dict(config) for config in decision.tied],
        "reason": decision.reason,
    }


def trial_fields(place: int, trial: TrialRecord, floor: Roofline) -> dict[str, Any]:
    measured, predicted, prediction = trial.measured_us, trial.predicted_us, trial.prediction
    return {
        "rank": place,
        "config": dict(trial.config),
        "status": trial.status.value,
        "measured_us": measured,
        "noisy_us": trial.noisy_us,
        "spread": trial.measurement.spread if trial.measurement and trial.measurement.samples_us else None,
        "measured_tflops": floor.tflops(measured) if measured else None,
        "measured_gb_per_s": floor.gb_per_s(measured) if measured else None,
        "measured_limit_share": floor.share(measured) if measured else None,
        "relative_error": trial.measurement.relative_error if trial.measurement else None,
        "predicted_us": predicted,
        "predicted_tflops": floor.tflops(predicted) if predicted else None,
        "predicted_gb_per_s": floor.gb_per_s(predicted) if predicted else None,
        "predicted_limit_share": floor.share(predicted) if predicted else None,
        "predicted_uncertainty": prediction.uncertainty if prediction else None,
        "limiting": prediction.limiting if prediction else None,
        "utilization": prediction.utilization if prediction else None,
    }
