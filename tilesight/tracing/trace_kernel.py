"""`trace_candidate`: builds a candidate with stamps and runs it on a device of this machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import FailureKind, InputError, NoCandidateError
from ..executor.jobs import BuildJob, CompareJob
from ..executor.local import BUILD_FAULTS, LIMITS
from ..executor.tasks import compiler_pool, preload_device, start_device
from ..machine.device_lock import alone_on
from ..machine.devices import Device, restricted_to
from ..problem.candidate import Candidate
from ..records.protocol import MeasurementProtocol
from ..target.spec import Target
from ..workers import Done, WorkerPool, failure_of
from .build_stamped import StampedBuild, build_stamped
from .run_stamped import Trace, run_stamped

_RUN_FAULTS = (FailureKind.RUN_ERROR, FailureKind.RUN_CRASH, FailureKind.RUN_TIMEOUT)
BUILD_LIMIT_S = 2 * LIMITS[BuildJob]  # two builds
RUN_LIMIT_S = LIMITS[CompareJob]


def check_traceable(target: Target) -> None:
    """Raise `InputError` for a target whose kernels cannot be traced."""
    if target.kind != "cuda":
        what = "a processor" if not target.is_gpu else "an AMD GPU"
        raise InputError(
            f"target {target.name} is {what}: time stamps are written into CUDA code only; "
            "leave --trace out for the predicted timeline"
        )
    if target.levels:
        raise InputError(
            f"target {target.name} is several devices: a kernel of one device can be traced, "
            f"e.g. --target {target.device_target.name}; leave --trace out for the predicted timeline"
        )


def trace_candidate(candidate: Candidate, device: Device, cache_dir: Path) -> Trace:
    """What the stamps of a candidate show. Takes the time of two builds and of a few hundred launches.

    Raises:
        InputError: The target's kernels cannot be traced.
        NoCandidateError: The candidate cannot be built, or it fails on the device.
        ToolchainError: There is no such device, or no compiler.
    """
    check_traceable(candidate.target)
    protocol = MeasurementProtocol.named("default", candidate.target)
    build = built(partial(build_stamped, cache_dir=cache_dir), candidate, str(candidate.config))
    assert build is not None  # a candidate is always built
    return run_on(device, run_stamped, (build, candidate, protocol), str(candidate.config))


def built(function: Callable[[Any], StampedBuild | str | None], item: Any, name: str) -> StampedBuild | None:
    """What `function` builds of `item`, in a process of its own; None if it builds nothing.

    Raises `NoCandidateError`, or `InputError` for a text, which is an error that the user can correct.
    """
    with compiler_pool(BUILD_LIMIT_S) as pool:
        (outcome,) = (found for _, found in pool.run(function, [item]))
    found = outcome.value if isinstance(outcome, Done) else failure_of(outcome, *BUILD_FAULTS)
    if isinstance(found, str):
        raise InputError(f"{name}: {found}")
    if found is None:
        return None
    failure = found.failure if isinstance(found, StampedBuild) else found
    if failure is not None:
        detail = f"\n{failure.detail}" if failure.detail else ""
        raise NoCandidateError(f"{name} cannot be traced: {failure.message}{detail}")
    assert isinstance(found, StampedBuild)
    return found


def device_pool(device: Device) -> WorkerPool:
    """One process that sees this device only, and holds its lock while it works."""
    return WorkerPool(
        1,
        timeout_s=RUN_LIMIT_S,
        preload=preload_device,
        initializer=start_device,
        environments=[restricted_to(device)],
        gate=partial(alone_on, device.uuid),
    )


def run_on(device: Device, function: Callable[[Any], Trace], item: Any, name: str) -> Trace:
    """What `function` traces of `item`, in a process that owns the device. Raises `NoCandidateError`."""
    with device_pool(device) as pool:
        (outcome,) = (found for _, found in pool.run(function, [item]))
    failure = outcome.value.failure if isinstance(outcome, Done) else failure_of(outcome, *_RUN_FAULTS)
    if failure is not None:
        raise NoCandidateError(f"{name} cannot be traced: {failure.message}")
    assert isinstance(outcome, Done)
    return outcome.value
