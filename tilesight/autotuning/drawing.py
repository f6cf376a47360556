"""Random inputs for a user's kernel, as `tilelang.TensorSupplyType` names their distributions, or from `supply_prog`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ProgramError
from .interface import Tensor

if TYPE_CHECKING:
    import torch

AUTO = "Auto"
SUPPLIES = ("Integer", "Uniform", "Normal", "Randn", "Zero", "One", AUTO)


def draw(tensor: Tensor, supply: str, device: str, generator: torch.Generator) -> torch.Tensor:
    """One tensor. `Auto`: uniform in -1 .. 1 for floats, small whole numbers for integers, both truth values."""
    import torch

    dtype = getattr(torch, tensor.dtype)
    shape = tensor.shape

    def whole(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, device=device).to(dtype)

    if supply in ("Zero", "One"):
        return torch.full(shape, float(supply == "One"), device=device).to(dtype)
    if dtype is torch.bool:
        return whole(0, 2)
    if not dtype.is_floating_point and not dtype.is_complex:
        return whole(0, 3) if tensor.dtype.startswith("uint") else whole(-2, 3)
    if supply == "Integer":
        return whole(-2, 3)
    if supply in ("Normal", "Randn"):
        return torch.randn(shape, generator=generator, device=device).to(dtype)
    # drawn in float32: torch draws no eight-bit floats
    return (2 * torch.rand(shape, generator=generator, device=device) - 1).to(dtype)


def draw_all(tensors: Sequence[Tensor], supply: str, device: str, seed: int) -> dict[str, torch.Tensor]:
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    return {tensor.name: draw(tensor, supply, device, generator) for tensor in tensors}


def supplied(program: Callable[[Any], Any], tensors: Sequence[Tensor], device: str, seed: int) -> dict[str, torch.Tensor]:
    """What the user's `supply_prog` gives for `tensors`, on `device`. Raises `ProgramError` where it is not what the kernel takes."""
    import tilelang  # noqa: F401 - before anything of tvm
    import torch
    from tilelang.engine.param import KernelParam
    from tvm import DataType

    torch.manual_seed(seed)  # what it draws can be drawn again
    found = program([KernelParam(DataType(tensor.kind), list(tensor.shape)) for tensor in tensors])
    values = [found] if isinstance(found, torch.Tensor) else list(found)
    if len(values) != len(tensors):
        names = ", ".join(tensor.name for tensor in tensors)
        raise ProgramError(f"autotune: supply_prog gave {len(values)} tensors, and the kernel takes {len(tensors)}: {names}")
    for value, tensor in zip(values, tensors, strict=True):
        if not isinstance(value, torch.Tensor) or tuple(value.shape) != tensor.shape or value.dtype != getattr(torch, tensor.dtype):
            said = f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ProgramError(f"autotune: supply_prog gave {said} for '{tensor.name}', which is {tensor.dtype}{list(tensor.shape)}")
    return {tensor.name: value.to(device) for tensor, value in zip(tensors, values, strict=True)}


def load_saved(path: str, _parameters: object) -> list[torch.Tensor]:
    """The inputs that the caller gave, as a `supply_prog`."""
    import torch

    return list(torch.load(path, weights_only=True))
