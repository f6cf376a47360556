"""The call of a tuned kernel through TileSight's own library, which was measured and checked."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..bounded_dict import BoundedDict
from ..errors import LaunchError
from ..problem.template import RunTimeNumber, number_slot
from ..records.trial import BuildResult
from .interface import Interface, TensorArgument

if TYPE_CHECKING:
    import torch

_MOST_SIGNATURES = 1024  # of arguments, whose call is prepared
_Bound = Callable[[tuple[Any, ...]], Any]


class LaunchedCall:
    """Is called like the function of a `tilelang.JITKernel`, and returns what it returns.

    What the library cannot take (another shape or dtype, tensors that are not contiguous or not aligned or
    on different devices, a number that does not fit) goes to the `JITKernel`'s own function, with its errors.
    """

    def __init__(self, interface: Interface, built: BuildResult, own: Callable[..., Any]) -> None:
        """
        Args:
            interface: of the kernel.
            built: its library.
            own: the `JITKernel`'s own function.
        """
        self._interface, self._built, self._own = interface, built, own
        self._taken = interface.given_arguments
        self._bound: BoundedDict[tuple[Any, ...], _Bound] = BoundedDict(_MOST_SIGNATURES)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if named or len(arguments) != len(self._taken):
            return self._own(*arguments, **named)
        signature = tuple(
            (a.shape, a.dtype, a.device) if hasattr(a, "data_ptr") else a.__class__ for a in arguments
        )
        bound = self._bound.get(signature)
        if bound is None:
            bound = self._bound[signature] = self._bind(arguments) or (lambda given: self._own(*given))
        return bound(arguments)

    def _bind(self, arguments: tuple[Any, ...]) -> _Bound | None:
        """The call for arguments of this signature; None if the library cannot take them."""
        sizes = self._sizes(arguments)
        devices = {a.device for a in arguments if hasattr(a, "data_ptr")}
        if sizes is None or len(devices) != 1:
            return None
        (device,) = devices
        return self._prepared(sizes, device)

    def _sizes(self, arguments: tuple[Any, ...]) -> dict[str, int] | None:
        """The sizes of run time, if all arguments are of the types that the kernel takes."""
        import torch

        sizes: dict[str, int] = {}
        for wanted, value in zip(self._taken, arguments, strict=True):
            if isinstance(wanted, RunTimeNumber):
                if not isinstance(value, bool | int | float):
                    return None
                continue
            if not isinstance(value, torch.Tensor) or value.dim() != len(wanted.shape):
                return None
            for axis, size in zip(wanted.axes, value.shape, strict=True):
                if axis:
                    sizes.setdefault(axis, int(size))
            if value.dtype != getattr(torch, wanted.dtype) or tuple(value.shape) != shape_at(wanted, sizes):
                return None
        return sizes if all(name in sizes for name, _ in self._interface.sizes) else None

    def _prepared(self, sizes: dict[str, int], device: torch.device) -> _Bound:
        import torch

        from ..dispatch.kernels import loaded
        from ..dispatch.kernels.bound_calls import allocator, on_its_device, stream_of, strides_of
        from ..dispatch.problem import ALIGNMENT

        interface, own = self._interface, self._own
        kernel = loaded.load(self._built, device)
        expected = len(interface.tensors), len(interface.sizes) + len(interface.numbers)
        if (kernel.arity, kernel.sizes) != expected:
            raise LaunchError(
                f"'{self._built.artifact}' takes {kernel.arity} tensors and {kernel.sizes} other arguments, "
                f"and should take {expected[0]} and {expected[1]}; empty the kernel cache"
            )
        names = [argument.name for argument in self._taken]
        tensors = [i for i, argument in enumerate(self._taken) if isinstance(argument, TensorArgument)]
        numbers = [(names.index(number.name), number.dtype) for number in interface.numbers]
        results = [tensor for tensor in interface.tensors if tensor.is_result]
        shapes = [shape_at(tensor, sizes) for tensor in results]
        made = [
            (shape, strides_of(shape), getattr(torch, tensor.dtype))
            for shape, tensor in zip(shapes, results, strict=True)
        ]
        # places of the library's tensors among the given tensors and the results
        held = [names[i] for i in tensors] + [tensor.name for tensor in results]
        order = [held.index(tensor.name) for tensor in (*interface.inputs, *interface.outputs)]
        pack = struct.Struct(f"={len(order) + expected[1]}Q").pack
        values = tuple(sizes[name] for name, _ in interface.sizes)
        is_gpu, empty = device.type != "cpu", allocator(device)
        stream = stream_of(device) if is_gpu else (lambda: 0)
        launch: Any = kernel.launch  # ctypes passes the address of the first byte of a bytes object

        def call(arguments: tuple[Any, ...]) -> Any:
            given = [arguments[i] for i in tensors]
            addresses = [tensor.data_ptr() for tensor in given]
            if not all(tensor.is_contiguous() for tensor in given) or (
                is_gpu and any(address % ALIGNMENT for address in addresses)
            ):
                return own(*arguments)
            try:
                slots = [number_slot(dtype, arguments[i]) for i, dtype in numbers]
            except (struct.error, OverflowError):  # e.g. a whole number that does not fit
                return own(*arguments)
            outputs = [empty(*part) for part in made]
            addresses += [tensor.data_ptr() for tensor in outputs]
            packed = pack(*(addresses[i] for i in order), *values, *slots)
            status = launch(packed, stream())
            if is_gpu and status == loaded.INVALID_CONTEXT:
                loaded.make_current(device)
                status = launch(packed, stream())
            if status:
                kernel.check(status)
            return None if not outputs else outputs[0] if len(outputs) == 1 else outputs

        if not is_gpu:
            return call
        on_device = on_its_device(lambda arguments, _: call(arguments), device)
        return lambda arguments: on_device(arguments, None)


def shape_at(tensor: TensorArgument, sizes: dict[str, int]) -> tuple[int, ...]:
    """A tensor's shape where sizes that are known at run time only have these values."""
    axes = tensor.axes or ("",) * len(tensor.shape)
    return tuple(sizes.get(name, size) for name, size in zip(axes, tensor.shape, strict=True))
