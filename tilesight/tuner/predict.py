"""From profiles to the records of predicted candidates."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..costmodel.model import CostModel, predict_many
from ..errors import Failure, FailureKind
from ..executor.tasks import Answer, Profiled
from ..problem.space import Config
from ..records.trial import Prediction, TrialRecord
from ..target.spec import Target
from .rerank import Reranker
from .trials import Trials

TOGETHER = 512  # candidates in one call of the model


class TrialPredictor:
    """Predicts lowered candidates and adds their records to the session's trials."""

    def __init__(self, model: CostModel, target: Target, trials: Trials, reranker: Reranker) -> None:
        self._model, self._target, self._trials, self._reranker = model, target, trials, reranker

    def records(self, outcomes: Sequence[tuple[Config, Profiled | Failure]]) -> list[TrialRecord]:
        """New records of the configs, in their order. A candidate that the model refuses is a failure."""
        found = self._predictions(outcomes)
        return [self._record(config, outcome, found.get(config)) for config, outcome in outcomes]

    def many(self, found: Iterator[Answer]) -> list[TrialRecord]:
        """Records of all answers, predicted in batches."""
        records: list[TrialRecord] = []
        while some := list(itertools.islice(found, TOGETHER)):
            records += self.records([(candidate.config, outcome) for candidate, outcome in some])
        return records

    def again(self, found: Iterator[Answer]) -> list[TrialRecord]:
        """Records of measured candidates with predictions of this model."""
        predictions = self._predictions([(candidate.config, outcome) for candidate, outcome in found])
        return [
            self._trials.predicted_again(config, prediction)
            for config, prediction in predictions.items()
            if isinstance(prediction, Prediction)
        ]

    def _predictions(
        self, outcomes: Sequence[tuple[Config, Profiled | Failure]]
    ) -> dict[Config, Prediction | Exception]:
        """The model's answers for the configs that have profiles, from one call."""
        profiled = {config: outcome.kernels for config, outcome in outcomes if isinstance(outcome, Profiled)}
        if not profiled:
            return {}
        return dict(
            zip(profiled, predict_many(self._model, list(profiled.values()), self._target), strict=True)
        )

    def _record(
        self, config: Config, outcome: Profiled | Failure, prediction: Prediction | Exception | None
    ) -> TrialRecord:
        if isinstance(outcome, Failure):
            return self._trials.failed(config, outcome)
        if not isinstance(prediction, Prediction):
            failure = Failure(
                FailureKind.PROFILE_ERROR,
                f"the cost model refuses it: {type(prediction).__name__}: {prediction}",
            )
            return self._trials.failed(config, failure, outcome)
        self._reranker.remember(config, outcome.kernels, prediction.ranking_us)
        return self._trials.predicted(config, outcome, prediction)


@contextmanager
def without_garbage() -> Iterator[None]:
    """Switch off garbage collection, which would take an eighth of the time while ten thousand values are
    made.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
