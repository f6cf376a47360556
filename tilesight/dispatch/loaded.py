"""Loaded kernels of this process: each library once for each device, for as long as the process lives.

They are never unloaded: a captured CUDA graph, or a call in another thread, may still refer to them.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import torch

from ..artifact import LaunchError, LoadedKernel
from ..trial import BuildResult

_lock = threading.Lock()
_kernels: dict[tuple[str, int], LoadedKernel] = {}  # by library and number of the device, -1 for the processor

INVALID_CONTEXT = 201  # of the CUDA driver: this thread has not used the device yet


def find(built: BuildResult, device: torch.device) -> LoadedKernel | None:
    """It, where it is loaded for `device`."""
    return _kernels.get((built.artifact or "", _number(device)))


def load(built: BuildResult, device: torch.device) -> LoadedKernel:
    """It, loaded for `device`. Raises `LaunchError`."""
    found = find(built, device)
    if found is not None:
        return found
    assert built.artifact is not None
    key = built.artifact, _number(device)
    with _lock:
        if key not in _kernels:
            is_first = not any(artifact == built.artifact for artifact, _ in _kernels)
            _kernels[key] = _load(built.artifact, built.entry, device, is_first)
        return _kernels[key]


def make_current(device: torch.device) -> None:
    """Let this thread have the device's context, which the driver asks for; torch gives it none before it has work for it."""
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
        # A library holds the module of one device, and the loader takes two names of one file for one library.
        with tempfile.TemporaryDirectory(prefix="tilesight-") as folder:
            copy = Path(folder) / Path(artifact).name
            shutil.copyfile(artifact, copy)
            return LoadedKernel(str(copy), entry)
    except OSError as error:
        raise LaunchError(f"'{artifact}' cannot be loaded for {device}: {error}") from error
    finally:
        torch.cuda.set_device(before)


def _number(device: torch.device) -> int:
    return -1 if device.type == "cpu" else int(device.index)
