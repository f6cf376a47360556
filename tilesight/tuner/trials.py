"""The trials of the running session: one record a candidate, and what follows from all of them."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from dataclasses import replace

from ..errors import Failure, FailureKind
from ..executor.tasks import Profiled
from ..problem.space import Config
from ..records.trial import BuildResult, Measurement, Prediction, Status, TrialRecord
from ..search.residual_gp import corrected

# unmeasured candidates that are considered: the best predicted
MOST_UNMEASURED = 1024
MOST_PAIRS = 128  # measurements by which predictions are corrected: the latest


class Trials:
    """One record a config. A method that changes a candidate returns its new record."""

    def __init__(self) -> None:
        self.records: dict[Config, TrialRecord] = {}
        self._by_code: dict[str, Config] = {}  # fingerprint of device code -> the first config with it
        self._by_binary: dict[str, Config] = {}  # hash of machine code -> the first config with it
        self._times: dict[Config, float] = {}  # measured times of correct kernels
        self._measured: set[Config] = set()  # with a measurement, failed ones included
        self._waiting: dict[Config, tuple[float, str, Config]] = {}  # predicted, not measured: sort key
        self._order: list[tuple[float, str, Config]] = []  # the same, best predicted first
        self._built: dict[Config, None] = {}  # built, not measured
        self._unmeasured: dict[Config, float] | None = None  # None: outdated
        self._pairs: list[tuple[Config, float, float]] | None = (
            None  # config, predicted, measured; None: outdated
        )
        self._factors: dict[Config, float] = {}  # corrections of predictions, computed on demand

    def recall(self, record: TrialRecord) -> TrialRecord:
        """Add a record of an earlier session."""
        if record.fingerprint and record.status is not Status.FAILED:
            self._by_code.setdefault(record.fingerprint, record.config)
        if record.build and record.build.binary and record.status is not Status.FAILED:
            self._by_binary.setdefault(record.build.binary, record.config)
        return self._set(record)

    def failed(self, config: Config, failure: Failure, lowered: Profiled | None = None) -> TrialRecord:
        return self._set(_failed(config, failure, lowered))

    def predicted(self, config: Config, lowered: Profiled, prediction: Prediction) -> TrialRecord:
        """Add a predicted candidate; one with the device code of another is a failure of kind DUPLICATE."""
        first = self._by_code.setdefault(lowered.fingerprint, config)
        if first == config:
            return self._set(
                TrialRecord(
                    config,
                    Status.PREDICTED,
                    prediction,
                    None,
                    None,
                    None,
                    lowered.fingerprint,
                    lowered.seconds,
                )
            )
        failure = Failure(FailureKind.DUPLICATE, f"generates the same device code as {first}")
        return self._set(replace(_failed(config, failure, lowered), prediction=prediction))

    def built(self, config: Config, build: BuildResult, prediction: Prediction | None = None) -> TrialRecord:
        """Add the build of a candidate; one with the machine code of another is a failure of kind DUPLICATE.

        `prediction`, made with the compiler's figures, replaces the earlier one.
        """
        trial, failure = self.records[config], build.failure
        if failure is None and build.binary:
            first = self._by_binary.setdefault(build.binary, config)
            if first != config:
                failure = Failure(FailureKind.DUPLICATE, f"builds to the same binary as {first}")
        status = Status.FAILED if failure else Status.BUILT
        return self._set(
            replace(
                trial, status=status, build=build, failure=failure, prediction=prediction or trial.prediction
            )
        )

    def measured(self, config: Config, measurement: Measurement) -> TrialRecord:
        """Add the measurement of a candidate. A noisy one does not replace an earlier clean one."""
        trial = self.records[config]
        if measurement.is_noisy and trial.status in (Status.MEASURED, Status.VERIFIED):
            return trial
        return self._set(
            replace(trial, status=measurement.status, measurement=measurement, failure=measurement.failure)
        )

    def predicted_again(self, config: Config, prediction: Prediction) -> TrialRecord:
        """Add the prediction of a candidate whose measurement another model or target file predicted."""
        return self._set(replace(self.records[config], prediction=prediction))

    @property
    def works(self) -> bool:
        """Whether any candidate has not failed."""
        return any(t.status is not Status.FAILED for t in self.records.values())

    @property
    def measured_count(self) -> int:
        return len(self._measured)

    @property
    def fastest_us(self) -> float | None:
        return min(self._times.values(), default=None)

    def unmeasured(self) -> dict[Config, float]:
        """Times in us of predicted, unmeasured configs, corrected by the measurements so far.

        These are the `MOST_UNMEASURED` best predicted configs and all built ones.
        """
        if self._unmeasured is None:
            keys = [*self._order[:MOST_UNMEASURED], *(self._waiting[config] for config in self._built)]
            waiting = {config: us for us, _, config in keys}
            unknown = {config: 1.0 for config in waiting if config not in self._factors}
            self._factors.update(corrected(unknown, self._measured_pairs()[-MOST_PAIRS:]))
            self._unmeasured = {config: us * self._factors[config] for config, us in waiting.items()}
        return self._unmeasured

    def fastest(self, count: int, margin: float, least: int = 1) -> list[Config]:
        """Up to `count` verified configs, fastest first: those within the factor `margin` of the fastest, but
        at least `least` of them. Noisy ones follow, since any of them may be the fastest.
        """
        times = self._times
        limit = margin * min(times.values(), default=0.0)
        ordered = sorted(times, key=lambda config: times[config])[:count]
        clean = [config for rank, config in enumerate(ordered) if rank < least or times[config] <= limit]
        noisy = {config: us for config, trial in self.records.items() if (us := trial.noisy_us) is not None}
        return [*clean, *sorted(noisy, key=lambda config: noisy[config])][:count]

    def value(self, config: Config) -> float | None:
        """The time of a config in us for the search, on the scale of predictions; None if it failed."""
        trial = self.records[config]
        if trial.measured_us is not None:
            pairs = self._measured_pairs()
            # a constant factor between model and device does not change the order of configs
            common = (
                sum(math.log(actual / predicted) for _, predicted, actual in pairs) / len(pairs)
                if pairs
                else 0.0
            )
            return trial.measured_us / math.exp(common)
        if trial.status is not Status.FAILED or (
            trial.failure and trial.failure.kind is FailureKind.DUPLICATE
        ):
            return trial.ranking_us
        return None

    def summary(self) -> str:
        """The exploration in one line."""
        kinds = Counter(t.failure.kind for t in self.records.values() if t.failure)
        duplicates = kinds.pop(FailureKind.DUPLICATE, 0)
        predicted = [
            t.prediction
            for t in self.records.values()
            if t.status is not Status.FAILED and t.prediction is not None
        ]
        parts = [f"{len(self.records)} candidates", f"{len(predicted)} predicted"]
        parts += [f"{duplicates} generate the same code as another"] if duplicates else []
        parts += (
            [f"{sum(kinds.values())} failed ({', '.join(f'{n} {k.value}' for k, n in kinds.most_common())})"]
            if kinds
            else []
        )
        parts += (
            [f"best predicted {min(predicted, key=lambda p: p.ranking_us).latency_us:.4g} us"]
            if predicted
            else []
        )
        return ", ".join(parts)

    def _measured_pairs(self) -> list[tuple[Config, float, float]]:
        if self._pairs is None:
            self._pairs = [
                (config, predicted, time_us)
                for config, time_us in self._times.items()
                if (predicted := self.records[config].predicted_us) is not None
            ]
        return self._pairs

    def _set(self, record: TrialRecord) -> TrialRecord:
        config = record.config
        self.records[config] = record
        if record.measurement is not None:
            self._measured.add(config)
            self._pairs = None
            # with many measurements, one more changes little: corrections are computed anew less often
            if len(self._measured) % (1 + len(self._measured) // (2 * MOST_PAIRS)) == 0:
                self._factors.clear()
        self._times.pop(config, None)
        if record.measured_us is not None:
            self._times[config] = record.measured_us
        key = self._waiting.pop(config, None)
        if key is not None:
            del self._order[bisect_left(self._order, key)]
        self._built.pop(config, None)
        if record.status in (Status.PREDICTED, Status.BUILT) and record.ranking_us is not None:
            key = self._waiting[config] = record.ranking_us, config.key, config
            insort(self._order, key)
            if record.status is Status.BUILT:
                self._built[config] = None
        self._unmeasured = None
        return record


def _failed(config: Config, failure: Failure, lowered: Profiled | None) -> TrialRecord:
    fingerprint, seconds = (lowered.fingerprint, lowered.seconds) if lowered else ("", 0.0)
    return TrialRecord(
        config, Status.FAILED, failure=failure, fingerprint=fingerprint, lowering_seconds=seconds
    )
