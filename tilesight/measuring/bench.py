"""The bench of a measuring process: its device, a timer for it, and the inputs and reference of the present workload."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ..device import cpu_name, find_devices
from ..errors import InputError, ToolchainError
from ..protocol import Protocol
from ..target import Target
from ..template import Operator
from ..toolchain import package_version
from ..workload import Workload
from .conditions import Conditions, sensor_for
from .timing import CpuTimer, GpuTimer, GraphTimer, Timer
from .verify import bits

if TYPE_CHECKING:
    import torch

_SPIN_UP_S = 0.3  # of matrix products before the first measurement: an idle GPU takes that long to reach its clock
_SPIN_UP_LOOKS = 8
_CACHE_SHARE = 0.5  # of the cache, that sets of inputs which take turns may fill
_MEMORY_SHARE = 0.25  # of the memory that is free once the first set is there


@dataclass(frozen=True)
class InputSet:
    """Inputs and the right outputs for them, on the device. `sums` are over the inputs' bits."""

    inputs: Mapping[str, torch.Tensor]
    reference: Mapping[str, torch.Tensor]
    sums: Mapping[str, int]


@dataclass(frozen=True)
class Case:
    """One workload with its sets of inputs; the set at place i was drawn with `seed + i`."""

    operator: Operator
    workload: Workload
    seed: int
    sets: tuple[InputSet, ...]

    def outputs(self) -> dict[str, torch.Tensor]:
        """New memory for a kernel's outputs, of the workload's dtype."""
        import torch

        known = (*self.sets[0].inputs.values(), *self.sets[0].reference.values())
        found = {}
        for name, shape in self.operator.outputs(self.workload).items():
            dtype = getattr(torch, self.operator.tensor_dtypes.get(name, self.workload.dtype))
            found[name] = torch.empty(shape, dtype=dtype, device=known[0].device)
        return found

    def overwritten(self) -> str | None:
        """An input that does not hold any more what was drawn, if there is one: a kernel has written to it."""
        for present in self.sets:
            for name, total in _sums(present.inputs).items():
                if total != present.sums[name]:
                    return name
        return None

    def restore(self) -> None:
        """Draw and compute all again, in the same memory."""
        for place, present in enumerate(self.sets):
            device = str(next(iter(present.inputs.values())).device)
            for name, tensor in self.operator.inputs(self.workload, device, self.seed + place).items():
                present.inputs[name].copy_(tensor)
            for name, tensor in self.operator.reference(self.workload, present.inputs).items():
                present.reference[name].copy_(tensor)


