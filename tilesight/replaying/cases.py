"""Recorded cases: all that was measured of one workload on one target, as a space of which nothing else can be asked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..costmodel.evaluation import FEWEST_ROWS
from ..dataset import Dataset
from ..errors import FailureKind, InputError, TileSightError
from ..space import Config, Constraint, Parameter, SearchSpace, Value
from ..target import load_target
from ..trial import Status

if TYPE_CHECKING:
    import pandas as pd

CASE = ["workload", "target", "template", "template_version"]
# what is known of a candidate before anything is built costs no measurement, so it is no part of a replay
BEFORE_BUILD = (
    *(FailureKind.LOWER_ERROR, FailureKind.LOWER_CRASH, FailureKind.LOWER_TIMEOUT, FailureKind.LOWER_MEMORY),
    *(FailureKind.DOES_NOT_FIT, FailureKind.DUPLICATE, FailureKind.PROFILE_ERROR),
)


@dataclass(frozen=True, slots=True)
class Guess:
    """Of a model that has not seen the case: a time, and what candidates are put in order by, both in microseconds."""

    predicted_us: float
    ranking_us: float


@dataclass(frozen=True)
class RecordedCase:
    workload: str
    target: str
    operator: str
    shape: str
    dtype: str
    space: SearchSpace  # of the recorded configs, in the order of their template's space where that is known
    legal: int | None  # configs that are legal today; None where the operator is not one of ours
    times_us: Mapping[Config, float | None]  # None: it did not build, or was wrong

    @property
    def best_us(self) -> float:
        return min(us for us in self.times_us.values() if us is not None)


class RecordedSpace(SearchSpace):
    """The given configs and nothing else. `order`: a space whose parameters' values stand in the wanted order."""

    def __init__(self, configs: Sequence[Config], order: SearchSpace | None = None) -> None:
        known = {p.name: p.values for p in order.parameters} if order else {}
        names = [name for name in known if name in configs[0]] + [name for name in configs[0] if name not in known]
        recorded = set(configs)
        super().__init__(
            [Parameter(name, _values([config[name] for config in configs], known.get(name, ()))) for name in names],
            [Constraint("recorded", lambda config: None if Config(config) in recorded else f"'{config}' was not recorded")],
        )
        self._recorded = recorded

    def _divide(self) -> tuple[list[tuple[int, ...]], Counter[str]]:
        places = [{_typed(value): i for i, value in enumerate(p.values)} for p in self.parameters]
        points = [
            tuple(place[_typed(config[p.name])] for place, p in zip(places, self.parameters, strict=True)) for config in self._recorded
        ]
        return sorted(points), Counter({"recorded": self.size - len(points)})


def asked_rows(dataset: Dataset) -> pd.DataFrame:
    """The rows that a replay may ask for: of GPU targets, with a profile, and either verified or failed from the build on."""
    frame = dataset.frame
    gpu = frame["target"].map({name: load_target(name).is_gpu for name in frame["target"].unique()}).astype(bool)
    failed = (frame["status"] == Status.FAILED) & ~frame["failure_kind"].isin(BEFORE_BUILD)
    found = frame[gpu & frame["profile"].notna() & (frame["measured_us"].notna() | failed)].reset_index(drop=True)
    if found["measured_us"].isna().all():
        raise InputError("the datasets hold no verified row of a GPU target with a profile; `tilesight collect` writes such rows")
    return found


def recorded_cases(rows: pd.DataFrame) -> tuple[list[RecordedCase], list[list[int]]]:
    """The cases of `asked_rows` that have at least `FEWEST_ROWS` verified rows; and the places of their configs' rows, in the
    order of `times_us`. Raises `InputError` where there is none."""
    parts = [own for _, own in rows.groupby(CASE, sort=True) if own["measured_us"].notna().sum() >= FEWEST_ROWS]
    if not parts:
        raise InputError(f"no case of the datasets has {FEWEST_ROWS} verified rows; collect more of one workload")
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
    """Today's space of a row's workload; None where this version has no such operator, template or dimensions."""
    from ..lookup import find_operator, find_template, find_workloads

    target = load_target(row["target"])
    try:
        operator = find_operator(row["operator"])
        [workload] = find_workloads(operator, target, {**json.loads(row["dims"]), **json.loads(row["attrs"])}, row["dtype"])
        template = find_template(operator, target, workload.dtype)
    except TileSightError:
        return None
    return template.space(workload, target)


def _values(seen: Sequence[Value], ordered: Sequence[Value]) -> tuple[Value, ...]:
    """Each value once: those of `ordered` in that order, the others behind them by size."""
    typed = {_typed(value): value for value in seen}
    places = {_typed(value): place for place, value in enumerate(ordered)}
    return tuple(typed[key] for key in sorted(typed, key=lambda key: (places.get(key, len(places)), key[0], key[1])))


def _typed(value: Value) -> tuple[str, Any]:
    """True is not 1."""
    return type(value).__name__, value
