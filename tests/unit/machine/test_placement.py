"""Which target and devices a call gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.target.test_network import NODE
from tilesight.machine import placement
from tilesight.machine.devices import Device
from tilesight.machine.placement import locate, named_target
from tilesight.target.spec import load_target


def test_of_several_devices_a_call_uses_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(NODE)
    for given in ("h100x4", load_target("h100x4"), str(path)):
        found = locate(given, measures=False)
        assert found.target == load_target("h100")
        assert len(found.messages) == 1
        assert (
            "is 4 devices, of which this operator uses one: results are those of target h100"
            in (found.messages[0])
        )
    assert locate("h100", measures=False).messages == ()
    assert named_target("h100x4") == load_target("h100x4")


def test_one_device_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [
        Device("NVIDIA H100 80GB HBM3", f"GPU-{index}", "580.159.04", "cuda", index, 80 << 30)
        for index in range(4)
    ]
    monkeypatch.setattr(placement, "find_devices", lambda: devices)
    monkeypatch.setattr(placement, "missing_compiler", lambda _target: "")
    found = locate("h100x4", measures=True)
    assert (found.target.name, len(found.devices), len(found.messages)) == ("h100", 4, 1)
    monkeypatch.setattr(placement, "find_devices", list)
    found = locate("h100x4", measures=True)
    assert found.messages[0].startswith("nothing is measured")
    assert "uses one" in found.messages[1]
