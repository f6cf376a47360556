"""Plans over m for the products of public models, by several processes on the GPUs of this machine.

Each process keeps its workers from plan to plan, and has a database of its own for what it measures. Profiles
go to one database that all processes share: n and k scale, so most configs of a plan are in it after the
first plans. Configs that a call without a GPU has chosen are in a file (`candidates.py`); a plan that has
them does not explore.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

from candidates import given_configs, pooled_configs, write_candidates

from tilesight.errors import TileSightError
from tilesight.planner.plan_options import GivenConfigs, PlanLimits
from tilesight.tuner.observers import Observer, Observers
from tilesight.workers import thread_limits

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    from tilesight.costmodel.model import CostModel
    from tilesight.database.store import Store
    from tilesight.executor.caching_executor import CachingExecutor
    from tilesight.machine.placement import Placement
    from tilesight.planner.plan_problem import PlanProblem
    from tilesight.planner.result import PlanResult

VARY = "m=1..16384"
PROFILES, MADE = "profiles.db", "made.jsonl"  # in the folder of the tables: shared, and when each was made
LEAST_S = 20.0  # for one more plan
THREADS = 2  # of the process that plans; its workers have one each
GRACE_S = 20.0  # after the limit, for kernels that are being timed
# half of what effort quick does, with 16 sizes. Of 26 configs the first 16 are enough (README.md); others are
# built if measurements speak for them.
LIMITS = PlanLimits(explore=192, promising=24, listed=16, measure=8, compare=4)
# configs lowered at each sampled size, by a call without a GPU that explores: at other sizes than those of
# the search, times of configs whose profiles follow no laws are interpolated
PROMISING = 8
CHOSEN = 26  # configs that a call without a GPU chooses
ENOUGH = 0.05  # expected loss at any size, above which a plan gets more kernels


@dataclass(frozen=True)
class PlanJob:
    """One plan: a matmul with m open."""

    target: str
    n: int
    k: int
    dtype: str
    layout: str

    @property
    def name(self) -> str:
        """Of the file of its table."""
        return f"matmul-{self.target}-{self.dtype}-{self.layout}-n{self.n}-k{self.k}.json"


@dataclass(frozen=True)
class PlanRun:
    """What all processes of a call share.

    Attributes:
        out: folder of the tables and databases.
        layers: databases of earlier calls.
        workers: of each process.
        sizes: sampled sizes of a plan.
        kernels: of a plan, at most: the second number if the first leaves an expected loss above
            `ENOUGH`, and so on.
        limits: how far a plan goes.
        plan_s: seconds of a plan, at most.
        end: of the call, by `time.time`.
        folders: of earlier calls, and `out`: they may have chosen configs.
        sister: a similar chip, whose plans and chosen configs are taken; empty: none.
        pools: whether plans without measurements choose among the kernels of all plans.
        measures: whether plans are made, on GPUs. Else their candidates are lowered and predicted only.
    """

    out: Path
    layers: tuple[str, ...]
    workers: int
    sizes: int
    kernels: tuple[int, ...]
    limits: PlanLimits
    plan_s: float
    end: float
    folders: tuple[Path, ...] = ()
    sister: str = ""
    pools: bool = False
    measures: bool = True


class Lowered(Observer):
    """Counts the candidates that a plan without measurements lowers."""

    def __init__(self) -> None:
        self.count = 0

    def advanced(self, count: int = 1) -> None:
        self.count += count


def run_all(
    work: Callable[..., None], jobs: Sequence[object], places: Sequence[Mapping[str, str]], run: PlanRun
) -> None:
    """Do the jobs by a process for each of `places`, the environments that show them a GPU each.

    Returns soon after the end of the call: processes that are still busy are ended then. A plan that has not
    ended leaves no table, and what it measured is in the database.

    Args:
        work: what a process does; gets the queue of jobs, its environment, `run` and its number.
        jobs: in their order.
        places: environments.
        run: the call.
    """
    run.out.mkdir(parents=True, exist_ok=True)
    os.environ.update(thread_limits(THREADS), TILESIGHT_SHIPPED="0")  # before the processes import numpy
    context = multiprocessing.get_context("spawn")
    queue: Queue[Any] = context.Queue()
    for job in jobs:
        queue.put(job)
    processes = [
        context.Process(target=work, args=(queue, dict(place), run, slot))
        for slot, place in enumerate(places)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(0.0, run.end + GRACE_S - time.time()))
    late = [process for process in processes if process.is_alive()]
    for process in late:
        process.kill()  # its workers end with it
        process.join()
    if late:
        print(f"{len(late)} processes were still busy and were ended", flush=True)
    queue.cancel_join_thread()


def make_plans(queue: Queue[PlanJob], environment: Mapping[str, str], run: PlanRun, slot: int) -> None:
    """What one process does: plans, until no time is left for a further one."""
    os.environ.update(environment)
    from tilesight.costmodel import default_model
    from tilesight.database import open_layers
    from tilesight.executor.caching_executor import CachingExecutor
    from tilesight.executor.local import LocalExecutor
    from tilesight.executor.profile_cache import ProfileCache
    from tilesight.machine.placement import locate
    from tilesight.settings import load_settings
    from tilesight.tuner.observers import Lines

    with ExitStack() as opened:
        log = opened.enter_context((run.out / f"plans{slot}.txt").open("a"))

        def say(text: str) -> None:
            print(f"{time.strftime('%H:%M:%S')} {text}", file=log, flush=True)

        measured = opened.enter_context(open_layers(str(run.out / f"plans{slot}.db"), run.layers))
        # no shipped session or plan is recalled, but a profile that ships need not be made again
        profiles = opened.enter_context(open_layers(str(run.out / PROFILES), run.layers, shipped=True))

        def with_new_cache(executor: LocalExecutor) -> CachingExecutor:
            # it has what other processes have stored meanwhile
            return CachingExecutor(executor, ProfileCache(profiles))

        executor, model = None, default_model()
        while run.end - time.time() > LEAST_S:
            try:
                job = queue.get(timeout=1.0)
            except Empty:
                return
            placement = locate(job.target, measures=run.measures)
            if executor is None:
                cache = load_settings().cache_dir
                executor = opened.enter_context(LocalExecutor(run.workers, cache, placement.gpus))
                executor.start(measures=bool(placement.devices))
            begin = time.monotonic()
            try:
                caching = partial(with_new_cache, executor)
                problem = problem_of(job, placement, model)
                plan = partial(find_plan, problem, model, caching, measured, run)
                if run.measures:
                    said = make_plan(job, plan, run, Lines(say), model.version)
                else:
                    said = lower_candidates(job, plan, run, Lines(say), model.version)
            except TileSightError as error:
                said = f"{type(error).__name__}: {error}"
            print(f"{time.monotonic() - begin:.1f} s  {job.name}: {said}", flush=True)


def lower_candidates(
    job: PlanJob,
    plan: Callable[[Observer, GivenConfigs | None, int], PlanResult],
    run: PlanRun,
    observer: Observer,
    model: str,
) -> str:
    """Choose the configs of a plan and write them, and lower what a plan with them needs.

    What is known of a similar chip, or the kernels of all plans, replace the exploration.
    """
    lowered, given = Lowered(), None
    if run.sister:
        given = given_configs(job, run.folders, run.sister)
    elif run.pools:
        given = pooled_configs(job, run.folders)
    found = plan(Observers((observer, lowered)), given, run.kernels[0])
    write_candidates(run.out, job.name, found.listed, model)
    return f"lowered {lowered.count}; {summary(found)}"


def make_plan(
    job: PlanJob,
    plan: Callable[[Observer, GivenConfigs | None, int], PlanResult],
    run: PlanRun,
    observer: Observer,
    model: str,
) -> str:
    """Make a plan, with more kernels if few are not enough, and write its table. Returns what is to be said
    of it."""
    from tilesight.dispatch.table.table_file import write_table

    given = given_configs(job, run.folders, run.sister, model)
    made, said = None, "no table"
    for kernels in run.kernels:
        left = run.end - time.time()
        found = plan(observer, given, kernels)  # with more kernels, what is measured is recalled
        if found.is_cut and left < run.plan_s:
            said = f"{said}, the limit came first ({summary(found)})"
            break
        said = summary(found)
        if found.is_measured:
            made = found
        if found.expected_worst <= ENOUGH:
            break
    if made is not None:
        write_table(made.table, run.out / job.name)
        note = {"table": job.name, "made": f"{datetime.now(UTC):%Y-%m-%d}", "summary": summary(made)}
        with (run.out / MADE).open("a") as file:
            file.write(json.dumps(note) + "\n")
    return said


def problem_of(job: PlanJob, placement: Placement, model: CostModel) -> PlanProblem:
    """The problem of a plan. It keeps the search spaces of its sizes, which take seconds in all."""
    from tilesight.kernels import template_for
    from tilesight.planner.plan_problem import PlanProblem, base_workload
    from tilesight.planner.sizes import read_vary
    from tilesight.records.protocol import MeasurementProtocol

    vary = read_vary(VARY)
    template = template_for("matmul", placement.target, job.dtype)
    shape = {"n": job.n, "k": job.k, "layout": job.layout}
    base = base_workload(template, placement.target, vary, shape, job.dtype)
    protocol = MeasurementProtocol.named("default", placement.target)
    return PlanProblem(template, placement, base, vary, (vary.dim,), protocol, model.version)


def find_plan(
    problem: PlanProblem,
    model: CostModel,
    caching: Callable[[], CachingExecutor],
    measured: Store,
    run: PlanRun,
    observer: Observer,
    given: GivenConfigs | None,
    kernels: int,
) -> PlanResult:
    """Plan, until the end of the call if it measures. Without `given` configs it explores."""
    from tilesight.planner.plan_options import PlanOptions
    from tilesight.planner.planner import Planner
    from tilesight.planner.record_sessions import PlanRecorder
    from tilesight.records.session import Effort

    # a plan of lowerings alone has no share of time for them
    budget_s = min(run.plan_s, run.end - time.time()) if run.measures else None
    limits = run.limits if run.measures else replace(run.limits, measure=0)
    if not run.measures and given is None:
        limits = replace(limits, promising=min(PROMISING, limits.promising))
    options = PlanOptions(kernels, run.sizes, Effort.QUICK, budget_s)
    session_options = options.session_options(problem.vary)
    recorder = PlanRecorder(problem, measured, options.effort, options.seed, session_options)
    observer.started(problem.label)
    return Planner(problem, options, model, caching(), recorder, observer, limits, given).run()


def summary(found: PlanResult) -> str:
    """A plan in one line."""
    worst = found.worst
    loss = f"mean {100 * found.mean_loss:.2f} %, worst {100 * worst.loss if worst else 0:.2f} %"
    expected = f"expected {100 * found.expected_mean:.2f} % and {100 * found.expected_worst:.2f} %"
    counts = f"predicted {found.looked_at}, built {found.built}, measured {found.measured}"
    counts += f", recalled {found.recalled}, compared {found.compared}, kernels {len(found.table.kernels)}"
    return f"{loss}; {expected}; {counts}{'; cut' if found.is_cut else ''}"
