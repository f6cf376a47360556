"""The bench of a process that measures kernels of several devices: all devices of the group, and one timer.

Tensors of all ranks stand in one mapping, by the operator's name and the rank (`name_of_rank`). Inputs,
outputs and references of a rank lie on its device.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from ...builder.device_code import compile_device_code
from ...errors import InputError, ToolchainError
from ...machine.devices import find_devices, links_between
from ...machine.group_environment import GROUP_ENVIRONMENT
from ...problem.group_operator import GroupOperator
from ...problem.operator import Operator
from ...problem.workload import Workload
from ...records.protocol import MeasurementProtocol
from ...target.spec import Target
from ..bench import (
    Bench,
    BenchCase,
    InputSet,
    cache_sizes,
    new_tensors,
    processor_parts,
    spin_up,
    sums_of,
    timer_conditions,
    torch_indices,
    versions,
)
from ..conditions import Conditions, SensorOfAll, sensor_for
from ..timers import Call
from .collectives import collective_call, library_name
from .group_timer import GroupTimer
from .ranks import GpuRanks, Ranks, ThreadRanks

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def name_of_rank(name: str, rank: int) -> str:
    """The name of a tensor of one rank among those of all ranks."""
    return f"{name} of rank {rank}"


def of_all(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Tensors of each rank as one mapping."""
    return {
        name_of_rank(name, rank): value for rank, part in enumerate(parts) for name, value in part.items()
    }


def by_rank(tensors: Mapping[str, T], world: int) -> list[Mapping[str, T]]:
    """The reverse of `of_all`."""
    found: list[dict[str, T]] = [{} for _ in range(world)]
    for name, value in tensors.items():
        own, _, rank = name.rpartition(" of rank ")
        found[int(rank)][own] = value
    return list(found)


@dataclass(frozen=True)
class GroupCase(BenchCase):
    """One workload of several devices with its input sets."""

    devices: tuple[str, ...] = ()

    @property
    def group_operator(self) -> GroupOperator:
        return communicating(self.operator)

    def outputs(self) -> dict[str, torch.Tensor]:
        return of_all(new_tensors(self.wanted_outputs(), device) for device in self.devices)

    def parts(self, tensors: Mapping[str, torch.Tensor]) -> list[Mapping[str, torch.Tensor]]:
        return by_rank(tensors, len(self.devices))

    def results(self, found: object) -> list[object]:
        assert isinstance(found, list)  # of `vendor`
        return found

    def vendor(self) -> list[Mapping[str, Call]]:
        on_gpu = self.devices[0] != "cpu"
        names = [self.group_operator.vendor_name if on_gpu else "torch", library_name(on_gpu)]
        collective = self.group_operator.vendor_collective(self.workload)
        firsts = names[1:] if collective.at("before") else []
        lasts = names[1:] if collective.at("between", "after") else []
        name = ", then ".join([*firsts, names[0], *lasts])
        memory = self.vendor_memory()  # the same for all sets, whose calls follow each other
        results = [tuple(own.values()) for own in memory[0]]
        offered: list[Mapping[str, Call]] = []
        for given in self.sets:
            steps = self.vendor_steps(given, memory)
            order = [*steps.before, steps.part, *steps.after, *steps.finish]
            offered.append({name: VendorCall(order, results)})
        return offered

    def vendor_memory(self) -> tuple[list[Mapping[str, torch.Tensor]], list[Mapping[str, torch.Tensor]]]:
        """Outputs, and what the vendor's calls need beside them, of each rank."""
        wanted = self.group_operator.vendor_scratch(self.workload)
        return self.parts(self.outputs()), [new_tensors(wanted, device) for device in self.devices]

    def vendor_steps(
        self,
        given: InputSet,
        memory: tuple[list[Mapping[str, torch.Tensor]], list[Mapping[str, torch.Tensor]]],
    ) -> VendorSteps:
        """The vendor's calls on all ranks."""
        operator, workload = self.group_operator, self.workload
        collective = operator.vendor_collective(workload)
        tensors = [
            {**inputs, **own, **more}
            for inputs, own, more in zip(self.parts(given.inputs), *memory, strict=True)
        ]

        def libraries(*places: str) -> list[Call]:
            return [
                collective_call(
                    found.name,
                    [one[found.source] for one in tensors],
                    [one[found.result] for one in tensors],
                )
                for found in collective.at(*places)
            ]

        parts = [operator.vendor_of_rank(workload, rank, one) for rank, one in enumerate(tensors)]
        finishes = [operator.vendor_finish(workload, rank, one) for rank, one in enumerate(tensors)]
        last = [finish for finish in finishes if finish is not None]
        return VendorSteps(libraries("before"), VendorCall(parts), libraries("between", "after"), last)


@dataclass(frozen=True)
class VendorSteps:
    """The vendor's calls in order: its part, between its collectives, and what follows on single ranks."""

    before: Sequence[Call]
    part: Call
    after: Sequence[Call]
    finish: Sequence[Call]


@dataclass(frozen=True)
class VendorCall:
    """A call of several steps, which returns the outputs of each rank."""

    steps: Sequence[Call]
    outputs: Sequence[tuple[torch.Tensor, ...]] = ()

    def __call__(self) -> list[tuple[torch.Tensor, ...]]:
        for step in self.steps:
            step()
        return list(self.outputs)


