"""The bench of a measuring process: its device, a timer, and inputs and reference of the current workload."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ..errors import InputError, ToolchainError
from ..machine.devices import cpu_name, find_devices
from ..machine.toolchain import package_version
from ..problem.operator import Operator
from ..problem.workload import Workload
from ..records.protocol import MeasurementProtocol
from ..target.spec import Target
from .compare import bits
from .conditions import Conditions, sensor_for
from .timers import Call, CpuTimer, GpuTimer, GraphTimer, Timer

if TYPE_CHECKING:
    import torch

_SPIN_UP_S = 0.3  # of matrix products before the first measurement; an idle GPU needs it to reach its clock
_SPIN_UP_SAMPLES = 8
_CACHE_SHARE = 0.5  # of the cache: limit of all input sets together
_MEMORY_SHARE = 0.25  # of the memory that is free beside the first input set: limit of the other sets


@dataclass(frozen=True)
class InputSet:
    """Inputs and the reference outputs for them, on the device.

    `sums` are sums of the inputs' bits, `magnitude` is that of `Operator`. If `is_exact`, outputs must be
    equal to the rounded reference.
    """

    inputs: Mapping[str, torch.Tensor]
    reference: Mapping[str, torch.Tensor]
    sums: Mapping[str, int]
    magnitude: Mapping[str, torch.Tensor] = field(default_factory=dict)
    is_exact: bool = False


@dataclass(frozen=True)
class BenchCase:
    """One workload with its input sets; set number i was drawn with `seed + i`.

    On `second` a kernel is checked once and not timed; it is None if the operator has no such inputs, or if
    they do not fit the memory.
    """

    operator: Operator
    workload: Workload
    seed: int
    sets: tuple[InputSet, ...]
    second: InputSet | None = None

    def outputs(self) -> dict[str, torch.Tensor]:
        """New memory for a kernel's outputs."""
        known = (*self.sets[0].inputs.values(), *self.sets[0].reference.values())
        return new_tensors(self.wanted_outputs(), str(known[0].device))

    def wanted_outputs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each output of one device."""
        return {
            name: (shape, self.operator.dtype_of(name, self.workload))
            for name, shape in self.operator.outputs(self.workload).items()
        }

    def overwritten(self) -> str | None:
        """The name of an input that a kernel has written to, if there is one."""
        for input_set in (*self.sets, *([self.second] if self.second else [])):
            for name, total in sums_of(input_set.inputs).items():
                if total != input_set.sums[name]:
                    return name
        return None

    def vendor(self) -> list[Mapping[str, Call]]:
        """Calls of the vendor's implementations by name, for each set; they return their results."""
        return [self.operator.vendor(self.workload, given.inputs) for given in self.sets]

    def parts(self, tensors: Mapping[str, torch.Tensor]) -> list[Mapping[str, torch.Tensor]]:
        """Tensors as the operator names them, for each device that computes: here one."""
        return [tensors]

    def results(self, found: object) -> list[object]:
        """The result of a call of the vendor for each device that computes."""
        return [found]


