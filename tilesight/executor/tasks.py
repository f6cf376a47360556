"""Tasks: the module-level functions that worker processes run, one candidate at a time.

Slow modules are imported inside the functions: the process that submits a task does not import them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..bounded_dict import BoundedDict
from ..errors import Failure, FailureKind
from ..problem.candidate import Candidate
from ..problem.workload import Workload
from ..profile.values import KernelProfile, LibraryCollective
from ..records.trial import BuildResult, Measurement
from ..workers import WorkerPool, thread_limits

if TYPE_CHECKING:
    from ..lowering.lower import Lowered
    from ..records.protocol import MeasurementProtocol
    from ..records.session import Comparison
    from ..target.spec import Target
    from .jobs import CompareJob

COMPILER_ENVIRONMENT = thread_limits(1)  # of processes that lower and build
LOWERED = 16  # kernels with dynamic dimensions whose IR a process keeps, for other sizes of them
NICENESS = 10  # of workers that lower and build: a process that measures must not wait for a core


@dataclass(frozen=True, slots=True)
class Profiled:
    """The result of lowering one candidate: its profiles, a hash of its device code, and the time it took."""

    kernels: tuple[KernelProfile, ...]
    fingerprint: str
    seconds: float


Answer = tuple[Candidate, Profiled | Failure]  # a candidate and the outcome of its lowering


_lowered: BoundedDict[tuple[str, str], Lowered] = BoundedDict(LOWERED)


def preload_compiler() -> None:
    """Import the modules that lowering needs; called in the fork server."""
    import gc

    with _driver_untouched():
        import tilelang  # noqa: F401

    from ..costmodel import extract as profile  # noqa: F401
    from ..lowering import dynamic as dynamic_dims  # noqa: F401
    from ..lowering.parsed_functions import parse_once

    parse_once()
    # modules are never collected: scanning them for garbage takes a tenth of a lowering's time
    gc.collect()
    gc.freeze()


@contextmanager
def _driver_untouched() -> Iterator[None]:
    """Let the driver's files answer when torch is asked whether there are GPUs, as TileLang does on import.

    Torch's own answer opens the driver, even the one of NVML (PYTORCH_NVML_BASED_CUDA_CHECK) with driver 580,
    and such a process cannot be forked. What is asked later gets torch's own answer.
    """
    import torch

    def is_available() -> bool:
        if torch.version.cuda is not None:
            return any(Path("/dev").glob("nvidia[0-9]*"))
        return torch.version.hip is not None and Path("/dev/kfd").exists()

    asked, torch.cuda.is_available = torch.cuda.is_available, is_available
    try:
        yield
    finally:
        torch.cuda.is_available = asked


def compiler_pool(timeout_s: float, count: int = 1) -> WorkerPool:
    """Up to `count` processes that lower and build, for items of `timeout_s` at most."""
    return WorkerPool(count, timeout_s=timeout_s, preload=preload_compiler, environment=COMPILER_ENVIRONMENT)


def start_compiler() -> None:
    """Lower the priority of a worker that lowers or builds."""
    os.nice(NICENESS)


def preload_device() -> None:
    """Import the modules that measuring needs, without initialising the driver; called in the fork server."""
    import torch  # noqa: F401

    from ..runner import measure  # noqa: F401


def start_device() -> None:
    """Initialise the driver in a worker that measures."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.init()


def lower_and_profile(candidate: Candidate) -> Profiled | Failure:
    """Trace and lower a candidate and read its profiles. Raises any error of the template or of TileLang.

    The profiles of a kernel with dynamic dimensions are read at the workload's sizes. Its IR is the same for
    all sizes, and reading takes a tenth of the time that lowering takes.
    """
    from ..costmodel.extract import read_profiles
    from ..lowering.dynamic import at
    from ..problem.run_time_data import RunTimeData

    begin = time.perf_counter()
    lowered = _lower(candidate)
    try:
        numbers = {number.name: number.value for number in candidate.template.numbers}
        data = RunTimeData(contents=candidate.template.operator.contents(candidate.workload))
        flags = candidate.template.compile_flags.get(candidate.target.kind, ())
        kernels = read_profiles(
            at(lowered, candidate.workload.dims, numbers),
            candidate.target,
            data,
            flags=flags,
            peers=candidate.peer_tensors,
        )
    except Exception as error:
        return Failure(
            FailureKind.PROFILE_ERROR, f"its lowered IR could not be read: {type(error).__name__}: {error}"
        )
    kernels = with_collective(kernels, candidate)
    return fit_failure(kernels, candidate.target) or Profiled(
        kernels, lowered.fingerprint, time.perf_counter() - begin
    )


def _lower(candidate: Candidate) -> Lowered:
    """The IR of a candidate to be read; kept for some time if it has dynamic dimensions."""
    from ..lowering.dynamic import lower_candidate

    if not candidate.dynamic:
        return lower_candidate(candidate, only_read=True)
    given = candidate.workload
    dims = {**given.dims, **dict.fromkeys(candidate.dynamic, 1)}
    any_size = Workload(given.operator, dims, given.dtype, given.attrs)
    key = candidate.target.fingerprint, replace(candidate, workload=any_size).key
    found = _lowered.get(key)
    if found is None:
        found = _lowered[key] = lower_candidate(candidate, only_read=True)
    return found


def with_collective(kernels: tuple[KernelProfile, ...], candidate: Candidate) -> tuple[KernelProfile, ...]:
    """The profiles of a candidate's whole call: with the library's collectives, if it has any."""
    found = candidate.template.collective(candidate.workload, candidate.config)
    if found is None:
        return kernels
    target = candidate.target

    def calls(*places: str) -> list[KernelProfile]:
        named = [LibraryCollective(one.name, one.size_bytes) for one in found.at(*places)]
        return [
            KernelProfile(target.kind, target.arch, (1, 1, 1), 1, 1, 0, (), (), collective=one)
            for one in named
        ]

    return (*calls("before"), *kernels, *calls("between", "after"))


def fit_failure(kernels: Iterable[KernelProfile], target: Target) -> Failure | None:
    """The failure if one of `kernels` exceeds the target's resources, else None.

    TileLang does not check that.
    """
    from ..costmodel.analytical.occupancy import misfit

    reasons = (misfit(kernel, target) for kernel in kernels if target.is_gpu)
    reason = next((reason for reason in reasons if reason is not None), None)
    return None if reason is None else Failure(FailureKind.DOES_NOT_FIT, f"the kernel {reason}")


def build(candidate: Candidate, cache_dir: Path, *, runnable: bool = True) -> BuildResult:
    """Build a candidate into the kernel cache; see `BuildJob`."""
    from ..builder.build import build_kernel

    return build_kernel(candidate, cache_dir, runnable=runnable)


def measure(item: tuple[Candidate, BuildResult, MeasurementProtocol, float | None]) -> Measurement:
    """Check and time one built kernel.

    The item is (candidate, build, protocol, time of the fastest rival in us or None); see `MeasureJob`.
    """
    from ..runner.measure import measure_kernel

    candidate, result, protocol, rival_us = item
    return measure_kernel(result, candidate, protocol, rival_us)


def measure_together(job: CompareJob) -> Comparison:
    """Check and time finalists in turns, and decide which one wins."""
    from ..runner.measure import measure_together as run

    kernels = [(result, candidate) for candidate, result in job.finalists]
    return run(kernels, job.protocol, with_vendor=job.with_vendor)
