"""Trials: prediction, build and measurement of a candidate, and the record of all three."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median

from ..errors import WRONG, Failure
from ..problem.space import Config
from ..reports.numbers import WIDE, number, percent, sigma
from ..reports.report import Report, Reported
from ..settings import load_settings
from .intervals import is_noise, spread

MOST_DISTURBED = 0.25  # a time with a larger share of disturbed samples is noisy
# A time on a processor is noisy if other processes used a larger share of the cores meanwhile, since they
# share caches and memory: one that streamed memory made matrix products 13 to 45 % slower on the other of two
# cores (experiments/noise).
MOST_OTHER_LOAD = 0.4
# A time on a GPU is noisy if another process used a larger share of it meanwhile. Matrix products beside ours
# made ours 17 % slower with intervals of 1 %, since the chip's clock was lower (experiments/noise).
MOST_OTHER_GPU_LOAD = 0.1
NOT_MEASURED = "not measured: "  # begins messages of failures that another kernel caused
DEVICE_S = "device_s"  # in `Measurement.observed`: seconds for which the job held its device
ORDER_TERM = "order"  # the term of a prediction that moves its rank and is no part of its time


class Status(StrEnum):
    """Stage of a trial. `measured` has a time, `verified` also a check of the results.

    `noisy` has a time that other work on the machine disturbed. It is shown, and used for nothing else.
    """

    PREDICTED = "predicted"
    BUILT = "built"
    NOISY = "noisy"
    MEASURED = "measured"
    VERIFIED = "verified"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, repr=False)
class Prediction(Reported):
    """The prediction of a cost model for one candidate; never a measurement. `print` shows all of it.

    Attributes:
        latency_us: predicted time. The true time lies within a factor of `1 + uncertainty` with the model's
            stated confidence (one sigma).
        utilization: predicted busy share of each resource over the kernel's time, 0 .. 1.
        limiting: the resource, or latency chain, that bounds the time.
        terms_us: the model's own terms in microseconds, by name. A model that ranks candidates better than it
            predicts their times adds the term `ORDER_TERM`: below 0 for a candidate that ranks better than
                its time.
        uncertainty: relative, one sigma.
        notes: charges that are conservative, and why.
        model: name and version of the model.
        expected: what hardware counters would show of one launch; not stored.
    """

    latency_us: float
    utilization: Mapping[str, float]
    limiting: str
    terms_us: Mapping[str, float] = field(default_factory=dict)
    uncertainty: float = 0.0
    notes: tuple[str, ...] = ()
    model: str = ""
    expected: Mapping[str, float] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not math.isfinite(self.latency_us) or self.latency_us <= 0:
            raise ValueError(
                f"prediction of {self.model or 'a model'}: latency_us={self.latency_us} must be positive and "
                "finite"
            )

    def __repr__(self) -> str:
        is_wide = self.uncertainty > WIDE
        interval = f", within {sigma(self.uncertainty)}" if is_wide else f" ± {percent(self.uncertainty)}"
        time = f"{number(self.latency_us)} us{interval}"
        return f"Prediction({time}, limiting: {self.limiting})"

    def report(self) -> Report:
        """The time, what sets its pace, the use of each resource, and the model's terms."""
        from .prediction_report import prediction_report

        return prediction_report(self)

    @property
    def ranking_us(self) -> float:
        """Ranking score of the candidate, on the scale of its time; smaller is better."""
        return max(1e-3, self.latency_us + self.terms_us.get(ORDER_TERM, 0.0))


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A built kernel, or the reason of its failure. Exactly one of `artifact` and `failure` is set.

    Attributes:
        artifact: path of a shared library in the kernel cache.
        entry: symbol to call.
        resources: figures of the compiler, if it reports them: registers, spill_bytes, smem_bytes.
        compiler: name and version.
        binary: hash of the machine code and of its launch; equal hashes mean the same kernel.
    """

    artifact: str | None
    failure: Failure | None = None
    entry: str = ""
    resources: Mapping[str, int] = field(default_factory=dict)
    compiler: str = ""
    seconds: float = 0.0
    binary: str = ""

    def __post_init__(self) -> None:
        if (self.artifact is None) == (self.failure is None):
            raise ValueError("a build has either an artifact or a failure")


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one kernel on one device, or the reason of a failure. Exactly one of the two is set.

    Attributes:
        samples_us: in the order taken; each is a mean over the launches between two events.
        relative_error: ||out - ref|| / ||ref||; None if the result was not checked.
        environment: device, driver, compiler and library versions.
        protocol: how the samples were taken.
        observed: state of the device meanwhile: clock, power, temperature, number of samples taken again,
            share of the samples that were disturbed, share of the cores or the GPU that others used.
    """

    samples_us: tuple[float, ...] = ()
    failure: Failure | None = None
    relative_error: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    protocol: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    observed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.samples_us) == (self.failure is not None):
            raise ValueError("a measurement has either samples or a failure")

    @property
    def is_wrong(self) -> bool:
        """Whether it ran with wrong results; after other failures the results are unknown."""
        return self.failure is not None and self.failure.kind in WRONG

    @property
    def is_collateral(self) -> bool:
        """Whether it was not measured because another kernel had left the device unusable."""
        return self.failure is not None and self.failure.message.startswith(NOT_MEASURED)

    @property
    def latency_us(self) -> float:
        """Median of the samples."""
        return median(self.samples_us)

    @property
    def spread(self) -> float:
        """Half of the median's 95 % interval, relative to the median."""
        return spread(self.samples_us)

    @property
    def is_noisy(self) -> bool:
        """Whether the time is unreliable, since other work on the machine disturbed the samples.

        Sampling of a kernel that is clearly slower than another one stops early, with a wide interval that is
        no noise.
        """
        if self.failure is not None:
            return False
        if math.isinf(load_settings().max_noise):
            return False
        limits = {
            "disturbed": MOST_DISTURBED,
            "other_load": MOST_OTHER_LOAD,
            "other_gpu_load": MOST_OTHER_GPU_LOAD,
        }
        if any(self.observed.get(name, 0.0) > limit for name, limit in limits.items()):
            return True
        return not self.observed.get("stopped_early") and is_noise(self.spread)

    def taking(self, seconds: float) -> Measurement:
        """The measurement, whose job held its device for `seconds`."""
        return replace(self, observed={**self.observed, DEVICE_S: seconds}) if seconds else self

    @property
    def status(self) -> Status:
        """The status of a trial with this measurement."""
        if self.failure is not None:
            return Status.FAILED
        if self.is_noisy:
            return Status.NOISY
        return Status.MEASURED if self.relative_error is None else Status.VERIFIED


