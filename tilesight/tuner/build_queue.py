"""The candidates that a session builds and does not measure: those that it predicts to be the fastest."""

from __future__ import annotations

from ..problem.space import Config
from ..records.trial import BuildResult, Status, TrialRecord
from .rerank import Reranker
from .trials import Trials

MOST_BUILDS = 2  # for each wanted one: the compiler's figures may put another candidate first


class BuildQueue:
    """Builds until the first of the ranking is built, and as many others as wanted.

    Args:
        trials: The records of the session.
        reranker: Predicts built candidates again with the compiler's figures.
        wanted: Number of candidates to build.
        width: Number of builds that run at once.
    """

    def __init__(self, trials: Trials, reranker: Reranker, wanted: int, width: int) -> None:
        self._trials, self._reranker, self.wanted, self._width = trials, reranker, wanted, width
        known = trials.records.items()
        self._tried = {config for config, trial in known if trial.status is Status.BUILT}
        self._building: set[Config] = set()
        self.built_count, self.failed_count, self.moved_count = len(self._tried), 0, 0

    def next(self) -> Config | None:
        """The candidate to build next; None while enough are on their way, and at the end."""
        if len(self._building) >= self._width or len(self._tried) >= MOST_BUILDS * self.wanted:
            return None
        times_us = self._trials.unmeasured()
        ranking = sorted(times_us, key=lambda config: (times_us[config], config.key))
        enough = self.built_count + len(self._building) >= self.wanted
        left = (config for config in (ranking[:1] if enough else ranking) if config not in self._tried)
        config = next(left, None)
        if config is not None:
            self._tried.add(config)
            self._building.add(config)
        return config

    def built(self, config: Config, build: BuildResult) -> TrialRecord:
        """Record a build. The new record has a prediction made with the compiler's figures."""
        self._building.discard(config)
        predicted = self._trials.records[config].prediction
        after = predicted
        if predicted is not None and build.failure is None:
            after = self._reranker.predict(config, build, predicted)
        record = self._trials.built(config, build, after)
        self.built_count += record.failure is None
        self.failed_count += record.failure is not None
        self.moved_count += after is not predicted
        return record

    def summary(self) -> str:
        """What came of it, in one line."""
        parts = [f"{self.built_count} built"]
        parts += [f"{self.failed_count} failed or the same code as another"] if self.failed_count else []
        return ", ".join([*parts, f"the compiler's figures move {self.moved_count} predictions"])
