"""The Python interface: `tune`, `tune_misses`, `plan`, `rank`, `predict` and `explain`. The command line is a thin skin on it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .asked import plan, tune_misses
from .errors import InputError, NoCandidateError, headline
from .lookup import Shape, check_budget, find_effort, find_operator, find_template, find_workloads
from .observers import Observer
from .session import Effort, SessionResult
from .space import Config, Value
from .target import Target
from .trial import Prediction

__all__ = ["explain", "plan", "predict", "rank", "tune", "tune_misses"]

if TYPE_CHECKING:
    from .explanation import Explanation


def tune(
    kernel: str,
    target: str | Target = "auto",
    shape: Shape | Sequence[Shape] | None = None,
    *,
    dtype: str | None = None,
    effort: str | Effort = Effort.QUICK,
    budget_s: float | None = None,
    database: str | None = None,
    layers: Sequence[str] | None = None,
    seed: int = 0,
    workers: int | None = None,
    sampler: str = "tpe",
    protocol: str = "default",
    cluster: str | None = None,
    dynamic: str | Sequence[str] = (),
    observer: Observer | None = None,
) -> list[SessionResult]:
    """Search the fastest config of `kernel` for each workload, and record all that was learned.

    Candidates are lowered and predicted; where a device of `target` is at hand the best are built, checked, measured and
    compared with the vendor's library, else the result is the predicted ranking, marked so. An identical call answers
    from the database, an interrupted one goes on.

    kernel    an operator's name, see `tilesight kernels`
    target    a shipped target's name, the path of a target file, a `Target`, or `auto`: that of the GPU found
    shape     a published name (`M0`), `k=v,...`, a mapping of dimensions, or several of these; None: the default set
    budget_s  wall-clock seconds for the whole call; it stops asking then, finishes what runs, and says so
    database  a SQLAlchemy URL or the path of an SQLite file; None: `TILESIGHT_DB`, or one in the user's data folder
    layers    SQLite files or URLs of read-only databases below it, the first on top; None: `TILESIGHT_LAYERS`
    workers   processes that lower and build; None: `TILESIGHT_WORKERS`, or one a core
    protocol  conditions of the measurements, see `tilesight.protocol.PROTOCOLS`: `default` or `serving`
    cluster   a Ray cluster that lowers, builds and measures in place of this machine: `auto`, `local`, host:port or
              ray://host:port; `workers` is then the most of its cores that are used
    dynamic   dimensions that the kernels take at run time (`m`, or several): one kernel for all their values, tuned for
              its use at the shapes that are given

    Returns one result a workload, in order. Raises `InputError` for what is asked wrongly, `NoCandidateError` where
    nothing is legal or nothing works for one of the workloads (the others are tuned first), `DatabaseError`,
    `ToolchainError`. On `KeyboardInterrupt` all finished work is in the database.
    """
    from .run import Run
    from .where import locate

    chosen = find_effort(effort)
    check_budget(budget_s)
    operator = find_operator(kernel)
    if cluster is not None and target == "auto":
        raise InputError("target 'auto' means the GPU of this machine; name the target of the cluster")
    measures = chosen is not Effort.PREDICT
    where = locate(target, measures=measures and cluster is None)
    workloads = find_workloads(operator, where.target, shape, dtype)
    open_dims: tuple[str, ...] = ()
    for workload in workloads:
        open_dims = find_template(operator, where.target, workload.dtype).check_open(dynamic)
    end = None if budget_s is None else time.monotonic() + budget_s
    results: list[SessionResult] = []
    failed: NoCandidateError | None = None
    run = Run(
        where,
        database=database,
        layers=layers,
        workers=workers,
        seed=seed,
        sampler=sampler,
        protocol=protocol,
        cluster=cluster,
        measures=measures,
        observer=observer,
    )
    with run:
        for position, workload in enumerate(workloads):
            share = None if end is None else max(0.0, end - time.monotonic()) / (len(workloads) - position)
            try:
                results.append(run.session(operator, workload, chosen, share, open_dims))
            except NoCandidateError as error:
                failed = failed or error
    if failed is not None:
        raise failed
    return results


def rank(
    kernel: str,
    target: str | Target = "auto",
    shape: Shape | Sequence[Shape] | None = None,
    *,
    dtype: str | None = None,
    budget_s: float | None = None,
    database: str | None = None,
    layers: Sequence[str] | None = None,
    seed: int = 0,
    workers: int | None = None,
    observer: Observer | None = None,
) -> list[SessionResult]:
    """`tune` with the model alone: nothing is built or measured, and no device is needed."""
    return tune(
        kernel,
        target,
        shape,
        dtype=dtype,
        effort=Effort.PREDICT,
        budget_s=budget_s,
        database=database,
        layers=layers,
        seed=seed,
        workers=workers,
        observer=observer,
    )


def predict(prim_func: Any, target: str | Target) -> Prediction:
    """The predicted time of any TileLang kernel: a PrimFunc with static shapes, or what `tilelang.compile` made of one
    (which is lowered with the pass options that it was compiled with).

    Lowers in this process, needs no GPU. Raises `InputError` where it is no such function, cannot be read or does not
    fit the target, or where TileLang refuses to lower it (its own error is the cause).
    """
    from .costmodel import default_model
    from .costmodel.profile import read_profiles
    from .lowering import lower
    from .where import locate

    chosen = locate(target, measures=False).target
    function = getattr(prim_func, "prim_func", prim_func)
    if type(function).__name__ != "PrimFunc":
        found = type(prim_func).__name__
        found = f"{'an' if found[0] in 'AEIOUaeiou' else 'a'} {found}"
        if hasattr(prim_func, "get_tir"):  # what @tilelang.jit makes of a factory
            raise InputError(f"predict takes a TileLang PrimFunc, not {found}; give it <kernel>.get_tir(<its arguments>) or .compile(...)")
        raise InputError(f"predict takes a TileLang PrimFunc, not {found}; call the kernel's factory first")
    # a compiled kernel was lowered with options of its own
    options = getattr(prim_func, "pass_configs", None)
    try:
        lowered = lower(function, chosen, options)
    except Exception as error:  # TileLang raises whatever it likes
        raise InputError(f"TileLang cannot lower this kernel for {chosen.name}: {type(error).__name__}: {headline(str(error))}") from error
    try:
        return default_model().predict(read_profiles(lowered, chosen), chosen)
    except Exception as error:  # any IR may come here
        raise InputError(f"this kernel cannot be predicted for {chosen.name}: {headline(str(error))}") from error


def explain(
    kernel: str,
    target: str | Target = "auto",
    shape: Shape | None = None,
    *,
    config: str | Mapping[str, Value] | None = None,
    dtype: str | None = None,
    measured: str | Path | Sequence[str | Path] | None = None,
    database: str | None = None,
    layers: Sequence[str] | None = None,
    workers: int | None = None,
    observer: Observer | None = None,
) -> Explanation:
    """What limits a config and by how much, why it loses to the best that is known, and how sure the model is.

    Without `config` the best itself is explained: the fastest measured where a complete session on this machine's
    device is in the database, else the one predicted fastest, for which the space is ranked first where it never was.
    `measured` names datasets (files or folders) whose rows stand in place of the database: their times, profiles and
    hardware counters. Raises `InputError` where they have no row of the workload.
    """
    from .explanation import explain as compare
    from .explanation import find_steps, measured_rows
    from .run import Run
    from .where import locate

    operator = find_operator(kernel)
    where = locate(target, measures=False)
    workload = find_workloads(operator, where.target, shape, dtype)[0]
    template = find_template(operator, where.target, workload.dtype)
    space = template.space(workload, where.target)
    rows = None if measured is None else measured_rows(measured, workload, where.target, template.version)
    wanted: Config | None = None
    if config is not None:
        wanted = space.read(config) if isinstance(config, str) else Config(config)
        if rows is None or wanted not in rows.times_us:
            space.check(wanted)
    with Run(where, database=database, layers=layers, workers=workers, observer=observer) as run:
        if rows is not None:
            best, times = rows.best, dict[Config, float | None](rows.times_us)
        else:
            result = run.best_known(operator, workload)
            assert result.best is not None  # a session without one raises
            best, times = result.best.config, {t.config: t.measured_us for t in result.trials}
        shown = list(dict.fromkeys([wanted or best, best]))
        views = run.views(template, workload, shown, times, rows)
        notes = []
        if rows is not None and rows.template_version != template.version:
            measured_code = {config: rows.fingerprints.get(config) for config in shown if config in rows.times_us}
            today = run.fingerprints(template, workload, list(measured_code))
            if any(code is None or code != today.get(config) for config, code in measured_code.items()):
                notes.append(f"the rows were measured with another version of {template.name}, whose code was not today's")
        if len(views) == 1:
            return compare(workload, where.target, views[0], None, (), notes)
        this, other = (v.prediction for v in views)
        steps = find_steps((wanted or best, this), (best, other), space, partial(run.predictions, template, workload), times)
        if notes and steps:
            notes[0] += "; the steps are predicted for today's"
    return compare(workload, where.target, views[0], views[1], steps, notes)
