"""Tensors that the caller tunes with: those of `with tilelang.autotuner.set_autotune_inputs(...)`.

Workers read them from a file, by a `supply_prog` that loads it.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..settings import load_settings
from .interface import Interface
from .run_time_values import inputs_of_block

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class CallerInputs:
    """`tensors` of the caller, and the file that is written while a session runs."""

    path: Path
    tensors: tuple[Any, ...]

    @property
    def supply(self) -> Callable[[object], list[torch.Tensor]]:
        """A `supply_prog` that loads the file."""
        return functools.partial(_load, str(self.path))

    def save(self) -> None:
        import torch

        self.path.parent.mkdir(parents=True, exist_ok=True)
        torch.save([tensor.detach().cpu() for tensor in self.tensors], self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def find_caller_inputs(interface: Interface) -> CallerInputs | None:
    """Inputs of the `set_autotune_inputs` block around the call; None outside of one.

    Raises:
        InputError: their number is not the number of tensors that the kernel takes.
    """
    found, taken = inputs_of_block(), interface.given_arguments
    if not found:
        return None
    if len(found) != len(taken):
        names = ", ".join(argument.name for argument in taken)
        raise InputError(
            f"set_autotune_inputs has {len(found)} inputs, and the kernel takes {len(taken)}: {names}"
        )
    tensors = [value for value, argument in zip(found, taken, strict=True) if argument in interface.given]
    name = f"inputs-{os.getpid()}-{secrets.token_hex(6)}.pt"
    return CallerInputs(load_settings().cache_dir / "tuning" / name, tuple(tensors))


def _load(path: str, _parameters: object) -> list[torch.Tensor]:
    import torch

    return list(torch.load(path, weights_only=True))
