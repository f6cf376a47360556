"""Timelines of predicted kernels and of recorded sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import InputError, NoCandidateError, ToolchainError
from ..problem.candidate import Candidate
from ..problem.space import Config, Value
from ..records.session import Effort
from ..records.timeline import Timeline
from ..target.spec import Target
from ..tuner.observers import Observer
from ..tuner.options import TuneOptions
from ..tuner.resolve import Shape, find_operator, find_template, find_workloads
from .prediction import as_input_errors
from .run_time_facts import RunTimeFacts

if TYPE_CHECKING:
    from ..machine.devices import Device
    from ..profile.names import KernelNames
    from ..profile.values import KernelProfile


def kernel_timeline(
    kernel: str,
    target: str | Target | None = None,
    shape: Shape | None = None,
    *,
    config: str | Mapping[str, Value] | None = None,
    dtype: str | None = None,
    database: str | None = None,
    workers: int | None = None,
    observer: Observer | None = None,
    trace: bool = False,
) -> Timeline:
    """The predicted timeline of a config: one steady iteration, one block, and the waves of the grid.

    Args:
        kernel: The name of a kernel.
        target: As for `tune`.
        shape: As for `tune`; of several default shapes the first.
        config: None: the best that is known, as for `explain`.
        dtype, database, workers, observer: As for `tune`.
        trace: Whether to build the kernel with time stamps as well, run it on a GPU of this machine, and lay
            what they show under the prediction.

    Raises:
        InputError: an argument is wrong, the target is a processor, or its kernels cannot be traced.
        NoCandidateError: the config cannot be lowered or predicted, or its traced kernel fails.
        ToolchainError: this machine has no GPU of the target to trace on, or no compiler.
    """
    from ..explanation import ConfigLowerings
    from ..machine.placement import locate
    from .engine import Engine
    from .sessions import best_known

    operator = find_operator(kernel)
    placement = locate(target, measures=False, communicates=operator.communicates)
    chosen = placement.target
    _check_gpu(chosen)
    device = traced_device(chosen) if trace else None
    workload = find_workloads(operator, chosen, shape, dtype)[0]
    template = find_template(operator, chosen, workload.dtype)
    space = template.space(workload, chosen)
    wanted: Config | None = None
    if config is not None:
        wanted = space.read(config) if isinstance(config, str) else space.config(config)
        space.check(wanted)
    options = TuneOptions.of(effort=Effort.PREDICT, database=database, workers=workers)
    with Engine(placement, options, observer) as engine:
        if wanted is None:
            best = best_known(engine, operator, workload).best
            assert best is not None  # a session without one raises
            wanted = best.config
        lowered = ConfigLowerings(
            lambda: engine.executor,
            engine.model,
            lambda config: Candidate(workload, chosen, template, config),
        )
        [(_, outcome)] = lowered.profiles([wanted])
    if not isinstance(outcome, tuple):
        raise NoCandidateError(f"config '{wanted}' has no timeline: {outcome.kind}: {outcome.message}")
    found = profiles_timeline(f"{workload.label}, {wanted}", outcome, chosen)
    if device is None:
        return found
    from ..explanation.traced_timeline import with_trace
    from ..settings import load_settings
    from ..tracing.trace_kernel import trace_candidate

    (observer or Observer()).message(f"building the kernel with time stamps, to run it on {device.name}")
    candidate = Candidate(workload, chosen, template, wanted)
    return with_trace(found, trace_candidate(candidate, device, load_settings().cache_dir))


def file_timeline(
    place: str,
    target: str | Target | None = None,
    facts: RunTimeFacts | None = None,
    arguments: Mapping[str, Any] | None = None,
    *,
    config: str | None = None,
    trace: bool = False,
) -> Timeline:
    """The predicted timeline of a kernel in a file; see `profiles_in_file`; `trace`: as above."""
    from ..machine.placement import locate
    from .kernel_files import kernel_in_file, profiles_in_file

    if not trace:
        profiles = profiles_in_file(place, target, facts, arguments, config)
        return profiles_timeline(profiles.name, profiles.kernels, profiles.target, profiles.names)
    from ..explanation.traced_timeline import with_trace
    from ..settings import load_settings
    from .file_traces import build_file_kernel, trace_file_build

    chosen = locate(target, measures=False).target
    device = traced_device(chosen)
    item = kernel_in_file(place, chosen, facts, arguments, config)
    build = build_file_kernel(item, load_settings().cache_dir)
    if build is None:  # its own configs are compared first
        number = profiles_in_file(place, chosen, facts, arguments).number
        item = replace(item, config=str(number))
        build = build_file_kernel(item, load_settings().cache_dir)
    assert build is not None  # a config is chosen
    profiles = build.profiles
    found = profiles_timeline(profiles.name, profiles.kernels, item.target, profiles.names)
    return with_trace(found, trace_file_build(build, item, device))


def profiles_timeline(
    name: str,
    kernels: tuple[KernelProfile, ...],
    target: Target,
    names: Sequence[KernelNames] = (),
) -> Timeline:
    """The predicted timeline of a kernel of which its profiles are known, and the names in it at most.

    Raises `InputError`.
    """
    from ..costmodel import foreign_model
    from ..explanation.kernel_timeline import kernel_timeline as drawn

    _check_gpu(target)
    with as_input_errors("predicted", target):
        return drawn(f"{name} on {target.title}", kernels, target, foreign_model(), names)


def session_timeline(session_id: int, *, database: str | None = None) -> Timeline:
    """When the candidates of a recorded session were lowered, predicted, built and measured.

    Raises:
        InputError: the database has no session of this id, or it has no candidates yet.
        DatabaseError: the database cannot be read, or does not exist.
    """
    from ..records.session_timeline import session_timeline as drawn
    from .history import undescribed_session

    found = drawn(undescribed_session(session_id, database))
    if not any(lane.spans for part in found.parts for lane in part.lanes):
        raise InputError(f"session {session_id} has no results of its own yet: there is no timeline to draw")
    return found


def traced_device(target: Target) -> Device:
    """The GPU of this machine on which kernels for `target` are traced.

    Raises:
        InputError: kernels for this target cannot be traced.
        ToolchainError: there is no such GPU, or no compiler for it.
    """
    from ..machine.devices import NoDevice, device_for, find_devices
    from ..machine.toolchain import missing_compiler
    from ..tracing.trace_kernel import check_traceable

    check_traceable(target)
    device = device_for(target, find_devices())
    if isinstance(device, NoDevice):
        raise ToolchainError(f"nothing can be traced: {device.message}")
    if missing := missing_compiler(target):
        raise ToolchainError(missing)
    return device


def _check_gpu(target: Target) -> None:
    if not target.is_gpu:
        raise InputError(
            f"target {target.name} is a processor: its model has sums of loops, which make no timeline; "
            "`tilesight explain` shows its terms"
        )
