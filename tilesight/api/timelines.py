"""Timelines of predicted kernels and of recorded sessions, and their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, NoCandidateError
from ..files import check_out, replacing
from ..problem.candidate import Candidate
from ..problem.space import Config, Value
from ..records.session import Effort
from ..records.timeline import Timeline
from ..target.spec import Target
from ..tuner.observers import Observer
from ..tuner.options import TuneOptions
from ..tuner.resolve import Shape, find_operator, find_template, find_workloads
from .prediction import as_input_errors
from .reporting import check_report_out
from .run_time_facts import RunTimeFacts

if TYPE_CHECKING:
    from ..profile.values import KernelProfile

_SUFFIXES = (".json", ".html")


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


def write_timeline(timeline: Timeline, out: str | Path) -> Path:
    """Write a timeline: a `.json` file is a Chrome trace, which Perfetto opens, an `.html` file a report.

    A file of the same kind that is there already is replaced; other files are not. Returns `out` as a path.
    Raises `InputError` if it cannot be written.
    """
    from ..pages.chrome_trace import chrome_trace
    from ..pages.render import html
    from ..pages.timeline_page import timeline_page

    path = Path(out)
    check_timeline_out(path)
    text = chrome_trace(timeline) if path.suffix == ".json" else html(timeline_page(timeline))
    with replacing(path, f"timeline '{path}' cannot be written") as partial_path:
        partial_path.write_text(text, encoding="utf-8")
    return path


def check_timeline_out(path: Path) -> None:
    """Raise `InputError` if no timeline can be written there, or if another file is there."""
    from ..pages.chrome_trace import is_trace

    if path.suffix not in _SUFFIXES:
        raise InputError(f"--out {path} must end in .json (a Chrome trace) or .html (a report)")
    if path.suffix == ".html":
        check_report_out(path)
        return
    check_out(path, ".json", "Chrome traces")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"--out {path}: the file there cannot be read: {error.strerror or error}") from error
    if text and not is_trace(text):
        raise InputError(f"--out {path} is there and no trace of TileSight; name another file, or remove it")


def _check_gpu(target: Target) -> None:
    if not target.is_gpu:
        raise InputError(
            f"target {target.name} is a processor: its model has sums of loops, which make no timeline; "
            "`tilesight explain` shows its terms"
        )
