"""A candidate: one config of one template, for one workload on one target."""

from __future__ import annotations

from dataclasses import dataclass

from .space import Config
from .target import Target
from .template import KernelTemplate
from .workload import Workload


@dataclass(frozen=True)
class Candidate:
    workload: Workload
    target: Target
    template: KernelTemplate
    config: Config
    # dimensions that the built kernel takes at run time: one kernel for all their values; `workload` is where it is measured
    open: tuple[str, ...] = ()

    @property
    def open_sizes(self) -> tuple[int, ...]:
        """Values of the open dimensions where it is measured: what a built kernel takes after its tensors."""
        return tuple(self.workload.dims[dim] for dim in self.open)

    @property
    def key(self) -> str:
        """Canonical identity of what would be lowered: template and its version, workload, target's architecture, config."""
        code = f"{self.template.name}@{self.template.version}|{self.workload.key}|{self.target.kind}:{self.target.arch}|{self.config.key}"
        return f"{code}|open {','.join(self.open)}" if self.open else code
