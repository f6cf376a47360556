"""Candidates: one config of one kernel template, for one workload on one target."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..target.spec import Target
from .group_operator import GroupOperator, argument_names, of_rank
from .space import Config
from .template import LAUNCHES, RANK, KernelTemplate
from .workload import Workload


@dataclass(frozen=True)
class Candidate:
    """A kernel that can be lowered, predicted, built and measured.

    A kernel with `dynamic` dimensions takes their sizes at run time; it is measured at those of `workload`.
    """

    workload: Workload
    target: Target
    template: KernelTemplate
    config: Config
    dynamic: tuple[str, ...] = ()

    @property
    def dynamic_sizes(self) -> tuple[int, ...]:
        """Sizes of the dynamic dimensions in `workload`: the built kernel takes them after its tensors."""
        return tuple(self.workload.dims[dim] for dim in self.dynamic)

    @property
    def run_time_slots(self) -> tuple[int, ...]:
        """What the built kernel takes after its tensors: sizes, then numbers, as a library takes them."""
        return (*self.dynamic_sizes, *(number.slot for number in self.template.numbers))

    def slots_of_rank(self, rank: int, launches: int = -1) -> tuple[int, ...]:
        """As `run_time_slots`, for the device `rank` of several, and some of the launches (`LAUNCHES`)."""
        values = {RANK.name: rank, LAUNCHES.name: launches}
        numbers = (
            replace(number, value=values.get(number.name, number.value)) for number in self.template.numbers
        )
        return (*self.dynamic_sizes, *(number.slot for number in numbers))

    @property
    def peer_tensors(self) -> frozenset[str]:
        """Names of the kernel's parameters that are tensors of other ranks than 0."""
        operator = self.template.operator
        if not isinstance(operator, GroupOperator):
            return frozenset()
        shared = self.template.shared_scratch(self.workload, self.config)
        own = self.template.scratch(self.workload, self.config)
        arguments = argument_names(operator, self.workload, shared, own)
        return frozenset(of_rank(name, rank) for name, rank in arguments if rank)

    @property
    def key(self) -> str:
        """Canonical identity: template, version, workload, architecture, config, dynamic dimensions."""
        template, target = self.template, self.target
        parts = [
            f"{template.name}@{template.version}",
            self.workload.key,
            f"{target.kind}:{target.arch}",
            self.config.key,
            *([f"open {','.join(self.dynamic)}"] if self.dynamic else []),
        ]
        return "|".join(parts)
