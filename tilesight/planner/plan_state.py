"""The state of a plan: records of each config at each sampled size, and the times that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import Failure, FailureKind
from ..problem.space import Config
from ..records.trial import BuildResult, Measurement, Status, TrialRecord
from ..tuner.trials import Trials
from .cover import greedily
from .plan_problem import PlanProblem
from .size_correction import CorrectedTimes, correct
from .size_predictions import Pair, SizePredictions

# failures that exclude a config at one size alone: they depend on the size or the moment
TRANSIENT_FAILURES = (
    FailureKind.RUN_MEMORY,
    FailureKind.RUN_TIMEOUT,
    FailureKind.BUILD_TIMEOUT,
    FailureKind.BUILD_MEMORY,
)
# predictions are corrected again after this many measurements, or this share of all, whichever is more
REFRESH_COUNT, REFRESH_SHARE = 4, 1 / 50


class PlanState:
    """`configs`: those that may become kernels. `sizes`: the sampled sizes."""

    def __init__(
        self,
        problem: PlanProblem,
        predictions: SizePredictions,
        configs: Sequence[Config],
        sizes: Sequence[int],
    ) -> None:
        self.problem, self.predictions = problem, predictions
        self.configs, self.sizes = list(configs), list(sizes)
        self.trials: dict[int, Trials] = {size: Trials() for size in sizes}
        self.builds: dict[Pair, BuildResult] = {}  # size 0: a dynamic kernel, for all sizes
        self.failed: dict[
            Config, Failure
        ] = {}  # wrong at some size, or it does not build: excluded at all sizes
        self.duplicates: set[Config] = set()  # dynamic kernels with the same machine code as an earlier one
        self._first_by_binary: dict[str, Config] = {}
        self.paired_us: dict[Pair, float] = {}  # times from pairwise tests
        self._recalled: dict[int, Mapping[str, TrialRecord]] = {}
        self._corrected: CorrectedTimes | None = None
        self._corrected_at = -1

    def begin(self, recalled: Mapping[int, Mapping[str, TrialRecord]]) -> dict[int, list[TrialRecord]]:
        """Take over recorded trials, by size and config key; returns new records by size."""
        self._recalled = dict(recalled)
        return self._add_records(self.configs, self.sizes)

    def add(self, configs: Sequence[Config]) -> dict[int, list[TrialRecord]]:
        """Add configs; returns their new records by size."""
        self.configs += configs
        self._corrected = None
        return self._add_records(configs, self.sizes)

    def add_sizes(
        self, sizes: Sequence[int], recalled: Mapping[int, Mapping[str, TrialRecord]]
    ) -> dict[int, list[TrialRecord]]:
        """Add sampled sizes with their recorded trials; returns new records by size."""
        self.sizes = sorted([*self.sizes, *sizes])
        self.trials.update({size: Trials() for size in sizes})
        self._recalled.update(recalled)
        self._corrected = None
        new = self._add_records(self.configs, sizes)
        for (config, at), build in self.builds.items():
            if not at:  # a dynamic kernel
                for size, records in self._record_build(config, sizes, build).items():
                    new.setdefault(size, []).extend(
                        record for record in records if record.failure is not None
                    )
        return new

    def _add_records(self, configs: Sequence[Config], sizes: Sequence[int]) -> dict[int, list[TrialRecord]]:
        new: dict[int, list[TrialRecord]] = {}
        recalled = self._recalled
        for size in sizes:
            for config in configs:
                known = recalled.get(size, {}).get(config.key)
                if known is not None and (known.measurement is not None or _counts_as_failure(known)):
                    self._note_failure(size, self.trials[size].recall(known))
                    continue
                prediction_at = self.predictions.prediction_at(config, size)
                if prediction_at is not None:
                    new.setdefault(size, []).append(
                        self.trials[size].predicted(config, prediction_at.lowered, prediction_at.prediction)
                    )
                    self._note_failure(size, new[size][-1])
        return new

    def built(self, config: Config, size: int, build: BuildResult) -> dict[int, list[TrialRecord]]:
        """Note a build for `size`, or for all sizes (0); returns changed records by size."""
        self.builds[config, size] = build
        if not size and build.binary and self._first_by_binary.setdefault(build.binary, config) != config:
            self.duplicates.add(config)
        return self._record_build(config, [size] if size else self.sizes, build)

    def _record_build(
        self, config: Config, sizes: Sequence[int], build: BuildResult
    ) -> dict[int, list[TrialRecord]]:
        new: dict[int, list[TrialRecord]] = {}
        for at in sizes:
            before = self.trials[at].records.get(config)
            if before is not None and before.measurement is None and before.failure is None:
                new[at] = [self.trials[at].built(config, build)]
                self._note_failure(at, new[at][0])
        return new

    def measured(self, config: Config, size: int, measurement: Measurement) -> TrialRecord:
        """Note a measurement; returns the changed record."""
        trials = self.trials[size]
        if config not in trials.records or trials.records[config].failure is not None:
            build = self.build_of(config, size)
            assert build is not None  # it was measured
            trials.recall(_record_without_prediction(config, build))
        record = trials.measured(config, measurement)
        self._note_failure(size, record)
        if self._known_count() >= self._corrected_at + max(
            REFRESH_COUNT, int(self._corrected_at * REFRESH_SHARE)
        ):
            self._corrected = None
        return record

    def _note_failure(self, size: int, record: TrialRecord) -> None:
        failure = record.failure
        if (
            failure is None
            or failure.kind in TRANSIENT_FAILURES
            or (record.measurement is not None and record.measurement.is_collateral)
        ):
            return
        if failure.kind is not FailureKind.DUPLICATE:
            self.failed.setdefault(record.config, failure)

    def build_of(self, config: Config, size: int) -> BuildResult | None:
        return self.builds.get((config, 0 if self.problem.dynamic else size))

    def measured_us(self, config: Config, size: int) -> float | None:
        """The time from a pairwise test at that size, else the measured time, else None."""
        paired_us = self.paired_us.get((config, size))
        if paired_us is not None:
            return paired_us
        trials = self.trials.get(size)
        record = trials.records.get(config) if trials is not None else None
        return None if record is None else record.measured_us

    def is_tried(self, config: Config, size: int) -> bool:
        record = self.trials[size].records.get(config)
        return record is not None and record.measurement is not None

    def measured_count(self, size: int) -> int:
        return self.trials[size].measured_count

    @property
    def built_count(self) -> int:
        """Kernels that were built."""
        return sum(build.artifact is not None for build in self.builds.values())

    def fastest_us(self, size: int) -> float | None:
        return self.trials[size].fastest_us

    def is_excluded(self, config: Config) -> bool:
        """Whether it can be no kernel of the table: it failed, or is a duplicate."""
        return config in self.failed or config in self.duplicates

    def _known_count(self) -> int:
        return sum(trials.measured_count for trials in self.trials.values())

    def corrected(self) -> CorrectedTimes:
        """Expected times at the sampled sizes: a row for each of `configs`, a column for each of `sizes`.

        A measured time is itself. Infinite: the config is excluded, or does not work at the size. The result
        may be a few measurements old.
        """
        if self._corrected is None:
            self._corrected = self.expected(self.configs, self.sizes)
            self._corrected_at = self._known_count()
        return self._corrected

    def expected(self, configs: Sequence[Config], sizes: Sequence[int]) -> CorrectedTimes:
        """The same for any configs and sizes, up to date."""
        predicted_us = np.array([self.predictions.row(config, sizes) for config in configs])
        found = correct(configs, sizes, predicted_us, self._measured_pairs(), self.problem.whole_tiles)
        times, uncertainty = found.times, found.uncertainty
        for row, config in enumerate(configs):
            for column, size in enumerate(sizes):
                time_us = self.measured_us(config, size)
                if self.is_excluded(config) or not self.problem.works(size, config):
                    times[row, column] = math.inf
                elif time_us is not None:
                    times[row, column], uncertainty[row, column] = time_us, 0.0
        return CorrectedTimes(np.where(np.isnan(times), math.inf, times), uncertainty)

    def _measured_pairs(self) -> dict[Pair, tuple[float, float]]:
        """Predicted and measured times, by config and size."""
        pairs: dict[Pair, tuple[float, float]] = {}
        for size, trials in self.trials.items():
            for config in trials.records:
                predicted, actual = self.predictions.time_us(config, size), self.measured_us(config, size)
                if actual is not None and not math.isnan(predicted):
                    pairs[config, size] = predicted, actual
        return pairs

    def most_promising(self, configs: Sequence[Config], weights: Sequence[float], count: int) -> list[Config]:
        """New configs that may be faster at some sizes than all measured ones.

        Args:
            configs: candidates; those of the state are left out.
            weights: of the sampled sizes.
            count: of configs, at most. Each is the one that promises most beside those before it.
        """
        new = [config for config in configs if config not in set(self.configs)]
        if not new:
            return []
        found = self.expected(new, self.sizes)
        best = np.array([us if (us := self.best_us(size)) is not None else math.nan for size in self.sizes])
        optimistic = found.times * np.exp(-found.uncertainty) / best[None, :]
        at_best = np.where(np.isfinite(optimistic), np.minimum(optimistic, 1.0), 1.0)
        rows = greedily(at_best * weights, count, served=np.asarray(weights))
        gain = (1 - at_best) @ np.asarray(weights)  # of several that promise the same, any may be the fastest
        rows += sorted(
            (row for row in range(len(new)) if gain[row] > 0 and row not in rows), key=lambda row: -gain[row]
        )
        return [new[row] for row in rows[:count]]

    def best_us(self, size: int) -> float | None:
        """The least measured time at a size, among configs that did not fail."""
        known = [
            self.measured_us(config, size)
            for config in self.trials[size].records
            if config not in self.failed
        ]
        return min((us for us in known if us is not None), default=None)


def _counts_as_failure(known: TrialRecord) -> bool:
    """Whether a recorded failure holds in this plan; a duplicate's other config may not be part of it."""
    return known.failure is not None and known.failure.kind is not FailureKind.DUPLICATE


def _record_without_prediction(config: Config, build: BuildResult) -> TrialRecord:
    """The record of a config that was not predicted at a size, and whose kernel was built for other sizes."""
    return TrialRecord(config, Status.BUILT, build=build)
