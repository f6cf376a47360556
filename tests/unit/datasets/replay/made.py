"""Artificial recorded cases: times computed from the config, and predictions wrong by a known factor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tests.unit.costmodel.measured_samples import OPERATORS, dataset
from tilesight.datasets.replay.cases import RecordedCase, RecordedSpace, ReplayPrediction
from tilesight.problem.space import Config
from tilesight.records.dataset import Dataset

CONFIGS = [
    Config({"tile": tile, "stages": stages, "order": order})
    for tile in (16, 32, 64, 128)
    for stages in (1, 2, 3)
    for order in "ab"
]


def time_us(config: Config) -> float:
    """Least, 10 us, at tile=128, stages=3, order=b."""
    return 10.0 * (
        1
        + 0.3 * math.log2(128 / config.int("tile"))
        + 0.2 * (3 - config.int("stages"))
        + 0.05 * (config["order"] == "a")
    )


def wrong_factor(config: Config) -> float:
    """What the model does not know: two stages are half as slow as it says."""
    return 0.5 if config["stages"] == 2 else 1.0


def case(broken: Mapping[Config, None] | None = None) -> RecordedCase:
    times: dict[Config, float | None] = {config: time_us(config) for config in CONFIGS}
    times |= broken or {}
    return RecordedCase("made(n=1)", "h200", "made", "N0", "float16", RecordedSpace(CONFIGS), None, times)


def guesses() -> dict[Config, ReplayPrediction]:
    return {config: ReplayPrediction(us := time_us(config) * wrong_factor(config), us) for config in CONFIGS}


def failing(whole: Dataset, places: list[int], kind: str, keep_profile: bool = True) -> Dataset:
    """`whole` with some rows failed."""
    frame = whole.frame.copy()
    frame.loc[places, "status"] = "failed"
    frame.loc[places, "failure_kind"] = kind
    frame.loc[places, "measured_us"] = math.nan
    if not keep_profile:
        frame.loc[places, "profile"] = None
    return Dataset(frame, whole.metadata)


def small(operators: int = 2, shapes: int = 2, **_: Any) -> Dataset:
    return dataset(OPERATORS[:operators], shapes=shapes)
