"""The loaded kernels of this process: each library once for each device.

They are never unloaded, because a captured CUDA graph or a call in another thread may still refer to them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from ...builder.loaded_kernel import LaunchError, LoadedKernel
from ...machine.fork_locks import ForkLock
from ...records.trial import BuildResult
from ...target.spec import Target

_lock = ForkLock()
_kernels: dict[tuple[str, int], LoadedKernel] = {}  # by library and index of the device, -1 for the processor

INVALID_CONTEXT = 201  # error of the CUDA driver: this thread has not used the device yet


def find(built: BuildResult, device: torch.device) -> LoadedKernel | None:
    """The library, if it is loaded for `device`."""
    return _kernels.get((built.artifact or "", _index(device)))


def load(built: BuildResult, device: torch.device) -> LoadedKernel:
    """Load a library for `device`, once. Raises `LaunchError`."""
    found = find(built, device)
    if found is not None:
        return found
    assert built.artifact is not None
    key = built.artifact, _index(device)
    with _lock:
        if key not in _kernels:
            is_first = not any(artifact == built.artifact for artifact, _ in _kernels)
            _kernels[key] = _load(built.artifact, built.entry, device, is_first)
        return _kernels[key]


def current_device(target: Target) -> torch.device | None:
    """The device of this process for a target: the current GPU, the processor, or None."""
    if not target.is_gpu:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


def make_current(device: torch.device) -> None:
    """Give this thread the context of the device, which torch does only for the thread's first work there."""
    torch.cuda.set_device(device)
    torch.cuda.mem_get_info(device)


def _load(artifact: str, entry: str, device: torch.device, is_first: bool) -> LoadedKernel:
    if device.type == "cpu":
        return LoadedKernel(artifact, entry)
    before = torch.cuda.current_device()
    make_current(device)
    try:
        if is_first:
            return LoadedKernel(artifact, entry)
        # A library holds the module of one device, and the loader loads each file once: load a copy.
        with tempfile.TemporaryDirectory(prefix="tilesight-") as folder:
            copy = Path(folder) / Path(artifact).name
            shutil.copyfile(artifact, copy)
            return LoadedKernel(str(copy), entry)
    except OSError as error:
        raise LaunchError(f"'{artifact}' cannot be loaded for {device}: {error}") from error
    finally:
        torch.cuda.set_device(before)


def _index(device: torch.device) -> int:
    return -1 if device.type == "cpu" else int(device.index)
