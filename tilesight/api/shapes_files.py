"""`tune_file`: tune the shapes of a file, which `tilesight db misses --out` writes or a person."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError, NoCandidateError, TileSightError
from ..records.session import Effort, SessionResult, SessionState
from ..target.spec import Target
from ..tuner.observers import Observer
from ..tuner.options import TuneOptions
from ..tuner.resolve import communicate, default_dtype, find_operator, find_template

if TYPE_CHECKING:
    from ..machine.placement import Placement
    from ..problem.operator import Operator
    from ..problem.workload import Workload
    from ..records.shapes_file import ListedShape


def tune_file(
    path: str | Path,
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
) -> list[SessionResult]:
    """Tune the shapes of a file, in its order. All lines are checked first.

    Args:
        path: A file of lines KERNEL SHAPE [DTYPE [WEIGHT]]; `tilesight db misses --out FILE` writes one.
        target: As for `tune`.
        kernel: Only the lines of this operator; None: all.
        limit: Largest number of shapes; None: all.
        effort, budget_s, database, layers, seed, workers, sampler, protocol, dynamic, remeasure, observer: As
            for `tune`.

    Returns:
        One result a shape, in order.

    Raises:
        InputError: the file cannot be read, or a line is wrong.
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
    return tune_listed(path, target, kernel, limit, options, observer)


def tune_listed(
    path: str | Path,
    target: str | Target | None,
    kernel: str | None,
    limit: int | None,
    options: TuneOptions,
    observer: Observer | None,
) -> list[SessionResult]:
    """`tune_file` with its options as one value."""
    from ..machine.placement import locate
    from ..records.shapes_file import read_shapes

    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} must be at least 1; leave it out for all")
    only = None if kernel is None else find_operator(kernel).name
    listed = [(line, operator_of(line)) for line in read_shapes(Path(path))]
    listed = [(line, operator) for line, operator in listed if only in (None, operator.name)][:limit]
    if not listed:
        raise InputError(f"shapes file '{path}' has no line of {only}")
    placement = locate(
        target,
        measures=options.measures,
        communicates=communicate([operator for _, operator in listed]),
    )
    work = [(operator, workload_of(line, operator, placement.target)) for line, operator in listed]
    return tune_work(work, placement, options, observer)


def tune_work(
    work: Sequence[tuple[Operator, Workload]],
    placement: Placement,
    options: TuneOptions,
    observer: Observer | None,
) -> list[SessionResult]:
    """Tune workloads in their order; see `tune_file`."""
    from .budget import SharedBudget
    from .engine import Engine
    from .sessions import run_session

    for operator, workload in work:
        find_template(operator, placement.target, workload.dtype).check_dynamic(options.dynamic)
    budget = SharedBudget(options.budget_s)
    results: list[SessionResult] = []
    failed: NoCandidateError | None = None
    with Engine(placement, options, observer) as engine:
        for position, (operator, workload) in enumerate(work):
            try:
                result = run_session(engine, operator, workload, budget.share(len(work) - position))
            except NoCandidateError as error:
                failed = failed or error
                continue
            results.append(result)
            if result.is_measured and result.state is SessionState.COMPLETE:
                engine.store.forget_misses([workload.key], placement.target.name)
    if failed is not None:
        raise failed
    return results


def operator_of(line: ListedShape) -> Operator:
    """Raises `InputError`, which names the line."""
    try:
        return find_operator(line.kernel)
    except InputError as error:
        raise InputError(f"{line.origin}: {error}") from error


def workload_of(line: ListedShape, operator: Operator, target: Target) -> Workload:
    """The workload of a line on a target. Raises `InputError`, which names the line."""
    try:
        dtype = line.dtype or default_dtype(operator, target)
        workload = operator.workload_on(target, line.shape, dtype)
        find_template(operator, target, workload.dtype)
    except TileSightError as error:
        raise InputError(f"{line.origin}: {error}") from error
    return workload
