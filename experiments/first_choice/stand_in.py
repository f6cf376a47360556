"""A stand-in for a Hopper card, so that tools which ask the driver can choose on a machine without a GPU.

The figures are those that `torch.cuda.get_device_properties` and the driver report; measure.py writes what
the card itself reports, and table.py compares. No tool is given anything that it would not read on the card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Properties:
    """Part of torch's properties of a device."""

    name: str
    L2_cache_size: int
    total_memory: int
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132
    warp_size: int = 32
    max_threads_per_block: int = 1024
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 232448
    shared_memory_per_multiprocessor: int = 233472


CARDS = {
    "h200": Properties("NVIDIA H200", 62914560, 150_000_000_000),
    "h100": Properties("NVIDIA H100 80GB HBM3", 52428800, 85_000_000_000),
}
COMPARED = ("multi_processor_count", "shared_memory_per_block", "L2_cache_size", "major", "minor")


def pretend(target: str) -> Properties:
    """Let torch and TileLang's carver see the card of a target in this process. Nothing can be launched."""
    import torch
    from tilelang.carver.arch.cuda import CUDA
    from tilelang.carver.template import base

    card = CARDS[target]
    torch.version.cuda = torch.version.cuda or "13.0"
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_properties = lambda *_: card
    cuda.get_device_capability = lambda *_: (card.major, card.minor)
    cuda.get_device_name = lambda *_: card.name

    def figures(self: Any, kind: Any) -> None:
        """What `CUDA.__init__` reads of a device."""
        self.target = kind
        self.sm_version, self.compute_capability = 90, "90"
        self.name, self.device, self.platform = card.name, None, "CUDA"
        self.smem_cap, self.max_smem_usage = card.shared_memory_per_block, 2 * card.shared_memory_per_block
        self.compute_max_core, self.warp_size = card.multi_processor_count, card.warp_size
        self.reg_cap, self.sm_partition = 65536, 4
        self.l2_cache_size_bytes = card.L2_cache_size
        self.transaction_size, self.bandwidth = [32, 128], [750, 12080]
        self.available_tensor_instructions = None

    def arch() -> Any:
        from tvm.target import Target

        return CUDA(Target({"kind": "cuda", "arch": "sm_90a"}))

    CUDA.__init__ = figures  # type: ignore[method-assign]
    # templates ask for the arch of this machine when they are made
    base.BaseTemplate.__dataclass_fields__["_arch"].default_factory = arch
    for template in base.BaseTemplate.__subclasses__():
        template.__dataclass_fields__["_arch"].default_factory = arch
    return card