@dataclass
class Bench:
    """A device with its timer. `cache_bytes` is the size of the cache that stays warm under the protocol."""

    device: str  # as torch names it
    timer: Timer
    environment: Mapping[str, str]
    cache_bytes: int = 0
    stream: int = 0
    conditions: Conditions = field(default_factory=Conditions)
    _case: BenchCase | None = None
    _case_options: tuple[int, int] = (0, 0)  # seed and number of input sets that the case was requested with

    @property
    def world(self) -> int:
        """The number of devices that run a kernel together."""
        return 1

    def case(self, operator: Operator, workload: Workload, protocol: MeasurementProtocol) -> BenchCase:
        """Inputs and reference of a workload; those of the last call if they are the same."""
        case, options = self._case, (protocol.seed, protocol.input_sets)
        wanted = operator.identity, workload, options
        if case is None or (case.operator.identity, case.workload, self._case_options) != wanted:
            case = self._case = None  # free its memory first
            seed = protocol.seed or random.SystemRandom().randrange(1, 2**31 - protocol.input_sets)
            first = self.draw_set(operator, workload, seed)
            more = range(1, self._room(operator, workload, first, protocol.input_sets))
            sets = (first, *(self.draw_set(operator, workload, seed + index) for index in more))
            second = self._second(operator, workload, first, seed)
            case = self._case = self.new_case(operator, workload, seed, sets, second)
            self._case_options = options
        return case

    def restore(self, case: BenchCase) -> None:
        """Draw all inputs of a case and compute all references again, in the same memory."""
        for index, input_set in enumerate(case.sets):
            _copy(self.draw_set(case.operator, case.workload, case.seed + index), input_set)
        drawn = self.draw_second(case.operator, case.workload, case.seed) if case.second else None
        if case.second and drawn:
            _copy(drawn, case.second)

    def draw_set(self, operator: Operator, workload: Workload, seed: int) -> InputSet:
        """Random inputs with their reference."""
        return draw_set(operator, workload, self.device, seed)

    def draw_second(self, operator: Operator, workload: Workload, seed: int) -> InputSet | None:
        """The operator's second inputs with their reference; None if it has none."""
        return draw_second(operator, workload, self.device, seed)

    def new_case(
        self,
        operator: Operator,
        workload: Workload,
        seed: int,
        sets: tuple[InputSet, ...],
        second: InputSet | None,
    ) -> BenchCase:
        return BenchCase(operator, workload, seed, sets, second)

    def _second(self, operator: Operator, workload: Workload, first: InputSet, seed: int) -> InputSet | None:
        import torch

        if self.device != "cpu":
            held = (*first.inputs.values(), *first.reference.values(), *first.magnitude.values())
            size = sum(tensor.nbytes for tensor in held) / self.world
            if size > _MEMORY_SHARE * torch.cuda.mem_get_info()[0]:
                return None
        return self.draw_second(operator, workload, seed)

    def _room(self, operator: Operator, workload: Workload, first: InputSet, most: int) -> int:
        """How many input sets to use: as many as fit the cache together, at least one and at most `most`."""
        import torch

        shapes = operator.outputs(workload)
        outputs = sum(
            math.prod(s) * getattr(torch, operator.dtype_of(name, workload)).itemsize
            for name, s in shapes.items()
        )
        used = outputs + sum(tensor.nbytes for tensor in first.inputs.values()) // self.world
        room = _CACHE_SHARE * self.cache_bytes
        if self.device != "cpu":
            room = min(room, _MEMORY_SHARE * torch.cuda.mem_get_info()[0])
        return max(1, min(most, int(room // max(1, used))))

    def drop_case(self) -> None:
        """Drop inputs and reference: a failed kernel may have overwritten them."""
        self._case = None

    def free_memory(self) -> None:
        """Drop inputs and reference, and free torch's cached memory on the device."""
        import torch

        self.drop_case()
        if self.device != "cpu":
            torch.cuda.empty_cache()

    def is_usable(self) -> bool:
        """Whether the device still works for this process.

        After an illegal access a CUDA context is unusable.
        """
        import torch

        if self.timer.broken:
            return False
        try:
            torch.zeros(1, device=self.device).item()
            self.timer.synchronize()
        except RuntimeError:
            return False
        return True


def new_tensors(
    wanted: Mapping[str, tuple[tuple[int, ...], str]], device: str, *, zeroed: bool = False
) -> dict[str, torch.Tensor]:
    """New memory on a device, by name."""
    import torch

    make = torch.zeros if zeroed else torch.empty
    return {
        name: make(shape, dtype=getattr(torch, dtype), device=device)
        for name, (shape, dtype) in wanted.items()
    }


def draw_set(operator: Operator, workload: Workload, device: str, seed: int) -> InputSet:
    """Random inputs of an operator, with their reference."""
    return input_set(operator, workload, operator.inputs(workload, device, seed), is_exact=False)


def draw_second(operator: Operator, workload: Workload, device: str, seed: int) -> InputSet | None:
    """The operator's second inputs, with their reference; None if it has none."""
    found = operator.second_inputs(workload, device, seed - 1)
    return None if found is None else input_set(operator, workload, found.tensors, found.is_exact)


def input_set(
    operator: Operator, workload: Workload, tensors: Mapping[str, torch.Tensor], is_exact: bool
) -> InputSet:
    import torch

    inputs = {name: tensor.contiguous() for name, tensor in tensors.items()}
    reference = dict(operator.reference(workload, inputs))
    # the first digits of a magnitude are enough
    magnitude = {
        name: tensor.to(torch.bfloat16)
        for name, tensor in ({} if is_exact else operator.magnitude(workload, inputs)).items()
    }
    return InputSet(inputs, reference, sums_of(inputs), magnitude, is_exact)


def _copy(source: InputSet, into: InputSet) -> None:
    for given, taken in (
        (source.inputs, into.inputs),
        (source.reference, into.reference),
        (source.magnitude, into.magnitude),
    ):
        for name, tensor in given.items():
            taken[name].copy_(tensor)


def bench_for(target: Target, protocol: MeasurementProtocol) -> Bench:
    """This process's bench for `target`; the same one while the target and the kind of protocol stay the
    same.

    Raises `ToolchainError` if torch sees no device of that target: no chip is measured under another chip's
    name.
    """
    return _bench(target, timer_conditions(target, protocol))


def timer_conditions(target: Target, protocol: MeasurementProtocol) -> MeasurementProtocol:
    """The protocol with only the fields that a timer depends on: efforts share a bench.

    Raises:
        InputError: the protocol is none for this kind of target.
    """
    if target.is_gpu == (protocol.launch == "call"):
        raise InputError(
            f"target {target.name} is not measured with launch={protocol.launch}; "
            "take Protocol.named('default', target)"
        )
    return replace(
        MeasurementProtocol(),
        launch=protocol.launch,
        l2=protocol.l2,
        burst_ms=protocol.burst_ms,
        rest=protocol.rest,
        stretch_us=protocol.stretch_us,
        retakes=0 if target.is_gpu else protocol.retakes,
    )


@lru_cache(maxsize=1)
def _bench(target: Target, protocol: MeasurementProtocol) -> Bench:
    import torch

    if not target.is_gpu:
        return Bench("cpu", *processor_parts(target, protocol), conditions=Conditions(on_processor=True))
    index = torch_indices(target)[0]
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))
    known = next((device for device in find_devices() if uuid and device.uuid.endswith(uuid)), None)
    environment = {
        "device": str(properties.name),
        "uuid": uuid,
        "driver": known.driver if known else "",
        **versions(),
    }
    l2_bytes, last_bytes = cache_sizes(target, index)
    conditions = Conditions(sensor_for(uuid), uuids=(known.uuid,) if known else ())
    spin_up(conditions)
    timer = (
        GpuTimer(2 * last_bytes, protocol.burst_ms, protocol.rest)
        if protocol.launch == "eager"
        else GraphTimer(protocol.stretch_us)
    )
    stream = int(torch.cuda.current_stream().cuda_stream)
    return Bench(f"cuda:{index}", timer, environment, l2_bytes, stream, conditions)


def versions() -> dict[str, str]:
    """Versions of the software that runs kernels, for the environment of measurements."""
    import torch

    return {"torch": str(torch.__version__), "tilelang": package_version("tilelang")}


def processor_parts(target: Target, protocol: MeasurementProtocol) -> tuple[Timer, dict[str, str], int]:
    """Timer, environment and size of the warm cache (that of one core) of a bench on the processor."""
    import torch

    environment = {"device": cpu_name(), "torch_threads": str(torch.get_num_threads()), **versions()}
    timer = CpuTimer(protocol.stretch_us, protocol.retakes)
    return timer, environment, int(target.get("core.memory.l2.bytes"))


def cache_sizes(target: Target, index: int) -> tuple[int, int]:
    """Bytes of L2 and of the last-level cache of a GPU, by torch's index."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    l2_bytes = max(target.int("device.memory.l2.bytes"), int(getattr(properties, "L2_cache_size", 0)))
    return l2_bytes, max(l2_bytes, int(target.get("device.memory.llc.bytes")))


def torch_indices(target: Target) -> list[int]:
    """Torch's indices of the devices of this target, at least one. Raises `ToolchainError`."""
    import torch

    if not torch.cuda.is_available():
        raise ToolchainError(
            f"target {target.name} cannot be measured: torch {torch.__version__} sees no GPU; "
            "run: tilesight doctor"
        )
    names = [str(torch.cuda.get_device_name(index)) for index in range(torch.cuda.device_count())]
    found = [index for index, name in enumerate(names) if name in target.device_names]
    if found:
        return found
    wanted, here = " or ".join(target.device_names) or "no device", ", ".join(dict.fromkeys(names))
    raise ToolchainError(f"target {target.name} is measured on {wanted} only, and torch sees {here}")


def spin_up(conditions: Conditions, devices: Sequence[str] = ("cuda",)) -> None:
    """Keep devices busy until they have reached their clocks, and sample these."""
    import torch

    matrices = [torch.randn(2048, 2048, device=device, dtype=torch.float16) for device in devices]
    begin, sampled = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < _SPIN_UP_S:
        for _ in range(10):
            for matrix in matrices:
                torch.mm(matrix, matrix)
        # later samples are compared with the clock under load
        if passed > _SPIN_UP_S / 2 and sampled < _SPIN_UP_SAMPLES:
            conditions.sample()
            sampled += 1
        for matrix in matrices:
            torch.cuda.synchronize(matrix.device)


def sums_of(inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Sums of the bits of inputs, which may lie on several devices."""
    import torch

    totals = [bits(tensor).sum(dtype=torch.int64) for tensor in inputs.values()]
    totals = [total.to(totals[0].device) for total in totals]
    return dict(zip(inputs, torch.stack(totals).tolist(), strict=True)) if totals else {}
