"""`recheck`: measure recorded winners of earlier software again, beside others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import InputError, ToolchainError
from ..target.spec import Target
from ..tuner.observers import Observer
from ..tuner.options import TuneOptions
from ..tuner.resolve import communicate, find_operator

if TYPE_CHECKING:
    from ..rechecking.due import DueWinner
    from ..rechecking.result import RecheckResult
    from ..tuner.request import Request


def recheck(
    kernel: str | Sequence[str] | None = None,
    target: str | Target | None = None,
    *,
    budget_s: float | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    database: str | None = None,
    layers: Sequence[str] | None = None,
    workers: int | None = None,
    protocol: str = "default",
    observer: Observer | None = None,
) -> RecheckResult:
    """Measure the recorded winners of other software again, each beside the default config and the model's
    first three, in turns.

    A winner is due if the database has it for this device and another driver, compiler, TileLang or TileSight
    and none for the present ones. It keeps its place unless another config is faster beyond the noise, or it
    no longer works. Each outcome is recorded as a session of the present context, so dispatchers find it.

    Args:
        kernel: Name of an operator, or several; None: all that the target takes.
        target: As for `tune`.
        budget_s: Wall-clock seconds; a later call goes on with what is left. None: that of the settings, else
            no limit.
        limit: Largest number of winners; None: all.
        dry_run: List what is due, and measure nothing. No device is needed.
        database, layers, workers, protocol, observer: As for `tune`.

    Returns:
        The outcome for each winner, most used first.

    Raises:
        InputError: an argument is wrong.
        DatabaseError: the database cannot be used.
        ToolchainError: no device of the target is here, or nothing can be built for it.
    """
    options = TuneOptions.of(
        budget_s=budget_s, database=database, layers=layers, workers=workers, protocol=protocol
    )
    names = [] if kernel is None else [kernel] if isinstance(kernel, str) else list(kernel)
    return recheck_winners(names, target, limit, dry_run, options, observer)


def recheck_winners(
    kernels: Sequence[str],
    target: str | Target | None,
    limit: int | None,
    dry_run: bool,
    options: TuneOptions,
    observer: Observer | None,
) -> RecheckResult:
    """`recheck` with its options as one value; no kernels: all."""
    from ..machine.placement import locate, named_target
    from ..rechecking.due import find_due
    from ..rechecking.loop import RecheckLoop
    from ..rechecking.result import Rechecked, RecheckResult
    from ..rechecking.verdict import RecheckOutcome, RecheckVerdict
    from ..tuner.request import make_request
    from .engine import Engine

    begin = time.monotonic()
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} must be at least 1; leave it out for all")
    operators = [find_operator(name) for name in kernels]
    communicates = communicate(operators) if operators else bool(named_target(target).levels)
    try:
        placement = locate(target, measures=True, predicts=False, communicates=communicates)
    except ToolchainError:
        if not dry_run:
            raise
        placement = locate(target, measures=False, predicts=False, communicates=communicates)
    if not placement.devices and not dry_run:
        raise ToolchainError(
            f"a recheck measures: {placement.messages[0]}; --dry-run lists the recorded winners"
        )
    messages = placement.messages if placement.devices else ()
    with Engine(placement, options, observer) as engine:
        names = {operator.name for operator in operators} or None
        due = find_due(engine.store, placement, engine.model.version, engine.protocol, names)
        winners = due.winners[:limit]
        engine.observer.started(f"recheck of {len(winners)} recorded winners on {placement.target.title}")
        for note in (*messages, *due.left_out):
            engine.observer.message(note)
        if dry_run or not winners:
            listed = RecheckVerdict(RecheckOutcome.DUE, "nothing was measured (--dry-run)")
            found = [Rechecked(winner, listed) for winner in winners]
        else:

            def request_of(winner: DueWinner) -> Request:
                mine = replace(options, dynamic=winner.dynamic, budget_s=None)
                return make_request(winner.template, winner.workload, placement, engine.model.version, mine)

            executor = engine.caching_executor()
            left_s = None
            if options.budget_s is not None:
                left_s = max(0.0, options.budget_s - (time.monotonic() - begin))
            found = RecheckLoop(
                winners, request_of, engine.model, executor, engine.store, engine.observer, left_s
            ).run()
    return RecheckResult(
        placement.target.name,
        placement.device_name,
        tuple(found),
        len(due.winners),
        due.current,
        time.monotonic() - begin,
        (*messages, *due.left_out),
    )
