"""Load a built kernel and call it with torch tensors. Needs neither TileLang nor TVM: a library has a plain C interface."""

from __future__ import annotations

import ctypes
from _ctypes import dlclose
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class LaunchError(Exception):
    """The library cannot be loaded, or its kernel was refused when it was launched."""


class LoadedKernel:
    """A kernel of the cache, in this process. On a GPU it belongs to the device that is current when it is loaded."""

    def __init__(self, artifact: str, entry: str) -> None:
        """Raises `LaunchError`. The device must have been used by torch before, or it has no context yet."""
        try:
            self._library = ctypes.CDLL(artifact)
            self._call = self._library[entry]
            self._call.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
            self._library.tilesight_error.restype = ctypes.c_char_p
            self.arity = int(self._library.tilesight_arity())
            self._raise_if(self._library.tilesight_init())
        except (OSError, AttributeError) as error:
            raise LaunchError(f"'{artifact}' is not a kernel library: {error}") from error

    def bind(self, tensors: Sequence[torch.Tensor], stream: int = 0) -> Callable[[], None]:
        """A call on these tensors (inputs then outputs, contiguous) in `stream`, as cheap as can be: for timing.

        The call returns when the kernel is launched, and raises `LaunchError` where that was refused. Shapes and dtypes
        must be those that the kernel was built for; only number and layout can be checked.
        """
        if len(tensors) != self.arity:
            raise ValueError(f"the kernel takes {self.arity} tensors, inputs then outputs, and was given {len(tensors)}")
        for position, tensor in enumerate(tensors):
            if not tensor.is_contiguous():
                raise ValueError(f"tensor {position} of a kernel must be contiguous; call .contiguous() on it")
        pointers = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
        kept, call, address = tuple(tensors), self._call, ctypes.addressof(pointers)

        def launch() -> None:
            status = call(address, stream)
            if status:
                self._raise_if(status)

        launch.__dict__["keeps"] = (kept, pointers)  # alive as long as the call
        return launch

    def close(self) -> None:
        """Give back what the library holds. No call bound to it may follow."""
        self._library.tilesight_unload()
        dlclose(self._library._handle)

    def _raise_if(self, status: int) -> None:
        if status:
            text = self._library.tilesight_error()
            raise LaunchError(text.decode(errors="replace") if text else f"error {status}")
