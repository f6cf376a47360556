"""The devices of this machine and their targets, found with the drivers' own tools, without torch.

A target is measured only on a device whose driver reports one of the target's `device_names`: figures of an
H200 must never be stored as those of an H100.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..settings import load_settings
from ..target.spec import Target, load_target, target_names

_TOOL_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Device:
    """One device, as its driver reports it. `index` is the driver's, independent of CUDA_VISIBLE_DEVICES."""

    name: str
    uuid: str
    driver: str  # version
    kind: str  # cuda | hip | cpu
    index: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class NoDevice:
    """Why a target cannot be measured on this machine."""

    target: Target
    found: tuple[Device, ...]
    fitting: tuple[str, ...]  # shipped targets that describe one of the found devices

    @property
    def message(self) -> str:
        alike = [device for device in self.found if is_of(device, self.target)]
        if alike:
            return (
                f"target {self.target.name} is {self.target.world} devices, and this machine has "
                f"{len(alike)} of that kind ('{alike[0].name}')"
            )
        wanted = " or ".join(f"'{name}'" for name in self.target.device_names)
        if not self.found:
            needed = wanted or "a device of that name"
            return f"no GPU was found here; measuring for target {self.target.name} needs {needed}"
        here = ", ".join(dict.fromkeys(f"'{device.name}'" for device in self.found))
        if not wanted:
            return (
                f"target {self.target.name} names no device; "
                f"to measure it on {here}, list that name in its device_names"
            )
        offer = (
            f"; use --target {' or '.join(self.fitting)}"
            if self.fitting
            else "; no shipped target describes it"
        )
        return f"target {self.target.name} is measured on {wanted} only, and this machine has {here}{offer}"


def find_devices() -> list[Device]:
    """The GPUs that drivers report and that the environment does not hide, NVIDIA's first."""
    settings = load_settings()
    return [
        *visible(_nvidia_devices(), settings.cuda_visible),
        *visible(_amd_devices(), settings.hip_visible),
    ]


def visible(devices: Sequence[Device], setting: str | None) -> list[Device]:
    """The devices that a setting like CUDA_VISIBLE_DEVICES selects, in its order.

    Args:
        devices: All devices.
        setting: A comma-separated list of indices and prefixes of UUIDs. As in the drivers, it ends at the
            first entry that selects no device. None selects all.
    """
    if setting is None:
        return list(devices)
    found: list[Device] = []
    for entry in (part.strip() for part in setting.split(",")):
        named = [
            d
            for d in devices
            if (str(d.index) == entry if entry.isdecimal() else bool(entry) and d.uuid.startswith(entry))
        ]
        if len(named) != 1:
            break
        found += named
    return found


def restricted_to(*devices: Device) -> dict[str, str]:
    """Environment variables with which a process sees those GPUs only; empty for a processor."""
    if devices[0].kind == "cuda":
        return {"CUDA_VISIBLE_DEVICES": ",".join(device.uuid or str(device.index) for device in devices)}
    if devices[0].kind == "hip":
        return {"HIP_VISIBLE_DEVICES": ",".join(str(device.index) for device in devices)}
    return {}


def cpu_device() -> Device:
    """The processor of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(cpu_name(), "", "", "cpu", 0, memory)


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model name."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown processor"


def cpu_identity(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Architecture, name and features of the processor.

    Code built for it runs on processors with the same identity.
    """
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    features = next(
        (line.partition(":")[2] for line in lines if line.partition(":")[0].strip() in ("flags", "Features")),
        "",
    )
    return f"{platform.machine()} {cpu_name(cpuinfo)}: {' '.join(sorted(features.split()))}"


def is_of(device: Device, target: Target) -> bool:
    """Whether the device is of the target: its driver's name is listed there.

    Every processor is of target cpu.
    """
    return device.kind == target.kind and (target.kind == "cpu" or device.name in target.device_names)


def target_for(device: Device) -> str | None:
    """The shipped target that describes this device; None if there is none."""
    return next((name for name in target_names() if is_of(device, load_target(name))), None)


def devices_for(target: Target, devices: Sequence[Device]) -> tuple[Device, ...] | NoDevice:
    """The devices on which `target` may be measured (target cpu: the processor), or why there is none."""
    if target.kind == "cpu":
        return (cpu_device(),)
    fitting_devices = tuple(device for device in devices if is_of(device, target))
    if fitting_devices:
        # all of one name: times belong to one kind of device
        return tuple(device for device in fitting_devices if device.name == fitting_devices[0].name)
    fitting = {name: None for device in devices if (name := target_for(device)) is not None}
    return NoDevice(target, tuple(devices), tuple(fitting))


