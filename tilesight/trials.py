"""The trials of a session: what is known of each candidate so far, and what follows from it."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from dataclasses import replace

from .errors import Failure, FailureKind
from .jobs import Profiled
from .residuals import corrected
from .space import Config
from .trial import BuildResult, Measurement, Prediction, Status, TrialRecord

# of those not measured yet, the best predicted: none of the others is worth a look beside them
MOST_OPEN = 1024
MOST_PAIRS = 128  # measurements by which predictions are corrected, the latest


class Trials:
    """One record a config. Each method that moves a candidate on returns its new record."""

    def __init__(self) -> None:
        self.records: dict[Config, TrialRecord] = {}
        self._kept: dict[str, Config] = {}  # fingerprint of device code -> the config that stands for it
        self._binaries: dict[str, Config] = {}  # the same for what compilers made of it
        self._times: dict[Config, float] = {}  # measured, of right results
        self._measured: set[Config] = set()  # with a measurement, were it a failure
        self._waiting: dict[Config, tuple[float, str, Config]] = {}  # predicted and not measured: their places in the order
        self._order: list[tuple[float, str, Config]] = []  # of those, best predicted first
        self._built: dict[Config, None] = {}  # of those, the built ones
        self._open: dict[Config, float] | None = None  # None: to be made
        self._pairs: list[tuple[Config, float, float]] | None = None  # predicted and measured; None: to be collected
        self._factors: dict[Config, float] = {}  # by which predictions are corrected, as far as they were asked for

    def recall(self, record: TrialRecord) -> TrialRecord:
        """Take over a record of an earlier session."""
        if record.fingerprint and record.status is not Status.FAILED:
            self._kept.setdefault(record.fingerprint, record.config)
        if record.build and record.build.binary and record.status is not Status.FAILED:
            self._binaries.setdefault(record.build.binary, record.config)
        return self._set(record)

    def failed(self, config: Config, failure: Failure, lowered: Profiled | None = None) -> TrialRecord:
        return self._set(_failed(config, failure, lowered))

    def predicted(self, config: Config, lowered: Profiled, prediction: Prediction) -> TrialRecord:
        """A candidate whose device code is that of another is a failure of kind DUPLICATE, with the same prediction."""
        kept = self._kept.setdefault(lowered.fingerprint, config)
        if kept == config:
            return self._set(TrialRecord(config, Status.PREDICTED, prediction, None, None, None, lowered.fingerprint, lowered.seconds))
        failure = Failure(FailureKind.DUPLICATE, f"generates the same device code as {kept}")
        return self._set(replace(_failed(config, failure, lowered), prediction=prediction))

    def built(self, config: Config, build: BuildResult, prediction: Prediction | None = None) -> TrialRecord:
        """`prediction` takes the place of the earlier one: it was made with the compiler's figures. A candidate whose machine
        code is that of another is a failure of kind DUPLICATE."""
        trial, failure = self.records[config], build.failure
        if failure is None and build.binary:
            first = self._binaries.setdefault(build.binary, config)
            if first != config:
                failure = Failure(FailureKind.DUPLICATE, f"builds to the same binary as {first}")
        status = Status.FAILED if failure else Status.BUILT
        return self._set(replace(trial, status=status, build=build, failure=failure, prediction=prediction or trial.prediction))

    def measured(self, config: Config, measurement: Measurement) -> TrialRecord:
        trial = self.records[config]
        checked = Status.MEASURED if measurement.relative_error is None else Status.VERIFIED
        status = Status.FAILED if measurement.failure else checked
        return self._set(replace(trial, status=status, measurement=measurement, failure=measurement.failure))

    @property
    def works(self) -> bool:
        """Whether any candidate came through so far."""
        return any(t.status is not Status.FAILED for t in self.records.values())

    @property
    def measured_count(self) -> int:
        return len(self._measured)

    @property
    def fastest_us(self) -> float | None:
        return min(self._times.values(), default=None)

    def open(self) -> dict[Config, float]:
        """Configs that were predicted and not measured yet, with their time as predicted and corrected by what was measured:
        the `MOST_OPEN` best predicted, and all that are built."""
        if self._open is None:
            places = [*self._order[:MOST_OPEN], *(self._waiting[config] for config in self._built)]
            waiting = {config: us for us, _, config in places}
            unknown = {config: 1.0 for config in waiting if config not in self._factors}
            self._factors.update(corrected(unknown, self._measured_pairs()[-MOST_PAIRS:]))  # of a config, whatever its prediction
            self._open = {config: us * self._factors[config] for config, us in waiting.items()}
        return self._open

    def fastest(self, count: int, margin: float, least: int = 1) -> list[Config]:
        """Up to `count` verified configs within `margin` (a factor) of the fastest, and `least` of them in any case, fastest
        first."""
        times = self._times
        limit = margin * min(times.values(), default=0.0)
        ordered = sorted(times, key=lambda config: times[config])[:count]
        return [config for place, config in enumerate(ordered) if place < least or times[config] <= limit]

    def value(self, config: Config) -> float | None:
        """What a search is told of a config: its time, on the scale of predictions; None where it failed."""
        trial = self.records[config]
        if trial.measured_us is not None:
            pairs = self._measured_pairs()
            # a constant factor between model and device says nothing about which config is better
            common = sum(math.log(actual / predicted) for _, predicted, actual in pairs) / len(pairs) if pairs else 0.0
            return trial.measured_us / math.exp(common)
        if trial.status is not Status.FAILED or (trial.failure and trial.failure.kind is FailureKind.DUPLICATE):
            return trial.ranking_us
        return None

    def summary(self) -> str:
        """Of the exploration, in a line."""
        kinds = Counter(t.failure.kind for t in self.records.values() if t.failure)
        duplicates = kinds.pop(FailureKind.DUPLICATE, 0)
        predicted = [t.prediction for t in self.records.values() if t.status is not Status.FAILED and t.prediction is not None]
        parts = [f"{len(self.records)} candidates", f"{len(predicted)} predicted"]
        parts += [f"{duplicates} generate the same code as another"] if duplicates else []
        parts += [f"{sum(kinds.values())} failed ({', '.join(f'{n} {k.value}' for k, n in kinds.most_common())})"] if kinds else []
        parts += [f"best predicted {min(predicted, key=lambda p: p.ranking_us).latency_us:.4g} us"] if predicted else []
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
            # the more is known, the less one more time says: a large space is not weighed up anew after each
            if len(self._measured) % (1 + len(self._measured) // (2 * MOST_PAIRS)) == 0:
                self._factors.clear()
        self._times.pop(config, None)
        if record.measured_us is not None:
            self._times[config] = record.measured_us
        place = self._waiting.pop(config, None)
        if place is not None:
            del self._order[bisect_left(self._order, place)]
        self._built.pop(config, None)
        if record.status in (Status.PREDICTED, Status.BUILT) and record.ranking_us is not None:
            place = self._waiting[config] = record.ranking_us, config.key, config
            insort(self._order, place)
            if record.status is Status.BUILT:
                self._built[config] = None
        self._open = None
        return record


def _failed(config: Config, failure: Failure, lowered: Profiled | None) -> TrialRecord:
    fingerprint, seconds = (lowered.fingerprint, lowered.seconds) if lowered else ("", 0.0)
    return TrialRecord(config, Status.FAILED, failure=failure, fingerprint=fingerprint, lowering_seconds=seconds)
