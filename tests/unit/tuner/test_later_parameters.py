"""Sessions over a space with a parameter that configs leave out at its default."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilesight
from tests.support.fakes import AxpyTemplate
from tests.unit.conftest import FakeLine
from tilesight.problem.space import Config, SearchSpace
from tilesight.problem.workload import Workload
from tilesight.target.spec import Target


@pytest.mark.parametrize("effort", ["quick", "full"])
def test_the_best_config_is_found_and_answered_from_the_database(
    fake_line: FakeLine, monkeypatch: pytest.MonkeyPatch, effort: str
) -> None:
    plain = AxpyTemplate.space

    def later(self: AxpyTemplate, workload: Workload, target: Target) -> SearchSpace:
        found = plain(self, workload, target)
        parameters = [replace(p, default=False) if p.name == "swizzle" else p for p in found.parameters]
        return SearchSpace(parameters, found.constraints)

    monkeypatch.setattr(AxpyTemplate, "space", later)
    monkeypatch.setattr(AxpyTemplate, "default_config", lambda *_: Config({"block": 20, "stages": 1}))
    (found,) = tilesight.tune("axpy", target="cpu", effort=effort)
    assert dict(found.best.config) == {"block": 30, "stages": 3, "swizzle": True}
    measured = fake_line.executor.done["measure"]
    assert any("swizzle" not in config for config in measured)
    assert not any(config.get("swizzle") is False for config in measured)
    (again,) = tilesight.tune("axpy", target="cpu", effort=effort)
    assert again.best.config == found.best.config
