"""Launches kernels of TileSight's own on one GPU, through the CUDA driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ...errors import LaunchError, ToolchainError


class DeviceKernels:
    """A cubin, loaded into the CUDA context that is current on construction."""

    def __init__(self, cubin: bytes, names: Sequence[str]) -> None:
        """Load the kernels `names` at once: the driver may wait for an idle device before it loads one.

        Raises `ToolchainError`.
        """
        self._cuda = ctypes.CDLL("libcuda.so.1")
        module = ctypes.c_void_p()
        self._check(self._cuda.cuModuleLoadData(ctypes.byref(module), cubin), "load kernels")
        self._functions: dict[str, ctypes.c_void_p] = {}
        for name in names:
            function = ctypes.c_void_p()
            status = self._cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
            self._check(status or self._cuda.cuFuncLoad(function), f"load '{name}'")
            self._functions[name] = function

    def launch(self, name: str, threads: int, stream: int, *arguments: Any) -> None:
        """Launch one block; `arguments` are values of ctypes.

        Raises `LaunchError`: a kernel before it may have spoiled the context.
        """
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        status = self._cuda.cuLaunchKernel(
            self._functions[name], 1, 1, 1, threads, 1, 1, 0, ctypes.c_void_p(stream), pointers, None
        )
        if status:
            raise LaunchError(self._refusal(status, f"launch '{name}'"))

    def _check(self, status: int, what: str) -> None:
        if status:
            raise ToolchainError(self._refusal(status, what))

    def _refusal(self, status: int, what: str) -> str:
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorString(status, ctypes.byref(text))
        reason = (text.value or b"").decode() or f"error {status}"
        return f"the CUDA driver cannot {what}: {reason}"


def let_reach(indices: Sequence[int]) -> None:
    """Let each GPU reach the memory of the others, which torch must have used before.

    Raises:
        ToolchainError: the driver allows no access between two of them.
    """
    import torch

    cuda = ctypes.CDLL("libcuda.so.1")
    contexts = []
    for index in indices:
        context = ctypes.c_void_p()
        with torch.cuda.device(index):
            torch.zeros(1, device="cuda")
            cuda.cuCtxGetCurrent(ctypes.byref(context))
        contexts.append(context)
    for index in indices:
        with torch.cuda.device(index):
            for other, context in zip(indices, contexts, strict=True):
                if other == index:
                    continue
                torch.zeros(1, device=f"cuda:{other}").to(f"cuda:{index}")  # torch notes the access
                status = cuda.cuCtxEnablePeerAccess(context, 0)
                if status not in (0, _ALREADY):
                    raise ToolchainError(
                        f"GPU {index} cannot reach the memory of GPU {other} (CUDA error {status}): kernels "
                        "of several GPUs need peer access, over NVLink or PCIe"
                    )


_ALREADY = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
