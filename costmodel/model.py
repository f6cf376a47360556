"""The contract of a cost model, and the errors that it passes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from ..profile import KernelProfile
from ..target import Target
from ..trial import Prediction


class CostModel(Protocol):
    """Predicts a kernel's time from its profiles alone: no config values, no kernel names.

    `version` changes whenever a prediction could; stored predictions are re-used only under the same one.
    """

    @property
    def version(self) -> str: ...

    def predict(self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None) -> Prediction:
        """Time of launching `kernels` (those of one function, in order) on `target`.

        `built` are the compiler's figures where the function was built (`BuildResult.resources`): its registers, spills
        and shared memory take the place of what the IR says of them.
        """
        ...


@runtime_checkable
class BatchModel(Protocol):
    """A cost model for which many candidates together cost less than one after the other."""

    def predict_many(self, candidates: Sequence[Sequence[KernelProfile]], target: Target) -> Sequence[Prediction | Exception]:
        """Each candidate's prediction, or why there is none."""
        ...


@runtime_checkable
class TrainedModel(Protocol):
    """A cost model that learned from measured rows and knows which."""

    def was_trained_on(self, run: str) -> bool:
        """Whether rows of that run (its id in a dataset) were among them."""
        ...


def was_trained_on(model: CostModel, run: str) -> bool:
    """False, too, where `model` does not know what it was trained on."""
    return isinstance(model, TrainedModel) and model.was_trained_on(run)


def predict_many(model: CostModel, candidates: Sequence[Sequence[KernelProfile]], target: Target) -> Sequence[Prediction | Exception]:
    """Each candidate's prediction, or what `model` raised: one profile that it cannot take spoils no other."""
    if isinstance(model, BatchModel):
        with suppress(Exception):  # then one by one, to find whose it is
            return model.predict_many(candidates, target)
    return [_prediction(model, kernels, target) for kernels in candidates]


def _prediction(model: CostModel, kernels: Sequence[KernelProfile], target: Target) -> Prediction | Exception:
    try:
        return model.predict(kernels, target)
    except Exception as error:
        return error
