"""The evaluation protocol: whole groups of cases are held out, models are trained on the rest, and judged case by case."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from . import metrics
from .analytical import AnalyticalModel
from .boosting import OBJECTIVES
from .constants import DEFAULT
from .measured import SPLITS, MeasuredRow, codes, measured_log
from .training import ConstantsFit, Described, describe, train_correction
from .yardsticks import count_features, learned_alone, on_configs

MOST_FOLDS = 10
ANALYTICAL, RANDOM = "analytical", "random"
BOTH, ALONE, CONFIGS = "both", "learned alone", "config boosting"


@dataclass(frozen=True, slots=True)
class CaseScores:
    model: str
    case: str
    operator: str
    shape: str
    dtype: str
    scores: metrics.Scores


@dataclass(frozen=True, slots=True)
class Summary:
    """Over all cases of one model: geometric means, the worst case, and means where a value may be 0 or negative."""

    model: str
    cases: int
    spearman: float | None
    top1: float
    top1_worst: float
    top8: float
    top8_worst: float
    top5_percent: float
    top5_percent_worst: float
    mape: float | None
    mape_worst: float | None
    pick: float | None  # predicted over measured time of the first picks: whether winners are flattered


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of held-out rows whose measured time lies within one and two sigma of the prediction; 0.683 and 0.954 are meant."""

    model: str
    one_sigma: float
    two_sigma: float
    median_sigma: float


@dataclass(frozen=True)
class Evaluation:
    split: str
    folds: int
    rows: int
    refused: int  # rows that ran, and that the analytical model says cannot
    unjudged: int  # cases with fewer than FEWEST_ROWS rows, which train and are not judged
    constants: str  # where the analytical model's constants come from
    cases: tuple[CaseScores, ...]
    coverage: tuple[Coverage, ...]

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(case.model for case in self.cases))

    def of(self, model: str, operator: str | None = None) -> list[CaseScores]:
        return [c for c in self.cases if c.model == model and operator in (None, c.operator)]

    def summary(self, model: str, operator: str | None = None) -> Summary:
        return _summary(model, [c.scores for c in self.of(model, operator)])

    @property
    def operators(self) -> list[str]:
        return sorted({case.operator for case in self.cases})

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "split": self.split,
            "folds": self.folds,
            "rows": self.rows,
            "refused": self.refused,
            "unjudged": self.unjudged,
            "constants": self.constants,
            "summaries": [asdict(self.summary(model)) for model in self.models],
            "operators": [
                {"operator": o, **asdict(self.summary(model, o))} for o in self.operators for model in self.models if self.of(model, o)
            ],
            "coverage": [asdict(c) for c in self.coverage],
            "cases": [{**{k: v for k, v in asdict(c).items() if k != "scores"}, **asdict(c.scores)} for c in self.cases],
        }


def folds(rows: Sequence[MeasuredRow], split: str, most: int = MOST_FOLDS) -> Iterator[NDArray[np.bool_]]:
    """Which rows are held out, fold by fold: each row once, all rows of a group (`MeasuredRow.group`) in the same fold.

    Shapes are dealt over at most `most` folds, those of an operator over as many as there are; operators and dtypes get
    a fold each. Raises `InputError` where there is nothing to train on.
    """
    if split not in SPLITS:
        raise InputError(f"split '{split}' is unknown; use one of {', '.join(SPLITS)}")
    names = [row.group(split) for row in rows]
    groups = sorted(set(names), key=lambda name: (next(r.operator for r, n in zip(rows, names, strict=True) if n == name), name))
    if len(groups) < 2:
        raise InputError(f"the datasets have one {split} only ({groups[0]}): nothing is left to train on; add rows or take another --split")
    count = min(most, len(groups)) if split == "shape" else len(groups)
    place = {name: number % count for number, name in enumerate(groups)}
    dealt = np.array([place[name] for name in names])
    for number in range(count):
        yield dealt == number


