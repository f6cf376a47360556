"""Jobs: module-level functions that worker processes run, one candidate at a time. What is slow to import is imported
there and not by the process that asks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .candidate import Candidate
from .errors import Failure, FailureKind
from .profile import KernelProfile
from .trial import BuildResult, Measurement

if TYPE_CHECKING:
    from .measure import Together


@dataclass(frozen=True, slots=True)
class Profiled:
    """What lowering one candidate showed."""

    kernels: tuple[KernelProfile, ...]
    fingerprint: str  # hash of the generated device code
    seconds: float


def start_compiler() -> None:
    """Import what lowering needs, once in each process and outside any time limit."""
    import gc

    import tilelang  # noqa: F401

    from .costmodel import profile  # noqa: F401

    # modules stay: looking through them for garbage again and again takes a tenth of a lowering's time
    gc.collect()
    gc.freeze()


def start_device() -> None:
    """Import what measuring needs, and let the driver begin."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.init()


def lower_and_profile(candidate: Candidate) -> Profiled | Failure:
    """Trace and lower a candidate and read its profiles. Raises what the template or TileLang raises."""
    from .costmodel.profile import read_profiles
    from .lowering import lower

    begin = time.perf_counter()
    lowered = lower(candidate.template.build(candidate.workload, candidate.config), candidate.target)
    try:
        kernels = read_profiles(lowered, candidate.target)
    except Exception as error:
        return Failure(FailureKind.PROFILE_ERROR, f"its lowered IR could not be read: {type(error).__name__}: {error}")
    if candidate.target.is_gpu:
        from .costmodel.occupancy import misfit

        for kernel in kernels:
            # TileLang does not check what it lowers against the chip
            reason = misfit(kernel, candidate.target)
            if reason is not None:
                return Failure(FailureKind.DOES_NOT_FIT, f"the kernel {reason}")
    return Profiled(kernels, lowered.fingerprint, time.perf_counter() - begin)


def build(candidate: Candidate, cache_dir: Path) -> BuildResult:
    from .build import build_kernel

    return build_kernel(candidate, cache_dir)


def measure(built: tuple[Candidate, BuildResult]) -> Measurement:
    """Check and time one built kernel, by the default protocol of its target."""
    from .measure import measure_kernel

    candidate, result = built
    return measure_kernel(result, candidate)


def measure_together(finalists: tuple[tuple[Candidate, BuildResult], ...]) -> Together:
    """Check and time several in turns, the vendor's library beside them."""
    from .measure import measure_together as run

    return run([(result, candidate) for candidate, result in finalists])
