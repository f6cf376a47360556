"""One built kernel on the devices of a group: as `KernelRun`, with a library and memory of each rank.

A kernel is correct if, beside what is asked of a kernel of one device, it is correct while one rank is late,
for each rank: other ranks must not read that rank's shared inputs before the call has begun on it, nor after
the call has ended on it, and its outputs must then be complete. It must also be correct in calls that follow
each other with nothing between them: memory that ranks share is used again while the call before may still
run on other ranks.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...builder.loaded_kernel import LoadedKernel
from ...problem.group_operator import argument_names
from ...problem.template import Collective
from ..bench import BenchCase, InputSet, new_tensors
from ..compare import poison
from ..kernel_run import KernelRun, new_scratch
from ..timers import Call
from ..verify import Verdict, check_outputs, check_repeat
from .collectives import collective_call
from .group_bench import GroupBench, by_rank, communicating, name_of_rank, of_all

if TYPE_CHECKING:
    import torch

LEAST_LATE_US, MOST_LATE_US = 100.0, 5000.0  # how late a rank comes; in between as long as a call takes
CALLS_IN_A_ROW = 6
LATE_CALL = 2  # of those; the calls before it and after it overlap with it

Stage = Call | Sequence[Call]  # one for all ranks, or one of each rank


@dataclass
class GroupRun(KernelRun):
    """The run of one kernel of several devices. `bench` is a `GroupBench`."""

    _kernels: list[LoadedKernel] = field(default_factory=list)  # of each rank
    _rough_us: float = 0.0  # time of a call, with launches and waiting
    _has_launched: bool = False

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
        return self._launches(self._stages(given.inputs, outputs))

    def _stages(self, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]) -> list[Stage]:
        """The parts of a call: the kernel, and the library's collectives before, within and after it."""
        candidate, ranks = self.candidate, self._group.ranks
        template, workload, config = candidate.template, candidate.workload, candidate.config
        tensors = {**inputs, **outputs, **self._scratch}
        names = argument_names(
            communicating(template.operator),
            workload,
            template.shared_scratch(workload, config),
            template.scratch(workload, config),
        )

        def calls(launches: int = -1) -> list[Call]:
            return [
                kernel.bind(
                    [tensors[name_of_rank(name, rank if owner is None else owner)] for name, owner in names],
                    ranks.stream(rank),
                    candidate.slots_of_rank(rank, launches),
                )
                for rank, kernel in enumerate(self._kernels)
            ]

        collective = template.collective(workload, config)
        if collective is None:
            return [calls()]

        def library(one: Collective) -> Call:
            source, result = (
                [tensors[name_of_rank(name, rank)] for rank in range(ranks.world)]
                for name in (one.source, one.result)
            )
            return collective_call(one.name, source, result)

        return [library(one) if isinstance(one, Collective) else calls(one) for one in collective.steps()]

    def _launches(self, stages: Sequence[Stage]) -> Call:
        """A call that launches the stages in order. On each rank, its own ones follow each other at once.

        After an error in it, kernels of other ranks may wait for ever: the process cannot go on.
        """
        steps: list[Call] = []
        for is_common, group in itertools.groupby(stages, callable):
            if is_common:
                steps.extend(stage for stage in group if callable(stage))
                continue
            of_ranks = zip(*(stage for stage in group if not callable(stage)), strict=True)
            steps.append(self._group.ranks.together([_in_order(*calls) for calls in of_ranks]))
        launch = _in_order(*steps)

        def call() -> None:
            self._has_launched = True
            try:
                launch()
            except BaseException:
                self.bench.timer.broken = True
                raise

        return call

    def _lateness(self, late: int) -> Stage:
        """A stage in which one rank is occupied."""
        late_us = self._late_us
        return _on_each(self._group.world, lambda rank: self.delay(rank, late_us) if rank == late else None)

    def delay(self, rank: int, late_us: float) -> None:
        """Let what follows on a rank begin later, and its copies to peers as much later again.

        They have a stream of their own. Ranks wait for each other before they copy, so copies of all ranks
        would begin late together, and a kernel that does not wait for them might find what they bring.
        """
        ranks = self._group.ranks
        ranks.wait(rank, late_us)
        if stream := self._kernels[rank].copy_stream:
            ranks.wait(rank, 2 * late_us, stream)

    def fail(self, error: BaseException) -> None:
        """Record an error. If it may be one of a kernel, those of other ranks may wait for ever, and the
        devices must not be touched again.
        """
        import torch

        super().fail(error)
        if self._has_launched and not isinstance(error, MemoryError | torch.OutOfMemoryError):
            self.bench.timer.broken = True

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
        """Run with each rank late in turn, alone and in a row of calls. A wait that is missing shows."""
        self._once(case, self._outputs[0], self._bind(case.sets[0], self._outputs[0]))
        rough_us = self._rough_us  # how long a call takes, when all is loaded
        for check in (self._check_late, self._check_row):
            if self.failure is None:
                check(case)
            self._rough_us = rough_us
        self.observed["late_us"] = self._late_us

    def _check_late(self, case: BenchCase) -> None:
        """Single calls. Each rank gets its shared inputs on its own stream, just before its part begins."""
        given, outputs, world = case.sets[0], self._outputs[0], self._group.world
        kept = {name: tensor.clone() for name, tensor in outputs.items()}
        shared = {
            name_of_rank(name, rank) for name in communicating(case.operator).shared for rank in range(world)
        }
        inputs = {name: tensor for name, tensor in given.inputs.items() if name in shared}
        saved = {name: tensor.clone() for name, tensor in inputs.items()}
        of_rank = [by_rank(tensors, world) for tensors in (kept, outputs, inputs, saved)]

        def before(rank: int) -> None:
            _, _, read, written = (part[rank] for part in of_rank)
            for name, tensor in read.items():
                tensor.copy_(written[name])

        def after(rank: int) -> None:
            """Keep the outputs as they are at the end of the call; write over what others may not need."""
            kept_own, own, read, _ = (part[rank] for part in of_rank)
            for name, tensor in own.items():
                kept_own[name].copy_(tensor)
            poison({**own, **{f"input {name}": tensor for name, tensor in read.items()}})

        rough_us = self._rough_us
        for late in range(world):
            poison(inputs)
            stages = [_on_each(world, before), *self._stages(given.inputs, outputs), _on_each(world, after)]
            self._once(case, outputs, self._launches([self._lateness(late), *stages]))
            for name, tensor in saved.items():
                inputs[name].copy_(tensor)
            self._rough_us = rough_us
            outputs_at_end, self._outputs[0] = self._outputs[0], kept
            self._compare_with_first(case, 0)
            self._outputs[0] = outputs_at_end
            self._say_when(f"with rank {late} late by {self._late_us:.0f} us")
            if self.failure is not None:
                return

    def _check_row(self, case: BenchCase) -> None:
        """Calls in a row with inputs in turn, and memory for the outputs of each."""
        others = (*case.sets[1:], *([case.second] if case.second else []))
        sets = (case.sets[0], *others[:1])
        first = [self._first_of(case, index, given) for index, given in enumerate(sets)]
        if self.failure is not None:
            return
        turns = [number % len(sets) for number in range(CALLS_IN_A_ROW)]
        rows = [case.outputs() for _ in turns]
        rough_us = self._rough_us
        for late in range(self._group.world):
            self._rough_us = rough_us
            stages: list[Stage] = []
            for number, (turn, outputs) in enumerate(zip(turns, rows, strict=True)):
                if number == LATE_CALL:
                    stages.append(self._lateness(late))
                stages.extend(self._stages(sets[turn].inputs, outputs))
                self._preset(case, outputs)
            self._launches(stages)()
            self.bench.timer.synchronize()
            for number, (turn, outputs) in enumerate(zip(turns, rows, strict=True)):
                if self.candidate.template.deterministic:
                    self.failure = check_repeat(outputs, first[turn])
                else:
                    self._compare(case, sets[turn], outputs)
                self._say_when(
                    f"in call {number + 1} of {CALLS_IN_A_ROW} in a row, with rank {late} late by "
                    f"{self._late_us:.0f} us before call {LATE_CALL + 1}"
                )
                if self.failure is not None:
                    return

    def _first_of(self, case: BenchCase, index: int, given: InputSet) -> Mapping[str, torch.Tensor]:
        """The outputs of a single call that was right."""
        if index < len(self._first):
            return self._first[index]
        outputs = case.outputs()
        self._once(case, outputs, self._bind(given, outputs))
        self._compare(case, given, outputs)
        self._say_when("on second inputs")
        return outputs


def _on_each(world: int, function: Callable[[int], None]) -> list[Call]:
    return [partial(function, rank) for rank in range(world)]


def _in_order(*calls: Call) -> Call:
    if len(calls) == 1:
        return calls[0]

    def call() -> None:
        for one in calls:
            one()

    return call


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
