"""The whole line on the GPU at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilesight
from tilesight.machine.devices import find_devices
from tilesight.records.session import Effort
from tilesight.records.trial import Status
from tilesight.target.spec import Target
from tilesight.tuner.request import EFFORT_LIMITS, EffortLimits

pytestmark = pytest.mark.gpu


@pytest.fixture
def small_quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A quick effort of seconds, and a database and kernel cache of its own."""
    monkeypatch.setattr(
        "tilesight.tuner.loop.EFFORT_LIMITS",
        {**EFFORT_LIMITS, Effort.QUICK: EffortLimits(24, 4), Effort.PREDICT: EffortLimits(24, 0)},
    )
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return f"sqlite:///{tmp_path}/performance.db"


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        ("matmul", "m=1024,n=768,k=512"),
        ("flash_attention", "batch=1,heads=4,seq_len=512,head_dim=64,causal=true"),
    ],
)
def test_tunes_measures_and_answers_from_the_database(
    kernel: str, shape: str, gpu_target: Target, small_quick: str
) -> None:
    [found] = tilesight.tune(kernel, "auto", shape, database=small_quick)
    assert found.context.target == gpu_target.name
    assert found.context.device in {device.name for device in find_devices()}
    assert found.best is not None
    assert found.best.status is Status.VERIFIED
    assert found.best.predicted_us is not None
    assert found.baselines
    # nothing went wrong; what the compiler's figures rule out is no fault
    usual = ("the winner: ", "by the compiler's registers and spills they are slow")
    assert all(any(text in message for text in usual) for message in found.messages), found.messages
    [again] = tilesight.tune(kernel, "auto", shape, database=small_quick)
    assert again.from_database
    assert again.best == found.best
    assert again.baselines == found.baselines


def test_another_target_is_predicted_only(gpu_target: Target, small_quick: str) -> None:
    other = "h100" if gpu_target.name != "h100" else "h200"
    [found] = tilesight.tune("matmul", other, "m=512,n=512,k=512", database=small_quick)
    assert not found.is_measured
    assert f"--target {gpu_target.name}" in found.messages[0]
