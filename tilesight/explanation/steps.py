"""The way from a candidate to a better one, a parameter or a few at a time: which change brings which part of the gain."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..costmodel.hybrid import CORRECTION
from ..space import Config, SearchSpace, Value
from ..trial import ORDER_TERM, Prediction

LEAST_CHANGE = 0.01  # of the time: terms that move less are not named
MOST_TERMS = 3

Predict = Callable[[Sequence[Config]], Mapping[Config, Prediction]]


@dataclass(frozen=True, slots=True)
class TermChange:
    name: str
    before_us: float
    after_us: float


@dataclass(frozen=True, slots=True)
class Step:
    """`changes` are made together, since a part of them alone is not legal or does not lower. `predicted_us` is the time
    after it; `measured_us` where that config was measured. `terms` are those that moved most."""

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
    """From `this` to `best`, what helps most by itself first. `predict` answers for those configs that lower."""
    (start, start_prediction), (end, end_prediction) = this, best
    names = [name for name in {**start, **end} if start.get(name) != end.get(name)]
    alone = {name: _with(start, end, [name]) for name in names}
    answers = dict(predict(_unknown(alone.values(), space, {start, end})))
    answers |= {start: start_prediction, end: end_prediction}
    names.sort(key=lambda name: answers[alone[name]].latency_us if alone[name] in answers else float("inf"))
    on_the_way = [_with(start, end, names[: count + 1]) for count in range(len(names))]
    answers |= predict(_unknown(on_the_way, space, answers.keys()))
    steps: list[Step] = []
    before, waiting = start, []
    for name, config in zip(names, on_the_way, strict=True):
        waiting.append(name)
        if config in answers:
            changes = {n: (start.get(n), end.get(n)) for n in waiting}
            after = answers[config]
            steps.append(Step(changes, after.latency_us, measured_us.get(config), _moved(answers[before], after)))
            before, waiting = config, []
    return tuple(steps)


def _with(start: Config, end: Config, names: Sequence[str]) -> Config:
    return Config({**start, **{name: end[name] for name in names if name in end}})


def _unknown(configs: Iterable[Config], space: SearchSpace, known: Container[Config]) -> list[Config]:
    return [config for config in dict.fromkeys(configs) if config not in known and config in space]


def _moved(before: Prediction, after: Prediction) -> tuple[TermChange, ...]:
    """Without what the other terms make together, their error, and what is no part of the time."""
    a, b, no_reasons = before.terms_us, after.terms_us, ("makespan", CORRECTION, ORDER_TERM)
    moved = [TermChange(name, a.get(name, 0.0), b.get(name, 0.0)) for name in {**a, **b} if name not in no_reasons]
    moved = [t for t in moved if abs(t.after_us - t.before_us) > LEAST_CHANGE * before.latency_us]
    return tuple(sorted(moved, key=lambda t: -abs(t.after_us - t.before_us))[:MOST_TERMS])
