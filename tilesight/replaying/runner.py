"""The runner: strategies ask, and recorded measurements answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..dataset import read_dataset
from ..errors import InputError, ToolchainError, UnknownNameError
from ..space import Config
from .cases import CASE, Guess, RecordedCase, asked_rows, recorded_cases
from .curves import MARKS, Curve, Summary, summary
from .predictions import MODELS, HeldOut, data_key, predict_held_out, read_predictions, write_predictions
from .strategies import STRATEGIES, Known, Strategy, make

SEEDS = 3


@dataclass(frozen=True)
class Replay:
    """What strategies found in recorded cases. `model` and `split` say whose predictions they had; None where none asked."""

    cases: tuple[RecordedCase, ...]
    too_small: int  # cases with too few verified rows, which are left out
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
        return sum(len(case.times_us) for case in self.cases)

    @property
    def failed(self) -> int:
        return sum(us is None for case in self.cases for us in case.times_us.values())

    @property
    def legal_share(self) -> float | None:
        """Recorded configs over legal ones, of the cases whose space is known today."""
        known = [case for case in self.cases if case.legal]
        return sum(len(case.times_us) for case in known) / sum(case.legal or 0 for case in known) if known else None

    @property
    def longest(self) -> int:
        return max(len(curve.shares) for curve in self.curves)

    @property
    def marks(self) -> list[int]:
        """Those of the table that were reached, and the last one."""
        return [mark for mark in MARKS if mark < self.longest] + [self.longest]

    def summary(self, strategy: str, operator: str | None = None, marks: Iterable[int] | None = None) -> Summary:
        own = [c for c in self.curves if c.strategy == strategy and operator in (None, c.operator)]
        return summary(own, self.marks if marks is None else marks)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.model,
            "split": self.split,
            "limit": self.limit,
            "cases": len(self.cases),
            "too_small": self.too_small,
            "recorded": self.recorded,
            "failed": self.failed,
            "legal_share": self.legal_share,
            "strategies": [{"meaning": STRATEGIES[s].meaning, **asdict(self.summary(s))} for s in self.strategies],
            "operators": [{"operator": o, **asdict(self.summary(s, o))} for o in self.operators for s in self.strategies],
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
    """Let search strategies ask for candidates of recorded cases, and answer from what was measured.

    `strategies` are names of `STRATEGIES`, all whose packages are installed where left out. `model` is `learned` or
    `analytical`, whose predictions are of cases that it has not seen: they are held out by `split`. `limit` measurements
    of a case; `seeds` repetitions, from `seed` on, of what chance decides. `predictions` is a file to keep the held-out
    predictions in, which take minutes, or to take them from. Raises `InputError`, and `ToolchainError` where a named
    strategy needs a package that is missing.
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
        raise InputError(f"predictions '{predictions}' cannot be written: there is no folder '{Path(predictions).parent}'; make it")
    rows = asked_rows(read_dataset(datasets))
    cases, positions = recorded_cases(rows)
    guided = any(STRATEGIES[name].guided for name in chosen)
    guesses: list[Guess | None] = [None] * len(rows)
    if guided:
        guesses = _held_out(rows, split, seed, predictions, progress).guesses(model)
    curves: list[Curve] = []
    for name in chosen:
        entry = STRATEGIES[name]
        for number in range(seeds if entry.differs else 1):
            progress(f"{name}, seed {seed + number}: {len(cases)} cases" if entry.differs else f"{name}: {len(cases)} cases")
            for place, (case, own) in enumerate(zip(cases, positions, strict=True)):
                seen = {config: guess for config, at in zip(case.times_us, own, strict=True) if (guess := guesses[at]) is not None}
                shares = replay_case(case, make(name, Known(case.space, seen, seed + number)), limit)
                curves.append(Curve(name, seed + number, place, case.operator, tuple(shares)))
    groups = rows.groupby(CASE).ngroups
    return Replay(
        tuple(cases), groups - len(cases), tuple(curves), limit, model if guided else None, split if guided else None, tuple(notes)
    )


def replay_case(case: RecordedCase, strategy: Strategy, limit: int) -> list[float]:
    """The best share so far after each measurement, until `limit`, the strategy, or the recorded configs end.

    Raises `ValueError` for a strategy that asks for what was not recorded, or twice for the same.
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
    """Those whose packages are installed; the others are said where `skip`, and raise otherwise."""
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


def _held_out(rows: Any, split: str, seed: int, path: str | Path | None, progress: Callable[[str], None]) -> HeldOut:
    if path is None:
        return predict_held_out(rows, split, seed=seed, progress=progress)
    path = Path(path)
    if path.exists():
        return read_predictions(path, data_key(rows, split, seed))
    made = predict_held_out(rows, split, seed=seed, progress=progress)
    write_predictions(path, made)
    return made
