"""One built kernel on the bench: loads it, checks it, prepares it for timing, and checks it again.

A kernel is correct if it turns poisoned outputs into those of the reference for every input set and for the
operator's second inputs, repeats its result bit by bit (also in the last timed launch), and does not write to
its inputs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..builder.loaded_kernel import LaunchError, LoadedKernel
from ..errors import Failure, FailureKind, headline
from ..problem.candidate import Candidate
from ..records.protocol import MeasurementProtocol
from ..records.trial import NOT_MEASURED, BuildResult, Measurement
from .bench import Bench, BenchCase, InputSet, new_tensors
from .compare import poison
from .timers import Call
from .verify import Verdict, check_outputs, check_repeat

if TYPE_CHECKING:
    import torch

# torch reports faults of the device and lack of its memory as RuntimeError
RUN_FAULTS = (LaunchError, RuntimeError, MemoryError)
_MEMORY_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
)  # of CUDA, HIP and torch on a processor


def run_failure(error: BaseException) -> Failure:
    """The kernel's failure for an error on the device.

    Torch's message contains the requested amount of memory.
    """
    text = str(error)
    is_memory = isinstance(error, MemoryError) or any(part in text.lower() for part in _MEMORY_MESSAGES)
    kind = FailureKind.RUN_MEMORY if is_memory else FailureKind.RUN_ERROR
    return Failure(kind, headline(text or type(error).__name__), text)


DEVICE_LOST = f"{NOT_MEASURED}a kernel that ran before it left the device unusable"
_LARGEST = 1e30  # of a recorded error: databases hold no infinity


@dataclass
class KernelRun:
    """The run of one kernel. Once `failure` is set, the measurement has no samples.

    `call` launches the kernel on its input sets in turn.
    """

    build: BuildResult
    candidate: Candidate
    bench: Bench
    protocol: MeasurementProtocol
    samples_us: tuple[float, ...] = ()
    failure: Failure | None = None
    relative_error: float | None = None
    observed: dict[str, float] = field(default_factory=dict)
    call: Call = field(default=lambda: None)
    _kernel: LoadedKernel | None = None
    _outputs: list[dict[str, torch.Tensor]] = field(default_factory=list)  # of each input set
    _scratch: dict[str, torch.Tensor] = field(
        default_factory=dict
    )  # one for all calls, which follow each other
    _first: list[dict[str, torch.Tensor]] = field(
        default_factory=list
    )  # results of the first run, for each input set
    _updates: bool = False  # the kernel reads its outputs, and updates them

    def prepare(self, case: BenchCase) -> None:
        """Load, run and check the kernel; sets `failure` if something goes wrong."""
        if self.build.artifact is None:
            raise ValueError("a kernel that was not built cannot be measured")
        if not self.bench.is_usable():
            self.failure = Failure(FailureKind.RUN_ERROR, DEVICE_LOST)
            return
        self.observed |= {
            "input_seed": float(case.seed),
            "input_sets": float(len(case.sets)),
            "second_inputs": float(case.second is not None),
        }
        try:
            self._load(self.build.artifact)
            calls = self._run_each(case)
            if self.failure is None and case.second is not None:
                self._run_second(case, case.second)
            if self.failure is None:
                self._repeat(case, calls)
            if self.failure is None:
                self._check_further(case)
            written = case.overwritten()
            if written is not None:
                self.failure = Failure(FailureKind.WRONG_RESULT, f"input '{written}' was written to")
            self.call = in_turn(calls)
        except RUN_FAULTS as error:
            self.fail(error)

    def _load(self, artifact: str) -> None:
        self._kernel = LoadedKernel(artifact, self.build.entry)
        self._scratch = new_scratch(self.candidate, self.bench.device)

    def _check_further(self, case: BenchCase) -> None:
        """Further checks of a kernel that was right so far."""

    def _run_each(self, case: BenchCase) -> list[Call]:
        calls: list[Call] = []
        for given in case.sets:
            outputs = case.outputs()
            self._outputs.append(outputs)
            calls.append(self._bind(given, outputs))
            self._once(case, outputs, calls[-1])
            self._compare(case, given, outputs)
            if self.failure is not None:
                break
            self._first.append({name: output.clone() for name, output in outputs.items()})
        return calls

    def _run_second(self, case: BenchCase, second: InputSet) -> None:
        """Other inputs than before, with the same outputs: a kernel must not keep what it computed."""
        outputs = self._outputs[0]
        self._once(case, outputs, self._bind(second, outputs))
        self._compare(case, second, outputs)
        self._say_when("on second inputs")

    def _say_when(self, condition: str) -> None:
        """Add to a failure under which condition the kernel failed."""
        if self.failure is not None:
            message = f"{condition}, {self.failure.message}"
            self.failure = Failure(self.failure.kind, message, self.failure.detail)

    def _bind(self, given: InputSet, outputs: dict[str, torch.Tensor]) -> Call:
        kernel = self._kernel
        assert kernel is not None  # loaded before
        tensors = [*given.inputs.values(), *outputs.values(), *self._scratch.values(), *self._further()]
        return kernel.bind(tensors, self.bench.stream, self.candidate.run_time_slots)

    def _further(self) -> Sequence[torch.Tensor]:
        """Tensors that a kernel takes beside its own."""
        return ()

    def _repeat(self, case: BenchCase, calls: Sequence[Call]) -> None:
        for number in range(self.protocol.checks):
            index = number % len(calls)
            self._once(case, self._outputs[index], calls[index])
            self._compare_with_first(case, index)
            if self.failure is not None:
                return

    def _once(self, case: BenchCase, outputs: dict[str, torch.Tensor], call: Call) -> None:
        poison({**self._scratch, **outputs})
        self._updates = case.operator.preset(case.workload, outputs)
        call()
        self.bench.timer.synchronize()

    def _compare(self, case: BenchCase, given: InputSet, outputs: dict[str, torch.Tensor]) -> None:
        begin = time.perf_counter()
        verdict = self._verdict(case, given, outputs)
        self.failure = verdict.failure
        self.observed["check_s"] = self.observed.get("check_s", 0.0) + time.perf_counter() - begin
        for name, ratio in (("element_ratio", verdict.element_ratio), ("tile_ratio", verdict.tile_ratio)):
            if ratio is not None and not given.is_exact:
                self.observed[name] = max(self.observed.get(name, 0.0), min(ratio, _LARGEST))
        if verdict.relative_error is not None:
            self.relative_error = max(self.relative_error or 0.0, min(verdict.relative_error, _LARGEST))

    def _verdict(self, case: BenchCase, given: InputSet, outputs: dict[str, torch.Tensor]) -> Verdict:
        return check_outputs(
            case.operator, case.workload, outputs, given.reference, given.magnitude, given.is_exact
        )

    def _compare_with_first(self, case: BenchCase, index: int) -> None:
        if self.candidate.template.deterministic:
            self.failure = check_repeat(self._outputs[index], self._first[index])
        else:
            self._compare(case, case.sets[index], self._outputs[index])

    def check_again(self, case: BenchCase) -> None:
        """Check the outputs of the last timed launches: a race shows only sometimes.

        Kernels that update their outputs are not checked.
        """
        for index in range(len(self._first)):
            if self.failure is None and not self._updates:
                self._compare_with_first(case, index)

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = run_failure(error)

    def close(self) -> None:
        """Free its memory. `call` must not be called any more."""
        self.call = lambda: None
        self._outputs.clear()
        self._first.clear()
        self._scratch.clear()
        self._unload()

    def _unload(self) -> None:
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def measurement(self) -> Measurement:
        """The result as data."""
        return Measurement(
            samples_us=() if self.failure else self.samples_us,
            failure=self.failure,
            relative_error=self.relative_error,
            environment=dict(self.bench.environment) | {"compiler": self.build.compiler},
            protocol=self.protocol.record(),
            observed=self.observed,
        )


def new_scratch(candidate: Candidate, device: str) -> dict[str, torch.Tensor]:
    """New memory for what a kernel needs beside its tensors (`KernelTemplate.scratch`)."""
    return new_tensors(candidate.template.scratch(candidate.workload, candidate.config), device)


def in_turn(calls: Sequence[Call]) -> Call:
    """A call that makes the given calls in turn."""
    if len(calls) == 1:
        return calls[0]
    following = itertools.cycle(calls)
    return lambda: next(following)()
