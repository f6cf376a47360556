"""One built kernel on the devices of a group: as `KernelRun`, with a library and memory of each rank.

A kernel is correct if, beside what is asked of a kernel of one device, it is correct while one rank is late,
for each rank: its outputs must be complete when the call has ended on their rank, and the other ranks must no
longer read that rank's shared inputs.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...builder.loaded_kernel import LoadedKernel
from ...problem.group_operator import argument_names
from ..bench import BenchCase, InputSet
from ..compare import poison
from ..kernel_run import KernelRun, new_scratch
from ..timers import Call
from ..verify import Verdict, check_outputs
from .collectives import collective_call
from .group_bench import GroupBench, by_rank, communicating, name_of_rank, new_tensors, of_all

if TYPE_CHECKING:
    import torch

LEAST_LATE_US, MOST_LATE_US = 100.0, 5000.0  # how late a rank comes; in between as long as a call takes


@dataclass
class GroupRun(KernelRun):
    """The run of one kernel of several devices. `bench` is a `GroupBench`."""

    _kernels: list[LoadedKernel] = field(default_factory=list)  # of each rank
    _rough_us: float = 0.0  # time of a call, with launches and waiting

    @property
    def _group(self) -> GroupBench:
        assert isinstance(self.bench, GroupBench)
        return self.bench

    def _load(self, artifact: str) -> None:
        """A loaded library serves one device, and a file is loaded once: each rank has a copy."""
        ranks = self._group.ranks
        with tempfile.TemporaryDirectory(prefix="tilesight-ranks-") as folder:
            for rank in range(ranks.world):
                copy = shutil.copy(artifact, Path(folder) / f"rank-{rank}.so")
                self._kernels.append(ranks.load(rank, str(copy), self.build.entry))
        template, workload, config = (
            self.candidate.template,
            self.candidate.workload,
            self.candidate.config,
        )
        shared = template.shared_scratch(workload, config)
        self._scratch = of_all(
            {**new_tensors(shared, device, zeroed=True), **new_scratch(self.candidate, device)}
            for device in ranks.devices
        )

    def _unload(self) -> None:
        for rank, kernel in enumerate(self._kernels):
            self._group.ranks.unload(rank, kernel)
        self._kernels.clear()

    def _bind(self, given: InputSet, outputs: dict[str, torch.Tensor]) -> Call:
        return self._call(given, outputs)

    def _call(
        self,
        given: InputSet,
        outputs: Mapping[str, torch.Tensor],
        late: int | None = None,
        after: Callable[[int], None] | None = None,
    ) -> Call:
        """The call of all ranks: the kernel, and the library's collective before or after it.

        Args:
            given: the inputs.
            outputs: written by the call.
            late: a rank that begins after the others.
            after: what each rank does when its part has ended.
        """
        candidate, ranks = self.candidate, self._group.ranks
        template, workload, config = candidate.template, candidate.workload, candidate.config
        tensors = {**given.inputs, **outputs, **self._scratch}
        names = argument_names(
            communicating(template.operator),
            workload,
            template.shared_scratch(workload, config),
            template.scratch(workload, config),
        )
        calls: list[Call] = [
            kernel.bind(
                [tensors[name_of_rank(name, rank if owner is None else owner)] for name, owner in names],
                ranks.stream(rank),
                candidate.slots_of_rank(rank),
            )
            for rank, kernel in enumerate(self._kernels)
        ]
        collective = template.collective(workload, config)
        library = None
        if collective is not None:
            source, result = (
                [tensors[name_of_rank(name, rank)] for rank in range(ranks.world)]
                for name in (collective.source, collective.result)
            )
            library = collective_call(collective.name, source, result)
        ends = [_end_of_rank(rank, after) for rank in range(ranks.world)] if after else []
        is_last = library is not None and collective is not None and collective.when == "after"
        if ends and not is_last:
            calls = [_in_order(one, end) for one, end in zip(calls, ends, strict=True)]
        steps: list[Call] = [ranks.together(calls, late, self._late_us)]
        if library is not None:
            steps = [*steps, library] if is_last else [library, *steps]
        if ends and is_last:
            steps.append(ranks.together(ends))
        return steps[0] if len(steps) == 1 else _in_order(*steps)

    @property
    def _late_us(self) -> float:
        return min(max(self._rough_us, LEAST_LATE_US), MOST_LATE_US)

    def _once(self, case: BenchCase, outputs: dict[str, torch.Tensor], call: Call) -> None:
        self._preset(case, outputs)
        begin = time.perf_counter()
        call()
        self.bench.timer.synchronize()
        self._rough_us = 1e6 * (time.perf_counter() - begin)

    def _preset(self, case: BenchCase, outputs: Mapping[str, torch.Tensor]) -> None:
        """Poison what a kernel may not rely on. Integers of shared scratch belong to the kernel."""
        template = self.candidate.template
        shared = template.shared_scratch(case.workload, self.candidate.config)
        kept = {
            name_of_rank(name, rank)
            for name, (_, dtype) in shared.items()
            if "int" in dtype
            for rank in range(self._group.world)
        }
        poison({**{name: t for name, t in self._scratch.items() if name not in kept}, **outputs})
        presets = [case.operator.preset(case.workload, own) for own in case.parts(outputs)]
        self._updates = any(presets)
        self.bench.timer.synchronize()  # before any rank writes to the memory of another

    def _verdict(self, case: BenchCase, given: InputSet, outputs: dict[str, torch.Tensor]) -> Verdict:
        world = self._group.world
        parts = (by_rank(tensors, world) for tensors in (outputs, given.reference, given.magnitude))
        found = [
            check_outputs(case.operator, case.workload, own, reference, magnitude, given.is_exact)
            for own, reference, magnitude in zip(*parts, strict=True)
        ]
        failures = [
            replace(one.failure, message=f"rank {rank}: {one.failure.message}")
            for rank, one in enumerate(found)
            if one.failure is not None
        ]
        return Verdict(
            _largest(one.relative_error for one in found),
            failures[0] if failures else None,
            _largest(one.element_ratio for one in found),
            _largest(one.tile_ratio for one in found),
        )

    def _check_further(self, case: BenchCase) -> None:
        """Run with each rank late in turn. A wait that is missing shows."""
        given, outputs = case.sets[0], self._outputs[0]
        kept = {name: tensor.clone() for name, tensor in outputs.items()}
        shared = {
            name_of_rank(name, rank)
            for name in communicating(case.operator).shared
            for rank in range(self._group.world)
        }
        inputs = {name: tensor for name, tensor in given.inputs.items() if name in shared}
        saved = {name: tensor.clone() for name, tensor in inputs.items()}
        of_rank = [by_rank(tensors, self._group.world) for tensors in (kept, outputs, inputs)]

        def after(rank: int) -> None:
            """Keep the outputs as they are at the end of the call; write over what others may not need."""
            kept_own, own, read = (part[rank] for part in of_rank)
            for name, tensor in own.items():
                kept_own[name].copy_(tensor)
            poison({**own, **{f"input {name}": tensor for name, tensor in read.items()}})

        self._once(case, outputs, self._call(given, outputs))  # how long a call takes, when all is loaded
        for late in range(self._group.world):
            rough_us = self._rough_us
            try:
                self._once(case, outputs, self._call(given, outputs, late, after))
            finally:
                for name, tensor in saved.items():
                    inputs[name].copy_(tensor)
            self._rough_us = rough_us
            outputs_at_end, self._outputs[0] = self._outputs[0], kept
            self._compare_with_first(case, 0)
            self._outputs[0] = outputs_at_end
            self._say_when(f"with rank {late} late by {self._late_us:.0f} us")
            if self.failure is not None:
                return
        self.observed["late_us"] = self._late_us


def _end_of_rank(rank: int, after: Callable[[int], None]) -> Call:
    return lambda: after(rank)


def _in_order(*calls: Call) -> Call:
    def call() -> None:
        for one in calls:
            one()

    return call


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
