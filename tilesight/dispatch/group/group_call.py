"""The call of one kernel that all ranks run together, prepared as far as the signature of its tensors allows.

As `bound_calls.bind_call`. A shared tensor stands for those of all ranks. If the caller's tensor is an
ordinary one, the kernel gets shared memory of the dispatcher in its place, and the call copies.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from ...bounded_dict import BoundedDict
from ...builder.loaded_kernel import LaunchError, LoadedKernel
from ...errors import InputError
from ...problem.axes import shape as shape_of
from ...problem.candidate import Candidate
from ...problem.group_operator import GroupOperator, argument_names
from ...problem.template import Collective
from ..kernels.bound_calls import BoundCall, CallCounter, allocator, on_its_device, stream_of, strides_of
from ..kernels.loaded import INVALID_CONTEXT, make_current
from ..notices import say_once
from ..problem import ALIGNMENT, DispatchProblem
from .collectives import is_in_place, run_collective
from .exchange import Exchange, RankStep
from .shared_tensors import Place, SharedTensors, Tensor, bytes_of

PLACES_LIMIT = 8192  # addresses of shared tensors in memory, by call and tensor


@dataclass(frozen=True)
class Seat:
    """The place of this process in its group.

    Attributes:
        group: of torch.distributed.
        exchange: what this dispatcher exchanges with those of other ranks.
    """

    group: Any
    rank: int
    world: int
    exchange: Exchange


@dataclass
class CallOrder:
    """Calls of a dispatcher follow each other, whatever stream they are on: kernels keep counters of them."""

    stream: int | None = None

    def enter(self, stream: int) -> None:
        """The next call is on another stream than the last one."""
        if torch.cuda.is_current_stream_capturing():
            return  # the order of a graph's replays is the caller's matter
        if self.stream is not None:
            # a handle of 0 is the default stream; `ExternalStream` would take another one for it
            last = torch.cuda.ExternalStream(self.stream) if self.stream else torch.cuda.default_stream()
            torch.cuda.current_stream().wait_stream(last)
        self.stream = stream


class _Argument:
    """A tensor of the caller among the kernel's arguments: where it lies on all ranks."""

    def __init__(self, name: str, of: Tensor, shared: SharedTensors, exchange: Exchange, label: str) -> None:
        self.name, self._of = name, of
        self._shared, self._exchange, self._label = shared, exchange, label
        self.known: BoundedDict[int, tuple[int, ...]] = BoundedDict(PLACES_LIMIT)  # by own address
        self._use = f"copy of {name}"
        self._spare: Place | None = None

    def place(self, tensor: torch.Tensor) -> Place:
        """Where the kernel has this tensor. A new place is a step of all ranks, which must have the same."""
        found = self._shared.find(tensor)
        what = f"{self._label}: {self.name}"
        if found is not None:
            self._exchange.attempt(what, lambda: RankStep(None, {f"the place of {self.name}": found.label}))
            self.known[tensor.data_ptr()] = found.addresses
            return found
        if self._spare is None:

            def make_copy() -> RankStep[None]:
                if not self._shared.has_spare(self._use, bytes_of(self._of)):
                    _refuse_capture(tensor, self._label)
                return RankStep(None, {f"the place of {self.name}": "ordinary memory"})

            self._exchange.attempt(what, make_copy)
            say_once(
                f"{self._label.split()[0]}: {self.name} is an ordinary tensor, which other ranks cannot "
                f"reach: each call copies it; take memory of the dispatcher: empty('{self.name}', ...)"
            )
            self._spare = self._shared.spare(self._use, bytes_of(self._of))
        return self._spare

    def copy(self, place: Place) -> torch.Tensor:
        return place.tensor(*self._of)


def _refuse_capture(tensor: torch.Tensor, label: str) -> None:
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise InputError(
            f"{label}: memory for a copy would be allocated while a CUDA graph is captured; call it once "
            "with such tensors before the capture"
        )


