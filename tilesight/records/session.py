"""Tuning sessions: the context in which results hold, the effort, and the result."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

from ..problem.space import Census, Config
from ..problem.workload import Workload
from ..reports.report import Report, Reported
from ..target.spec import Target, load_target, target_names
from .intervals import is_noise, spread
from .roofline import Roofline, roofline
from .trial import Measurement, Status, TrialRecord

if TYPE_CHECKING:
    from pandas import DataFrame

# torch only brings the vendor libraries for comparison; the driver changes times, but not the generated code.
SOFTWARE_NOT_IN_TIME = frozenset({"torch"})
SOFTWARE_NOT_IN_CODE = SOFTWARE_NOT_IN_TIME | {"driver"}


def code_software(versions: Mapping[str, str]) -> dict[str, str]:
    """The part of `versions` that the generated code depends on, sorted by name."""
    return {name: version for name, version in sorted(versions.items()) if name not in SOFTWARE_NOT_IN_CODE}


def time_software(versions: Mapping[str, str]) -> dict[str, str]:
    """The part of `versions` that a kernel's time depends on, sorted by name."""
    return {name: version for name, version in sorted(versions.items()) if name not in SOFTWARE_NOT_IN_TIME}


class Effort(StrEnum):
    """How many candidates a session may lower, build and measure.

    glance      the model only, and little lowering: the fastest answer
    predict     the model only: nothing is built or measured
    build       as predict; then 16 candidates are built and predicted again with the compiler's figures
    quick       the model explores; at most 16 candidates are measured
    full        the model explores widely; up to 128 candidates are measured, each chosen from the results
    before it
    exhaustive  every legal candidate is lowered, built and measured

    A greater effort comes later: its session answers calls of a smaller one.
    """

    GLANCE = "glance"
    PREDICT = "predict"
    BUILD = "build"
    QUICK = "quick"
    FULL = "full"
    EXHAUSTIVE = "exhaustive"

    @property
    def measures(self) -> bool:
        """Whether candidates are measured."""
        return self.builds and self is not Effort.BUILD

    @property
    def builds(self) -> bool:
        """Whether candidates are built."""
        return self not in (Effort.GLANCE, Effort.PREDICT)


class SessionState(StrEnum):
    """How far a session has come."""

    RUNNING = "running"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Context:
    """All facts that a stored result depends on. Results are re-used within one context only.

    Attributes:
        space: fingerprint of the search space. A winner among other configs is no answer; results of single
            configs hold in any space.
        software: versions that can change the generated code (tilelang, nvcc), its time (driver), or the
            vendor libraries that it is compared with (torch).
        device: the driver's name of the measured device; "" if nothing is measured.
        protocol: conditions of the measurements, `MeasurementProtocol.key`; "" if nothing is measured.
        dynamic: dimensions that the kernels take at run time, `Candidate.dynamic`.
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
    protocol: str = ""
    dynamic: tuple[str, ...] = ()

    @property
    def code_software(self) -> dict[str, str]:
        """Versions that the generated code depends on."""
        return code_software(self.software)

    @property
    def key(self) -> str:
        """Hash (16 hex digits) of all fields."""
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
            *([list(self.dynamic)] if self.dynamic else []),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Time of a vendor library on the same inputs, measured in the same run."""

    name: str
    samples_us: tuple[float, ...]

    @property
    def latency_us(self) -> float:
        return median(self.samples_us)

    @property
    def spread(self) -> float:
        """Half of the median's 95 % interval, relative to the median."""
        return spread(self.samples_us)

    @property
    def is_noisy(self) -> bool:
        """Whether the time is unreliable, since other work on the machine disturbed the samples."""
        return is_noise(self.spread)


