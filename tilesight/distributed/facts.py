"""What a node says of itself: whether its TileSight is the driver's, which devices it has, what it can build with."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..device import Device, cpu_device, cpu_identity, find_devices, is_of
from ..target import Target
from ..toolchain import missing_compiler, package_version, software_versions
from ..version import __version__


@dataclass(frozen=True, slots=True)
class Facts:
    host: str
    versions: Mapping[str, str]  # must be the driver's
    cpu: str  # `cpu_identity`
    devices: tuple[Device, ...]
    software: Mapping[str, str]  # what times for the target depend on; `driver` is that of its first fitting device
    no_compiler: str | None  # why nothing can be built for the target there

    def fitting(self, target: Target) -> tuple[Device, ...]:
        """Its devices that may be measured for `target`. Of a processor only that of the driver's kind counts."""
        if target.kind == "cpu":
            return self.devices if self.cpu == cpu_identity() else ()
        return tuple(device for device in self.devices if is_of(device, target))


def facts(target: Target) -> Facts:
    """Of this machine."""
    devices = tuple(find_devices()) if target.is_gpu else (cpu_device(),)
    fitting = next((device for device in devices if is_of(device, target)), None)
    return Facts(platform.node(), versions(), cpu_identity(), devices, software_versions(target, fitting), missing_compiler(target))


def versions() -> dict[str, str]:
    """Of what driver and nodes must have in common, since they send each other their own objects."""
    return {"tilelang": package_version("tilelang"), "TileSight": f"{__version__} (code {code_hash()})"}


@cache
def code_hash() -> str:
    """8 hex digits over the package's own code, wherever it is installed."""
    root, digest = Path(__file__).resolve().parent.parent, hashlib.sha256()
    # the cost model and others are links in a checkout
    found = (Path(folder, name) for folder, _, names in os.walk(root, followlinks=True) for name in names if name.endswith(".py"))
    for file in sorted(found, key=lambda file: file.relative_to(root).as_posix()):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:8]
