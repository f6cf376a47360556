"""A plan on this machine's processor, through TileLang, its compiler and real measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilesight.api.planning import plan
from tilesight.dispatch.table.table_file import read_table, write_table
from tilesight.planner.plan_options import PLAN_LIMITS, PlanLimits
from tilesight.records.session import Effort


@pytest.mark.full
@pytest.mark.usefixtures("shared_executor")
def test_two_kernels_cover_a_range_of_matmul(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few = PlanLimits(explore=16, promising=4, listed=6, measure=3, compare=1)
    monkeypatch.setitem(PLAN_LIMITS, Effort.QUICK, few)
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    found = plan(
        "matmul", "m=1..512", "cpu", "n=128,k=64", kernels=2, shapes=3, workers=2, database="sqlite://"
    )
    table = found.table
    assert found.is_measured
    assert 1 <= len(table.kernels) <= 2
    assert (table.first, table.last, table.dynamic) == (1, 512, ("m",))
    assert table.template == "matmul_cpu"
    assert {1, 512} <= {piece.size for piece in table.evidence}
    assert all(piece.chosen_measured for piece in table.evidence)
    assert found.built <= 4
    write_table(table, tmp_path / "t.json")
    assert read_table(tmp_path / "t.json") == table
