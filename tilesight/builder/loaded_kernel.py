"""Loads a built kernel, and calls it with torch tensors.

Needs neither TileLang nor TVM: a library has a plain C interface. `int tilesight_call(void **arguments, void
*stream)` launches the kernel and returns 0, or an error code. Its arguments are the addresses of the tensors,
inputs then outputs (`tilesight_arity()` of them), then the sizes of the dynamic dimensions
and the arguments that are numbers
(`tilesight_sizes()` of both), each as wide as a pointer. `tilesight_error()` returns the text of the last
error.
"""

from __future__ import annotations

import ctypes
from _ctypes import dlclose
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import LaunchError

if TYPE_CHECKING:
    import torch

__all__ = ["LaunchError", "LoadedKernel", "memory_fault"]


def memory_fault(tensor: torch.Tensor) -> str | None:
    """Why the memory of a tensor is not what the tensor stands for; None if it is."""
    if tensor.is_neg() or tensor.is_conj():
        return "is a negated or conjugated view, whose memory holds other values; give .resolve_neg() of it"
    found = tensor.untyped_storage().nbytes()
    needed = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    if found < needed:
        return (
            f"has a storage of {found} bytes and needs {needed}: its memory was freed or never allocated; "
            "give a tensor with memory"
        )
    return None


class LoadedKernel:
    """A kernel of the cache, loaded into this process. On a GPU it belongs to the device that is current on
    construction.

    Attributes:
        arity: Number of tensors.
        sizes: Number of dynamic dimensions, and of arguments that are numbers.
        launch: The C function `tilesight_call`, with the address of the array of arguments and the stream as
            integers. It returns 0, or an error code for `check`. It keeps no tensor alive, checks only
            dynamic dimensions, and releases Python's lock while it runs.
        copy_stream: The stream on which a call starts copies to peers, as an integer; 0 if it starts none.
    """

    def __init__(self, artifact: str, entry: str) -> None:
        """Load a library.

        Raises `LaunchError`. Torch must have used the device before: that creates its context.
        """
        try:
            self._library = ctypes.CDLL(artifact)
            launch = self._library[entry]
            launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
            self.launch: Callable[[int, int], int] = launch
            self._library.tilesight_error.restype = ctypes.c_char_p
            self.arity = int(self._library.tilesight_arity())
            self.sizes = int(self._library.tilesight_sizes())
            self.check(self._library.tilesight_init())
            self.copy_stream = self._find_copy_stream()
        except (OSError, AttributeError) as error:
            raise LaunchError(f"'{artifact}' is not a kernel library: {error}") from error

    def _find_copy_stream(self) -> int:
        find = getattr(self._library, "tilesight_copy_stream", None)  # of few libraries
        if find is None:
            return 0
        find.restype = ctypes.c_void_p
        return int(find() or 0)

    def bind(
        self, tensors: Sequence[torch.Tensor], stream: int = 0, sizes: Sequence[int] = ()
    ) -> Callable[[], None]:
        """A function without arguments that launches the kernel with minimal overhead, for timing.

        The function returns when the kernel is launched, and raises `LaunchError` if that is refused.

        Args:
            tensors: Contiguous inputs, then outputs, with the shapes and dtypes that the kernel was built
                for. Only number and layout are checked.
            stream: The CUDA or HIP stream, as an integer.
            sizes: Values of the dynamic dimensions, then numbers (`Candidate.run_time_slots`).

        Raises:
            ValueError: A wrong number of tensors or sizes, or a tensor that is not contiguous.
        """
        if len(tensors) != self.arity:
            raise ValueError(
                f"the kernel takes {self.arity} tensors, inputs then outputs, and was given {len(tensors)}"
            )
        if len(sizes) != self.sizes:
            raise ValueError(f"the kernel takes {self.sizes} sizes and numbers, and was given {len(sizes)}")
        for position, tensor in enumerate(tensors):
            if not tensor.is_contiguous():
                raise ValueError(
                    f"tensor {position} of a kernel must be contiguous; call .contiguous() on it"
                )
        arguments = (ctypes.c_void_p * (self.arity + self.sizes))(
            *(tensor.data_ptr() for tensor in tensors), *sizes
        )
        held, launch, address = tuple(tensors), self.launch, ctypes.addressof(arguments)

        def call() -> None:
            status = launch(address, stream)
            if status:
                self.check(status)

        call.__dict__["keeps"] = (held, arguments)  # alive as long as the function
        return call

    def close(self) -> None:
        """Unload the library. No call bound to it may follow."""
        self._library.tilesight_unload()
        dlclose(self._library._handle)

    def check(self, status: int) -> None:
        """Raise `LaunchError` with the library's last error, unless `status` is 0."""
        if status:
            text = self._library.tilesight_error()
            raise LaunchError(text.decode(errors="replace") if text else f"error {status}")
