"""Load a built kernel and call it with torch tensors. Needs neither TileLang nor TVM: a library has a plain C interface.

`int tilesight_call(void **arguments, void *stream)` launches the kernel and returns 0, or an error code. Its arguments are
the addresses of the tensors, inputs then outputs (`tilesight_arity()` of them), then the sizes of the open dimensions
(`tilesight_sizes()`), each as wide as a pointer. `tilesight_error()` says what the last error was.
"""

from __future__ import annotations

import ctypes
from _ctypes import dlclose
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .errors import LaunchError

if TYPE_CHECKING:
    import torch

__all__ = ["LaunchError", "LoadedKernel"]


class LoadedKernel:
    """A kernel of the cache, in this process. On a GPU it belongs to the device that is current when it is loaded.

    `arity` is the number of its tensors, `sizes` that of its open dimensions. `launch(address, stream)` is the bare C
    function: the address of an array of arguments, and a stream, both as whole numbers; it returns 0 or an error code, for
    `check`. It keeps nothing alive and checks nothing but open dimensions. Python's lock is released while it runs.
    """

    def __init__(self, artifact: str, entry: str) -> None:
        """Raises `LaunchError`. The device must have been used by torch before, or it has no context yet."""
        try:
            self._library = ctypes.CDLL(artifact)
            launch = self._library[entry]
            launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
            self.launch: Callable[[int, int], int] = launch
            self._library.tilesight_error.restype = ctypes.c_char_p
            self.arity = int(self._library.tilesight_arity())
            self.sizes = int(self._library.tilesight_sizes())
            self.check(self._library.tilesight_init())
        except (OSError, AttributeError) as error:
            raise LaunchError(f"'{artifact}' is not a kernel library: {error}") from error

    def bind(self, tensors: Sequence[torch.Tensor], stream: int = 0, sizes: Sequence[int] = ()) -> Callable[[], None]:
        """A call on these tensors (inputs then outputs, contiguous) and sizes of open dimensions in `stream`, as cheap as can
        be: for timing.

        The call returns when the kernel is launched, and raises `LaunchError` where that was refused. Shapes and dtypes
        must be those that the kernel was built for; only number and layout can be checked.
        """
        if len(tensors) != self.arity:
            raise ValueError(f"the kernel takes {self.arity} tensors, inputs then outputs, and was given {len(tensors)}")
        if len(sizes) != self.sizes:
            raise ValueError(f"the kernel takes {self.sizes} sizes of open dimensions, and was given {len(sizes)}")
        for position, tensor in enumerate(tensors):
            if not tensor.is_contiguous():
                raise ValueError(f"tensor {position} of a kernel must be contiguous; call .contiguous() on it")
        arguments = (ctypes.c_void_p * (self.arity + self.sizes))(*(tensor.data_ptr() for tensor in tensors), *sizes)
        kept, launch, address = tuple(tensors), self.launch, ctypes.addressof(arguments)

        def call() -> None:
            status = launch(address, stream)
            if status:
                self.check(status)

        call.__dict__["keeps"] = (kept, arguments)  # alive as long as the call
        return call

    def close(self) -> None:
        """Give back what the library holds. No call bound to it may follow."""
        self._library.tilesight_unload()
        dlclose(self._library._handle)

    def check(self, status: int) -> None:
        """Raise `LaunchError` with what the library says, unless `status` is 0."""
        if status:
            text = self._library.tilesight_error()
            raise LaunchError(text.decode(errors="replace") if text else f"error {status}")