@dataclass
class GroupBench(Bench):
    """The devices of a group with their timer; `device` is that of rank 0."""

    ranks: Ranks = field(default_factory=lambda: ThreadRanks(2))

    @property
    def world(self) -> int:
        return self.ranks.world

    def draw_set(self, operator: Operator, workload: Workload, seed: int) -> InputSet:
        return draw_group(communicating(operator), workload, self.ranks.devices, seed)

    def draw_second(self, operator: Operator, workload: Workload, seed: int) -> InputSet | None:
        return draw_second_group(communicating(operator), workload, self.ranks.devices, seed)

    def new_case(
        self,
        operator: Operator,
        workload: Workload,
        seed: int,
        sets: tuple[InputSet, ...],
        second: InputSet | None,
    ) -> BenchCase:
        return GroupCase(operator, workload, seed, sets, second, self.ranks.devices)

    def is_usable(self) -> bool:
        import torch

        if not super().is_usable():
            return False
        try:
            for device in self.ranks.devices:
                torch.zeros(1, device=device).item()
        except RuntimeError:
            return False
        return True


def communicating(operator: Operator) -> GroupOperator:
    """The operator as one that communicates. Raises `InputError` for another."""
    if isinstance(operator, GroupOperator):
        return operator
    raise InputError(f"{operator.name} runs on one device: measure it for the chip of the target")


def draw_group(operator: GroupOperator, workload: Workload, devices: Sequence[str], seed: int) -> InputSet:
    """Random inputs of all ranks, with their reference."""
    drawn = [operator.rank_inputs(workload, rank, device, seed) for rank, device in enumerate(devices)]
    return _group_set(operator, workload, drawn, is_exact=False)


def draw_second_group(
    operator: GroupOperator, workload: Workload, devices: Sequence[str], seed: int
) -> InputSet | None:
    """The operator's second inputs of all ranks, with their reference; None if it has none."""
    found = [
        operator.rank_second_inputs(workload, rank, device, seed - 1) for rank, device in enumerate(devices)
    ]
    drawn = [one for one in found if one is not None]
    if len(drawn) < len(devices):
        return None
    is_exact = all(one.is_exact for one in drawn)
    return _group_set(operator, workload, [one.tensors for one in drawn], is_exact)


def _group_set(
    operator: GroupOperator,
    workload: Workload,
    drawn: Sequence[Mapping[str, torch.Tensor]],
    is_exact: bool,
) -> InputSet:
    import torch

    inputs = [{name: tensor.contiguous() for name, tensor in part.items()} for part in drawn]
    reference = operator.group_reference(workload, inputs)
    magnitude = [] if is_exact else operator.group_magnitude(workload, inputs)
    short = {name: tensor.to(torch.bfloat16) for name, tensor in of_all(magnitude).items()}
    flat = of_all(inputs)
    return InputSet(flat, of_all(reference), sums_of(flat), short, is_exact)


def group_bench_for(target: Target, protocol: MeasurementProtocol) -> GroupBench:
    """This process's bench for a target of several devices; the same one while target and kind of protocol
    stay the same.

    Raises:
        InputError: the protocol measures no kernels of several devices.
        ToolchainError: torch does not see as many devices of that target, or they cannot reach each other;
            they are AMD's.
    """
    protocol.check_for(target)
    if target.kind == "hip":
        raise ToolchainError(f"target {target.name}: kernels of several AMD GPUs cannot be measured yet")
    return _group_bench(target, timer_conditions(target, protocol))


@lru_cache(maxsize=1)
def _group_bench(target: Target, protocol: MeasurementProtocol) -> GroupBench:
    if not target.is_gpu:
        timer, environment, cache_bytes = processor_parts(target, protocol)
        environment |= {"device": f"{target.world} x {environment['device']}"}
        conditions = Conditions(on_processor=True)
        return GroupBench(
            "cpu", timer, environment, cache_bytes, conditions=conditions, ranks=ThreadRanks(target.world)
        )
    import torch

    os.environ.update(GROUP_ENVIRONMENT)
    seen = torch_indices(target)
    if len(seen) < target.world:
        raise ToolchainError(
            f"target {target.name} is {target.world} devices, and torch sees {len(seen)} of that kind"
        )
    indices = seen[: target.world]
    torch.cuda.set_device(indices[0])
    ranks = GpuRanks(indices, compile_device_code(target, __package__, "group_kernels.cu"))
    environment, uuids, locked = _environment(indices)
    l2_bytes, last_bytes = cache_sizes(target, indices[0])
    sensors = [sensor for uuid in uuids if (sensor := sensor_for(uuid)) is not None]
    conditions = Conditions(SensorOfAll(sensors) if sensors else None, uuids=locked)
    spin_up(conditions, ranks.devices)
    return GroupBench(
        ranks.devices[0],
        GroupTimer(ranks, 2 * last_bytes, protocol.burst_ms, protocol.rest),
        environment,
        l2_bytes,
        ranks.stream(0),
        conditions,
        ranks=ranks,
    )


def _environment(indices: Sequence[int]) -> tuple[dict[str, str], list[str], list[str]]:
    """Names, driver and links of the GPUs, and the UUID of each, as CUDA and as their locks name it."""
    import torch

    properties = [torch.cuda.get_device_properties(index) for index in indices]
    uuids = [str(getattr(one, "uuid", "")) for one in properties]
    found = find_devices()
    present = [device for uuid in uuids for device in found if uuid and device.uuid.endswith(uuid)]
    names = list(dict.fromkeys(str(one.name) for one in properties))
    environment = {
        "device": f"{len(indices)} x {' and '.join(names)}",
        "uuid": ",".join(uuids),
        "driver": present[0].driver if present else "",
        "links": links_between(present) if len(present) == len(indices) else "",
        **versions(),
    }
    return environment, uuids, [device.uuid for device in present]
