"""The interfaces of cost models, and predictions of many candidates with any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from ..profile.values import KernelProfile
from ..records.trial import Prediction
from ..target.spec import Target


class CostModel(Protocol):
    """Predicts the time of a function from the profiles of its kernels, without config values or names.

    `version` changes with every change that can move a prediction. Stored predictions are reused under the
    same version only.
    """

    @property
    def version(self) -> str: ...

    def predict(
        self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None
    ) -> Prediction:
        """Predict the time of launching the kernels of one function.

        Args:
            kernels: the profiles, in launch order.
            target: the target to predict for.
            built: the compiler's figures if the function was built (`BuildResult.resources`). Its registers,
                spills and shared memory replace the estimates from the IR.
        """
        ...


@runtime_checkable
class BatchModel(Protocol):
    """A cost model that predicts many candidates faster together than one by one."""

    def predict_many(
        self, candidates: Sequence[Sequence[KernelProfile]], target: Target
    ) -> Sequence[Prediction | Exception]:
        """The prediction of each candidate, or the exception that prevented it."""
        ...


@runtime_checkable
class TrainedModel(Protocol):
    """A cost model that was trained on measured rows and records which."""

    def was_trained_on(self, run: str) -> bool:
        """Whether rows of the run with this id in a dataset were among them."""
        ...


@runtime_checkable
class LayeredModel(Protocol):
    """A cost model that corrects a faster one."""

    @property
    def fast(self) -> CostModel:
        """The model that it corrects."""
        ...


def fast_part(model: CostModel) -> CostModel:
    """The fastest part of `model`; `model` itself if it has no parts."""
    return model.fast if isinstance(model, LayeredModel) else model


def was_trained_on(model: CostModel, run: str) -> bool:
    """Whether `model` was trained on a run; False if it does not record its runs."""
    return isinstance(model, TrainedModel) and model.was_trained_on(run)


def predict_many(
    model: CostModel, candidates: Sequence[Sequence[KernelProfile]], target: Target
) -> Sequence[Prediction | Exception]:
    """The prediction of each candidate, or the exception that the model raised for it."""
    if isinstance(model, BatchModel):
        with suppress(Exception):  # predict one by one instead, to find the candidate that fails
            return model.predict_many(candidates, target)
    return [_prediction(model, kernels, target) for kernels in candidates]


def _prediction(model: CostModel, kernels: Sequence[KernelProfile], target: Target) -> Prediction | Exception:
    try:
        return model.predict(kernels, target)
    except Exception as error:
        return error