@dataclass
class Bench:
    device: str  # as torch names it
    timer: Timer
    environment: Mapping[str, str]
    cache_bytes: int = 0  # of the cache that stays warm under the protocol
    stream: int = 0
    conditions: Conditions = field(default_factory=Conditions)
    _case: Case | None = None
    _asked: tuple[int, int] = (0, 0)  # seed and number of sets, of the present case

    def case(self, operator: Operator, workload: Workload, protocol: Protocol) -> Case:
        """Inputs and reference; made anew where the last ones were others'."""
        kept, asked = self._case, (protocol.seed, protocol.input_sets)
        if kept is None or (kept.operator.identity, kept.workload, self._asked) != (operator.identity, workload, asked):
            kept = self._case = None  # its memory goes first
            seed = protocol.seed or random.SystemRandom().randrange(1, 2**31 - protocol.input_sets)
            first = self._set(operator, workload, seed)
            more = range(1, self._room(operator, workload, first, protocol.input_sets))
            sets = (first, *(self._set(operator, workload, seed + place) for place in more))
            kept = self._case = Case(operator, workload, seed, sets)
            self._asked = asked
        return kept

    def _set(self, operator: Operator, workload: Workload, seed: int) -> InputSet:
        inputs = {name: tensor.contiguous() for name, tensor in operator.inputs(workload, self.device, seed).items()}
        return InputSet(inputs, dict(operator.reference(workload, inputs)), _sums(inputs))

    def _room(self, operator: Operator, workload: Workload, first: InputSet, most: int) -> int:
        """How many sets take turns: as many as fit the cache together, one at least."""
        import torch

        dtypes = operator.tensor_dtypes
        shapes = operator.outputs(workload)
        outputs = sum(math.prod(s) * getattr(torch, dtypes.get(name, workload.dtype)).itemsize for name, s in shapes.items())
        used = outputs + sum(tensor.nbytes for tensor in first.inputs.values())
        room = _CACHE_SHARE * self.cache_bytes
        if self.device != "cpu":
            room = min(room, _MEMORY_SHARE * torch.cuda.mem_get_info()[0])
        return max(1, min(most, int(room // max(1, used))))

    def forget(self) -> None:
        """Drop inputs and reference: a kernel that went wrong may have written over them."""
        self._case = None

    def give_back_memory(self) -> None:
        """Hand back what is cached and unused, on a device that lacked memory."""
        import torch

        self.forget()
        if self.device != "cpu":
            torch.cuda.empty_cache()

    def answers(self) -> bool:
        """Whether the device still does what it is asked. After an illegal access a CUDA context does nothing more."""
        import torch

        if self.timer.broken:
            return False
        try:
            torch.zeros(1, device=self.device).item()
            self.timer.synchronize()
        except RuntimeError:
            return False
        return True


def bench_for(target: Target, protocol: Protocol) -> Bench:
    """This process's bench for `target`; the same one as long as the target and the kind of protocol stay.

    Raises `ToolchainError` where torch sees no device of that target: no chip is measured under another's name.
    """
    if target.is_gpu == (protocol.launch == "call"):
        raise InputError(f"target {target.name} is not measured with launch={protocol.launch}; take Protocol.named('default', target)")
    # of the effort only what a timer is made with
    made_for = replace(Protocol(), launch=protocol.launch, l2=protocol.l2, burst_ms=protocol.burst_ms, rest=protocol.rest)
    return _bench(target, replace(made_for, stretch_us=protocol.stretch_us, retakes=0 if target.is_gpu else protocol.retakes))


@lru_cache(maxsize=1)
def _bench(target: Target, protocol: Protocol) -> Bench:
    import torch

    versions = {"torch": str(torch.__version__), "tilelang": package_version("tilelang")}
    if not target.is_gpu:
        threads = str(torch.get_num_threads())
        cache_bytes = int(target.get("core.memory.l2.bytes"))  # what kernels of one thread have for themselves
        return Bench(
            "cpu",
            CpuTimer(protocol.stretch_us, protocol.retakes),
            {"device": cpu_name(), "torch_threads": threads, **versions},
            cache_bytes,
        )
    index = _torch_index(target)
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))
    known = next((device for device in find_devices() if uuid and device.uuid.endswith(uuid)), None)
    environment = {"device": str(properties.name), "uuid": uuid, "driver": known.driver if known else "", **versions}
    l2_bytes = max(target.int("device.memory.l2.bytes"), int(getattr(properties, "L2_cache_size", 0)))
    last_bytes = max(l2_bytes, int(target.get("device.memory.llc.bytes")))
    conditions = Conditions(sensor_for(uuid))
    _spin_up(conditions)
    timer = GpuTimer(2 * last_bytes, protocol.burst_ms, protocol.rest) if protocol.launch == "eager" else GraphTimer(protocol.stretch_us)
    stream = int(torch.cuda.current_stream().cuda_stream)
    return Bench(f"cuda:{index}", timer, environment, l2_bytes, stream, conditions)


def _torch_index(target: Target) -> int:
    """The number under which torch knows the first device of this target."""
    import torch

    if not torch.cuda.is_available():
        raise ToolchainError(f"target {target.name} cannot be measured: torch {torch.__version__} sees no GPU; run: tilesight doctor")
    names = [str(torch.cuda.get_device_name(index)) for index in range(torch.cuda.device_count())]
    for index, name in enumerate(names):
        if name in target.device_names:
            return index
    wanted, here = " or ".join(target.device_names) or "no device", ", ".join(dict.fromkeys(names))
    raise ToolchainError(f"target {target.name} is measured on {wanted} only, and torch sees {here}")


def _spin_up(conditions: Conditions) -> None:
    import torch

    matrix = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
    begin, looks = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < _SPIN_UP_S:
        for _ in range(10):
            torch.mm(matrix, matrix)
        # the clock that the device has once it has work is what later looks are held against
        if passed > _SPIN_UP_S / 2 and looks < _SPIN_UP_LOOKS:
            conditions.look()
            looks += 1
        torch.cuda.synchronize()


def _sums(inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    import torch

    totals = [bits(tensor).sum(dtype=torch.int64) for tensor in inputs.values()]
    return dict(zip(inputs, torch.stack(totals).tolist(), strict=True)) if totals else {}
