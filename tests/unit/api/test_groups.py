"""A kernel of two ranks that is tuned: threads of the processor stand for devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tilesight
from tests.support.group_kernels import cpu_pair
from tilesight import kernels
from tilesight.errors import InputError, WorkloadError
from tilesight.records.session import Effort
from tilesight.records.trial import DEVICE_S, Status
from tilesight.target.spec import parse_target

KERNEL = "sum_of_ranks"


@pytest.fixture(autouse=True)
def of_the_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TILESIGHT_KERNELS", "tests.support.group_kernels")
    monkeypatch.setenv("TILESIGHT_DB", str(tmp_path / "group.db"))
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    kernels._registry.cache_clear()
    yield
    kernels._registry.cache_clear()


def test_a_session_from_the_names_to_the_winner(tmp_path: Path) -> None:
    pair = cpu_pair(tmp_path)
    [found] = tilesight.tune(KERNEL, pair, "n=4096", effort="quick", workers=1)
    assert found.context.workload.key == "sum_of_ranks(n=4096,world=2;dtype=float32)"
    assert (found.context.target, found.context.target_fingerprint) == ("cpux2", pair.fingerprint)
    assert found.context.device.startswith("2 x ")
    assert found.best is not None
    assert found.best.status is Status.VERIFIED
    assert found.best.config["factor"] == 1
    failed = [trial for trial in found.trials if trial.status is Status.FAILED]
    assert {trial.config["factor"] for trial in failed} == {2}
    assert {trial.failure.kind.value for trial in failed if trial.failure} == {"wrong_result"}
    # finalists are timed again in turns, without a time of their own
    assert all(trial.measurement and trial.measurement.observed[DEVICE_S] > 0 for trial in failed)
    assert [baseline.name for baseline in found.baselines] == ["torch, then torch"]
    [again] = tilesight.tune(KERNEL, pair, "n=4096", effort="quick", workers=1)
    assert again.from_database


def test_keys_differ_by_target_and_world(tmp_path: Path) -> None:
    pair = cpu_pair(tmp_path)
    text = (tmp_path / "cpux2.toml").read_text(encoding="utf-8")
    other = parse_target(text.replace('"switch"', '"ring"'), "cpux2.toml")
    keys = {
        tilesight.tune(KERNEL, target, "n=64", effort=Effort.GLANCE, workers=1)[0].context.key
        for target in (pair, other)
    }
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("target", "shape", "error", "message"),
    [
        ("cpu", "n=64", InputError, "runs on several devices together, and target cpu is one"),
        ("pair", "n=64,world=3", WorkloadError, "states world=3, and target cpux2 has 2 devices"),
        ("h200", "n=64", InputError, "name a target of several, h200x2 or h200x4 or h200x8"),
    ],
)
def test_a_target_or_shape_that_does_not_fit_is_refused(
    target: str, shape: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    chosen = cpu_pair(tmp_path) if target == "pair" else target
    with pytest.raises(error, match=message):
        tilesight.tune(KERNEL, chosen, shape, effort="glance")


def test_a_world_is_stated_beside_the_chip() -> None:
    [found] = tilesight.rank(KERNEL, "h200", "n=64", world=2, effort="glance", workers=1)
    assert found.context.target == "h200x2"
    with pytest.raises(WorkloadError, match="world=4 must be 2"):
        tilesight.rank(KERNEL, "h200", "n=64", world=4, effort="glance", workers=1)
    with pytest.raises(InputError, match="runs on several: run it on that host"):
        tilesight.tune(KERNEL, "h200x2", "n=64", cluster="local")


def test_a_dispatcher_needs_a_group() -> None:
    with pytest.raises(InputError, match="sum_of_ranks runs on several devices together: give the "):
        tilesight.dispatcher(KERNEL, target="h200x2", n=64)
