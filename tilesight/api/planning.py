"""`plan`: choose the few kernels that cover a range of sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..records.session import Effort
from ..records.shapes_file import read_shapes
from ..target.spec import Target
from ..tuner.observers import Observer
from ..tuner.options import TuneOptions
from ..tuner.resolve import Shape, default_dtype, find_operator, find_template
from .misses import find_misses
from .shapes_files import operator_of, workload_of

if TYPE_CHECKING:
    from ..planner.plan_problem import PlanProblem
    from ..planner.result import PlanResult
    from ..problem.operator import Operator
    from ..problem.workload import Workload
    from ..records.winners import Miss
    from .engine import Engine

SHAPES, SHAPES_STATIC = 48, 24  # sampled sizes where none are given


def plan(
    kernel: str,
    vary: str,
    target: str | Target | None = None,
    shape: Shape | None = None,
    *,
    kernels: int = 8,
    dtype: str | None = None,
    world: int | None = None,
    shapes: int | None = None,
    effort: str | Effort | None = None,
    budget_s: float | None = None,
    weights: Mapping[int, float] | str | None = None,
    static: bool = False,
    protocol: str = "default",
    database: str | None = None,
    layers: Sequence[str] | None = None,
    seed: int = 0,
    workers: int | None = None,
    observer: Observer | None = None,
) -> PlanResult:
    """Choose the few kernels that cover a range of sizes at the least loss, and which kernel serves which
    size.

    Each kernel is built once and takes the varied dimension at run time. Configs are predicted over the whole
    range; the few that matter are built, and measured at sampled sizes where they may be the best. Without a
    device of `target` all times are predicted, and the result says so. All results are recorded: a second
    plan continues from them.

    Args:
        kernel: Name of an operator.
        vary: The dimension and its range: `m=1..16384`.
        target: As for `tune`.
        shape: The other dimensions and attributes: `n=8192,k=8192`, a mapping, or a published name; None:
            those
            of the kernel's first default shape.
        kernels: Largest number of kernels.
        shapes: Largest number of sampled sizes. Half of them are spread over the range; the others lie where
            the choice made by then serves sizes far from the sampled ones. None: 48, or 24 with `static`, all
            spread.
        weights: How much single sizes count: a mapping from sizes to how often they occur, `misses` for the
            counts of dispatchers, or the path of a shapes file, whose lines with the other dimensions count.
            None: every doubling of the size counts the same.
        static: Each size has a kernel of its own, built of the config that the table gives it. For templates
            whose kernels cannot take the dimension at run time.
        dtype, world, effort, budget_s, protocol, database, layers, seed, workers, observer: As for `tune`.

    Returns:
        The plan; `tilesight.write_table` writes its `table`.

    Raises:
        InputError: an argument is wrong.
        NoCandidateError: nothing works.
        DatabaseError: the database cannot be used.
        ToolchainError: a device is present and nothing can be built for it.
    """
    options = TuneOptions.of(
        effort=effort,
        budget_s=budget_s,
        seed=seed,
        protocol=protocol,
        database=database,
        layers=layers,
        workers=workers,
    )
    return plan_range(
        kernel, vary, target, shape, kernels, dtype, shapes, weights, static, options, observer, world
    )


def plan_range(
    kernel: str,
    vary: str,
    target: str | Target | None,
    shape: Shape | None,
    kernels: int,
    dtype: str | None,
    shapes: int | None,
    weights: Mapping[int, float] | str | None,
    static: bool,
    options: TuneOptions,
    observer: Observer | None,
    world: int | None = None,
) -> PlanResult:
    """`plan` with the options of its sessions as one value."""
    from ..machine.placement import locate, target_of_world
    from ..planner.plan_options import PLAN_LIMITS, PlanOptions
    from ..planner.plan_problem import PlanProblem, base_workload, dynamic_choice, takes_size
    from ..planner.planner import Planner
    from ..planner.record_sessions import PlanRecorder
    from ..planner.sizes import read_vary, size_step
    from .engine import Engine

    if options.effort not in PLAN_LIMITS:
        known = ", ".join(PLAN_LIMITS)
        raise InputError(f"a plan has no effort '{options.effort}': take one of {known}")
    shapes = shapes if shapes is not None else SHAPES_STATIC if static else SHAPES
    for name, value, most in (("kernels", kernels, 256), ("shapes", shapes, 1024)):
        if not 1 <= value <= most:
            raise InputError(f"{name}={value} must lie in 1 .. {most}")
    operator = find_operator(kernel)
    varied = read_vary(vary)
    placement = locate(
        target if world is None else target_of_world(target, world),
        measures=options.measures,
        communicates=operator.communicates,
    )
    dtype = dtype or default_dtype(operator, placement.target)
    template = find_template(operator, placement.target, dtype)
    base = base_workload(template, placement.target, varied, shape, dtype)
    takes = partial(takes_size, base, operator, varied.dim)
    varied = replace(varied, step=size_step(takes, varied, placement.target.world))
    with Engine(placement, options, observer) as engine:
        counts = weights
        if isinstance(counts, str):
            counts = _named_weights(counts, engine, operator, base, varied.dim)
            if not any(size in varied for size in counts):
                raise InputError(
                    f"weights '{weights}': none are recorded of {operator.name} with these dimensions; "
                    "leave them out"
                )
        chosen = PlanOptions(kernels, shapes, options.effort, options.budget_s, options.seed, counts)
        dynamic = dynamic_choice(template, varied, static)
        problem = PlanProblem(
            template, placement, base, varied, dynamic, engine.protocol, engine.model.version
        )
        engine.observer.started(f"{problem.label} on {placement.target.title}: {kernels} kernels")
        for note in (*placement.messages, *_shipped_note(engine, problem)):
            engine.observer.message(note)
        recorder = PlanRecorder(
            problem, engine.store, chosen.effort, chosen.seed, chosen.session_options(varied)
        )
        planner = Planner(problem, chosen, engine.model, engine.caching_executor(), recorder, engine.observer)
        return planner.run()


def _shipped_note(engine: Engine, problem: PlanProblem) -> Iterator[str]:
    """That a plan of this range ships with TileSight."""
    archive = engine.store.shipped.plans
    first, last = problem.context(problem.vary.first), problem.context(problem.vary.last)
    for shipped in archive.plans if archive else ():
        if shipped.fits(first) and all(shipped.covers(at.workload) for at in (first, last)):
            shape = ",".join(f"{name}={size}" for name, size in shipped.fixed.items())
            yield (
                f"{shipped.origin}, covers this range: `tilesight db plans {shipped.operator} --target "
                f"{shipped.target} --shape {shape} --out FILE` writes its table"
            )


def _named_weights(
    named: str, engine: Engine, operator: Operator, base: Workload, dim: str
) -> dict[int, float]:
    """How much each size of `dim` counts, from misses or a shapes file.

    Raises `InputError` for a file that cannot be read, or with a wrong line.
    """
    if named == "misses":
        return _miss_weights(find_misses(engine, operator.name), base, dim)
    if not Path(named).is_file():
        raise InputError(
            f"weights '{named}' must be a mapping from sizes to weights, `misses`, or the path of a shapes "
            "file"
        )
    lines = [line for line in read_shapes(Path(named)) if operator_of(line).name == operator.name]
    target = engine.placement.target
    return _alike(
        [
            (workload_of(line, operator, target), 1.0 if line.weight is None else line.weight)
            for line in lines
        ],
        base,
        dim,
    )


def _miss_weights(misses: Sequence[Miss], base: Workload, dim: str) -> dict[int, float]:
    """How much each size of `dim` counts, from the misses that share the other dimensions of `base`.

    The weight of a size is the time that its calls took together or, if one of these times is not known,
    their number.
    """
    counted = [miss for miss in misses if _alike([(miss.workload, 1.0)], base, dim)]
    is_timed = all(miss.expected_us for miss in counted)
    return _alike([(m.workload, m.cost_us if is_timed else m.count) for m in counted], base, dim)


def _alike(weighted: Sequence[tuple[Workload, float]], base: Workload, dim: str) -> dict[int, float]:
    """The sums of the weights of those that differ from `base` in `dim` alone, by size."""
    fixed = {name: size for name, size in base.dims.items() if name != dim}
    found: dict[int, float] = {}
    for workload, weight in weighted:
        dims = dict(workload.dims)
        size = dims.pop(dim)
        if (dims, dict(workload.attrs), workload.dtype) == (fixed, dict(base.attrs), base.dtype):
            found[size] = found.get(size, 0.0) + weight
    return found
