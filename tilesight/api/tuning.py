"""`tune` and `rank`: search the fastest config of a kernel for each of several workloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import InputError, NoCandidateError
from ..records.session import Effort, SessionResult
from ..settings import load_settings
from ..target.spec import Target
from ..tuner.observers import Observer
from ..tuner.options import TuneOptions
from ..tuner.resolve import Shape, find_operator, find_template, find_workloads

if TYPE_CHECKING:
    from ..problem.operator import Operator
    from ..problem.workload import Workload


def tune(
    kernel: str,
    target: str | Target | None = None,
    shape: Shape | Sequence[Shape] | None = None,
    *,
    dtype: str | None = None,
    world: int | None = None,
    effort: str | Effort | None = None,
    budget_s: float | None = None,
    database: str | None = None,
    layers: Sequence[str] | None = None,
    seed: int = 0,
    workers: int | None = None,
    sampler: str = "tpe",
    protocol: str = "default",
    cluster: str | None = None,
    dynamic: str | Sequence[str] = (),
    remeasure: bool = False,
    observer: Observer | None = None,
) -> list[SessionResult]:
    """Search the fastest config of `kernel` for each workload, and record all results.

    Candidates are lowered and predicted. Where a device of `target` is present, the best are built, checked,
    measured and compared with the vendor's library; otherwise the result is the predicted ranking, marked as
    predicted. An identical call answers from the database; an interrupted call continues.

    Args:
        kernel: Name of an operator; `tilesight kernels` lists them.
        target: Name of a shipped target, path of a target file, a `Target`, or `auto` for the GPU found here;
            None: that of the settings (`TILESIGHT_TARGET`, a settings file), else `auto`.
        shape: A published name (`M0`), `k=v,...`, a mapping of dimensions, or several of these; None: the
            operator's default shapes.
        dtype: Element type; None: the first that kernel and target support.
        world: Number of devices that run a kernel together, where it communicates: 4 with target `h100` means
            target `h100x4`; None: those of the target.
        effort: `glance`, `predict`, `build`, `quick`, `full` or `exhaustive`; None: that of the settings,
            else `quick`.
        budget_s: Wall-clock seconds for the whole call. When they are spent, no new candidate starts. None:
            that of the settings, else no limit.
        database: SQLAlchemy URL or path of an SQLite file; None: `TILESIGHT_DB`, or a file in the user's data
            directory.
        layers: SQLite files or URLs of read-only databases below it, the first on top; None:
            `TILESIGHT_LAYERS`.
        seed: Seed of the search.
        workers: Processes that lower and build; None: `TILESIGHT_WORKERS`, or one a core.
        sampler: Name of an Optuna sampler.
        protocol: Conditions of the measurements, a key of `tilesight.records.protocol.PROTOCOLS`.
        cluster: A Ray cluster that lowers, builds and measures in place of this machine: `auto`, `local`,
            host:port or ray://host:port. `workers` then limits the cores that are used.
        dynamic: Dimensions that the kernels take at run time (`m`, or several): one kernel serves all their
            values. It is tuned at the given shapes.
        remeasure: Take recorded measurements again instead of answering from the database.
        observer: Receives progress and messages.

    Returns:
        One result a workload, in order.

    Raises:
        InputError: an argument is wrong.
        NoCandidateError: nothing is legal, or nothing works, for one of the workloads; the others are tuned
            first.
        DatabaseError: the database cannot be used.
        ToolchainError: a device is present and nothing can be built for it.
        KeyboardInterrupt: all finished work is in the database.
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
        cluster=cluster,
        remeasure=remeasure,
    )
    return tune_shapes(kernel, target, shape, dtype, options, observer, world)


def rank(
    kernel: str,
    target: str | Target | None = None,
    shape: Shape | Sequence[Shape] | None = None,
    *,
    dtype: str | None = None,
    world: int | None = None,
    effort: str | Effort = Effort.PREDICT,
    budget_s: float | None = None,
    database: str | None = None,
    layers: Sequence[str] | None = None,
    seed: int = 0,
    workers: int | None = None,
    observer: Observer | None = None,
) -> list[SessionResult]:
    """`tune` with the model alone: nothing is built or measured, and no device is needed.

    Args:
        world: As of `tune`.
        effort: `predict`, or `glance` for an answer in seconds.

    Raises:
        InputError: the effort builds or measures, or what `tune` raises.
    """
    options = TuneOptions.of(
        effort=effort,
        budget_s=budget_s,
        seed=seed,
        database=database,
        layers=layers,
        workers=workers,
    )
    if options.effort.builds:
        raise InputError(f"rank builds and measures nothing: effort '{options.effort}' is one of tune")
    return tune_shapes(kernel, target, shape, dtype, options, observer, world)


def tune_shapes(
    kernel: str,
    target: str | Target | None,
    shape: Shape | Sequence[Shape] | None,
    dtype: str | None,
    options: TuneOptions,
    observer: Observer | None,
    world: int | None = None,
) -> list[SessionResult]:
    """`tune` with its options as one value."""
    from ..machine.placement import locate, target_of_world
    from .budget import SharedBudget
    from .engine import Engine
    from .sessions import run_session

    operator = find_operator(kernel)
    if options.cluster is not None and (target or load_settings().target) == "auto":
        raise InputError("target 'auto' means the GPU of this machine; name the target of the cluster")
    if options.cluster is not None and operator.communicates and options.measures:
        raise InputError(
            f"a cluster measures kernels of one GPU, and {operator.name} runs on several: run it on that host"
        )
    placement = locate(
        target if world is None else target_of_world(target, world),
        measures=options.measures and options.cluster is None,
        communicates=operator.communicates,
    )
    workloads = find_workloads(operator, placement.target, shape, dtype)
    for workload in workloads:
        find_template(operator, placement.target, workload.dtype).check_dynamic(options.dynamic)
    check_hosts(operator, placement.target, workloads)
    budget = SharedBudget(options.budget_s)
    results: list[SessionResult] = []
    failed: NoCandidateError | None = None
    shares_time = options.budget_s is not None and len(workloads) > 1
    with Engine(placement, options, observer, measures=options.measures, shares_time=shares_time) as engine:
        for position, workload in enumerate(workloads):
            try:
                share = budget.share(len(workloads) - position)
                results.append(run_session(engine, operator, workload, share))
            except NoCandidateError as error:
                failed = failed or error
    if failed is not None:
        raise failed
    return results


def check_hosts(operator: Operator, target: Target, workloads: Sequence[Workload]) -> None:
    """Raise `InputError` if a target of several hosts lacks figures of the library's collectives.

    All candidates have one there, so none could be predicted.
    """
    from ..costmodel.network.collectives import predict_collective
    from ..problem.group_operator import GroupOperator

    if not isinstance(operator, GroupOperator) or target.unreached is None:
        return
    for workload in workloads:
        collective = operator.vendor_collective(workload)
        for one in (collective, *collective.others):
            predict_collective(target, one.name, one.size_bytes)
