"""Timelines of predicted kernels and of recorded sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InputError, NoCandidateError
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
) -> Timeline:
    """The predicted timeline of a config: one steady iteration, one block, and the waves of the grid.

    Args:
        kernel: The name of a kernel.
        target: As for `tune`.
        shape: As for `tune`; of several default shapes the first.
        config: None: the best that is known, as for `explain`.
        dtype, database, workers, observer: As for `tune`.

    Raises:
        InputError: an argument is wrong, or the target is a processor.
        NoCandidateError: the config cannot be lowered or predicted.
    """
    from ..explanation import ConfigLowerings
    from ..machine.placement import locate
    from .engine import Engine
    from .sessions import best_known

    operator = find_operator(kernel)
    placement = locate(target, measures=False, communicates=operator.communicates)
    chosen = placement.target
    _check_gpu(chosen)
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
    return profiles_timeline(f"{workload.label}, {wanted}", outcome, chosen)


def file_timeline(
    place: str,
    target: str | Target | None = None,
    facts: RunTimeFacts | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Timeline:
    """The predicted timeline of a kernel in a file; see `profiles_in_file`."""
    from .kernel_files import profiles_in_file

    found = profiles_in_file(place, target, facts, arguments)
    return profiles_timeline(found.name, found.kernels, found.target)


def profiles_timeline(name: str, kernels: tuple[KernelProfile, ...], target: Target) -> Timeline:
    """The predicted timeline of a kernel of which only its profiles are known. Raises `InputError`."""
    from ..costmodel import default_model
    from ..explanation.kernel_timeline import kernel_timeline as drawn

    _check_gpu(target)
    with as_input_errors("predicted", target):
        return drawn(f"{name} on {target.title}", kernels, target, default_model())


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


def _check_gpu(target: Target) -> None:
    if not target.is_gpu:
        raise InputError(
            f"target {target.name} is a processor: its model has sums of loops, which make no timeline; "
            "`tilesight explain` shows its terms"
        )
