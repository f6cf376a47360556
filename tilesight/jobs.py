"""Jobs: module-level functions that worker processes run, one candidate at a time. What is slow to import is imported
there and not by the process that asks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .candidate import Candidate
from .errors import Failure, FailureKind
from .profile import KernelProfile
from .trial import BuildResult, Measurement

if TYPE_CHECKING:
    from .protocol import Protocol
    from .session import Comparison
    from .target import Target

NICENESS = 10  # of what lowers and builds: the process that measures must not wait for a core


@dataclass(frozen=True, slots=True)
class Profiled:
    """What lowering one candidate showed."""

    kernels: tuple[KernelProfile, ...]
    fingerprint: str  # hash of the generated device code
    seconds: float


Answer = tuple[Candidate, Profiled | Failure]  # what lowering each of several came to


def preload_compiler() -> None:
    """Import what lowering needs, in the process that workers are forked from."""
    import gc

    import tilelang  # noqa: F401

    from . import build, open_dims  # noqa: F401
    from .costmodel import occupancy, profile  # noqa: F401

    # modules stay: looking through them for garbage again and again takes a tenth of a lowering's time
    gc.collect()
    gc.freeze()


def start_compiler() -> None:
    """A worker that lowers or builds gives way to one that measures, which must not wait for a core."""
    os.nice(NICENESS)


def preload_device() -> None:
    """Import what measuring needs, in the process that workers are forked from; the driver must not begin there."""
    import torch  # noqa: F401

    from .measuring import measure  # noqa: F401


def start_device() -> None:
    """Let the driver begin."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.init()


def lower_and_profile(candidate: Candidate) -> Profiled | Failure:
    """Trace and lower a candidate and read its profiles, of a kernel with open dimensions at the workload's sizes. Raises
    what the template or TileLang raises."""
    from .costmodel.profile import read_profiles
    from .open_dims import at, lower_candidate

    begin = time.perf_counter()
    lowered = lower_candidate(candidate)
    try:
        kernels = read_profiles(at(lowered, candidate.workload.dims), candidate.target)
    except Exception as error:
        return Failure(FailureKind.PROFILE_ERROR, f"its lowered IR could not be read: {type(error).__name__}: {error}")
    return unfit(kernels, candidate.target) or Profiled(kernels, lowered.fingerprint, time.perf_counter() - begin)


def unfit(kernels: Iterable[KernelProfile], target: Target) -> Failure | None:
    """Why the target cannot run one of `kernels`; None where it can run all. TileLang does not check what it lowers against the
    chip."""
    from .costmodel.occupancy import misfit

    reasons = (misfit(kernel, target) for kernel in kernels if target.is_gpu)
    reason = next((reason for reason in reasons if reason is not None), None)
    return None if reason is None else Failure(FailureKind.DOES_NOT_FIT, f"the kernel {reason}")


def build(candidate: Candidate, cache_dir: Path, front_ends: str = "") -> BuildResult:
    """`front_ends`: the address of compilers that have read the headers, where there are some."""
    from .build import build_kernel

    return build_kernel(candidate, cache_dir, front_ends=front_ends)


def measure(item: tuple[Candidate, BuildResult, Protocol, float | None]) -> Measurement:
    """Check and time one built kernel; no longer than it takes to see that it is slower than the last, the time of a rival."""
    from .measuring.measure import measure_kernel

    candidate, result, protocol, rival_us = item
    return measure_kernel(result, candidate, protocol, rival_us)


def measure_together(item: tuple[Sequence[tuple[Candidate, BuildResult]], Protocol]) -> Comparison:
    """Check and time several in turns, the vendor's library beside them, and decide which wins."""
    from .measuring.measure import measure_together as run

    finalists, protocol = item
    return run([(result, candidate) for candidate, result in finalists], protocol)
