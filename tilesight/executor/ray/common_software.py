"""The device and software that the nodes of a cluster must have in common, for comparable times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...machine.devices import Device, cpu_identity
from ...machine.toolchain import COMPILER_NAMES, software_of
from ...target.spec import Target
from .node_facts import NodeFacts, versions


@dataclass(frozen=True, slots=True)
class CommonSoftware:
    """Nodes measure only on devices with the name and driver of `device`. None: there is no such device."""

    target: Target
    device: Device | None = None
    software: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(target: Target, answers: Iterable[NodeFacts]) -> CommonSoftware:
        """The most frequent device and software among the nodes that run the driver's code."""
        known = [answer for answer in answers if not refusal(answer)]
        able = [
            (device, answer.software.get("torch", ""))
            for answer in known
            for device in answer.fitting(target)
        ]
        name, driver, torch = _most((device.name, device.driver, torch) for device, torch in able) or (
            "",
            "",
            "",
        )
        device = next((device for device, _ in able if (device.name, device.driver) == (name, driver)), None)
        if device is None:
            (torch,) = _most((answer.software.get("torch", ""),) for answer in known) or ("",)
        kind = COMPILER_NAMES[target.kind]
        (compiler,) = _most(
            (answer.software.get(kind, ""),) for answer in known if _can_build(answer, target)
        ) or ("",)
        return CommonSoftware(
            target, device, software_of(target, compiler=compiler, torch=torch, driver=driver)
        )

    def why_no_builds(self, node: NodeFacts) -> str:
        """Why the node may not build; empty if it may."""
        if node.no_compiler is not None:
            return node.no_compiler
        if not _can_build(node, self.target):
            return "its processor is not the driver's, for which target cpu is built"
        kind = COMPILER_NAMES[self.target.kind]
        found, wanted = node.software.get(kind, ""), self.software.get(kind, "")
        return (
            "" if found == wanted else f"it has another compiler: {found} where the other nodes have {wanted}"
        )

    def why_no_measuring(self, node: NodeFacts, cpus: int, gpus: int) -> str:
        """Why the node may not measure; empty if it may.

        `cpus` and `gpus` are the node's resources in Ray.
        """
        fitting, device = node.fitting(self.target), self.device
        if not fitting or device is None:
            return (
                "no device of the target"
                if self.target.is_gpu
                else "its processor is not the driver's, which target cpu means"
            )
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


def refusal(node: NodeFacts) -> str:
    """Why the node gets no jobs: its code is not the driver's. Empty if it is."""
    ours = versions()
    other = [f"{name} {node.versions.get(name, 'none')} where the driver has {ours[name]}" for name in ours]
    other = [text for name, text in zip(ours, other, strict=True) if node.versions.get(name) != ours[name]]
    return f"it has {' and '.join(other)}; install the driver's there" if other else ""


def _can_build(node: NodeFacts, target: Target) -> bool:
    """Whether the node can build for the target.

    Code for a processor is compiled for exactly that processor.
    """
    return node.no_compiler is None and (target.is_gpu or node.cpu == cpu_identity())


def _most(values: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The most frequent value, the smallest of equally frequent ones; empty without values."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value)) if counts else ()
