"""Rechecks of recorded winners on a real GPU. Run: python -m pytest tests/gpu/test_recheck.py"""

from __future__ import annotations

from pathlib import Path

import pytest

import tilesight
from tilesight.dispatch.select.choice import ChoiceSource
from tilesight.rechecking.verdict import RecheckOutcome
from tilesight.target.spec import Target

pytestmark = pytest.mark.gpu

SHAPES = ("m=512,n=1024,k=1024", "m=1024,n=1024,k=1024", "m=1000,n=1024,k=1024")


def test_winners_of_another_build_are_rechecked_and_dispatched(
    gpu_target: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILESIGHT_DB", f"sqlite:///{tmp_path}/performance.db")
    with monkeypatch.context() as patch:
        patch.setattr("tilesight.machine.toolchain.BUILD_VERSION", "0")
        tilesight.tune("matmul", gpu_target, SHAPES, effort="quick")
    found = tilesight.recheck("matmul", gpu_target)
    print(found)
    outcomes = [one.verdict.outcome for one in found.winners]
    assert len(outcomes) == len(SHAPES)
    assert set(outcomes) <= {RecheckOutcome.HELD, RecheckOutcome.FELL}
    for one in found.winners:
        assert one.verdict.now_us == pytest.approx(one.due.latency_us, rel=0.25)
    again = tilesight.recheck("matmul", gpu_target)
    assert (again.winners, again.current) == ((), len(SHAPES))
    with tilesight.dispatcher("matmul", gpu_target, n=1024, k=1024) as made:
        for one in found.winners:
            choice = made.choose(m=one.due.workload.dims["m"])
            assert (choice.source, choice.config) == (ChoiceSource.RECORD, one.verdict.winner)
