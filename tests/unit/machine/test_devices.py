"""Devices are found, and no device is mistaken for another."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from tilesight.machine.devices import (
    Device,
    NoDevice,
    cpu_device,
    cpu_identity,
    cpu_name,
    device_for,
    find_devices,
    is_of,
    links_in,
    parse_amd_smi,
    parse_nvidia_smi,
    parse_rocm_smi,
    target_for,
)
from tilesight.machine.placement import Placement
from tilesight.target.spec import load_target

H200 = Device("NVIDIA H200", "GPU-1", "580.159.03", "cuda", 0, 143771 << 20)
H100 = Device("NVIDIA H100 80GB HBM3", "GPU-2", "580.159.03", "cuda", 1, 81559 << 20)
LAPTOP = Device("NVIDIA GeForce RTX 4050 Laptop GPU", "GPU-3", "580.1", "cuda", 0, 6141 << 20)


@pytest.mark.parametrize(
    ("device", "target", "expected"),
    [
        (H200, "h200", True),
        (H100, "h200", False),
        (replace(H200, kind="hip"), "h200", False),
        (cpu_device(), "cpu", True),
        (cpu_device(), "h200", False),
    ],
)
def test_the_target_of_a_device(device: Device, target: str, expected: bool) -> None:
    assert is_of(device, load_target(target)) is expected


def test_only_gpus_have_processes_of_their_own() -> None:
    assert Placement(load_target("h200"), (H200,)).gpus == (H200,)
    assert Placement(load_target("cpu"), (cpu_device(),)).gpus == ()


def test_nvidia_smi_is_read() -> None:
    text = (
        "0, NVIDIA H200, GPU-aa-bb, 580.159.03, 143771, Disabled\n"
        "1, NVIDIA A100-SXM4-80GB, GPU-cc, 580.159.03, 81920, [N/A]\n"
    )
    first, second = parse_nvidia_smi(text)
    assert first == Device("NVIDIA H200", "GPU-aa-bb", "580.159.03", "cuda", 0, 143771 << 20)
    assert (second.name, second.index) == ("NVIDIA A100-SXM4-80GB", 1)


@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", "NVIDIA-SMI has failed: no communication with the driver.\n"]
)
def test_nvidia_smi_without_a_gpu(text: str) -> None:
    assert parse_nvidia_smi(text) == []


def test_a_slice_of_a_gpu_is_not_the_whole() -> None:
    (sliced,) = parse_nvidia_smi("0, NVIDIA H200, GPU-aa, 580.1, 143771, Enabled\n")
    assert target_for(sliced) is None
    assert isinstance(device_for(load_target("h200"), [sliced]), NoDevice)


@pytest.mark.parametrize("wrapped", [True, False])
def test_amd_smi_is_read(wrapped: bool) -> None:
    size = {"value": 196592, "unit": "MB"}
    gpu = {
        "gpu": 0,
        "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0xAB"},
        "driver": {"name": "amdgpu", "version": "6.10.5"},
        "vram": {"size": size},
    }
    (found,) = parse_amd_smi(json.dumps({"gpu_data": [gpu]} if wrapped else [gpu]))
    assert found == Device("AMD Instinct MI300X", "0xAB", "6.10.5", "hip", 0, 196592 << 20)
    assert target_for(found) == "mi300x"


def test_rocm_smi_is_read() -> None:
    card = {
        "Unique ID": "0xAB",
        "Card Series": "AMD Instinct MI300X OAM",
        "VRAM Total Memory (B)": "206141652992",
    }
    text = json.dumps(
        {"card1": card, "card0": card | {"Unique ID": "0xCD"}, "system": {"Driver version": "6.7.0"}}
    )
    first, second = parse_rocm_smi(text)
    assert first == Device("AMD Instinct MI300X OAM", "0xCD", "6.7.0", "hip", 0, 206141652992)
    assert second.index == 1


@pytest.mark.parametrize("text", ["", "not json", "[]", "null", "{}", '{"card0": 3}', "[1]"])
def test_invalid_output_of_amd_tools_means_no_device(text: str) -> None:
    assert parse_amd_smi(text) == []
    assert parse_rocm_smi(text) == []


def test_a_machine_without_driver_tools_has_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_devices() == []


def test_a_driver_tool_that_fails_means_no_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, NVIDIA H200, GPU-1, 580, 1, Disabled'\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_devices() == []
    tool.write_text("#!/bin/sh\necho '0, NVIDIA H200, GPU-1, 580, 1, Disabled'\n")
    assert [d.name for d in find_devices()] == ["NVIDIA H200"]


def test_a_device_has_the_target_of_its_exact_name() -> None:
    assert target_for(H200) == "h200"
    assert target_for(H100) == "h100"
    assert target_for(LAPTOP) is None
    assert target_for(cpu_device()) == "cpu"


def test_an_h200_is_never_an_h100() -> None:
    refused = device_for(load_target("h100"), [H200])
    assert isinstance(refused, NoDevice)
    assert "'NVIDIA H200'" in refused.message
    assert "--target h200" in refused.message
    assert device_for(load_target("h200"), [H200]) == H200


def test_the_right_one_of_several_devices() -> None:
    assert device_for(load_target("h100"), [H200, H100]) == H100


def test_the_message_without_a_device() -> None:
    nothing = device_for(load_target("a100"), [])
    assert isinstance(nothing, NoDevice)
    assert "no GPU was found" in nothing.message
    assert "NVIDIA A100-SXM4-80GB" in nothing.message
    foreign = device_for(load_target("a100"), [LAPTOP])
    assert isinstance(foreign, NoDevice)
    assert "no shipped target describes it" in foreign.message


def test_a_cuda_name_on_an_amd_target_does_not_match() -> None:
    impostor = Device("AMD Instinct MI300X", "", "", "cuda", 0, 0)
    assert target_for(impostor) is None


def test_the_cpu_target_is_this_machine() -> None:
    found = device_for(load_target("cpu"), [H200])
    assert isinstance(found, Device)
    assert found.kind == "cpu"
    assert found.name
    assert found.memory_bytes > 1 << 28


def test_the_processor_is_named_where_cpuinfo_does_not(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast CPU 3000\nflags\t\t: avx2 fma\n")
    assert cpu_name(cpuinfo) == "Fast CPU 3000"
    assert "avx2 fma" in cpu_identity(cpuinfo)
    assert cpu_name(tmp_path / "absent")
    assert cpu_identity(tmp_path / "absent") != cpu_identity(cpuinfo)


def test_devices_travel_between_processes() -> None:
    assert pickle.loads(pickle.dumps(H200)) == H200


MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tSYS\t0-47\t0\t\tN/A
GPU2\tSYS\tNV18\t X \tSYS\t48-95\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\t X
"""


@pytest.mark.parametrize(
    ("indices", "links"), [([0, 1], "NV18"), ([0, 2], "SYS"), ([0, 1, 2], "NV18 and SYS"), ([0, 3], "")]
)
def test_links_between_gpus(indices: list[int], links: str) -> None:
    assert links_in(MATRIX, indices) == links
    assert links_in("", indices) == ""
