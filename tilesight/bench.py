"""The bench of a measuring process: its device, a timer for it, and the inputs and reference of the present workload."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from .device import cpu_name, find_devices
from .errors import ToolchainError
from .target import Target
from .template import Operator
from .timing import CpuTimer, GpuTimer, Protocol, Timer
from .toolchain import package_version
from .workload import Workload

if TYPE_CHECKING:
    import torch

_SPIN_UP_S = 0.3  # of matrix products before the first measurement: an idle GPU takes that long to reach its clock


@dataclass(frozen=True)
class Case:
    """One workload's inputs and right outputs, on the device."""

    operator: Operator
    workload: Workload
    seed: int
    inputs: Mapping[str, torch.Tensor]
    reference: Mapping[str, torch.Tensor]

    def outputs(self) -> dict[str, torch.Tensor]:
        """New memory for a kernel's outputs, of the workload's dtype."""
        import torch

        device = next(iter(self.inputs.values())).device
        dtype = getattr(torch, self.workload.dtype)
        shapes = self.operator.outputs(self.workload)
        return {name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items()}


@dataclass
class Bench:
    device: str  # as torch names it
    timer: Timer
    environment: Mapping[str, str]
    stream: int = 0
    _case: Case | None = None

    def case(self, operator: Operator, workload: Workload, seed: int) -> Case:
        """Inputs and reference; made anew where the last ones were others'."""
        kept = self._case
        if kept is None or (kept.operator.name, kept.workload, kept.seed) != (operator.name, workload, seed):
            self._case = None  # its memory goes first
            inputs = {name: tensor.contiguous() for name, tensor in operator.inputs(workload, self.device, seed).items()}
            kept = self._case = Case(operator, workload, seed, inputs, dict(operator.reference(workload, inputs)))
        return kept

    def forget(self) -> None:
        """Drop inputs and reference: a kernel that went wrong may have written over them."""
        self._case = None

    def answers(self) -> bool:
        """Whether the device still does what it is asked. After an illegal access a CUDA context does nothing more."""
        import torch

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
    return _bench(target, protocol.flush_l2, protocol.min_sample_us, protocol.retakes)


@lru_cache(maxsize=1)
def _bench(target: Target, flush_l2: bool, min_sample_us: float, retakes: int) -> Bench:
    import torch

    versions = {"torch": str(torch.__version__), "tilelang": package_version("tilelang")}
    if target.kind == "cpu":
        return Bench(
            "cpu", CpuTimer(min_sample_us, retakes), {"device": cpu_name(), "torch_threads": str(torch.get_num_threads()), **versions}
        )
    index = _torch_index(target)
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))
    known = next((device for device in find_devices() if uuid and device.uuid.endswith(uuid)), None)
    environment = {"device": str(properties.name), "uuid": uuid, "driver": known.driver if known else "", **versions}
    l2_bytes = max(target.int("device.memory.l2.bytes"), int(getattr(properties, "L2_cache_size", 0)))
    _spin_up()
    timer = GpuTimer(2 * l2_bytes if flush_l2 else 0)
    return Bench(f"cuda:{index}", timer, environment, int(torch.cuda.current_stream().cuda_stream))


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


def _spin_up() -> None:
    import torch

    matrix = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
    until = time.perf_counter() + _SPIN_UP_S
    while time.perf_counter() < until:
        for _ in range(10):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()
