"""`tune_misses`: tune the workloads that dispatchers were called with and had no record of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import InputError, NoCandidateError, TileSightError
from ..records.session import Effort, SessionState
from ..target.spec import Target
from ..tuner.observers import Observer
from ..tuner.options import TuneOptions
from ..tuner.resolve import find_operator

if TYPE_CHECKING:
    from ..records.winners import Gain, Miss
    from .engine import Engine


def tune_misses(
    kernel: str | None = None,
    target: str | Target | None = None,
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
    observer: Observer | None = None,
) -> list[Gain]:
    """Tune the workloads that dispatchers were called with and had no record of, the most costly first.

    A workload that was tuned and measured is no longer a miss.

    Args:
        kernel: Name of an operator; None: all operators.
        target: As for `tune`.
        limit: Largest number of workloads; None: all.
        effort, budget_s, database, layers, seed, workers, sampler, protocol, dynamic, observer: As for
            `tune`.

    Returns:
        What tuning brought for each workload, in order.

    Raises:
        TileSightError: what `tune` raises. A workload of which nothing works stays a miss, and its error is
            raised after the others were tuned.
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
    )
    return tune_missed_workloads(kernel, target, limit, options, observer)


def tune_missed_workloads(
    kernel: str | None,
    target: str | Target | None,
    limit: int | None,
    options: TuneOptions,
    observer: Observer | None,
) -> list[Gain]:
    """`tune_misses` with its options as one value."""
    from ..machine.placement import locate
    from ..records.winners import Gain
    from .budget import SharedBudget
    from .engine import Engine
    from .sessions import run_session

    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} must be at least 1; leave it out for all")
    operator_name = None if kernel is None else find_operator(kernel).name
    placement = locate(target, measures=options.measures)
    budget = SharedBudget(options.budget_s)
    found: list[Gain] = []
    failed: TileSightError | None = None
    with Engine(placement, options, observer) as engine:
        misses = find_misses(engine, operator_name)[:limit]
        for position, miss in enumerate(misses):
            try:
                operator = find_operator(miss.workload.operator)
                result = run_session(engine, operator, miss.workload, budget.share(len(misses) - position))
            except (InputError, NoCandidateError) as error:  # of another version, or not for this target
                failed = failed or error
                continue
            found.append(Gain(miss, result))
            if result.is_measured and result.state is SessionState.COMPLETE:
                engine.store.forget_misses([miss.workload.key], miss.target)
    if failed is not None:
        raise failed
    return found


def find_misses(engine: Engine, operator: str | None) -> list[Miss]:
    """Misses on the engine's target, most costly first; on a machine that measures, those of its device.

    `operator` is a name; None: all operators.
    """
    device = engine.placement.device
    found = engine.store.misses(operator, engine.placement.target.name)
    return [miss for miss in found if device is None or miss.device in ("", device.name)]
