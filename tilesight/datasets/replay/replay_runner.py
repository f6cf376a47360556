"""The replay runner: strategies ask for configs, and recorded measurements give their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError, ToolchainError, UnknownNameError
from ...problem.space import Config
from ...records.dataset import read_dataset
from .cases import CASE, RecordedCase, ReplayPrediction, recorded_cases, replayable_rows
from .curves import MARKS, Curve, CurveSummary, summary
from .held_out import (
    MODELS,
    ReplayPredictions,
    data_key,
    predict_held_out,
    read_predictions,
    write_predictions,
)
from .strategies import STRATEGIES, ReplayProblem, Strategy, make

SEEDS = 3


@dataclass(frozen=True)
class Replay:
    """Results of strategies on recorded cases.

    Attributes:
        too_small: number of cases that were left out, since they have too few verified rows.
        limit: measurements of a case.
        model, split: source of the predictions; None if no strategy used any.
        notes: strategies that were left out, and why.
    """

    cases: tuple[RecordedCase, ...]
    too_small: int
    curves: tuple[Curve, ...]
    limit: int
    model: str | None
    split: str | None
    notes: tuple[str, ...] = ()

    @property
    def strategies(self) -> list[str]:
        return list(dict.fromkeys(curve.strategy for curve in self.curves))

    @property
    def operators(self) -> list[str]:
        return sorted({case.operator for case in self.cases})

    @property
    def recorded(self) -> int:
        """Number of recorded configs."""
        return sum(len(case.times_us) for case in self.cases)

    @property
    def failed(self) -> int:
        """Number of recorded configs that failed."""
        return sum(us is None for case in self.cases for us in case.times_us.values())

    @property
    def legal_share(self) -> float | None:
        """Recorded configs over legal ones, for cases whose space is known; else None."""
        with_space = [case for case in self.cases if case.legal]
        if not with_space:
            return None
        return sum(len(case.times_us) for case in with_space) / sum(case.legal or 0 for case in with_space)

    @property
    def longest(self) -> int:
        """Number of measurements of the longest curve."""
        return max(len(curve.shares) for curve in self.curves)

    @property
    def marks(self) -> list[int]:
        """Numbers of measurements in the table: the `MARKS` that were reached, and the last one."""
        return [mark for mark in MARKS if mark < self.longest] + [self.longest]

    def summary(
        self, strategy: str, operator: str | None = None, marks: Iterable[int] | None = None
    ) -> CurveSummary:
        """Summary of a strategy on the cases of `operator`, or on all."""
        own = [c for c in self.curves if c.strategy == strategy and operator in (None, c.operator)]
        return summary(own, self.marks if marks is None else marks)

    def plain(self) -> dict[str, Any]:
        """The results as JSON fields."""
        return {
            "model": self.model,
            "split": self.split,
            "limit": self.limit,
            "cases": len(self.cases),
            "too_small": self.too_small,
            "recorded": self.recorded,
            "failed": self.failed,
            "legal_share": self.legal_share,
            "strategies": [
                {"meaning": STRATEGIES[s].meaning, **asdict(self.summary(s))} for s in self.strategies
            ],
            "operators": [
                {"operator": o, **asdict(self.summary(s, o))} for o in self.operators for s in self.strategies
            ],
            "notes": list(self.notes),
        }


def replay(
    datasets: str | Path | Sequence[str | Path],
    strategies: Sequence[str] | None = None,
    *,
    model: str = "learned",
    split: str = "shape",
    limit: int = 128,
    seeds: int = SEEDS,
    seed: int = 0,
    predictions: str | Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Replay:
    """Run search strategies on recorded cases.

    Args:
        datasets: dataset files or folders.
        strategies: names of `STRATEGIES`; None for all whose packages are installed.
        model: `learned` or `analytical`: whose predictions the strategies get. They are held out by `split`,
            so they are of cases that the model was not trained on.
        split: how cases are held out.
        limit: measurements of a case.
        seeds: repetitions of strategies that depend on a seed.
        seed: the first seed.
        predictions: a file that keeps the held-out predictions, which take minutes; read if it exists.
        progress: receives a line per step.

    Raises:
        InputError: an argument is wrong, or the datasets have too few rows.
        ToolchainError: a named strategy needs a package that is missing.
    """
    for name, value in (("limit", limit), ("seeds", seeds)):
        if value < 1:
            raise InputError(f"{name}={value} must be at least 1")
    if model not in MODELS:
        raise UnknownNameError("model", model, MODELS)
    named = list(dict.fromkeys(STRATEGIES if strategies is None else strategies))
    if not named:
        raise InputError(f"no strategy was named; known: {', '.join(STRATEGIES)}")
    for name in named:
        if name not in STRATEGIES:
            raise UnknownNameError("strategy", name, STRATEGIES)
    chosen, notes = _available(named, strategies is None)
    if predictions is not None and not Path(predictions).parent.is_dir():
        raise InputError(
            f"predictions '{predictions}' cannot be written: there is no folder "
            f"'{Path(predictions).parent}'; make it"
        )
    rows = replayable_rows(read_dataset(datasets))
    cases, positions = recorded_cases(rows)
    guided = any(STRATEGIES[name].guided for name in chosen)
    predicted: list[ReplayPrediction | None] = [None] * len(rows)
    if guided:
        predicted = _held_out(rows, split, seed, predictions, progress).predictions(model)
    curves: list[Curve] = []
    for name in chosen:
        entry = STRATEGIES[name]
        for number in range(seeds if entry.differs else 1):
            of_seed = f", seed {seed + number}" if entry.differs else ""
            progress(f"{name}{of_seed}: {len(cases)} cases")
            for place, (case, own) in enumerate(zip(cases, positions, strict=True)):
                case_predictions = {
                    config: prediction
                    for config, at in zip(case.times_us, own, strict=True)
                    if (prediction := predicted[at]) is not None
                }
                shares = replay_case(
                    case, make(name, ReplayProblem(case.space, case_predictions, seed + number)), limit
                )
                curves.append(Curve(name, seed + number, place, case.operator, tuple(shares)))
    groups = rows.groupby(CASE).ngroups
    return Replay(
        tuple(cases),
        groups - len(cases),
        tuple(curves),
        limit,
        model if guided else None,
        split if guided else None,
        tuple(notes),
    )


def replay_case(case: RecordedCase, strategy: Strategy, limit: int) -> list[float]:
    """The best share so far after each measurement.

    Ends at `limit` measurements, at the end of the strategy, or when all recorded configs were asked.

    Raises:
        ValueError: the strategy asks for a config that was not recorded, or twice for one.
    """
    asked: set[Config] = set()
    best_us, shares = math.inf, list[float]()
    slowest_us = max(us for us in case.times_us.values() if us is not None)
    while len(shares) < limit and len(asked) < len(case.times_us):
        config = strategy.ask()
        if config is None:
            break
        if config not in case.times_us or config in asked:
            why = "was asked before" if config in asked else "is not recorded"
            raise ValueError(f"{type(strategy).__name__} asks for '{config}' of {case.workload}, which {why}")
        asked.add(config)
        measured_us = case.times_us[config]
        strategy.tell(config, measured_us)
        best_us = min(best_us, measured_us or math.inf)
        shares.append(case.best_us / min(best_us, slowest_us))
    return shares or [case.best_us / slowest_us]


def _available(names: Sequence[str], skip: bool) -> tuple[list[str], list[str]]:
    """The strategies whose packages are installed, and notes on the others; these raise unless `skip`."""
    found, notes = [], []
    for name in names:
        try:
            STRATEGIES[name].check()
        except ToolchainError as error:
            if not skip:
                raise
            notes.append(f"{name} is left out: {error}")
            continue
        found.append(name)
    return found, notes


def _held_out(
    rows: Any, split: str, seed: int, path: str | Path | None, progress: Callable[[str], None]
) -> ReplayPredictions:
    if path is None:
        return predict_held_out(rows, split, seed=seed, progress=progress)
    path = Path(path)
    if path.exists():
        return read_predictions(path, data_key(rows, split, seed))
    made = predict_held_out(rows, split, seed=seed, progress=progress)
    write_predictions(path, made)
    return made
