"""The loop that answers, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.costmodel.measured_samples import FAST
from tests.unit.datasets.replay.made import CONFIGS, case, failing, small, time_us
from tilesight.costmodel.analytical.constants import DEFAULT
from tilesight.datasets.replay import held_out as predictions
from tilesight.datasets.replay import replay
from tilesight.datasets.replay import replay_runner as runner
from tilesight.datasets.replay.cases import replayable_rows
from tilesight.datasets.replay.curves import Curve, summary
from tilesight.datasets.replay.held_out import predict_held_out, write_predictions
from tilesight.datasets.replay.strategies import FixedOrder
from tilesight.errors import InputError, ToolchainError, UnknownNameError
from tilesight.problem.space import Config
from tilesight.records.dataset import write_dataset

BEST, *_ = BY_TIME = sorted(CONFIGS, key=time_us)
UNGUIDED = ["random", "exhaustive"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    write_dataset(path, failing(small(), [2, 7], "wrong_result"))
    return path


@pytest.fixture(scope="module")
def kept(file: Path) -> Path:
    """Held-out predictions of `file`, made by small models."""
    from tilesight.records.dataset import read_dataset

    rows = replayable_rows(read_dataset(file))
    write_predictions(file.with_name("kept.json"), predict_held_out(rows, "shape", constants=DEFAULT, **FAST))
    return file.with_name("kept.json")


def test_shares_are_best_over_best_so_far() -> None:
    shares = replay_of(BY_TIME[::-1], 5)
    assert shares == [pytest.approx(10.0 / time_us(config)) for config in BY_TIME[:-6:-1]]
    assert replay_of([BEST, BY_TIME[-1]], 9) == [1.0, 1.0]


def test_a_failure_costs_a_measurement() -> None:
    broken = dict.fromkeys(BY_TIME[:2])
    shares = runner.replay_case(case(broken), FixedOrder([BY_TIME[0], BY_TIME[5], BY_TIME[1], BY_TIME[2]]), 9)
    slowest, best = time_us(BY_TIME[-1]), time_us(BY_TIME[2])
    assert shares == pytest.approx(
        [best / slowest, best / time_us(BY_TIME[5]), best / time_us(BY_TIME[5]), 1.0]
    )


def test_only_recorded_configs_can_be_asked_and_each_once() -> None:
    with pytest.raises(ValueError, match="which is not recorded"):
        replay_of([Config({**BEST, "tile": 256})], 3)
    with pytest.raises(ValueError, match="which was asked before"):
        replay_of([BEST, BEST], 3)


def test_a_strategy_gets_a_time_only_after_it_asked() -> None:
    heard: list[tuple[str, Config, float | None]] = []

    class Spy(FixedOrder):
        def ask(self) -> Config | None:
            config = super().ask()
            assert config is not None
            heard.append(("ask", config, None))
            return config

        def tell(self, config: Config, measured_us: float | None) -> None:
            heard.append(("tell", config, measured_us))

    runner.replay_case(case({BY_TIME[1]: None}), Spy(BY_TIME), 3)
    times = [time_us(BY_TIME[0]), None, time_us(BY_TIME[2])]
    assert heard == [
        event for c, us in zip(BY_TIME, times, strict=False) for event in (("ask", c, None), ("tell", c, us))
    ]


def replay_of(configs: list[Config], limit: int) -> list[float]:
    return runner.replay_case(case(), FixedOrder(configs), limit)


def curve(shares: list[float], seed: int = 0, number: int = 0, operator: str = "a") -> Curve:
    return Curve("s", seed, number, operator, tuple(shares))


def test_summary_of_curves() -> None:
    curves = [curve([0.25, 1.0]), curve([1.0], number=1), curve([1.0, 1.0], 1), curve([0.81], 1, 1)]
    found = summary(curves, (1, 2, 8))
    assert (found.cases, found.seeds) == (2, 2)
    assert [p.share for p in found.points] == pytest.approx(
        [0.7, 0.95, 0.95]
    )  # means of 0.5 and 0.9; of 1 and 0.9
    assert [p.spread for p in found.points] == pytest.approx([0.2, 0.05, 0.05])
    to_99 = found.goals[0]
    assert (to_99.share, to_99.mean, to_99.median, to_99.reached) == (0.99, 1.25, 1.0, 0.75)
    assert to_99.spread == pytest.approx(0.25)


def test_replays_a_dataset(file: Path, kept: Path) -> None:
    said: list[str] = []
    found = replay(
        file, ["model", "random", "residuals"], limit=20, seeds=2, predictions=kept, progress=said.append
    )
    assert found.strategies == ["model", "random", "residuals"]
    assert (len(found.cases), found.recorded, found.failed, found.legal_share) == (4, 96, 2, None)
    assert [c.seed for c in found.curves] == [0] * 4 + [0] * 4 + [1] * 4 + [0] * 4
    assert all(len(c.shares) == 20 for c in found.curves)
    assert all(0 < c.shares[0] <= c.shares[-1] <= 1 for c in found.curves)
    assert found.marks == [1, 2, 4, 8, 16, 20]
    assert found.summary("residuals").points[3].share > found.summary("random").points[3].share
    plain = json.loads(json.dumps(found.plain(), allow_nan=False))
    assert {s["strategy"] for s in plain["strategies"]} == {"model", "random", "residuals"}
    assert len(plain["operators"]) == 6
    assert said[0] == "model: 4 cases"


def test_the_same_seed_gives_the_same_curves(file: Path) -> None:
    first, again, other = (
        replay(file, ["random", "tpe"], seeds=1, limit=12, seed=seed).curves for seed in (3, 3, 4)
    )
    assert first == again
    assert [c.shares for c in first] != [c.shares for c in other]


def test_without_guided_strategies_nothing_is_predicted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "predict_held_out", None)
    found = replay(file, UNGUIDED, limit=3, seeds=1)
    assert (found.model, found.split) == (None, None)


def test_predictions_are_written_and_read(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def predict(rows: pd.DataFrame, split: str, **_: object) -> predictions.ReplayPredictions:
        made.append(split)
        return predict_held_out(rows, split, seed=0, constants=DEFAULT, **FAST)

    monkeypatch.setattr(runner, "predict_held_out", predict)
    first = replay(file, ["model"], split="operator", predictions=tmp_path / "p.json")
    again = replay(file, ["model"], split="operator", predictions=tmp_path / "p.json")
    assert made == ["operator"]
    assert first.curves == again.curves
    with pytest.raises(InputError, match="are of other rows, another split"):
        replay(file, ["model"], predictions=tmp_path / "p.json")


def test_bad_input_is_reported_before_any_prediction(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "predict_held_out", None)
    with pytest.raises(UnknownNameError, match="unknown strategy 'modle'; did you mean model"):
        replay(file, ["modle"])
    with pytest.raises(UnknownNameError, match="unknown model 'both'"):
        replay(file, model="both")
    with pytest.raises(InputError, match="no strategy was named"):
        replay(file, [])
    with pytest.raises(InputError, match="limit=0 must be at least 1"):
        replay(file, limit=0)
    with pytest.raises(InputError, match="seeds=0 must be at least 1"):
        replay(file, seeds=0)
    with pytest.raises(InputError, match="there is no such file"):
        replay(tmp_path / "none.parquet")
    with pytest.raises(InputError, match="no dataset was named"):
        replay([])
    with pytest.raises(InputError, match="cannot be written: there is no folder"):
        replay(file, ["model"], predictions=tmp_path / "none" / "p.json")


def test_a_named_strategy_needs_its_package(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cmaes", None)
    with pytest.raises(ToolchainError, match="pip install cmaes"):
        replay(file, ["cmaes"])
    found, notes = runner._available(list(runner.STRATEGIES), skip=True)
    assert set(runner.STRATEGIES) - set(found) == {"cmaes"}
    assert notes[0].startswith("cmaes is left out: ")
