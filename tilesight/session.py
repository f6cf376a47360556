"""A tuning session: the context that its results hold in, how much effort it makes, and what it found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from .space import Census, Config
from .trial import Measurement, Status, TrialRecord
from .workload import Workload

# The driver launches what was compiled and torch brings the vendor libraries that results stand beside: neither changes
# the code that is built, and torch not its time either.
NO_PART_OF_TIME = frozenset({"torch"})
NO_PART_OF_CODE = NO_PART_OF_TIME | {"driver"}


def code_software(versions: Mapping[str, str]) -> dict[str, str]:
    """Those of `versions` on which the generated code depends, names sorted."""
    return {name: version for name, version in sorted(versions.items()) if name not in NO_PART_OF_CODE}


def time_software(versions: Mapping[str, str]) -> dict[str, str]:
    """Those on which a kernel's time depends: those of its code, and the driver."""
    return {name: version for name, version in sorted(versions.items()) if name not in NO_PART_OF_TIME}


class Effort(StrEnum):
    """How much a session may try.

    predict     model only: nothing is built or measured
    quick       the model explores, at most 16 candidates are measured
    full        the model explores widely, up to 128 are measured, each chosen by what was learned from those before
    exhaustive  every legal candidate is lowered, built and measured
    """

    PREDICT = "predict"
    QUICK = "quick"
    FULL = "full"
    EXHAUSTIVE = "exhaustive"


class State(StrEnum):
    RUNNING = "running"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Context:
    """Everything that a stored result's validity depends on. Results are re-used only within one context.

    `space` is the fingerprint of the search space: a session that chose among other configs is no answer, while what it
    learned of single configs holds in any space. `software` holds the versions that can change the generated code
    (tilelang, nvcc), its time (driver) or what it is compared with (torch). `device` is the driver's name of the device that
    measures, "" where nothing is measured.
    """

    template: str
    template_version: str
    workload: Workload
    target: str
    target_fingerprint: str
    arch: str
    model: str
    space: str
    software: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    protocol: str = ""  # conditions of its measurements: `Protocol.key`; "" where nothing is measured
    open: tuple[str, ...] = ()  # dimensions that its kernels take at run time: `Candidate.open`

    @property
    def code_software(self) -> dict[str, str]:
        """The versions on which the generated code depends."""
        return code_software(self.software)

    @property
    def key(self) -> str:
        """16 hex digits over all of it."""
        parts = [
            self.template,
            self.template_version,
            self.workload.key,
            self.target,
            self.target_fingerprint,
            self.arch,
            self.model,
            self.space,
            dict(sorted(self.software.items())),
            self.device,
            self.protocol,
            *([list(self.open)] if self.open else []),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A vendor library's time on the same inputs, measured beside ours in the same run."""

    name: str
    samples_us: tuple[float, ...]

    @property
    def latency_us(self) -> float:
        return median(self.samples_us)


@dataclass(frozen=True, slots=True)
class Decision:
    """Which finalist won. `tied` are those that paired samples cannot tell from it; `reason` says why it is preferred."""

    winner: Config
    tied: tuple[Config, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Finalists and vendor implementations, timed in turns on the same inputs."""

    measurements: tuple[Measurement, ...]  # in the order of the finalists
    baselines: tuple[Baseline, ...]
    notes: tuple[str, ...] = ()  # vendor implementations that were left out, and why
    decision: Decision | None = None  # None where no finalist came through


@dataclass(frozen=True)
class SessionResult:
    """What one session on one workload found. `trials` come best first: the finalist that won, those that cannot be told
    from it, the other verified ones by measured time, then predicted ones by predicted time, then failures."""

    context: Context
    effort: Effort
    state: State
    census: Census
    trials: tuple[TrialRecord, ...]
    baselines: tuple[Baseline, ...] = ()
    flops: int = 0
    min_bytes: int = 0
    seconds: float = 0.0
    from_database: bool = False
    messages: tuple[str, ...] = ()  # what a user must know, e.g. why nothing was measured
    decision: Decision | None = None  # of the finalists, where they were compared

    @property
    def best(self) -> TrialRecord | None:
        """The finalist that won; without a comparison the fastest verified trial, else the one predicted fastest; None where
        all failed."""
        if self.decision is not None:
            won = next((t for t in self.trials if t.config == self.decision.winner and t.status is Status.VERIFIED), None)
            if won is not None:
                return won
        return next((t for t in self.trials if t.status is not Status.FAILED), None)

    @property
    def is_measured(self) -> bool:
        return any(t.status is Status.VERIFIED for t in self.trials)

    @property
    def fastest_baseline(self) -> Baseline | None:
        return min(self.baselines, key=lambda b: b.latency_us, default=None)


def ranked(trials: Mapping[str, TrialRecord], decision: Decision | None = None) -> tuple[TrialRecord, ...]:
    """Trials best first, in the order that `SessionResult` promises. Keys are config keys."""
    leading = {} if decision is None else {decision.winner: -2, **dict.fromkeys(decision.tied, -1)}

    def order(trial: TrialRecord) -> tuple[int, float, str]:
        if trial.measured_us is not None and trial.config in leading:
            return leading[trial.config], trial.measured_us, trial.config.key
        if trial.measured_us is not None:
            return 0, trial.measured_us, trial.config.key
        if trial.status is not Status.FAILED and trial.ranking_us is not None:
            return 1, trial.ranking_us, trial.config.key
        return 2, trial.ranking_us or 0.0, trial.config.key  # equal ones in the same order every time

    return tuple(sorted(trials.values(), key=order))