def groups_for(target: Target, devices: Sequence[Device]) -> tuple[Device, ...] | NoDevice:
    """As `devices_for`, for a target of several devices: as many times its number as there are.

    The processor serves any number: ranks are threads.
    """
    found = devices_for(target, devices)
    if isinstance(found, NoDevice) or not target.is_gpu:
        return found
    groups = len(found) // target.world
    return found[: groups * target.world] if groups else NoDevice(target, tuple(devices), ())


def device_for(target: Target, devices: Sequence[Device]) -> Device | NoDevice:
    """The first of `devices_for`."""
    found = devices_for(target, devices)
    return found if isinstance(found, NoDevice) else found[0]


def _output_of(command: list[str]) -> str:
    """The output of a driver's tool; empty if the tool is missing or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TOOL_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _nvidia_devices() -> list[Device]:
    columns = "index,name,uuid,driver_version,memory.total,mig.mode.current"
    return parse_nvidia_smi(
        _output_of(["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader,nounits"])
    )


def links_between(devices: Sequence[Device]) -> str:
    """How GPUs of this machine are connected, in the words of the driver's matrix: NV18, or PIX and NODE."""
    return links_in(_output_of(["nvidia-smi", "topo", "-m"]), [device.index for device in devices])


def links_in(matrix: str, indices: Sequence[int]) -> str:
    """The links between those GPUs in the output of `nvidia-smi topo -m`; "" if it does not have them."""
    rows = [
        re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in matrix.splitlines()
    ]  # headings are underlined
    heading = next((row for row in rows if row and row[0] == "GPU0"), [])
    found: dict[str, None] = {}
    for row in rows:
        if not row or row is heading or row[0] not in {f"GPU{index}" for index in indices}:
            continue
        for index in indices:
            name = f"GPU{index}"
            if name != row[0] and name in heading and len(row) > heading.index(name) + 1:
                found[row[heading.index(name) + 1]] = None
    return " and ".join(found)


def parse_nvidia_smi(text: str) -> list[Device]:
    """Devices from the CSV output of `nvidia-smi --query-gpu`."""
    devices = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != 6 or not row[0].isdecimal():
            continue
        index, name, uuid, driver, mebibytes, mig = row
        # a MIG slice is another device than the whole GPU, and no target describes it
        shown = f"{name} (MIG)" if mig == "Enabled" else name
        devices.append(
            Device(
                shown, uuid, driver, "cuda", int(index), int(mebibytes) << 20 if mebibytes.isdecimal() else 0
            )
        )
    return devices


def _amd_devices() -> list[Device]:
    found = parse_amd_smi(_output_of(["amd-smi", "static", "--asic", "--driver", "--vram", "--json"]))
    if found:
        return found
    flags = ("--showproductname", "--showuniqueid", "--showdriverversion", "--showmeminfo", "vram", "--json")
    return parse_rocm_smi(_output_of(["rocm-smi", *flags]))


def parse_amd_smi(text: str) -> list[Device]:
    """Devices from `amd-smi static --json`: a list of GPUs, in newer versions under `gpu_data`."""
    data = _json(text)
    entries = data.get("gpu_data", []) if isinstance(data, dict) else data
    devices = []
    for position, entry in enumerate(e for e in entries or [] if isinstance(e, dict)):
        asic, driver, size = (
            entry.get("asic", {}),
            entry.get("driver", {}),
            entry.get("vram", {}).get("size", {}),
        )
        name = asic.get("market_name")
        if name:
            mebibytes = size.get("value", 0) if isinstance(size, dict) else 0
            uuid = str(asic.get("asic_serial", ""))
            devices.append(
                Device(str(name), uuid, str(driver.get("version", "")), "hip", position, int(mebibytes) << 20)
            )
    return devices


def parse_rocm_smi(text: str) -> list[Device]:
    """Devices from `rocm-smi --json`: cards by name, and the driver under `system`.

    The case of keys varies.
    """
    data = _json(text)
    if not isinstance(data, dict):
        return []
    driver = str(next(_values(data.get("system", {}), "driver version"), ""))
    devices = []
    for card in sorted(
        (c for c in data if c.startswith("card") and c[4:].isdecimal()), key=lambda c: int(c[4:])
    ):
        name = next(_values(data[card], "card series"), None)
        if name:
            memory, uuid = (
                next(_values(data[card], "vram total memory (b)"), "0"),
                next(_values(data[card], "unique id"), ""),
            )
            devices.append(Device(str(name), str(uuid), driver, "hip", int(card[4:]), int(memory)))
    return devices


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _values(table: Any, wanted: str) -> Iterator[Any]:
    return (
        (value for key, value in table.items() if key.lower() == wanted)
        if isinstance(table, dict)
        else iter(())
    )
