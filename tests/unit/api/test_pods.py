"""Predictions on several hosts: the example file, and what is refused before anything is lowered."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilesight
from tilesight.errors import InputError, WorkloadError
from tilesight.records.session import Effort
from tilesight.target.spec import load_target
from tilesight.tuner.request import EFFORT_LIMITS, EffortLimits

POD = Path(__file__).parents[3] / "docs" / "pod.toml"
KERNEL, SHAPE = "matmul_all_reduce", "m=1024,n=1024,k=256"


@pytest.fixture(autouse=True)
def of_the_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILESIGHT_DB", str(tmp_path / "pods.db"))
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))


def test_configs_are_ranked_for_some_hosts_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORT_LIMITS, Effort.GLANCE, EffortLimits(explore=2, measure=0))  # type: ignore[arg-type]
    [found] = tilesight.rank(KERNEL, str(POD), SHAPE, world=16, effort="glance", workers=1)
    assert (found.context.target, found.context.workload.dims["world"]) == ("h100-pod-16", 16)
    assert found.best is not None
    assert found.best.config["algorithm"] == "sequential"
    assert found.best.prediction is not None
    collective = tilesight.predict_collective("all_reduce", 1024 * 1024 * 2, str(POD), world=16)
    assert found.best.prediction.terms_us["network"] == pytest.approx(collective.latency_us)
    assert collective.provenance == "predicted"


@pytest.mark.parametrize(
    ("world", "shape", "error", "message"),
    [
        (12, SHAPE, InputError, "world 12 is no whole number of units of level 'node' of target h100-pod"),
        (1024, SHAPE, InputError, "world 1024 is larger than target h100-pod, which has 512 devices"),
        (16, f"{SHAPE},world=8", WorkloadError, "states world=8, and target h100-pod-16 has 16 devices"),
    ],
)
def test_impossible_worlds(world: int, shape: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tilesight.rank(KERNEL, str(POD), shape, world=world)


def test_rows_that_the_hosts_cannot_divide() -> None:
    with pytest.raises(WorkloadError, match="m=1000 rows cannot be divided evenly among world=16 devices"):
        tilesight.rank("matmul_reduce_scatter", str(POD), "m=1000,n=1024,k=256", world=16)


@pytest.mark.parametrize(
    ("cut", "missing"),
    [
        ("[pod.network.library]", "pod.network.library.gb_per_s"),
        ("[node.network.library.all_reduce.us]", "node.network.library.all_reduce.latency_us"),
    ],
)
def test_missing_figures_are_named_before_anything_is_lowered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str, missing: str
) -> None:
    text = POD.read_text(encoding="utf-8").replace("h100-pod", "mypod")
    before, head, after = text.partition(cut)
    rest = after.partition("\n\n")[2]
    path = tmp_path / "mypod.toml"
    path.write_text(before + rest)
    assert head
    assert load_target(str(path)).world == 512
    monkeypatch.setattr("tilesight.api.engine.Engine.__enter__", lambda _: pytest.fail("starts to work"))
    with pytest.raises(InputError, match=f"figure '{missing}' is missing; "):
        tilesight.rank(KERNEL, str(path), SHAPE, world=16)
