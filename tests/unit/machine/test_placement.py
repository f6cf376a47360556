"""Which target and devices a call gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.target.test_network import NODE
from tilesight.errors import InputError
from tilesight.machine import placement
from tilesight.machine.devices import Device
from tilesight.machine.placement import locate, named_target, target_of_world
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


def gpus(count: int, name: str = "NVIDIA H200") -> list[Device]:
    return [Device(name, f"GPU-{index}", "580.159.04", "cuda", index, 140 << 30) for index in range(count)]


@pytest.mark.parametrize(("present", "measured"), [(2, 2), (3, 2), (4, 4), (5, 4)])
def test_an_operator_that_communicates_keeps_the_target_of_several(
    monkeypatch: pytest.MonkeyPatch, present: int, measured: int
) -> None:
    monkeypatch.setattr(placement, "find_devices", lambda: gpus(present))
    monkeypatch.setattr(placement, "missing_compiler", lambda _target: "")
    found = locate("h200x2", measures=True, communicates=True)
    assert found.target == load_target("h200x2")
    assert found.gpus == tuple(gpus(measured))
    assert found.device_name == "2 x NVIDIA H200"
    assert found.messages == ()


@pytest.mark.parametrize(
    ("present", "message"),
    [
        ([], "no GPU was found here; measuring for target h200x2 needs 'NVIDIA H200'"),
        (gpus(1), "target h200x2 is 2 devices, and this machine has 1 of that kind ('NVIDIA H200')"),
        (
            gpus(4, "NVIDIA H100 80GB HBM3"),
            "measured on 'NVIDIA H200' only, and this machine has 'NVIDIA H100 80GB HBM3'",
        ),
    ],
)
def test_why_several_devices_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, present: list[Device], message: str
) -> None:
    monkeypatch.setattr(placement, "find_devices", lambda: present)
    found = locate("h200x2", measures=True, communicates=True)
    assert (found.target.name, found.devices, found.device_name) == ("h200x2", (), "")
    assert found.messages[0].startswith("nothing is measured, all times are predicted: ")
    assert message in found.messages[0]


def test_an_operator_that_communicates_needs_a_target_of_several() -> None:
    with pytest.raises(InputError) as caught:
        locate("h200", measures=False, communicates=True)
    assert str(caught.value).endswith("name a target of several, h200x2 or h200x4 or h200x8")
    with pytest.raises(InputError, match="describe several in a file of their own"):
        locate("mi300x", measures=False, communicates=True)


def test_a_stated_world_names_a_target_of_several() -> None:
    assert target_of_world("h200", 4) == load_target("h200x4")
    assert target_of_world("h200x2", 2) == target_of_world("h200x2", None) == load_target("h200x2")
    assert target_of_world("h200", None) == load_target("h200")
    with pytest.raises(InputError, match="describes 3 devices of h200: h200x4 has 4"):
        target_of_world("h200", 3)
    with pytest.raises(InputError, match="h200x4 is 4 devices and not 2: leave the world out"):
        target_of_world("h200x4", 2)
