"""Measure built kernels, in a worker process that owns the device.

A kernel is checked on random inputs before and after it is timed (`kernel_run.py`). Inputs and reference of
the current workload stay in the process for the next kernel.

A failed launch can make the process's CUDA context unusable. The failure is returned as data like any other;
if the device is unusable, the worker requests a fresh process for the next item (`workers.worker.retire`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ..errors import FailureKind
from ..problem.candidate import Candidate
from ..records.protocol import MeasurementProtocol
from ..records.session import Baseline, Comparison
from ..records.trial import BuildResult, Measurement
from ..workers.worker import retire
from .bench import Bench, BenchCase, bench_for
from .decide import Finalist, decide, settled
from .group.group_bench import GroupBench, group_bench_for
from .group.group_run import GroupRun
from .kernel_run import DEVICE_LOST, RUN_FAULTS, KernelRun, run_failure
from .turns import TurnSamples, collect_samples
from .vendors import vendor_calls


def measure_kernel(
    build: BuildResult, candidate: Candidate, protocol: MeasurementProtocol, rival_us: float | None = None
) -> Measurement:
    """Check and time one kernel. A failure of the kernel is part of the result.

    Args:
        build: The built kernel.
        candidate: Its candidate.
        protocol: How to measure.
        rival_us: Sampling stops once the kernel is slower than this by a tenth with confidence; then
            `observed["stopped_early"]` is 1.

    Raises:
        ToolchainError: This process has no device of the candidate's target.
    """
    bench = _bench_for(candidate, protocol)
    bench.conditions.begin()
    run = _new_run(build, candidate, bench, protocol)
    try:
        _measure_alone(run, rival_us)
    except RUN_FAULTS as error:
        run.fail(error)
    close_runs([run], bench)
    return run.measurement()


def _bench_for(candidate: Candidate, protocol: MeasurementProtocol) -> Bench:
    communicates, target = candidate.template.operator.communicates, candidate.target
    return group_bench_for(target, protocol) if communicates else bench_for(target, protocol)


def _new_run(
    build: BuildResult, candidate: Candidate, bench: Bench, protocol: MeasurementProtocol
) -> KernelRun:
    kind = GroupRun if isinstance(bench, GroupBench) else KernelRun
    return kind(build, candidate, bench, protocol)


def _measure_alone(run: KernelRun, rival_us: float | None) -> None:
    bench, case = run.bench, _case(run)
    run.prepare(case)
    if run.failure is None:
        _record(
            [run], collect_samples(bench.timer, [run.call], run.protocol, bench.conditions, rival_us), bench
        )
        run.check_again(case)


def measure_together(
    kernels: Sequence[tuple[BuildResult, Candidate]],
    protocol: MeasurementProtocol,
    *,
    with_vendor: bool = True,
) -> Comparison:
    """Check several kernels, time the correct ones in turns, and decide which kernel wins.

    Args:
        kernels: Builds with their candidates, for one operator, workload and target.
        protocol: How to measure; sampling goes on until the tied finalists are known.
        with_vendor: Whether the vendor's implementations take turns, too.

    Raises:
        ValueError: The kernels are not for one operator, workload and target.
        ToolchainError: This process has no device of the target.
    """
    if len({(c.target, c.workload, c.template.operator.name) for _, c in kernels}) != 1:
        raise ValueError("kernels are measured together for one operator, workload and target")
    _, first = kernels[0]
    bench = _bench_for(first, protocol)
    bench.conditions.begin()
    runs = [_new_run(build, candidate, bench, protocol) for build, candidate in kernels]
    found = Comparison((), ())
    try:
        found = _measure_in_turns(runs, with_vendor)
    except RUN_FAULTS as error:
        for run in runs:
            run.fail(error)
    close_runs(runs, bench)
    finalists = [
        Finalist(r.candidate.config, r.samples_us, r.build.resources) for r in runs if r.failure is None
    ]
    return replace(
        found,
        measurements=tuple(r.measurement() for r in runs),
        decision=decide(finalists) if finalists else None,
    )


def _measure_in_turns(runs: Sequence[KernelRun], with_vendor: bool) -> Comparison:
    """Sample the kernels (their samples stay in `runs`) and the vendor's implementations (returned)."""
    bench, case = runs[0].bench, _case(runs[0])
    for run in runs:
        run.prepare(case)
        if run.failure is not None and bench.is_usable() and case.overwritten() is not None:
            bench.restore(case)  # for the next kernel
    if bench.timer.broken:
        raise RuntimeError(DEVICE_LOST)
    correct = [run for run in runs if run.failure is None]
    calls, notes = vendor_calls(bench, case) if with_vendor else ({}, ())
    taken = collect_samples(
        bench.timer,
        [*(run.call for run in correct), *calls.values()],
        runs[0].protocol,
        bench.conditions,
        enough=lambda columns: len(correct) < 2 or settled(columns[: len(correct)]),
    )
    _record(correct, taken, bench)
    for run in correct:
        run.observed["in_turns"] = 1.0
        run.check_again(case)
    vendor = zip(calls, taken.samples_us[len(correct) :], strict=True)
    return Comparison((), tuple(Baseline(name, samples) for name, samples in vendor), notes)


def _case(run: KernelRun) -> BenchCase:
    """The bench's case for a run. Raises `MemoryError` if the workload itself is too large for the device."""
    try:
        return run.bench.case(run.candidate.template.operator, run.candidate.workload, run.protocol)
    except RUN_FAULTS as error:
        failure = run_failure(error)
        if failure.kind is not FailureKind.RUN_MEMORY:
            raise
    raise MemoryError(
        f"inputs and reference of {run.candidate.workload.label} need more memory than is free: "
        f"{failure.message}"
    )


def _record(runs: Sequence[KernelRun], taken: TurnSamples, bench: Bench) -> None:
    seen = bench.conditions.observed()
    for run, samples, launches in zip(runs, taken.samples_us, taken.launches, strict=False):
        run.samples_us = samples
        run.observed |= seen | {
            "samples": float(len(samples)),
            "launches": float(launches),
            "retaken": float(taken.retaken),
            "disturbed": taken.disturbed,
            "stopped_early": float(taken.stopped_early),
        }


def close_runs(runs: Sequence[KernelRun], bench: Bench) -> None:
    """Free the runs' memory, and request a fresh process if the device is unusable.

    If it is known to be, nothing is freed: unloading a kernel waits for a device, which may wait for ever.
    """
    if bench.timer.broken:
        retire()
        return
    for run in runs:
        run.close()
    failures = [run.failure for run in runs if run.failure is not None]
    if failures:
        bench.drop_case()
    if any(failure.kind is FailureKind.RUN_MEMORY for failure in failures):
        with suppress(RuntimeError):  # the device is unusable: handled below
            bench.free_memory()
    if failures and not bench.is_usable():
        retire()