@dataclass(frozen=True, slots=True)
class Decision:
    """The winner of the finalists, the finalists tied with it in paired samples, and why it won."""

    winner: Config
    tied: tuple[Config, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Times of finalists and vendor implementations, measured in turns on the same inputs."""

    measurements: tuple[Measurement, ...]  # in the order of the finalists
    baselines: tuple[Baseline, ...]
    notes: tuple[str, ...] = ()  # vendor implementations that were left out, and why
    decision: Decision | None = None  # None if every finalist failed


@dataclass(frozen=True, repr=False)
class SessionResult(Reported):
    """Result of one session on one workload. `print` shows it as `tilesight tune` does.

    Attributes:
        trials: best first: the finalist that won, those tied with it, the other verified ones by measured
            time, noisy ones by time, predicted ones by ranking score, then failures.
        messages: what a user must know, e.g. why nothing was measured.
        decision: of the finalists; None if they were not compared.
        reordered: by config, the config with the same code in the plain block order, if it is another one.
        arguments: the best config as a user writes it in Python; None: as it is.
        usage: a line of Python that makes the kernel of the best config; "" if none is known.
        target: the chip whose figures give the limit; None: the shipped target of the context's name.
    """

    context: Context
    effort: Effort
    state: SessionState
    census: Census
    trials: tuple[TrialRecord, ...]
    baselines: tuple[Baseline, ...] = ()
    flops: int = 0
    min_bytes: int = 0
    seconds: float = 0.0
    from_database: bool = False
    messages: tuple[str, ...] = ()
    decision: Decision | None = None
    target: Target | None = None
    reordered: Mapping[Config, Config] = field(default_factory=dict)
    arguments: Mapping[str, object] | None = None
    usage: str = ""

    def __repr__(self) -> str:
        return f"SessionResult({self.summary})"

    def report(self, top: int = 10, *, variants: bool = False) -> Report:
        """The report of `tilesight tune`.

        Args:
            top: Largest number of rows.
            variants: Whether configs that differ only in the order of blocks have rows of their own.
        """
        from .session_report import session_report

        return session_report(self, top, variants)

    def to_frame(self) -> DataFrame:
        """All candidates as rows, best first; failed ones too.

        Columns: those of `candidates` in `tilesight tune --json` that are single values, then `failure`, and
        one column for each parameter of the config.
        """
        from .session_frame import session_frame

        return session_frame(self)

    @property
    def summary(self) -> str:
        """One line: workload, target, number of candidates, the best time."""
        best, where = self.best, f"{self.context.workload.label} on {self.context.target}"
        if best is None:
            return f"{where}: {len(self.trials)} candidates, none works"
        return f"{where}: {len(self.trials)} candidates, best {best.summary}"

    @property
    def chip(self) -> Target | None:
        """The target; None if it is not known and none of that name is shipped."""
        name = self.context.target
        return self.target or (load_target(name) if name in target_names() else None)

    @property
    def limit(self) -> Roofline:
        """The least time that the hardware allows for the workload; NaN for an unknown target."""
        chip = self.chip
        if chip is None:
            return Roofline(self.flops, self.min_bytes, math.nan, math.nan, math.nan, is_known=False)
        return roofline(chip, self.context.workload.dtype, self.flops, self.min_bytes)

    @property
    def best(self) -> TrialRecord | None:
        """The finalist that won.

        Without a comparison, or if its winner's time is noisy: the fastest verified trial, else the fastest
        unchecked one, else the winner or the fastest noisy one, else the best predicted one; None if all
        failed.
        """
        unchecked = [t for t in self.trials if t.status is Status.MEASURED and t.measurement is not None]
        if unchecked and not self.is_measured:
            return min(unchecked, key=lambda t: t.measurement.latency_us if t.measurement else 0.0)
        if self.decision is not None:
            usable = (Status.VERIFIED,) if self.is_measured else (Status.NOISY,)
            won = next(
                (t for t in self.trials if t.config == self.decision.winner and t.status in usable), None
            )
            if won is not None:
                return won
        return next((t for t in self.trials if t.status is not Status.FAILED), None)

    @property
    def is_measured(self) -> bool:
        return any(t.status is Status.VERIFIED for t in self.trials)

    @property
    def is_noisy(self) -> bool:
        """Whether the best time, or a vendor library's, is noisy: no later call is answered with this."""
        best = self.best
        is_best_noisy = best is not None and best.status is Status.NOISY
        return is_best_noisy or any(baseline.is_noisy for baseline in self.baselines)

    @property
    def is_undecided(self) -> bool:
        """Whether the comparison of the finalists gave no decision, so that the next call takes it again."""
        return self.decision is None and self.state is not SessionState.COMPLETE

    @property
    def fastest_baseline(self) -> Baseline | None:
        return min(self.baselines, key=lambda b: b.latency_us, default=None)


def ranked(trials: Mapping[str, TrialRecord], decision: Decision | None = None) -> tuple[TrialRecord, ...]:
    """`trials` (by config key), best first, in the order of `SessionResult.trials`."""
    leading = {} if decision is None else {decision.winner: -2, **dict.fromkeys(decision.tied, -1)}

    def order(trial: TrialRecord) -> tuple[int, float, str]:
        if trial.measured_us is not None and trial.config in leading:
            return leading[trial.config], trial.measured_us, trial.config.key
        if trial.measured_us is not None:
            return 0, trial.measured_us, trial.config.key
        if trial.noisy_us is not None:
            return 1, trial.noisy_us, trial.config.key
        if trial.status is not Status.FAILED and trial.ranking_us is not None:
            return 2, trial.ranking_us, trial.config.key
        return 3, trial.ranking_us or 0.0, trial.config.key

    return tuple(sorted(trials.values(), key=order))
