"""One built kernel on the bench: loaded, checked, made ready to be timed, and checked again.

It is right where, on poisoned outputs, it computes what the reference says for every set of inputs, does so again bit by bit
when it is repeated (also by the last of the launches that were timed), and leaves its inputs alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..artifact import LaunchError, LoadedKernel
from ..candidate import Candidate
from ..errors import Failure, FailureKind, headline
from ..protocol import Protocol
from ..trial import BYSTANDER, BuildResult, Measurement
from .bench import Bench, Case
from .timing import Call
from .verify import check_outputs, check_repeat, poison

if TYPE_CHECKING:
    import torch

# torch reports faults of the device and lack of its memory as RuntimeError
RUN_FAULTS = (LaunchError, RuntimeError, MemoryError)
_LACK_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # as CUDA, HIP and torch on a processor say it


def run_failure(error: BaseException) -> Failure:
    """What an error on the device means for the kernel. The message of torch says how much memory was asked for."""
    text = str(error)
    lacks = isinstance(error, MemoryError) or any(words in text.lower() for words in _LACK_OF_MEMORY)
    kind = FailureKind.RUN_MEMORY if lacks else FailureKind.RUN_ERROR
    return Failure(kind, headline(text or type(error).__name__), text)


@dataclass
class KernelRun:
    """Once `failure` is set, it is what the measurement says: a kernel that failed has no time."""

    build: BuildResult
    candidate: Candidate
    bench: Bench
    protocol: Protocol
    samples_us: tuple[float, ...] = ()
    failure: Failure | None = None
    relative_error: float | None = None
    observed: dict[str, float] = field(default_factory=dict)
    call: Call = field(default=lambda: None)  # on the sets of inputs in turn
    _kernel: LoadedKernel | None = None
    _outputs: list[dict[str, torch.Tensor]] = field(default_factory=list)  # of each set
    _first: list[dict[str, torch.Tensor]] = field(default_factory=list)  # what the first run wrote there
    _updates: bool = False  # the kernel goes on from what it finds in its outputs

    def prepare(self, case: Case) -> None:
        """Load, run and check. What goes wrong is kept in `failure`."""
        if self.build.artifact is None:
            raise ValueError("a kernel that was not built cannot be measured")
        if not self.bench.answers():
            self.failure = Failure(FailureKind.RUN_ERROR, f"{BYSTANDER}a kernel that ran before it left the device unusable")
            return
        self.observed |= {"input_seed": float(case.seed), "input_sets": float(len(case.sets))}
        try:
            self._kernel = LoadedKernel(self.build.artifact, self.build.entry)
            calls = self._run_each(case, self._kernel)
            if self.failure is None:
                self._repeat(case, calls)
            written = case.overwritten()
            if written is not None:
                self.failure = Failure(FailureKind.WRONG_RESULT, f"input '{written}' was written to")
            self.call = in_turn(calls)
        except RUN_FAULTS as error:
            self.fail(error)

    def _run_each(self, case: Case, kernel: LoadedKernel) -> list[Call]:
        calls: list[Call] = []
        for index, given in enumerate(case.sets):
            outputs = case.outputs()
            self._outputs.append(outputs)
            call = kernel.bind([*given.inputs.values(), *outputs.values()], self.bench.stream, self.candidate.open_sizes)
            calls.append(call)
            self._once(case, outputs, call)
            self._compare(case, index)
            if self.failure is not None:
                break
            self._first.append({name: output.clone() for name, output in outputs.items()})
        return calls

    def _repeat(self, case: Case, calls: Sequence[Call]) -> None:
        for number in range(self.protocol.checks):
            index = number % len(calls)
            self._once(case, self._outputs[index], calls[index])
            self._hold_against_first(case, index)
            if self.failure is not None:
                return

    def _once(self, case: Case, outputs: dict[str, torch.Tensor], call: Call) -> None:
        poison(outputs)
        self._updates = case.operator.preset(case.workload, outputs)
        call()
        self.bench.timer.synchronize()

    def _compare(self, case: Case, index: int) -> None:
        verdict = check_outputs(case.operator, case.workload, self._outputs[index], case.sets[index].reference)
        self.failure = verdict.failure
        if verdict.relative_error is not None:
            self.relative_error = max(self.relative_error or 0.0, verdict.relative_error)

    def _hold_against_first(self, case: Case, index: int) -> None:
        if self.candidate.template.deterministic:
            self.failure = check_repeat(self._outputs[index], self._first[index])
        else:
            self._compare(case, index)

    def check_again(self, case: Case) -> None:
        """What the last launches wrote: a race shows now and then. Launches that go on from what the ones before wrote say
        nothing."""
        for index in range(len(self._first)):
            if self.failure is None and not self._updates:
                self._hold_against_first(case, index)

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = run_failure(error)

    def close(self) -> None:
        """Give back its memory. The call must not be made any more."""
        self.call = lambda: None
        self._outputs.clear()
        self._first.clear()
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def measurement(self) -> Measurement:
        return Measurement(
            samples_us=() if self.failure else self.samples_us,
            failure=self.failure,
            relative_error=self.relative_error,
            environment=dict(self.bench.environment) | {"compiler": self.build.compiler},
            protocol=self.protocol.record(),
            observed=self.observed,
        )


def in_turn(calls: Sequence[Call]) -> Call:
    """One call that makes another of these each time."""
    if len(calls) == 1:
        return calls[0]
    following = itertools.cycle(calls)
    return lambda: next(following)()
