"""`tune_workloads`: tune the workloads of engines in a data set of FlashInfer-Bench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..machine.placement import Placement, locate
from ..problem.operator import Operator
from ..problem.workload import Workload
from ..records.session import Effort, SessionResult
from ..target.spec import Target
from ..tracesets.matches import MATCHES
from ..tracesets.reading import LeftOut, read_trace_shapes
from ..tuner.observers import Observer
from ..tuner.options import TuneOptions
from ..tuner.resolve import find_operator
from .shapes_files import tune_work, workload_of


@dataclass(frozen=True, slots=True)
class TracedWork:
    """What is tuned of a data set, the most frequent first, and what is left out.

    `only`: the operator that was chosen; None: all.
    """

    folder: Path
    only: str | None
    work: tuple[tuple[Operator, Workload], ...]
    placement: Placement
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class TracedResults:
    """The results of a data set's workloads, and what is left out of it, with the reasons."""

    results: tuple[SessionResult, ...]
    left_out: tuple[LeftOut, ...]


def tune_workloads(
    folder: str | Path,
    target: str | Target | None = None,
    kernel: str | None = None,
    *,
    limit: int | None = None,
    effort: str | Effort | None = None,
    budget_s: float | None = None,
    database: str | None = None,
    layers: Sequence[str] | None = None,
    seed: int = 0,
    workers: int | None = None,
    sampler: str = "tpe",
    protocol: str = "default",
    dynamic: str | Sequence[str] = (),
    remeasure: bool = False,
    observer: Observer | None = None,
) -> TracedResults:
    """Tune the workloads of a data set of FlashInfer-Bench, those that occur most first.

    Nothing of the data set is executed: its definitions are compared with TileSight's operators by their
    types, axes and tensors.

    Args:
        folder: It has `definitions/**/*.json` and `workloads/**/*.jsonl`.
        target: As for `tune`.
        kernel: Only the workloads of this operator; None: all.
        limit: Largest number of shapes; None: all.
        effort, budget_s, database, layers, seed, workers, sampler, protocol, dynamic, remeasure, observer: As
            for `tune`.

    Returns:
        One result for each shape. `left_out` has what gives no shape, or none for the target, and why.

    Raises:
        InputError: the folder has no definitions, or no workload that can be tuned.
        TileSightError: what `tune` raises. If nothing works for a shape, its error is raised after the others
            were tuned.
    """
    options = TuneOptions.of(
        effort=effort,
        budget_s=budget_s,
        seed=seed,
        sampler=sampler,
        protocol=protocol,
        dynamic=dynamic,
        database=database,
        layers=layers,
        workers=workers,
        remeasure=remeasure,
    )
    found = find_work(folder, target, kernel, limit, options)
    return TracedResults(tuple(tune_found(found, options, observer)), found.left_out)


def find_work(
    folder: str | Path,
    target: str | Target | None,
    kernel: str | None,
    limit: int | None,
    options: TuneOptions,
) -> TracedWork:
    """Read the workloads of a data set that can be tuned. Raises `InputError` if the folder is none."""
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} must be at least 1; leave it out for all")
    if not str(folder):
        raise InputError("--workloads is empty; name the folder of a data set of FlashInfer-Bench")
    only = None if kernel is None else find_operator(kernel).name
    found = read_trace_shapes(Path(folder))
    placement = locate(target, measures=options.measures)
    work: list[tuple[Operator, Workload]] = []
    refused: dict[tuple[str, str], list[str]] = {}  # shapes by definition and reason
    for line in found.shapes:
        if only not in (None, line.kernel):
            continue
        operator = find_operator(line.kernel)
        try:
            work.append((operator, workload_of(line, operator, placement.target)))
        except InputError as error:
            reason = str(error).removeprefix(f"{line.origin}: ")
            refused.setdefault((line.origin, reason), []).append(line.shape)
    left_out = (
        LeftOut(f"{name} ({shapes[0] if len(shapes) == 1 else f'{len(shapes)} shapes'})", reason)
        for (name, reason), shapes in refused.items()
    )
    return TracedWork(Path(folder), only, tuple(work[:limit]), placement, (*found.left_out, *left_out))


def tune_found(found: TracedWork, options: TuneOptions, observer: Observer | None) -> list[SessionResult]:
    """Tune what was read. Raises `InputError` if that is nothing."""
    if not found.work:
        of_kernel = f" of {found.only}" if found.only else ""
        more = f" (and {len(found.left_out) - 1} more)" if len(found.left_out) > 1 else ""
        reason = f"; {found.left_out[0].text}{more}" if found.left_out else ""
        way_out = "leave KERNEL out, or name" if found.only else "name"
        known = ", ".join(f"{match.op_type} ({match.operator})" for match in MATCHES)
        raise InputError(
            f"--workloads {found.folder} has no workload{of_kernel} that can be tuned{reason}; {way_out} a "
            f"data set with definitions of {known}"
        )
    return tune_work(found.work, found.placement, options, observer)
