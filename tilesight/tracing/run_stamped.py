"""Runs a stamped kernel beside the plain one, in the process that owns the device, and reads its stamps.

Both are checked against the reference of the operator on the inputs with which kernels are measured, then
timed in turns under the same protocol. What is read are the stamps of the last of these launches.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import Failure
from ..problem.candidate import Candidate
from ..records.protocol import MeasurementProtocol
from ..records.trial import BuildResult
from ..runner.bench import Bench, bench_for
from ..runner.kernel_run import RUN_FAULTS, KernelRun
from ..runner.measure import close_runs
from ..runner.turns import TurnSamples, collect_samples
from . import layout
from .build_stamped import StampedBuild
from .decode import read_trace
from .values import KernelTrace, StampedKernel

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Trace:
    """What was measured of one function: its kernels by their stamps, and what the stamps cost.

    Attributes:
        kernels: In the order of their launches.
        plain_us: Samples of the function without stamps.
        stamped_us: Samples of the function with stamps, taken in turns with those.
        plain: The compiler's figures of the function without stamps.
        stamped: The same with stamps.
        environment: The device and the software.
        observed: The state of the device.
        date: Of the measurement.
        notes: What a reader must know.
        failure: Why there is nothing else.
    """

    kernels: tuple[KernelTrace, ...] = ()
    plain_us: tuple[float, ...] = ()
    stamped_us: tuple[float, ...] = ()
    plain: Mapping[str, int] = field(default_factory=dict)
    stamped: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    observed: Mapping[str, float] = field(default_factory=dict)
    date: str = ""
    notes: tuple[str, ...] = ()
    failure: Failure | None = None


@dataclass
class StampedRun(KernelRun):
    """The run of a kernel that takes memory for stamps as further tensors."""

    kernels: tuple[StampedKernel, ...] = ()
    _memory: list[torch.Tensor] = field(default_factory=list)

    def _further(self) -> Sequence[torch.Tensor]:
        if not self._memory:
            self._memory = new_memory(self.kernels, self.bench.device)
        return self._memory

    def traces(self) -> tuple[KernelTrace, ...]:
        """The stamps of the last launch, which has ended. Raises `LaunchError`."""
        return read_memory(self.kernels, self._memory)

    def close(self) -> None:
        self._memory.clear()
        super().close()


def new_memory(kernels: Sequence[StampedKernel], device: str) -> list[torch.Tensor]:
    """Memory that the launches of a stamped function write to, one tensor each."""
    import torch

    return [torch.zeros(layout.words(kernel), dtype=torch.int32, device=device) for kernel in kernels]


def read_memory(kernels: Sequence[StampedKernel], memory: Sequence[torch.Tensor]) -> tuple[KernelTrace, ...]:
    """The times that launches have written. Raises `LaunchError`."""
    import numpy as np

    return tuple(
        read_trace(tensor.cpu().numpy().view(np.uint32), kernel)
        for kernel, tensor in zip(kernels, memory, strict=True)
    )


def run_stamped(item: tuple[StampedBuild, Candidate, MeasurementProtocol]) -> Trace:
    """Check, time and trace a kernel. A failure is part of the result.

    Raises `ToolchainError` if this process has no device of the candidate's target.
    """
    build, candidate, protocol = item
    bench = bench_for(candidate.target, protocol)
    bench.conditions.begin()
    plain = KernelRun(build.plain, candidate, bench, protocol)
    stamped = StampedRun(build.stamped, candidate, bench, protocol, kernels=build.kernels)
    found = Trace()
    try:
        found = _traced(plain, stamped, bench, protocol)
    except RUN_FAULTS as error:
        stamped.fail(error)
    close_runs([plain, stamped], bench)
    failure = plain.failure or stamped.failure
    return found if failure is None else Trace(failure=failure)


def _traced(plain: KernelRun, stamped: StampedRun, bench: Bench, protocol: MeasurementProtocol) -> Trace:
    candidate = plain.candidate
    case = bench.case(candidate.template.operator, candidate.workload, protocol)
    for run in (plain, stamped):
        run.prepare(case)
        if run.failure is not None:
            return Trace()
    taken = collect_samples(bench.timer, [plain.call, stamped.call], protocol, bench.conditions)
    bench.timer.synchronize()
    kernels = stamped.traces()
    for run in (plain, stamped):
        run.check_again(case)
    return trace_of(kernels, taken, plain.build, stamped.build, bench)


def trace_of(
    kernels: tuple[KernelTrace, ...],
    taken: TurnSamples,
    plain: BuildResult,
    stamped: BuildResult,
    bench: Bench,
    notes: tuple[str, ...] = (),
) -> Trace:
    """A trace of today, from the stamps and from samples of the plain and the stamped kernel in turns."""
    plain_us, stamped_us = taken.samples_us
    return Trace(
        kernels,
        plain_us,
        stamped_us,
        plain.resources,
        stamped.resources,
        dict(bench.environment) | {"compiler": plain.compiler},
        bench.conditions.observed(),
        datetime.date.today().isoformat(),
        notes,
    )
