"""From what lowering showed to the records of predicted candidates."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .compiled import SecondLook
from .costmodel.model import CostModel, predict_many
from .errors import Failure, FailureKind
from .jobs import Answer, Profiled
from .space import Config
from .target import Target
from .trial import Prediction, TrialRecord
from .trials import Trials

TOGETHER = 512  # candidates in one call of the model


class Predicting:
    def __init__(self, model: CostModel, target: Target, trials: Trials, second_look: SecondLook) -> None:
        self._model, self._target, self._trials, self._second_look = model, target, trials, second_look

    def records(self, outcomes: Sequence[tuple[Config, Profiled | Failure]]) -> list[TrialRecord]:
        """New records of the configs, in their order. What the model refuses is that candidate's failure."""
        profiled = {config: outcome.kernels for config, outcome in outcomes if isinstance(outcome, Profiled)}
        found = dict(zip(profiled, predict_many(self._model, list(profiled.values()), self._target), strict=True))
        return [self._record(config, outcome, found.get(config)) for config, outcome in outcomes]

    def many(self, found: Iterator[Answer]) -> list[TrialRecord]:
        """Records of all that is found, a batch at a time."""
        records: list[TrialRecord] = []
        while some := list(itertools.islice(found, TOGETHER)):
            records += self.records([(candidate.config, outcome) for candidate, outcome in some])
        return records

    def _record(self, config: Config, outcome: Profiled | Failure, prediction: Prediction | Exception | None) -> TrialRecord:
        if isinstance(outcome, Failure):
            return self._trials.failed(config, outcome)
        if not isinstance(prediction, Prediction):
            failure = Failure(FailureKind.PROFILE_ERROR, f"the cost model refuses it: {type(prediction).__name__}: {prediction}")
            return self._trials.failed(config, failure, outcome)
        self._second_look.remember(config, outcome.kernels, prediction.ranking_us)
        return self._trials.predicted(config, outcome, prediction)


@contextmanager
def without_garbage() -> Iterator[None]:
    """For making values by the ten thousand, none of them garbage: looking for some takes an eighth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
