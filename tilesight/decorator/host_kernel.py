"""A tuned kernel of a processor, which is called like TileLang's own.

TileLang builds C kernels without optimisation. So the library of the kernel cache is called, which was
measured."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..builder.loaded_kernel import LoadedKernel, memory_fault
from ..errors import NoCandidateError
from ..problem.candidate import Candidate
from ..problem.template import RunTimeNumber, number_slot
from .interface import Interface, TensorArgument
from .launched_call import shape_at

if TYPE_CHECKING:
    import torch

    from .tuned import Tuned


class HostKernel:
    """Callable with torch tensors like `tilelang.JITKernel`; returns the tensors that `out_idx` names.

    `latency` and `ref_latency` are milliseconds, `config` the chosen arguments; `tilesight` is the choice
    itself."""

    latency: float | None = None
    ref_latency: float | None = None
    config: Mapping[str, Any] | None = None
    tilesight: Tuned | None = None

    def __init__(self, candidate: Candidate, interface: Interface, cache_dir: Path) -> None:
        """Build the kernel, or find it in the cache.

        Raises:
            NoCandidateError: it does not build.
        """
        from ..builder.build import build_kernel

        built = build_kernel(candidate, cache_dir)
        if built.failure is not None or built.artifact is None:
            reason = built.failure.message if built.failure else "no library was made"
            raise NoCandidateError(
                f"{candidate.template.name} with {candidate.config} does not build here: {reason}"
            )
        self.prim_func = candidate.template.build(candidate.workload, candidate.config)
        self.interface, self.artifact = interface, built.artifact
        self._kernel = LoadedKernel(built.artifact, built.entry)
        self._order = (*interface.inputs, *interface.outputs)

    def __call__(self, *arguments: torch.Tensor | float) -> Any:
        """Raises `ValueError` for arguments of another number, shape, dtype or device than it takes.

        Also for tensors whose memory was freed or holds other values.
        """
        import torch

        taken = self.interface.given_arguments
        if len(arguments) != len(taken):
            names = ", ".join(argument.name for argument in taken)
            what = "arguments" if self.interface.numbers else "tensors"
            raise ValueError(f"the kernel takes {len(taken)} {what} ({names}) and was given {len(arguments)}")
        named: dict[str, torch.Tensor] = {}
        slots: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for wanted, value in zip(taken, arguments, strict=True):
            if isinstance(wanted, RunTimeNumber):
                slots[wanted.name] = _slot(wanted, value)
            else:
                named[wanted.name] = _checked(wanted, value, sizes)
        results = [tensor for tensor in self.interface.tensors if tensor.is_result]
        for tensor in results:
            dtype = getattr(torch, tensor.dtype)
            named[tensor.name] = torch.empty(shape_at(tensor, sizes), dtype=dtype)
        after = [sizes[name] for name, _ in self.interface.sizes]
        after += [slots[number.name] for number in self.interface.numbers]
        self._kernel.bind([named[tensor.name] for tensor in self._order], 0, after)()
        made = [named[tensor.name] for tensor in results]
        return None if not made else made[0] if len(made) == 1 else made

    def get_kernel_source(self) -> str:
        """The C++ source that was built."""
        return Path(self.artifact).with_suffix(".cpp").read_text(encoding="utf-8")

    def update_tuner_result(
        self, latency: float | None, config: Mapping[str, Any], ref_latency: float | None
    ) -> HostKernel:
        self.latency, self.config, self.ref_latency = latency, config, ref_latency
        return self


def _slot(wanted: RunTimeNumber, value: Any) -> int:
    if not isinstance(value, bool | int | float):
        raise ValueError(f"'{wanted.name}' must be a number of {wanted.dtype}, and is {type(value).__name__}")
    try:
        return number_slot(wanted.dtype, value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"'{wanted.name}'={value} is no {wanted.dtype}: {error}") from None


def _checked(wanted: TensorArgument, tensor: Any, sizes: dict[str, int]) -> torch.Tensor:
    """The tensor, whose sizes that are known at run time only are added to `sizes`."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"'{wanted.name}' must be a tensor, and is {type(tensor).__name__}")
    if len(tensor.shape) == len(wanted.shape):
        for name, size in zip(wanted.axes, tensor.shape, strict=False):
            if name:
                sizes.setdefault(name, int(size))
    if (
        tuple(tensor.shape) != shape_at(wanted, sizes)
        or tensor.dtype != getattr(torch, wanted.dtype)
        or tensor.device.type != "cpu"
    ):
        found = f"{tensor.dtype}{list(tensor.shape)} on {tensor.device}"
        known = "".join(f" with {name}={sizes[name]}" for name in wanted.axes if name in sizes)
        raise ValueError(f"'{wanted.name}' must be torch.{wanted.label} on cpu{known}, and is {found}")
    if (fault := memory_fault(tensor)) is not None:
        raise ValueError(f"'{wanted.name}' {fault}")
    return tensor
