"""Calibration on the GPU at hand: figures must lie where any such chip's do, and agree with each other."""

from __future__ import annotations

import pytest

from tilesight.calibration import calibrate, loads
from tilesight.machine.devices import Device, device_for, find_devices
from tilesight.target.spec import Target, parse_target


@pytest.mark.gpu
def test_calibration(gpu_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    if gpu_target.kind != "cuda":
        pytest.skip("the probes are for NVIDIA GPUs")
    monkeypatch.setattr(loads, "LOAD_S", 0.3)
    monkeypatch.setattr(loads, "MATRIX_LOAD_S", 1.0)
    device = device_for(gpu_target, find_devices())
    assert isinstance(device, Device)
    found = calibrate(gpu_target, device, "calibrated")
    target = parse_target(found.text(), "calibrated.toml")
    print(found.text())
    bounds = {
        "core.unit.vector.fp32_lanes": (0.9, 1.01),
        "core.memory.shared.bytes_per_cycle": (0.85, 1.01),
        "core.unit.special.lanes": (0.8, 1.05),
        "device.memory.dram.gb_per_s": (0.7, 1.2),
        "core.clock_mhz": (0.9, 1.1),
        "core.clock_mixed_mhz": (0.9, 1.1),
        "core.clock_matrix_mhz": (0.85, 1.15),
        "device.launch_us": (0.7, 1.5),
    }
    for path, (least, most) in bounds.items():
        assert least <= target[path] / gpu_target[path] <= most, path
    assert target["device.memory.l2.latency_ns"] < target["device.memory.dram.latency_ns"]
    assert target["device.memory.dram.gb_per_s"] < target["device.memory.l2.gb_per_s"]
    assert target["core.memory.shared.latency_cycles"] < 60
    assert target["core.clock_matrix_mhz"] <= 1.02 * target["core.clock_mixed_mhz"]
    assert target["core.clock_mixed_mhz"] <= 1.02 * target["core.clock_mhz"]
    assert target["device.sustained_matrix_tflops"] < target["device.spec_matrix_tflops"]
