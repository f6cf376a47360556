"""The path from a config to a better one, one or a few parameters at a time, with the gain of each step."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..costmodel.learned.hybrid import CORRECTION
from ..problem.space import Config, SearchSpace, Value
from ..records.trial import ORDER_TERM, Prediction

LEAST_CHANGE = 0.01  # share of the time: terms that change less are left out
MOST_TERMS = 3  # of a step

Predict = Callable[[Sequence[Config]], Mapping[Config, Prediction]]


@dataclass(frozen=True, slots=True)
class TermChange:
    """A term of the prediction before and after a step."""

    name: str
    before_us: float
    after_us: float


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the path.

    Attributes:
        changes: values before and after, by parameter. They change together, since a part of the changes
            alone is illegal or does not lower.
        predicted_us: time of the config after the step.
        measured_us: the same, measured; None if that config was not measured.
        terms: the terms that changed most.
    """

    changes: Mapping[str, tuple[Value | None, Value | None]]
    predicted_us: float
    measured_us: float | None
    terms: tuple[TermChange, ...]


def find_steps(
    this: tuple[Config, Prediction],
    best: tuple[Config, Prediction],
    space: SearchSpace,
    predict: Predict,
    measured_us: Mapping[Config, float | None],
) -> tuple[Step, ...]:
    """Steps from one config to a better one; the parameter that helps most by itself comes first.

    Args:
        this: the config to begin with, and its prediction.
        best: the config to end with, and its prediction.
        space: the search space; steps lead through its legal configs.
        predict: predictions of configs; configs that do not lower are left out.
        measured_us: measured times by config.
    """
    (start, start_prediction), (end, end_prediction) = this, best
    names = [name for name in {**start, **end} if start.get(name) != end.get(name)]
    alone = {name: _with(start, end, [name]) for name in names}
    predictions = dict(predict(_unpredicted(alone.values(), space, {start, end})))
    predictions |= {start: start_prediction, end: end_prediction}
    names.sort(
        key=lambda name: predictions[alone[name]].latency_us if alone[name] in predictions else float("inf")
    )
    on_the_way = [_with(start, end, names[: count + 1]) for count in range(len(names))]
    predictions |= predict(_unpredicted(on_the_way, space, predictions.keys()))
    steps: list[Step] = []
    before, pending = start, []
    for name, config in zip(names, on_the_way, strict=True):
        pending.append(name)
        if config in predictions:
            changes = {n: (start.get(n), end.get(n)) for n in pending}
            after = predictions[config]
            steps.append(
                Step(changes, after.latency_us, measured_us.get(config), _moved(predictions[before], after))
            )
            before, pending = config, []
    return tuple(steps)


def _with(start: Config, end: Config, names: Sequence[str]) -> Config:
    return Config({**start, **{name: end[name] for name in names if name in end}})


def _unpredicted(configs: Iterable[Config], space: SearchSpace, predicted: Container[Config]) -> list[Config]:
    return [config for config in dict.fromkeys(configs) if config not in predicted and config in space]


def _moved(before: Prediction, after: Prediction) -> tuple[TermChange, ...]:
    """The terms that changed most, without sums of other terms, corrections, and the ranking term."""
    excluded = ("makespan", CORRECTION, ORDER_TERM)
    a, b = before.terms_us, after.terms_us
    moved = [
        TermChange(name, a.get(name, 0.0), b.get(name, 0.0)) for name in {**a, **b} if name not in excluded
    ]
    moved = [t for t in moved if abs(t.after_us - t.before_us) > LEAST_CHANGE * before.latency_us]
    return tuple(sorted(moved, key=lambda t: -abs(t.after_us - t.before_us))[:MOST_TERMS])
