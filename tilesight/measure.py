"""Measure built kernels, in a worker process that owns the device.

A kernel is measured on random inputs; its outputs are poisoned, computed, checked against the reference, timed, and
checked again. Inputs and reference of the present workload stay in the process for the next kernel.

A launch that fails can spoil the process's CUDA context for good. The failure is returned as data like any other, and
where the device does not answer any more the worker asks to be replaced (`worker_process.retire`), which its pool does
before the next item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .artifact import LaunchError, LoadedKernel
from .bench import Bench, Case, bench_for
from .candidate import Candidate
from .errors import Failure, FailureKind, headline
from .session import Baseline
from .target import Target
from .template import Operator
from .timing import Call, Protocol, collect
from .trial import BuildResult, Measurement
from .verify import check_outputs, poison
from .worker_process import retire
from .workload import Workload

if TYPE_CHECKING:
    import torch

# torch reports faults of the device and lack of its memory as RuntimeError
_RUN_FAULTS = (LaunchError, RuntimeError, MemoryError)


@dataclass(frozen=True, slots=True)
class Together:
    """Kernels and vendor implementations, timed in turns on the same inputs."""

    measurements: tuple[Measurement, ...]  # in the order of the kernels
    baselines: tuple[Baseline, ...]
    notes: tuple[str, ...] = ()  # vendor implementations that were left out, and why


def measure_kernel(build: BuildResult, candidate: Candidate, protocol: Protocol | None = None) -> Measurement:
    """Check and time one kernel. What goes wrong with the kernel is part of the result.

    Raises `ToolchainError` where this process has no device of the candidate's target.
    """
    protocol = protocol or Protocol.of(candidate.target)
    return measure_together([(build, candidate)], protocol, vendor=False).measurements[0]


def measure_together(
    kernels: Sequence[tuple[BuildResult, Candidate]], protocol: Protocol | None = None, *, vendor: bool = True
) -> Together:
    """Check several kernels for one workload, then time in turns those that are right, with the vendor's beside them.
    Without a protocol it is the careful one.

    Raises `ValueError` where the kernels are not for one workload and target, `ToolchainError` as `measure_kernel` does.
    """
    if len({(c.target, c.workload, c.template.operator.name) for _, c in kernels}) != 1:
        raise ValueError("kernels are measured together for one operator, workload and target")
    _, first = kernels[0]
    operator, protocol = first.template.operator, protocol or Protocol.careful(first.target)
    bench = bench_for(first.target, protocol)
    runs = [_Run(build, bench, protocol) for build, _ in kernels]
    baselines: tuple[Baseline, ...] = ()
    notes: tuple[str, ...] = ()
    try:
        case = bench.case(operator, first.workload, protocol.seed)
        for run in runs:
            run.prepare(case)
        right = [run for run in runs if run.failure is None]
        calls: dict[str, Call] = {}
        if vendor:
            calls, notes = _vendor_calls(bench, case)
        samples = collect(bench.timer, [*(run.call for run in right), *calls.values()], protocol)
        for run, taken in zip(right, samples, strict=False):
            run.check(case)  # the last launch too: a race shows now and then
            run.samples = tuple(taken)
        baselines = _baselines(calls, samples[len(right) :])
    except _RUN_FAULTS as error:
        for run in runs:
            run.fail(error)
    for run in runs:
        run.close()
    if any(run.failure for run in runs):
        bench.forget()
        if not bench.answers():
            retire()
    return Together(tuple(run.measurement() for run in runs), baselines, notes)


def measure_vendor(operator: Operator, workload: Workload, target: Target, protocol: Protocol | None = None) -> Together:
    """Time the vendor implementations of `operator` alone. Those that raise are left out with a note."""
    protocol = protocol or Protocol.careful(target)
    bench = bench_for(target, protocol)
    calls, notes = _vendor_calls(bench, bench.case(operator, workload, protocol.seed))
    return Together((), _baselines(calls, collect(bench.timer, list(calls.values()), protocol)), notes)


@dataclass
class _Run:
    """One kernel on the bench. Once `failure` is set, it is what the measurement says."""

    build: BuildResult
    bench: Bench
    protocol: Protocol
    samples: tuple[float, ...] = ()
    failure: Failure | None = None
    relative_error: float | None = None
    kernel: LoadedKernel | None = None
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    call: Call = field(default=lambda: None)

    def prepare(self, case: Case) -> None:
        """Load, run once on poisoned outputs, and check. What goes wrong is kept in `failure`."""
        if self.build.artifact is None:
            raise ValueError("a kernel that was not built cannot be measured")
        if not self.bench.answers():
            self.failure = Failure(FailureKind.RUN_ERROR, "not measured: a kernel that ran before it left the device unusable")
            return
        try:
            self.kernel = LoadedKernel(self.build.artifact, self.build.entry)
            self.outputs = case.outputs()
            poison(self.outputs)
            self.call = self.kernel.bind([*case.inputs.values(), *self.outputs.values()], self.bench.stream)
            self.call()
            self.bench.timer.synchronize()
            self.check(case)
        except _RUN_FAULTS as error:
            self.fail(error)

    def check(self, case: Case) -> None:
        verdict = check_outputs(case.operator, case.workload, self.outputs, case.reference)
        self.relative_error, self.failure = verdict.relative_error, verdict.failure

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = Failure(FailureKind.RUN_ERROR, headline(str(error) or type(error).__name__), str(error))

    def close(self) -> None:
        self.outputs.clear()
        if self.kernel is not None:
            self.kernel.close()

    def measurement(self) -> Measurement:
        return Measurement(
            samples_us=() if self.failure else self.samples,
            failure=self.failure,
            relative_error=self.relative_error,
            environment=dict(self.bench.environment) | {"compiler": self.build.compiler},
            protocol=self.protocol.record(),
        )


def _vendor_calls(bench: Bench, case: Case) -> tuple[dict[str, Call], tuple[str, ...]]:
    """The vendor implementations that work here, each called once, and notes on the others."""
    calls, notes = {}, []
    try:
        offered = case.operator.vendor(case.workload, case.inputs)
    except Exception as error:
        return {}, (f"no vendor library to compare with: {headline(str(error))}",)
    for name, call in offered.items():
        try:
            call()
            bench.timer.synchronize()
        except Exception as error:
            notes.append(f"{name} was left out: {headline(str(error) or type(error).__name__)}")
            continue
        calls[name] = call
    return calls, tuple(notes)


def _baselines(calls: dict[str, Call], samples: Sequence[Sequence[float]]) -> tuple[Baseline, ...]:
    return tuple(Baseline(name, tuple(taken)) for name, taken in zip(calls, samples, strict=True))
