"""What is asked for beyond single shapes: a plan for a range of sizes, and tuning what dispatchers had no record of."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .errors import InputError, NoCandidateError, TileSightError
from .lookup import Shape, check_budget, default_dtype, find_effort, find_operator, find_template
from .observers import Observer
from .session import Effort, State
from .target import Target

if TYPE_CHECKING:
    from .known import Gain, Miss
    from .planning.result import Planned
    from .workload import Workload


def tune_misses(
    kernel: str | None = None,
    target: str | Target = "auto",
    *,
    limit: int | None = None,
    effort: str | Effort = Effort.QUICK,
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
    """Tune the workloads that dispatchers were really asked for and had no record of, the most costly first, and forget those
    that were tuned and measured.

    kernel   None: of all operators
    limit    how many at most; None: all

    The other arguments are those of `tune`. Returns what each brought, in order. Raises what `tune` raises; workloads of
    which nothing works are left where they are, and reported after the others were tuned.
    """
    from .known import Gain
    from .run import Run
    from .where import locate

    chosen = find_effort(effort)
    check_budget(budget_s)
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} must be at least 1; leave it out for all")
    operator_name = None if kernel is None else find_operator(kernel).name
    where = locate(target, measures=chosen is not Effort.PREDICT)
    end = None if budget_s is None else time.monotonic() + budget_s
    found: list[Gain] = []
    failed: TileSightError | None = None
    held = Run(where, database=database, layers=layers, workers=workers, seed=seed, sampler=sampler, protocol=protocol, observer=observer)
    with held as run:
        asked = run.misses(operator_name)[:limit]
        for position, miss in enumerate(asked):
            share = None if end is None else max(0.0, end - time.monotonic()) / (len(asked) - position)
            try:
                operator = find_operator(miss.workload.operator)
                open_dims = find_template(operator, where.target, miss.workload.dtype).check_open(dynamic)
                result = run.session(operator, miss.workload, chosen, share, open_dims)
            except (InputError, NoCandidateError) as error:  # one of another version, or beyond this target
                failed = failed or error
                continue
            found.append(Gain(miss, result))
            if result.is_measured and result.state is State.COMPLETE:
                run.forget(miss)
    if failed is not None:
        raise failed
    return found


def plan(
    kernel: str,
    vary: str,
    target: str | Target = "auto",
    shape: Shape | None = None,
    *,
    kernels: int = 8,
    dtype: str | None = None,
    shapes: int | None = None,
    effort: str | Effort = Effort.QUICK,
    budget_s: float | None = None,
    weights: Mapping[int, float] | str | None = None,
    static: bool = False,
    protocol: str = "default",
    database: str | None = None,
    layers: Sequence[str] | None = None,
    seed: int = 0,
    workers: int | None = None,
    observer: Observer | None = None,
) -> Planned:
    """Choose the few kernels that cover a range of sizes at the least loss, and say which size is served by which.

    Each kernel is built once and takes the varied dimension at run time. Configs are predicted over the whole range, the few
    that matter are built, and measured at sampled sizes where they may be the best; where no device of `target` is at hand all
    times are predicted, and the result says so. Everything is recorded: a second plan goes on from there.

    vary     the dimension and its range: `m=1..16384`
    shape    the other dimensions and attributes: `n=8192,k=8192`, a mapping, or a published name; None: those of the kernel's
             first default shape
    kernels  how many at most
    shapes   sampled sizes at most: half of them are spread over the range, the others lie where what is chosen by then serves sizes
             far from those. None: 48, or with `static` 24, all spread
    weights  how much single sizes count: a mapping from sizes to how often they are asked for, or `misses`: what dispatchers
             counted. None: every doubling of the size counts the same
    static   each size has a kernel of its own, built of the config that the table gives it: for templates whose kernels cannot
             take the dimension at run time

    The other arguments are those of `tune`. `Planned.table` is written by `tilesight.dispatch.table.write_table`. Raises `InputError`
    for what is asked wrongly, `NoCandidateError` where nothing works, `DatabaseError`, `ToolchainError`.
    """
    from .planning.planner import Wish
    from .planning.sizes import read_vary
    from .planning.subject import base_workload
    from .run import Run
    from .where import locate

    chosen = find_effort(effort)
    if chosen is Effort.EXHAUSTIVE:
        raise InputError("a plan cannot be exhaustive: take effort=full")
    check_budget(budget_s)
    shapes = shapes if shapes is not None else 24 if static else 48
    for name, value, most in (("kernels", kernels, 256), ("shapes", shapes, 1024)):
        if not 1 <= value <= most:
            raise InputError(f"{name}={value} must lie in 1 .. {most}")
    operator = find_operator(kernel)
    asked = read_vary(vary)
    where = locate(target, measures=chosen is not Effort.PREDICT)
    dtype = dtype or default_dtype(operator, where.target)
    template = find_template(operator, where.target, dtype)
    base = base_workload(template, asked, shape, dtype)
    with Run(where, database=database, layers=layers, workers=workers, seed=seed, protocol=protocol, observer=observer) as run:
        counts = weights
        if isinstance(counts, str):
            if counts != "misses":
                raise InputError(f"weights '{counts}' must be a mapping from sizes to weights, or `misses`")
            fixed = {name: value for name, value in base.dims.items() if name != asked.dim}
            counts = _asked_for(run.misses(operator.name), base, fixed, asked.dim)
            if not any(size in asked for size in counts):
                raise InputError(f"weights 'misses': none are recorded of {operator.name} with these dimensions; leave them out")
        return run.plan(template, base, asked, Wish(kernels, shapes, chosen, budget_s, seed, counts), static=static)


def _asked_for(misses: Sequence[Miss], base: Workload, fixed: Mapping[str, int], dim: str) -> dict[int, float]:
    """How much time each size took together that dispatchers were asked for, among workloads with these fixed dimensions; where
    no time is known, how often it was asked for."""
    ours = []
    for miss in misses:
        dims = dict(miss.workload.dims)
        size = dims.pop(dim)
        if (dims, dict(miss.workload.attrs), miss.workload.dtype) == (dict(fixed), dict(base.attrs), base.dtype):
            ours.append((size, miss))
    known = all(miss.expected_us for _, miss in ours)
    weights: dict[int, float] = {}
    for size, miss in ours:
        weights[size] = weights.get(size, 0.0) + (miss.cost_us if known else miss.count)
    return weights