def bind_group_call(
    kernel: LoadedKernel,
    problem: DispatchProblem,
    candidate: Candidate,
    scratch: Mapping[str, Place],
    seat: Seat,
    shared: SharedTensors,
    order: CallOrder,
    waiting: Callable[[], AbstractContextManager[None]],
    calls: CallCounter,
) -> BoundCall:
    """Prepare the call of a loaded kernel.

    Args:
        kernel: the library.
        problem: names and dtypes of the tensors.
        candidate: what was built.
        scratch: where the kernel's shared scratch lies.
        seat: of this process.
        shared: finds tensors that all ranks reach.
        order: of the dispatcher's calls.
        waiting: marks that the host waits for other ranks, as it does in calls on a processor.
        calls: is incremented by every call.

    Raises:
        LaunchError: the library takes other arguments.
    """
    operator, workload, template = problem.operator, candidate.workload, candidate.template
    assert isinstance(operator, GroupOperator)
    own_scratch = template.scratch(workload, candidate.config)
    collective = template.collective(workload, candidate.config)
    steps: list[int | Collective] = [-1] if collective is None else collective.steps()
    slots = {one: candidate.slots_of_rank(seat.rank, one) for one in steps if isinstance(one, int)}
    numbers = len(candidate.slots_of_rank(seat.rank))
    expected = (
        len(argument_names(operator, workload, scratch, own_scratch)),
        numbers,
    )
    if (kernel.arity, kernel.sizes) != expected:
        raise LaunchError(
            f"the library of {operator.name} takes {kernel.arity} tensors and {kernel.sizes} numbers, and "
            f"should take {expected[0]} and {expected[1]}; empty the kernel cache"
        )
    pack = struct.Struct(f"={kernel.arity + numbers}Q").pack
    call: Any = kernel.launch
    device, is_gpu = shared.memory.device, shared.memory.device.type != "cpu"
    stream: Callable[[], int] = stream_of(device) if is_gpu else lambda: 0
    empty, label = allocator(device), workload.label
    specs = {
        name: (shape_of(problem.axes[name], workload.dims, problem.attrs), problem.dtype_of(name))
        for name in (*problem.inputs, *problem.outputs)
    }
    # the collective moves the data then: the kernel itself reaches no other rank
    reaches = collective is None
    arguments = [
        _Argument(name, specs[name], shared, seat.exchange, label) if name in operator.shared else None
        for name in specs
    ]
    copied_in = [name in problem.inputs for name in specs]
    results = [_part(specs[name]) for name in problem.outputs]
    spare = {name: _part(of) for name, of in own_scratch.items()}
    scratch_addresses = [address for place in scratch.values() for address in place.addresses]
    alias = collective.source if collective is not None and is_in_place(collective) else None
    is_single, world = len(results) == 1, seat.world
    names, odd = tuple(specs), ALIGNMENT - 1 if is_gpu else 0

    def check(tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            address = tensor.data_ptr()
            if not tensor.is_contiguous() or tensor.is_neg() or address & odd or not address:
                problem.check_layout(dict(zip(names, tensors, strict=True)))

    def check_given(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        for name, tensor in zip(problem.outputs, outputs, strict=True):
            problem.check_output(name, tensor, specs[name][0], device)
        problem.check_overlap(
            dict(zip(problem.inputs, inputs, strict=True)), dict(zip(problem.outputs, outputs, strict=True))
        )

    def launch(packed: bytes) -> None:
        status = call(packed, stream())
        if is_gpu and status == INVALID_CONTEXT:
            make_current(device)
            status = call(packed, stream())
        if status:
            kernel.check(status)

    def run(inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        calls.count += 1
        if is_gpu and (now := stream()) != order.stream:
            order.enter(now)
        if out is None:
            outputs = [empty(*part) for part in results]
        else:
            outputs = [out] if is_single else list(out)
            check_given(inputs, outputs)
        tensors = (*inputs, *outputs)
        check(tensors)
        addresses: list[int] = []
        after: list[tuple[torch.Tensor, torch.Tensor]] = []
        for argument, tensor, is_input in zip(arguments, tensors, copied_in, strict=True):
            if argument is None:
                addresses.append(tensor.data_ptr())
            elif not reaches:
                addresses += (tensor.data_ptr(),) * world
            elif (known := argument.known.get(tensor.data_ptr())) is not None:
                addresses += known
            else:
                place = argument.place(tensor)
                addresses += place.addresses
                copy = argument.copy(place)
                if copy.data_ptr() == tensor.data_ptr():
                    continue
                if is_input:
                    copy.copy_(tensor)
                else:
                    after.append((tensor, copy))
        held = {name: outputs[0] if name == alias else empty(*part) for name, part in spare.items()}
        given = (*addresses, *scratch_addresses, *(one.data_ptr() for one in held.values()))
        for step in steps:
            if isinstance(step, int):
                launch(pack(*given, *slots[step]))
            else:
                run_collective(step, *_ends(step, names, tensors, held), seat.group)
        for tensor, copy in after:
            tensor.copy_(copy)
        return (outputs[0] if is_single else tuple(outputs)) if out is None else out

    def waited(inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        with waiting():
            return run(inputs, out)

    return on_its_device(run, device) if is_gpu else waited


def _part(of: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    shape, dtype = of
    return tuple(shape), strides_of(shape), getattr(torch, dtype)


def _ends(
    collective: Collective,
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
    held: Mapping[str, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the collective reads, and what it writes."""
    named = {**dict(zip(names, tensors, strict=True)), **held}
    return named[collective.source], named[collective.result]