@dataclass(frozen=True, slots=True, repr=False)
class TrialRecord:
    """All results of one candidate in one session; stored, shown, and used to train models."""

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
            Status.NOISY: self.measurement and self.measurement.samples_us,
            Status.MEASURED: self.measurement and self.measurement.samples_us,
            Status.VERIFIED: self.measurement
            and self.measurement.samples_us
            and self.measurement.relative_error is not None,
            Status.FAILED: self.failure,
        }[self.status]
        if not needed:
            raise ValueError(f"a trial of status '{self.status}' lacks the result of that stage")
        if self.failure is not None and self.status is not Status.FAILED:
            raise ValueError(f"a trial with a failure is 'failed', not '{self.status}'")

    def __repr__(self) -> str:
        return f"TrialRecord({self.summary})"

    @property
    def summary(self) -> str:
        """One line: the time or the failure, and the config."""
        if self.failure is not None:
            return f"failed ({self.failure.kind.value}): {self.config}"
        times = [] if self.timed_us is None else [f"{self.status.value} {number(self.timed_us)} us"]
        if self.predicted_us is not None:
            times.append(f"predicted {number(self.predicted_us)} us")
        return f"{', '.join(times) or self.status.value}: {self.config}"

    @property
    def measured_us(self) -> float | None:
        """Median time if the results were right and the time is not noisy; else None."""
        return self.measurement.latency_us if self.status is Status.VERIFIED and self.measurement else None

    @property
    def noisy_us(self) -> float | None:
        """Median time if it is noisy; else None."""
        return self.measurement.latency_us if self.status is Status.NOISY and self.measurement else None

    @property
    def timed_us(self) -> float | None:
        """Median time, also if it is noisy or the results were not checked; None without a time."""
        has_time = self.status in (Status.VERIFIED, Status.MEASURED, Status.NOISY)
        return self.measurement.latency_us if has_time and self.measurement else None

    @property
    def predicted_us(self) -> float | None:
        return self.prediction.latency_us if self.prediction else None

    @property
    def ranking_us(self) -> float | None:
        """Ranking score of the prediction: `Prediction.ranking_us`."""
        return self.prediction.ranking_us if self.prediction else None


def without_measurement(trial: TrialRecord) -> TrialRecord | None:
    """A trial with its build or its prediction alone; None if it has neither."""
    if trial.measurement is None:
        return trial
    is_built = trial.build is not None and trial.build.artifact is not None
    if not is_built and trial.prediction is None:
        return None
    status = Status.BUILT if is_built else Status.PREDICTED
    return replace(trial, status=status, measurement=None, failure=None)
