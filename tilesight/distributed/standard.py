"""What all nodes that build and measure must have in common, so that their times are of one device and one software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..device import Device, cpu_identity
from ..target import Target
from ..toolchain import COMPILER_NAMES, software_of
from .facts import Facts, versions


@dataclass(frozen=True, slots=True)
class Standard:
    """`device` stands for all that measure: they bear its name and have its driver. None where no node has one."""

    target: Target
    device: Device | None = None
    software: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(target: Target, answers: Iterable[Facts]) -> Standard:
        """What most of the nodes have that run the driver's TileSight."""
        known = [answer for answer in answers if not refusal(answer)]
        able = [(device, answer.software.get("torch", "")) for answer in known for device in answer.fitting(target)]
        name, driver, torch = _most((device.name, device.driver, torch) for device, torch in able) or ("", "", "")
        device = next((device for device, _ in able if (device.name, device.driver) == (name, driver)), None)
        if device is None:
            (torch,) = _most((answer.software.get("torch", ""),) for answer in known) or ("",)
        kind = COMPILER_NAMES[target.kind]
        (compiler,) = _most((answer.software.get(kind, ""),) for answer in known if _can_build(answer, target)) or ("",)
        return Standard(target, device, software_of(target, compiler=compiler, torch=torch, driver=driver))

    def why_no_builds(self, node: Facts) -> str:
        """Empty where it may build."""
        if node.no_compiler is not None:
            return node.no_compiler
        if not _can_build(node, self.target):
            return "its processor is not the driver's, for which target cpu is built"
        kind = COMPILER_NAMES[self.target.kind]
        found, wanted = node.software.get(kind, ""), self.software.get(kind, "")
        return "" if found == wanted else f"it has another compiler: {found} where the other nodes have {wanted}"

    def why_no_measuring(self, node: Facts, cpus: int, gpus: int) -> str:
        """Empty where it may measure; `cpus` and `gpus` are what Ray may give away there."""
        fitting, device = node.fitting(self.target), self.device
        if not fitting or device is None:
            return "no device of the target" if self.target.is_gpu else "its processor is not the driver's, which target cpu means"
        if not any((found.name, found.driver) == (device.name, device.driver) for found in fitting):
            found = fitting[0]
            return (
                f"it has another device or driver: {found.name} with {found.driver or 'none'} "
                f"where the other nodes have {device.name} with {device.driver or 'none'}"
            )
        torch, wanted = node.software.get("torch", "none"), self.software.get("torch", "none")
        if torch != wanted:
            return f"it has another torch: {torch} where the other nodes have {wanted}"
        if self.target.is_gpu and not gpus:
            return "Ray was started there without GPUs: ray start --num-gpus=..."
        return "" if self.target.is_gpu or cpus else "Ray was started there without CPUs"


def refusal(node: Facts) -> str:
    """Why a node can be given nothing at all: its code is not the driver's. Empty where it is."""
    ours = versions()
    other = [f"{name} {node.versions.get(name, 'none')} where the driver has {ours[name]}" for name in ours]
    other = [text for name, text in zip(ours, other, strict=True) if node.versions.get(name) != ours[name]]
    return f"it has {' and '.join(other)}; install the driver's there" if other else ""


def _can_build(node: Facts, target: Target) -> bool:
    """A processor's code is compiled for that very processor."""
    return node.no_compiler is None and (target.is_gpu or node.cpu == cpu_identity())


def _most(values: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The most frequent, the first in order of equally frequent ones; empty where there are none."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value)) if counts else ()
