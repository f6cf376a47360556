"""What is known of a candidate after each stage: prediction, build, measurement, and the record of them all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from .errors import WRONG, Failure
from .space import Config

BYSTANDER = "not measured: "  # begins the failures of kernels that are not to blame
ORDER_TERM = "order"  # a term that is no part of the time


class Status(StrEnum):
    """How far a trial has come. `measured` has a time but no proof of correctness yet; `verified` has both."""

    PREDICTED = "predicted"
    BUILT = "built"
    MEASURED = "measured"
    VERIFIED = "verified"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a cost model says of one candidate. A prediction is never a measurement.

    `utilization` is the predicted busy share of each resource over the kernel's time, 0 .. 1.
    `terms_us` are the model's own terms in microseconds, named, so that a person can see why.
    `latency_us` lies within a factor of `1 + uncertainty` with the model's stated confidence (one sigma). A model that knows
    more of the order of candidates than of their times says so in the term `ORDER_TERM`: by how much a candidate is better
    (below 0) or worse than its time.
    """

    latency_us: float
    utilization: Mapping[str, float]
    limiting: str  # the resource (or latency chain) that bounds the time
    terms_us: Mapping[str, float] = field(default_factory=dict)
    uncertainty: float = 0.0  # relative, one sigma
    notes: tuple[str, ...] = ()  # what was charged conservatively, and why
    model: str = ""  # name and version of the model
    # what hardware counters would show of one launch; not stored
    expected: Mapping[str, float] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not math.isfinite(self.latency_us) or self.latency_us <= 0:
            raise ValueError(f"prediction of {self.model or 'a model'}: latency_us={self.latency_us} must be positive and finite")

    @property
    def ranking_us(self) -> float:
        """What candidates are put in order by, on the scale of their times."""
        return max(1e-3, self.latency_us + self.terms_us.get(ORDER_TERM, 0.0))


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A built kernel, or why there is none. Exactly one of `artifact` and `failure` is set.

    `artifact` is the path of a loadable shared library in the kernel cache.
    `resources` are the compiler's own figures where it gives them: registers, spill_bytes, smem_bytes.
    """

    artifact: str | None
    failure: Failure | None = None
    entry: str = ""  # symbol to call
    resources: Mapping[str, int] = field(default_factory=dict)
    compiler: str = ""  # name and version
    seconds: float = 0.0
    binary: str = ""  # hash of the machine code and of how it is launched: equal ones are the same kernel

    def __post_init__(self) -> None:
        if (self.artifact is None) == (self.failure is None):
            raise ValueError("a build has either an artifact or a failure")


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one kernel on one device, or why there are none. Exactly one of `samples_us` and `failure` is set."""

    samples_us: tuple[float, ...] = ()  # each a mean over the launches between two events, in the order taken
    failure: Failure | None = None
    relative_error: float | None = None  # ||out - ref|| / ||ref|| where it was checked
    environment: Mapping[str, str] = field(default_factory=dict)  # device, driver, compiler, library versions
    protocol: Mapping[str, str | int | float | bool] = field(default_factory=dict)  # how the samples were taken
    observed: Mapping[str, float] = field(default_factory=dict)  # of the device meanwhile: clock, power, temperature, retaken samples

    def __post_init__(self) -> None:
        if bool(self.samples_us) == (self.failure is not None):
            raise ValueError("a measurement has either samples or a failure")

    @property
    def is_wrong(self) -> bool:
        """Whether it ran and computed what is wrong: other failures say nothing of its results."""
        return self.failure is not None and self.failure.kind in WRONG

    @property
    def is_bystander(self) -> bool:
        """Whether it was not measured because another kernel left the device unusable."""
        return self.failure is not None and self.failure.message.startswith(BYSTANDER)

    @property
    def latency_us(self) -> float:
        """Median of the samples."""
        return median(self.samples_us)


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """Everything about one candidate in one session; what is stored, shown and learned from."""

    config: Config
    status: Status
    prediction: Prediction | None = None
    build: BuildResult | None = None
    measurement: Measurement | None = None
    failure: Failure | None = None
    fingerprint: str = ""  # hash of the generated device code, names removed
    lowering_seconds: float = 0.0

    def __post_init__(self) -> None:
        needed = {
            Status.PREDICTED: self.prediction,
            Status.BUILT: self.build and self.build.artifact,
            Status.MEASURED: self.measurement and self.measurement.samples_us,
            Status.VERIFIED: self.measurement and self.measurement.samples_us and self.measurement.relative_error is not None,
            Status.FAILED: self.failure,
        }[self.status]
        if not needed:
            raise ValueError(f"a trial cannot be '{self.status}' without what that means")
        if self.failure is not None and self.status is not Status.FAILED:
            raise ValueError(f"a trial with a failure is 'failed', not '{self.status}'")

    @property
    def measured_us(self) -> float | None:
        """Median time of a trial whose result was right; None for all others, wrong ones included."""
        return self.measurement.latency_us if self.status is Status.VERIFIED and self.measurement else None

    @property
    def predicted_us(self) -> float | None:
        return self.prediction.latency_us if self.prediction else None

    @property
    def ranking_us(self) -> float | None:
        """What predicted candidates are put in order by: `Prediction.ranking_us`."""
        return self.prediction.ranking_us if self.prediction else None
