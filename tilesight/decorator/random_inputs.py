"""Inputs of a user's kernel: drawn as `tilelang.TensorSupplyType` names it, or from `supply_prog`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ProgramError
from .interface import TensorArgument

if TYPE_CHECKING:
    import torch

AUTO = "Auto"
SUPPLIES = ("Integer", "Uniform", "Normal", "Randn", "Zero", "One", AUTO)


def draw(tensor: TensorArgument, supply: str, device: str, generator: torch.Generator) -> torch.Tensor:
    """One tensor. `Auto`: -1 .. 1 for floats, small whole numbers for integers, both truth values."""
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


def draw_all(
    tensors: Sequence[TensorArgument], supply: str, device: str, seed: int
) -> dict[str, torch.Tensor]:
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    return {tensor.name: draw(tensor, supply, device, generator) for tensor in tensors}


def supplied(
    program: Callable[[Any], Any], tensors: Sequence[TensorArgument], device: str, seed: int
) -> dict[str, torch.Tensor]:
    """The tensors of the user's `supply_prog`, on `device`, by name.

    Raises:
        ProgramError: their number, a shape or a dtype is not what the kernel takes.
    """
    import tilelang  # noqa: F401 - before anything of tvm
    import torch
    from tilelang.engine.param import KernelParam
    from tvm import DataType

    torch.manual_seed(seed)  # so that a program that draws gives the same again
    found = program([KernelParam(DataType(tensor.kind), list(tensor.shape)) for tensor in tensors])
    values = [found] if isinstance(found, torch.Tensor) else list(found)
    if len(values) != len(tensors):
        names = ", ".join(tensor.name for tensor in tensors)
        taken = f"the kernel takes {len(tensors)}: {names}"
        raise ProgramError(f"autotune: supply_prog gave {len(values)} tensors, and {taken}")
    for value, tensor in zip(values, tensors, strict=True):
        if (
            not isinstance(value, torch.Tensor)
            or tuple(value.shape) != tensor.shape
            or value.dtype != getattr(torch, tensor.dtype)
        ):
            found_type = type(value).__name__
            if isinstance(value, torch.Tensor):
                found_type = f"{value.dtype}{list(value.shape)}"
            wanted = f"{tensor.dtype}{list(tensor.shape)}"
            raise ProgramError(
                f"autotune: supply_prog gave {found_type} for '{tensor.name}', which is {wanted}"
            )
    return {tensor.name: value.to(device) for tensor, value in zip(tensors, values, strict=True)}