def evaluate(
    rows: Sequence[MeasuredRow],
    split: str,
    *,
    objectives: Sequence[str] = OBJECTIVES[:1],
    fit_constants: ConstantsFit | None = None,
    most_folds: int = MOST_FOLDS,
    yardsticks: bool = True,
    progress: Callable[[str], None] = lambda _: None,
    **parameters: Any,
) -> Evaluation:
    """Judge the analytical model, boosting on plain counts, and both together (once an objective), beside the yardsticks.

    Without `fit_constants` the analytical model keeps its shipped constants, which may have been fitted to rows that are
    held out here: the result says so. `yardsticks` adds boosting on counts and on configs. `parameters` are those of `LatencyCorrection`.
    """
    held = list(folds(rows, split, most_folds))
    measured = np.exp(measured_log(rows))
    counts, problems = count_features(rows), codes(row.problem for row in rows)
    logs: dict[str, NDArray[np.float64]] = {}
    orders: dict[str, NDArray[np.float64]] = {}
    sigmas = {objective: np.full(len(rows), np.nan) for objective in objectives}
    suffixes = {objective: "" if len(objectives) == 1 else f", {objective}" for objective in objectives}
    described: dict[str, Described] = {}
    refused: NDArray[np.bool_] = np.zeros(len(rows), dtype=bool)

    def put(model: str, where: NDArray[np.bool_], values: NDArray[np.float64]) -> None:
        logs.setdefault(model, np.full(len(rows), np.nan))[where] = values

    for number, test in enumerate(held):
        progress(f"fold {number + 1} of {len(held)}: {int((~test).sum())} rows train, {int(test.sum())} are held out")
        model = AnalyticalModel(_constants(rows, ~test, fit_constants))
        if model.version not in described:
            described[model.version] = describe(rows, model)
        seen = described[model.version]
        refused |= test & ~seen.usable
        with np.errstate(divide="ignore"):
            offset = np.log(seen.analytical_us)
        put(ANALYTICAL, test, offset[test])
        for objective in objectives:
            suffix = suffixes[objective]
            chosen = {**parameters, "objective": objective}
            found = train_correction(rows, seen, ~test, **chosen).applied(seen.features[test])
            put(BOTH + suffix, test, offset[test] + found.time)
            orders.setdefault(BOTH + suffix, np.zeros(len(rows)))[test] = found.order
            sigmas[objective][test] = found.sigma
            if yardsticks:
                put(ALONE + suffix, test, learned_alone(rows, counts, ~test, test, **chosen))
                put(CONFIGS + suffix, test, on_configs(rows, test, problems, **chosen))
    # an order that was learned from nothing but counts or configs is no time
    ordering = {f"{model}{suffix}" for model in (ALONE, CONFIGS) for o, suffix in suffixes.items() if o != "regression"}
    cases = [*_judge(rows, measured, logs, orders, ordering)]
    spread = [_coverage(BOTH + suffixes[o], logs, measured, sigmas[o]) for o in objectives]
    shipped = "as shipped: may have been fitted to held-out rows"
    origin = "refit in each fold, with the target's figures as they are" if fit_constants else shipped
    unjudged = len({row.case for row in rows} - {case.case for case in cases})
    return Evaluation(split, len(held), len(rows), int(refused.sum()), unjudged, origin, tuple(cases), tuple(spread))


def _constants(rows: Sequence[MeasuredRow], train: NDArray[np.bool_], fit: ConstantsFit | None) -> Any:
    if fit is None:
        return DEFAULT
    return fit([row for row, keep in zip(rows, train, strict=True) if keep])


FEWEST_ROWS = 12  # of a case that is judged


def _judge(
    rows: Sequence[MeasuredRow],
    measured: NDArray[np.float64],
    logs: dict[str, NDArray[np.float64]],
    orders: dict[str, NDArray[np.float64]],
    ordering: Collection[str],
) -> Iterator[CaseScores]:
    """`orders` is what models add to their logs of times where they put candidates in order."""
    numbers = codes(row.case for row in rows)
    for case in np.unique(numbers):
        places = np.flatnonzero(numbers == case)
        if len(places) < FEWEST_ROWS and len(rows) > FEWEST_ROWS:
            continue  # the best eight of a handful say nothing
        first = rows[places[0]]
        label = (first.case, first.operator, first.shape, first.dtype)
        for model, predicted in logs.items():
            own = predicted[places]
            if not np.isnan(own).any():
                order = own + orders[model][places] if model in orders else own
                found = metrics.scores(np.exp(own), measured[places], order_us=np.exp(order), times=model not in ordering)
                yield CaseScores(model, *label, found)
        yield CaseScores(RANDOM, *label, metrics.random_scores(measured[places]))


def _coverage(model: str, logs: dict[str, NDArray[np.float64]], measured: NDArray[np.float64], sigma: NDArray[np.float64]) -> Coverage:
    finite = np.isfinite(logs[model])
    error = np.abs(np.log(measured[finite]) - logs[model][finite])
    own = sigma[finite]
    return Coverage(model, float(np.mean(error <= own)), float(np.mean(error <= 2 * own)), float(np.median(own)))


def _summary(model: str, found: Sequence[metrics.Scores]) -> Summary:
    tops = {name: [getattr(s, name) for s in found] for name in ("top1", "top8", "top5_percent")}
    orders = [s.spearman for s in found if s.spearman is not None]
    errors = [s.mape for s in found if s.mape is not None]
    picks = [s.pick for s in found if s.pick is not None]
    return Summary(
        model=model,
        cases=len(found),
        spearman=float(np.mean(orders)) if orders else None,
        **{name: metrics.geometric_mean(values) for name, values in tops.items()},
        **{f"{name}_worst": min(values) for name, values in tops.items()},
        mape=float(np.mean(errors)) if errors else None,
        mape_worst=max(errors, default=None),
        pick=metrics.geometric_mean(picks) if picks else None,
    )
