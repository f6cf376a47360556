"""Measure built kernels, in a worker process that owns the device.

A kernel is checked on random inputs before and after it is timed (`kernel_run.py`). Inputs and reference of the present
workload stay in the process for the next kernel.

A launch that fails can spoil the process's CUDA context for good. The failure is returned as data like any other, and
where the device does not answer any more the worker asks to be replaced (`workers.process.retire`), which its pool does
before the next item.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ..candidate import Candidate
from ..errors import FailureKind, headline
from ..protocol import Protocol
from ..session import Baseline, Comparison
from ..trial import BuildResult, Measurement
from ..workers.process import retire
from .bench import Bench, Case, bench_for
from .decide import Finalist, decide, settled
from .kernel_run import RUN_FAULTS, KernelRun, in_turn, run_failure
from .timing import Call
from .turns import Taken, collect


def measure_kernel(build: BuildResult, candidate: Candidate, protocol: Protocol, rival_us: float | None = None) -> Measurement:
    """Check and time one kernel. What goes wrong with the kernel is part of the result.

    Sampling ends as soon as the kernel is certainly slower than `rival_us` by a tenth: `observed["stopped_early"]` is 1 then.
    Raises `ToolchainError` where this process has no device of the candidate's target.
    """
    bench = bench_for(candidate.target, protocol)
    bench.conditions.begin()
    run = KernelRun(build, candidate, bench, protocol)
    try:
        _alone(run, rival_us)
    except RUN_FAULTS as error:
        run.fail(error)
    _close([run], bench)
    return run.measurement()


def _alone(run: KernelRun, rival_us: float | None) -> None:
    bench, case = run.bench, _case(run)
    run.prepare(case)
    if run.failure is None:
        _note([run], collect(bench.timer, [run.call], run.protocol, bench.conditions, rival_us), bench)
        run.check_again(case)


def measure_together(kernels: Sequence[tuple[BuildResult, Candidate]], protocol: Protocol) -> Comparison:
    """Check several kernels for one workload, time in turns those that are right, with the vendor's beside them, until it is
    clear who is fastest, and decide who wins.

    Raises `ValueError` where the kernels are not for one workload and target, `ToolchainError` as `measure_kernel` does.
    """
    if len({(c.target, c.workload, c.template.operator.name) for _, c in kernels}) != 1:
        raise ValueError("kernels are measured together for one operator, workload and target")
    _, first = kernels[0]
    bench = bench_for(first.target, protocol)
    bench.conditions.begin()
    runs = [KernelRun(build, candidate, bench, protocol) for build, candidate in kernels]
    found = Comparison((), ())
    try:
        found = _in_turns(runs)
    except RUN_FAULTS as error:
        for run in runs:
            run.fail(error)
    _close(runs, bench)
    finalists = [Finalist(r.candidate.config, r.samples_us, r.build.resources) for r in runs if r.failure is None]
    return replace(found, measurements=tuple(r.measurement() for r in runs), decision=decide(finalists) if finalists else None)


def _in_turns(runs: Sequence[KernelRun]) -> Comparison:
    """The vendor's part of what is found; the kernels' stays with their runs."""
    bench, case = runs[0].bench, _case(runs[0])
    for run in runs:
        run.prepare(case)
        if run.failure is not None and bench.answers() and case.overwritten() is not None:
            case.restore()  # the next one is not to blame
    right = [run for run in runs if run.failure is None]
    calls, notes = _vendor_calls(bench, case)
    taken = collect(
        bench.timer,
        [*(run.call for run in right), *calls.values()],
        runs[0].protocol,
        bench.conditions,
        enough=lambda columns: len(right) < 2 or settled(columns[: len(right)]),
    )
    _note(right, taken, bench)
    for run in right:
        run.check_again(case)
    vendor = zip(calls, taken.samples_us[len(right) :], strict=True)
    return Comparison((), tuple(Baseline(name, samples) for name, samples in vendor), notes)


def _case(run: KernelRun) -> Case:
    """Raises `MemoryError` where the workload itself is too large, which is no fault of the candidate."""
    try:
        return run.bench.case(run.candidate.template.operator, run.candidate.workload, run.protocol)
    except RUN_FAULTS as error:
        failure = run_failure(error)
        if failure.kind is not FailureKind.RUN_MEMORY:
            raise
    raise MemoryError(f"inputs and reference of {run.candidate.workload.label} need more memory than is free: {failure.message}")


def _note(runs: Sequence[KernelRun], taken: Taken, bench: Bench) -> None:
    seen = bench.conditions.observed()
    for run, samples, launches in zip(runs, taken.samples_us, taken.launches, strict=False):
        run.samples_us = samples
        run.observed |= seen | {
            "samples": float(len(samples)),
            "launches": float(launches),
            "retaken": float(taken.retaken),
            "stopped_early": float(taken.stopped_early),
        }


def _close(runs: Sequence[KernelRun], bench: Bench) -> None:
    """Leave the bench fit for the next kernel, or ask for another process."""
    for run in runs:
        run.close()
    failures = [run.failure for run in runs if run.failure is not None]
    if failures:
        bench.forget()
    if any(failure.kind is FailureKind.RUN_MEMORY for failure in failures):
        with suppress(RuntimeError):  # of a device that does nothing any more: seen below
            bench.give_back_memory()
    if bench.timer.broken or (failures and not bench.answers()):
        retire()


def _vendor_calls(bench: Bench, case: Case) -> tuple[dict[str, Call], tuple[str, ...]]:
    """The vendor implementations that work here, on the sets of inputs in turn, and notes on the others."""
    try:
        offered = [case.operator.vendor(case.workload, given.inputs) for given in case.sets]
    except Exception as error:
        return {}, (f"no vendor library to compare with: {headline(str(error))}",)
    calls, notes = {}, []
    for name in offered[0]:
        call = in_turn([one[name] for one in offered if name in one])
        try:
            for _ in case.sets:
                call()
            bench.timer.stretch(call)
            bench.timer.synchronize()
        except Exception as error:
            notes.append(f"{name} was left out: {headline(str(error) or type(error).__name__)}")
            continue
        finally:
            bench.timer.release()
        calls[name] = call
    return calls, tuple(notes)
