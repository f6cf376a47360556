"""Recorded cases: the measurements of one workload on one target, with a space of the recorded configs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...costmodel.training.evaluation import FEWEST_ROWS
from ...errors import FailureKind, InputError, TileSightError
from ...problem.config import parameter_names
from ...problem.rejections import Rejected
from ...problem.space import Config, Constraint, Parameter, SearchSpace, Value
from ...records.dataset import Dataset
from ...records.trial import Status
from ...target.spec import load_target

if TYPE_CHECKING:
    import pandas as pd

# Rows that were measured again have a later version of the template than the rest of their case.
CASE = ["workload", "target", "template"]
# Failures before the build cost no measurement, so candidates with them are no part of a replay.
BEFORE_BUILD = (
    *(FailureKind.LOWER_ERROR, FailureKind.LOWER_CRASH, FailureKind.LOWER_TIMEOUT, FailureKind.LOWER_MEMORY),
    *(FailureKind.DOES_NOT_FIT, FailureKind.DUPLICATE, FailureKind.PROFILE_ERROR),
)


@dataclass(frozen=True, slots=True)
class ReplayPrediction:
    """Predicted time and ranking score in us, of a model that was not trained on the case."""

    predicted_us: float
    ranking_us: float


@dataclass(frozen=True)
class RecordedCase:
    """All measurements of one workload on one target.

    Attributes:
        space: of the recorded configs, in the order of their template's space if that is known.
        legal: number of legal configs today; None if this version has no such operator.
        times_us: None for a config that failed.
    """

    workload: str
    target: str
    operator: str
    shape: str
    dtype: str
    space: SearchSpace
    legal: int | None
    times_us: Mapping[Config, float | None]

    @property
    def best_us(self) -> float:
        """The shortest recorded time."""
        return min(us for us in self.times_us.values() if us is not None)


class RecordedSpace(SearchSpace):
    """A space of the given configs alone, with parameters and values in the order of the space `order`."""

    def __init__(self, configs: Sequence[Config], order: SearchSpace | None = None) -> None:
        ordered = {p.name: p for p in order.parameters} if order else {}
        given = parameter_names(configs)
        names = [name for name in ordered if name in given] + [name for name in given if name not in ordered]
        known = [ordered.get(name, Parameter(name, ())) for name in names]
        recorded = set(configs)
        super().__init__(
            [
                replace(p, values=_values([v for c in configs if (v := p.of(c)) is not None], p.values))
                for p in known
            ],
            [
                Constraint(
                    "recorded",
                    lambda config: None if Config(config) in recorded else f"'{config}' was not recorded",
                )
            ],
        )
        self._recorded = recorded

    def _enumerate(self) -> tuple[list[tuple[int, ...]], Rejected]:
        positions = [{_typed(value): i for i, value in enumerate(p.values)} for p in self.parameters]
        points = [
            tuple(
                position[_typed(value)]
                for position, p in zip(positions, self.parameters, strict=True)
                if (value := p.of(config)) is not None
            )
            for config in self._recorded
        ]
        rejected = Rejected()
        rejected.add("recorded", self.size - len(points), "the others were not recorded")
        return sorted(points), rejected


def replayable_rows(dataset: Dataset) -> pd.DataFrame:
    """Rows that a replay can use: of GPU targets, with a profile, verified or failed from the build on.

    Raises:
        InputError: there is no verified one.
    """
    frame = dataset.frame
    gpu = (
        frame["target"]
        .map({name: load_target(name).is_gpu for name in frame["target"].unique()})
        .astype(bool)
    )
    failed = (frame["status"] == Status.FAILED) & ~frame["failure_kind"].isin(BEFORE_BUILD)
    found = frame[gpu & frame["profile"].notna() & (frame["measured_us"].notna() | failed)].reset_index(
        drop=True
    )
    if found["measured_us"].isna().all():
        raise InputError(
            "the datasets hold no verified row of a GPU target with a profile; `tilesight collect` writes "
            "such rows"
        )
    return found


def recorded_cases(rows: pd.DataFrame) -> tuple[list[RecordedCase], list[list[int]]]:
    """Cases with at least `FEWEST_ROWS` verified rows. Of a config with several rows the last one counts.

    Args:
        rows: rows of `replayable_rows`.

    Returns:
        The cases; and for each case the positions of its rows, in the order of `times_us`.

    Raises:
        InputError: no case has enough rows.
    """
    last = rows.drop_duplicates([*CASE, "config"], keep="last")
    parts = [
        own for _, own in last.groupby(CASE, sort=True) if own["measured_us"].notna().sum() >= FEWEST_ROWS
    ]
    if not parts:
        raise InputError(
            f"no case of the datasets has {FEWEST_ROWS} verified rows; collect more of one workload"
        )
    return [_case(own) for own in parts], [own.index.tolist() for own in parts]


def _case(rows: pd.DataFrame) -> RecordedCase:
    first: Any = rows.iloc[0]
    configs = [Config(json.loads(text)) for text in rows["config"]]
    times = [None if us != us else float(us) for us in rows["measured_us"]]
    whole = _whole_space(first)
    return RecordedCase(
        workload=first["workload"],
        target=first["target"],
        operator=first["operator"],
        shape=first["shape"],
        dtype=first["dtype"],
        space=RecordedSpace(configs, whole),
        legal=None if whole is None else len(whole.configs()),
        times_us=dict(zip(configs, times, strict=True)),
    )


def _whole_space(row: Mapping[str, Any]) -> SearchSpace | None:
    """The present space of a row's workload; None without such an operator, template or dimension."""
    from ...tuner.resolve import find_operator, find_template, find_workloads

    target = load_target(row["target"])
    try:
        operator = find_operator(row["operator"])
        [workload] = find_workloads(
            operator, target, {**json.loads(row["dims"]), **json.loads(row["attrs"])}, row["dtype"]
        )
        template = find_template(operator, target, workload.dtype)
    except TileSightError:
        return None
    return template.space(workload, target)


def _values(recorded: Sequence[Value], ordered: Sequence[Value]) -> tuple[Value, ...]:
    """Each value once: those of `ordered` in that order, then the others by size."""
    typed = {_typed(value): value for value in recorded}
    positions = {_typed(value): position for position, value in enumerate(ordered)}
    return tuple(
        typed[key]
        for key in sorted(typed, key=lambda key: (positions.get(key, len(positions)), key[0], key[1]))
    )


def _typed(value: Value) -> tuple[str, Any]:
    """A key of a value: True and 1 differ."""
    return type(value).__name__, value
