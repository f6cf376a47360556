"""Facts that a node of a cluster reports: versions of its code, its devices, its compilers."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...machine.devices import Device, cpu_device, cpu_identity, find_devices, is_of
from ...machine.toolchain import missing_compiler, package_version, software_versions
from ...target.spec import Target
from ...version import __version__


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts of one node. The driver is the process that uses the cluster.

    `software` has the versions that times for the target depend on, with the driver version of the first
    fitting device.
    """

    host: str
    versions: Mapping[str, str]  # must equal the driver's
    cpu: str  # `cpu_identity`
    devices: tuple[Device, ...]
    software: Mapping[str, str]
    no_compiler: str | None  # why the node cannot build for the target; None: it can

    def fitting(self, target: Target) -> tuple[Device, ...]:
        """Its devices that may be measured for `target`; a processor only if it is of the driver's kind."""
        if target.kind == "cpu":
            return self.devices if self.cpu == cpu_identity() else ()
        return tuple(device for device in self.devices if is_of(device, target))


def collect_facts(target: Target) -> NodeFacts:
    """The facts of this machine."""
    devices = tuple(find_devices()) if target.is_gpu else (cpu_device(),)
    fitting = next((device for device in devices if is_of(device, target)), None)
    return NodeFacts(
        platform.node(),
        versions(),
        cpu_identity(),
        devices,
        software_versions(target, fitting),
        missing_compiler(target),
    )


def versions() -> dict[str, str]:
    """Versions that the driver and the nodes must have in common, because they exchange pickled objects."""
    return {"tilelang": package_version("tilelang"), "TileSight": f"{__version__} (code {code_hash()})"}


@cache
def code_hash() -> str:
    """8 hex digits over the package's own code; independent of where it is installed."""
    root, digest = Path(__file__).resolve().parents[2], hashlib.sha256()
    # in a checkout, the cost model and other packages are symbolic links
    found = (
        Path(folder, name)
        for folder, _, names in os.walk(root, followlinks=True)
        for name in names
        if name.endswith(".py")
    )
    for file in sorted(found, key=lambda file: file.relative_to(root).as_posix()):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:8]
