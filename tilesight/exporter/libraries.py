"""The built libraries of an export's kernels: those of the kernel cache, and newly built ones."""

from __future__ import annotations

from ..dispatch.background_thread import BackgroundThread
from ..dispatch.kernels.kernel_builder import KernelBuilder
from ..errors import InputError, NoCandidateError, ToolchainError
from ..machine.toolchain import missing_compiler, software_versions
from ..records.session import code_software
from ..records.trial import BuildResult
from ..settings import load_settings
from .kernel_set import KernelSet


def built_kernels(kernels: KernelSet, workers: int | None = None) -> list[BuildResult]:
    """The library of each kernel, in their order.

    Raises:
        InputError: kernels of this kind of target cannot be exported.
        ToolchainError: there is no compiler, or the kernel cache cannot be used.
        NoCandidateError: a kernel cannot be built.
    """
    target = kernels.problem.target
    if target.kind == "hip":
        raise InputError(
            f"kernels for {target.name} cannot be exported: libraries for AMD GPUs are linked with ROCm's "
            "runtime, and do not load their code by the driver alone; targets of NVIDIA GPUs and cpu can"
        )
    if kernels.problem.template.numbers:
        raise InputError(f"{kernels.problem.template.name}: kernels that take numbers cannot be exported")
    missing = missing_compiler(target)
    if missing:
        raise ToolchainError(missing)
    settings = load_settings()

    from ..executor.local import LocalExecutor

    count = min(workers or settings.workers, len(kernels.kernels))
    thread = BackgroundThread(lambda: LocalExecutor(count, settings.cache_dir))
    builder = KernelBuilder(
        kernels.problem, settings.cache_dir, code_software(software_versions(target)), thread
    )
    try:
        found = builder.build(kernels.kernels)
    finally:
        builder.close()
    for choice, built in zip(kernels.kernels, found, strict=True):
        if built.failure is not None:
            raise NoCandidateError(
                f"{choice.config} cannot be built for {target.name}: {built.failure.message}"
            )
        if not built.entry:
            raise ToolchainError(f"{choice.config}: the compiler made no library for {target.name}")
    return found
