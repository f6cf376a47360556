"""Runs a benchmark: one tuning session for each workload of each kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from ..api.budget import SharedBudget
from ..api.engine import Engine
from ..api.sessions import run_session
from ..errors import InputError, NoCandidateError
from ..kernels import operators, templates
from ..machine.placement import locate
from ..problem.operator import Operator
from ..problem.workload import Workload
from ..records.session import Effort
from ..target.spec import Target
from ..tuner.observers import Observer
from ..tuner.options import TuneOptions
from ..tuner.resolve import Shape, communicate, find_operator, find_workloads
from .table import BenchRow, BenchTable


def bench(
    kernels: Sequence[str] = (),
    target: str | Target | None = None,
    shape: Shape | Sequence[Shape] | None = None,
    *,
    dtype: str | None = None,
    effort: str | Effort | None = None,
    budget_s: float | None = None,
    database: str | None = None,
    workers: int | None = None,
    seed: int = 0,
    observer: Observer | None = None,
) -> BenchTable:
    """Tune workloads of several kernels, each beside the vendor's libraries, and return the table.

    `bench(["matmul:M0", "flash_attention"])` takes one shape of matmul and all of flash_attention.

    Workloads that are in the database are not tuned again. A workload that fails is a row with its reason.

    Args:
        kernels: names of operators, or `NAME:SHAPE` or `NAME:SHAPE:DTYPE` for one workload; empty: all
            operators that run on the target.
        target: as in `tilesight.tune`.
        shape: shapes of the kernel, if only one is named; None: all its published shapes.
        dtype: element type; None: the first that kernel and target support.
        effort: as in `tilesight.tune`.
        budget_s: wall-clock seconds for all sessions together.
        database: as in `tilesight.tune`.
        workers: processes that lower and build.
        seed: of the searches.
        observer: receives progress and messages.

    Raises:
        InputError: a name or shape is wrong.
    """
    options = TuneOptions.of(effort=effort, budget_s=budget_s, seed=seed, database=database, workers=workers)
    return run_bench(kernels, target, shape, dtype, options, observer, lambda _row: None)


def run_bench(
    kernels: Sequence[str],
    target: str | Target | None,
    shape: Shape | Sequence[Shape] | None,
    dtype: str | None,
    options: TuneOptions,
    observer: Observer | None,
    done: Callable[[BenchRow], None],
) -> BenchTable:
    """`bench` with its options as one value; `done` receives each row as it comes."""
    if shape is not None and (len(kernels) != 1 or ":" in kernels[0]):
        raise InputError("shapes belong to one kernel: name it, or leave the shapes out")
    named = [find_operator(text.partition(":")[0]) for text in kernels]
    placement = locate(target, measures=options.measures, communicates=communicate(named))
    work = _work(kernels, placement.target, shape, dtype)
    budget = SharedBudget(options.budget_s)
    rows: list[BenchRow] = []
    shares_time = options.budget_s is not None and len(work) > 1
    with Engine(placement, options, observer, measures=options.measures, shares_time=shares_time) as engine:
        for position, (kernel, workload) in enumerate(work):
            try:
                share = budget.share(len(work) - position)
                rows.append(BenchRow.of(run_session(engine, kernel, workload, share)))
            except NoCandidateError as error:
                rows.append(BenchRow(workload, "failed", message=str(error)))
            done(rows[-1])
    return BenchTable(
        target=placement.target.name,
        device=placement.device_name if any(row.is_measured for row in rows) else "",
        date=datetime.now(UTC).date().isoformat(),
        effort=options.effort.value,
        software=dict(placement.software),
        rows=tuple(rows),
    )


def _work(
    kernels: Sequence[str], target: Target, shape: Shape | Sequence[Shape] | None, dtype: str | None
) -> list[tuple[Operator, Workload]]:
    """The workloads, in order. Raises `InputError`."""
    names = kernels or [
        name
        for name in operators()
        if any(target.kind in t.target_kinds for t in templates(name))
        and not find_operator(name).communicates
    ]
    found = []
    for text in names:
        name, _, rest = text.partition(":")
        own_shape, _, own_dtype = rest.partition(":")
        kernel = find_operator(name)
        shapes = own_shape or (shape if shape is not None else list(kernel.named))
        found += [
            (kernel, workload) for workload in find_workloads(kernel, target, shapes, own_dtype or dtype)
        ]
    return found
