"""A tuned kernel of a processor, which is called like TileLang's own.

TileLang builds C kernels without optimisation. So the library of the kernel cache is called, which was
measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..builder.loaded_kernel import LoadedKernel, memory_fault
from ..errors import NoCandidateError
from ..problem.candidate import Candidate
from .interface import Interface

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

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Raises `ValueError` for tensors of another number, shape, dtype or device than the kernel takes.

        Also for tensors whose memory was freed or holds other values.
        """
        import torch

        given = self.interface.given
        if len(tensors) != len(given):
            names = ", ".join(tensor.name for tensor in given)
            raise ValueError(f"the kernel takes {len(given)} tensors ({names}) and was given {len(tensors)}")
        named: dict[str, torch.Tensor] = {}
        for wanted, tensor in zip(given, tensors, strict=True):
            if (
                tuple(tensor.shape) != wanted.shape
                or tensor.dtype != getattr(torch, wanted.dtype)
                or tensor.device.type != "cpu"
            ):
                found = f"{tensor.dtype}{list(tensor.shape)} on {tensor.device}"
                raise ValueError(
                    f"'{wanted.name}' must be torch.{wanted.dtype}{list(wanted.shape)} on cpu, and is {found}"
                )
            if (fault := memory_fault(tensor)) is not None:
                raise ValueError(f"'{wanted.name}' {fault}")
            named[wanted.name] = tensor
        results = [tensor for tensor in self.interface.tensors if tensor.is_result]
        for tensor in results:
            named[tensor.name] = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
        self._kernel.bind([named[tensor.name] for tensor in self._order])()
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
