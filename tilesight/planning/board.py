"""The board: what is known of each config at each sampled size, and what follows from all of it together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import Failure, FailureKind
from ..space import Config
from ..trial import BuildResult, Measurement, Status, TrialRecord
from ..trials import Trials
from .correction import Corrected, correct
from .cover import greedily
from .subject import Subject
from .survey import Pair, Survey

# a fault of the moment or of the machine: it says nothing against the config elsewhere
OF_THE_SIZE = (FailureKind.RUN_MEMORY, FailureKind.RUN_TIMEOUT, FailureKind.BUILD_TIMEOUT, FailureKind.BUILD_MEMORY)
ANEW_AFTER, ANEW_SHARE = 4, 50  # predictions are corrected again after so many measurements, and a fiftieth of all


class Board:
    """`configs` are those that may become kernels, `sizes` those at which they are measured."""

    def __init__(self, subject: Subject, survey: Survey, configs: Sequence[Config], sizes: Sequence[int]) -> None:
        self.subject, self.survey = subject, survey
        self.configs, self.sizes = list(configs), list(sizes)
        self.trials: dict[int, Trials] = {size: Trials() for size in sizes}
        self.builds: dict[Pair, BuildResult] = {}  # size 0: for all sizes
        self.broken: dict[Config, Failure] = {}  # wrong at some size, or not to be built: no kernel for any
        self.duplicates: set[Config] = set()  # open kernels that are the same as another one's of this plan
        self._first: dict[str, Config] = {}  # by machine code
        self.paired: dict[Pair, float] = {}  # times that follow from a comparison in turns
        self._recalled: dict[int, Mapping[str, TrialRecord]] = {}
        self._corrected: Corrected | None = None
        self._corrected_at = -1

    # ---- what comes in

    def begin(self, recalled: Mapping[int, Mapping[str, TrialRecord]]) -> dict[int, list[TrialRecord]]:
        """Take over what is known; the new records by size."""
        self._recalled = dict(recalled)
        return self._placed(self.configs, self.sizes)

    def add(self, configs: Sequence[Config]) -> dict[int, list[TrialRecord]]:
        """More configs that may become kernels; their new records by size."""
        self.configs += configs
        self._corrected = None
        return self._placed(configs, self.sizes)

    def add_sizes(self, sizes: Sequence[int], recalled: Mapping[int, Mapping[str, TrialRecord]]) -> dict[int, list[TrialRecord]]:
        """More sizes to measure at, with what is known of them; the new records by size."""
        self.sizes = sorted([*self.sizes, *sizes])
        self.trials.update({size: Trials() for size in sizes})
        self._recalled.update(recalled)
        self._corrected = None
        new = self._placed(self.configs, sizes)
        for (config, at), build in self.builds.items():
            if not at:  # it serves these sizes too
                for size, records in self._tell_built(config, sizes, build).items():
                    new.setdefault(size, []).extend(record for record in records if record.failure is not None)
        return new

    def _placed(self, configs: Sequence[Config], sizes: Sequence[int]) -> dict[int, list[TrialRecord]]:
        new: dict[int, list[TrialRecord]] = {}
        recalled = self._recalled
        for size in sizes:
            for config in configs:
                known = recalled.get(size, {}).get(config.key)
                if known is not None and (known.measurement is not None or _is_a_fault(known)):
                    self._note(size, self.trials[size].recall(known))
                    continue
                outlook = self.survey.outlook(config, size)
                if outlook is not None:
                    new.setdefault(size, []).append(self.trials[size].predicted(config, outlook.lowered, outlook.prediction))
                    self._note(size, new[size][-1])
        return new

    def built(self, config: Config, size: int, build: BuildResult) -> dict[int, list[TrialRecord]]:
        """A build that serves `size`, or with open dimensions every size (0)."""
        self.builds[config, size] = build
        if not size and build.binary and self._first.setdefault(build.binary, config) != config:
            self.duplicates.add(config)
        return self._tell_built(config, [size] if size else self.sizes, build)

    def _tell_built(self, config: Config, sizes: Sequence[int], build: BuildResult) -> dict[int, list[TrialRecord]]:
        new: dict[int, list[TrialRecord]] = {}
        for at in sizes:
            before = self.trials[at].records.get(config)
            if before is not None and before.measurement is None and before.failure is None:
                new[at] = [self.trials[at].built(config, build)]
                self._note(at, new[at][0])
        return new

    def measured(self, config: Config, size: int, measurement: Measurement) -> TrialRecord:
        trials = self.trials[size]
        if config not in trials.records or trials.records[config].failure is not None:
            build = self.build_of(config, size)
            assert build is not None  # it was measured
            trials.recall(_unpredicted(config, build))
        record = trials.measured(config, measurement)
        self._note(size, record)
        if self._known_count() >= self._corrected_at + max(ANEW_AFTER, self._corrected_at // ANEW_SHARE):
            self._corrected = None
        return record

    def _note(self, size: int, record: TrialRecord) -> None:
        failure = record.failure
        if failure is None or failure.kind in OF_THE_SIZE or (record.measurement is not None and record.measurement.is_bystander):
            return
        if failure.kind is not FailureKind.DUPLICATE:
            self.broken.setdefault(record.config, failure)

    # ---- what is known

    def build_of(self, config: Config, size: int) -> BuildResult | None:
        return self.builds.get((config, 0 if self.subject.open else size))

    def measured_us(self, config: Config, size: int) -> float | None:
        """As measured at that size, or as it follows from a comparison in turns there."""
        paired = self.paired.get((config, size))
        if paired is not None:
            return paired
        trials = self.trials.get(size)
        record = trials.records.get(config) if trials is not None else None
        return None if record is None else record.measured_us

    def is_tried(self, config: Config, size: int) -> bool:
        record = self.trials[size].records.get(config)
        return record is not None and record.measurement is not None

    def measured_count(self, size: int) -> int:
        return self.trials[size].measured_count

    def fastest_us(self, size: int) -> float | None:
        return self.trials[size].fastest_us

    def is_out(self, config: Config) -> bool:
        """Whether it can be no kernel of the table."""
        return config in self.broken or config in self.duplicates

    def _known_count(self) -> int:
        return sum(trials.measured_count for trials in self.trials.values())

    # ---- what follows

    def corrected(self) -> Corrected:
        """Expected times at the sampled sizes, a row for each of `configs`; measured ones as they were measured. Those of a
        config that is out, or does not work at a size, are infinite. A few measurements old."""
        if self._corrected is None:
            self._corrected = self.expected(self.configs, self.sizes)
            self._corrected_at = self._known_count()
        return self._corrected

    def expected(self, configs: Sequence[Config], sizes: Sequence[int]) -> Corrected:
        """The same for any configs and sizes."""
        said = np.array([self.survey.row(config, sizes) for config in configs])
        found = correct(configs, sizes, said, self._pairs(), self.subject.whole)
        times, doubt = found.times, found.doubt
        for row, config in enumerate(configs):
            for column, size in enumerate(sizes):
                time_us = self.measured_us(config, size)
                if self.is_out(config) or not self.subject.works(size, config):
                    times[row, column] = math.inf
                elif time_us is not None:
                    times[row, column], doubt[row, column] = time_us, 0.0
        return Corrected(np.where(np.isnan(times), math.inf, times), doubt)

    def _pairs(self) -> dict[Pair, tuple[float, float]]:
        """Predicted and measured times of what was measured."""
        pairs: dict[Pair, tuple[float, float]] = {}
        for size, trials in self.trials.items():
            for config in trials.records:
                said, actual = self.survey.time_us(config, size), self.measured_us(config, size)
                if actual is not None and not math.isnan(said):
                    pairs[config, size] = said, actual
        return pairs

    def hopeful(self, configs: Sequence[Config], weights: Sequence[float], count: int) -> list[Config]:
        """Up to `count` of `configs`, none of them on the board yet, that what was measured lets hope to be faster at some sizes than
        all that were measured there: each the one that promises most beside those before it."""
        new = [config for config in configs if config not in set(self.configs)]
        if not new:
            return []
        found = self.expected(new, self.sizes)
        best = np.array([us if (us := self.best_us(size)) is not None else math.nan for size in self.sizes])
        hoped = found.times * np.exp(-found.doubt) / best[None, :]
        at_best = np.where(np.isfinite(hoped), np.minimum(hoped, 1.0), 1.0)
        rows = greedily(at_best * weights, count, served=np.asarray(weights))
        worth = (1 - at_best) @ np.asarray(weights)  # those that promise what others do may be the ones that keep it
        rows += sorted((row for row in range(len(new)) if worth[row] > 0 and row not in rows), key=lambda row: -worth[row])
        return [new[row] for row in rows[:count]]

    def best_us(self, size: int) -> float | None:
        """The least measured time at a size, of any config that is right."""
        known = [self.measured_us(config, size) for config in self.trials[size].records if config not in self.broken]
        return min((us for us in known if us is not None), default=None)


def _is_a_fault(known: TrialRecord) -> bool:
    """What was another one's duplicate in an earlier session is none here, unless that other one is on this board too."""
    return known.failure is not None and known.failure.kind is not FailureKind.DUPLICATE


def _unpredicted(config: Config, build: BuildResult) -> TrialRecord:
    """The record of a config that was not predicted where it is measured: its kernel was built for other sizes."""
    return TrialRecord(config, Status.BUILT, build=build)
