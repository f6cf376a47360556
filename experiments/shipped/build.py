"""Makes the files that ship with TileSight: sessions of published workloads, and their profiles.

    python experiments/shipped/build.py tune --out parts --targets h200,a100,mi300x
    python experiments/shipped/build.py lower --out lowered
    python experiments/shipped/build.py plan --have lowered --out plans
    python experiments/shipped/build.py pack parts/*.db plans/profiles.db --plans plans
    python experiments/shipped/build.py check

`tune` runs a session for each workload and target, in a process for each GPU found here. Where there is no
GPU of a target, candidates are lowered and predicted only, and their profiles are what is wanted. Each
process has a database in the folder `--out`. `--layers` has those of earlier calls: their sessions answer,
and sessions that the time limit interrupted are continued. `plan` makes plans over m for the products of
public models, with several processes for each GPU; `--have` has the folders of earlier calls, which it goes
on from. `lower` chooses the configs of these plans without a GPU, and lowers them: with its folder
after `--have`, plans explore nothing, and the machine with the GPU builds and measures. `--sister` names a
similar chip: the kernels of its plans come first, and the model chooses others among those of `lower` for it.
With `--pool`, `lower` explores nothing, either: it chooses among the kernels of all plans that are known.

`pack` writes `database/shipped.db`, with the measured candidates of complete sessions,
`database/profiles.zip` and `database/plans.zip`. The sessions and plans that ship already stay, unless there
is a newer one of the same workload and card. So do profiles, if the present code read them.
`check` counts what the present code can use: profiles are of one version of the code that makes them, and
sessions and plans of one version of their template.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sqlite3
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update

from tilesight.costmodel import default_model
from tilesight.database.schema import tables as schema
from tilesight.database.shipped import PROFILES, SESSIONS, ProfileArchive, write_archive
from tilesight.database.shipped_plans import PLANS, PlanArchive, ShippedPlan, plan_of, write_plans
from tilesight.database.store import Store, open_store
from tilesight.errors import UnknownNameError
from tilesight.executor.profile_cache import reader_version
from tilesight.kernels import operator, operators, templates
from tilesight.machine.devices import find_devices, restricted_to
from tilesight.planner.record_sessions import OPTIONS
from tilesight.profile.parametric import ParametricProfile, ProfileKey
from tilesight.records.recorded_session import RecordedSession
from tilesight.records.session import SessionState
from tilesight.records.trial import TrialRecord
from tilesight.settings import available_cores

sys.path.insert(0, str(Path(__file__).resolve().parent))

from candidates import PACKAGE, chosen_configs, given_configs, predicted_loss
from models import shapes
from plans import CHOSEN, LIMITS, MADE, PlanJob, PlanRun, make_plans, run_all
from refresh_profiles import archive_keys

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

LEAST_S = 30.0  # for one more session
NO_LIBRARY = "(not shipped)"  # in place of the path of a built kernel


@dataclass(frozen=True)
class Job:
    """One session."""

    target: str
    kernel: str
    shape: str


def jobs(targets: Sequence[str], only: Sequence[str], *, every: bool) -> list[Job]:
    """The default workloads of all operators of one GPU, or `every` published one, or those of `only`; the
    first ones of all operators first, since a limit may cut the end of the list."""
    found: list[tuple[int, Job]] = []
    for entry in only or [name for name in operators() if not operator(name).communicates]:
        name, _, shape = entry.partition(":")  # OPERATOR, or OPERATOR:SHAPE
        one = operator(name)
        if shape and shape not in one.named:
            raise UnknownNameError(f"{name} workload", shape, one.named)
        shapes = [shape] if shape else list(one.named if every else one.default_names)
        for target in targets:
            found += [(position, Job(target, name, each)) for position, each in enumerate(shapes)]
    return [job for _, job in sorted(found, key=itemgetter(0))]


def run_sessions(queue: Queue[Job], out: Path, environment: Mapping[str, str], given: Any, slot: int) -> None:
    """What one process does: sessions, until no time is left for a further one. Those of a target share its
    engine, so that its workers start once."""
    os.environ.update(environment)
    from tilesight.api.engine import Engine
    from tilesight.api.sessions import run_session
    from tilesight.errors import TileSightError
    from tilesight.machine.placement import locate
    from tilesight.tuner.options import TuneOptions
    from tilesight.tuner.resolve import find_workloads

    database, layers = str(out / f"part{slot}.db"), tuple(given.layers)
    options = TuneOptions.of(effort=given.effort, database=database, layers=layers, workers=given.workers)
    engines: dict[str, Engine] = {}
    with ExitStack() as opened:
        while (left := given.end - time.time()) > LEAST_S:
            try:
                job = queue.get_nowait()
            except Empty:
                return
            begin = time.monotonic()
            try:
                if job.target not in engines:
                    placement = locate(job.target, measures=options.measures)
                    engines[job.target] = opened.enter_context(Engine(placement, options, shares_time=True))
                engine, one = engines[job.target], operator(job.kernel)
                [workload] = find_workloads(one, engine.placement.target, job.shape, None)
                said = run_session(engine, one, workload, min(given.session_s, left)).summary
            except TileSightError as error:
                said = f"{job}: {error}"
            print(f"{time.monotonic() - begin:.1f} s  {said}", flush=True)


def find_places(processes: int) -> list[Mapping[str, str]]:
    """The environment of each process, which shows it one GPU: at least one process for each."""
    places: list[Mapping[str, str]] = [dict(restricted_to(device)) for device in find_devices()] or [{}]
    return [places[slot % len(places)] for slot in range(max(processes, len(places)))]


def tune_all(given: argparse.Namespace) -> None:
    given.out.mkdir(parents=True, exist_ok=True)
    places = find_places(given.processes)
    given.workers = given.workers or max(1, available_cores() // len(places))
    given.end = time.time() + given.limit_s
    context = multiprocessing.get_context("spawn")
    queue: Queue[Job] = context.Queue()
    found = jobs(given.targets.split(","), given.only.split(",") if given.only else (), every=given.all)
    for job in reversed(found) if given.reverse else found:
        queue.put(job)
    if not given.shipped:
        os.environ["TILESIGHT_SHIPPED"] = "0"
    processes = [
        context.Process(target=run_sessions, args=(queue, given.out, place, given, slot))
        for slot, place in enumerate(places)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    queue.cancel_join_thread()


def plan_all(given: argparse.Namespace) -> None:
    """Make the plans that no folder of earlier calls has a table of: those with chosen configs first, and of
    these first those whose present kernels lose most beside the chosen configs, by the model."""
    places = find_places(given.processes)
    folders = [*given.have, given.out]
    jobs = plan_jobs(given)
    left = [job for job in jobs if not any((folder / job.name).exists() for folder in folders)]
    explores = [job for job in left if given_configs(job, folders, given.sister) is None]
    losses = {job: predicted_loss(job, folders) for job in left if job not in explores}
    counts = f"{len(left)} of {len(jobs)} plans, {len(explores)} of them explore"
    print(f"{counts}, by {len(places)} processes", flush=True)
    first = sorted(losses, key=losses.__getitem__, reverse=True)
    run_all(make_plans, [*first, *explores], places, plan_run(given, len(places)))
    done = sum(any((folder / job.name).exists() for folder in folders) for job in jobs)
    print(f"{done} of {len(jobs)} tables are there", flush=True)


def lower_all(given: argparse.Namespace) -> None:
    """Choose and lower the configs of all plans that no folder has any of; of those with a table last."""
    places: list[Mapping[str, str]] = [{}] * given.processes
    folders, model = [*given.have, given.out], default_model().version
    jobs = plan_jobs(given)
    left = [job for job in jobs if not chosen_configs(folders, job.name, model)]
    left.sort(key=lambda job: any((folder / job.name).exists() for folder in folders))
    print(f"configs of {len(left)} of {len(jobs)} plans, by {len(places)} processes", flush=True)
    run_all(make_plans, left, places, replace(plan_run(given, len(places)), measures=False))


def plan_jobs(given: argparse.Namespace) -> list[PlanJob]:
    only = given.only.split(",") if given.only else ()
    return [PlanJob(given.target, one.n, one.k, "bfloat16", given.layout) for one in shapes(only)]


def plan_run(given: argparse.Namespace, processes: int) -> PlanRun:
    return PlanRun(
        out=given.out,
        layers=tuple(str(path) for folder in given.have for path in sorted(folder.glob("*.db"))),
        folders=(*given.have, given.out),
        sister=given.sister,
        pools=given.pool,
        workers=given.workers or max(1, available_cores() // processes),
        sizes=given.shapes,
        kernels=tuple(given.kernels),
        limits=replace(LIMITS, explore=given.explore, listed=given.listed, measure=given.measure),
        plan_s=given.plan_s,
        end=time.time() + given.limit_s,
    )


def pack(
    sources: Sequence[Path], folder: Path, tables: Sequence[Path] = (), without: Collection[str] = ()
) -> None:
    """Write the files of the package from the databases, from folders of `tables`, and from the sessions and
    plans that ship already. Plans whose names are in `without` do not ship."""
    plans = plans_to_ship(tables, folder, without)  # first: nothing is written for a wrong name
    shipped = folder / SESSIONS
    latest: dict[object, tuple[RecordedSession, Mapping[str, str]]] = {}
    profiles = shipped_profiles(folder / PROFILES)
    for path in [*([shipped] if shipped.exists() else []), *sources]:
        with open_store(str(path), read_only=True) as store:
            for session, options in complete(store):
                context = session.result.context
                kernel = (context.template, context.workload.key, context.dynamic)
                key = (*kernel, context.target, context.device, context.protocol, session.result.effort)
                earlier = latest.get(key)
                if earlier is None or earlier[0].summary.started_at <= session.summary.started_at:
                    latest[key] = session, options
            for profile_key in keys(store):
                found = profiles.setdefault(profile_key, {})
                for profile in store.cached_profiles(profile_key):
                    known = found.get(profile.config.key)
                    found[profile.config.key] = profile if known is None else merged(known, profile)
    partial = shipped.with_suffix(".partial.db")
    partial.unlink(missing_ok=True)
    with open_store(str(partial)) as store:
        for session, options in sorted(latest.values(), key=lambda pair: pair[0].summary.started_at):
            add(store, session, options)
        store.database.write(lambda connection: connection.exec_driver_sql("ANALYZE"))
    with closing(sqlite3.connect(partial)) as connection:
        # readers of a log need a folder that they may write, and packages may be installed by another user
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("VACUUM")
    os.replace(partial, shipped)
    for log in ("-wal", "-shm"):  # of the earlier file, if that had any
        shipped.with_name(shipped.name + log).unlink(missing_ok=True)
    write_archive(folder / PROFILES, {key: found.values() for key, found in profiles.items()})
    if plans:
        write_plans(folder / PLANS, plans)
    number = sum(map(len, profiles.values()))
    counts = {SESSIONS: len(latest), PROFILES: number, PLANS: len(plans)}
    files = {name: folder / name for name in counts}
    sizes = {name: path.stat().st_size / 1e6 if path.exists() else 0.0 for name, path in files.items()}
    print("; ".join(f"{name}: {count}, {sizes[name]:.2f} MB" for name, count in counts.items()))


def merged(known: ParametricProfile, other: ParametricProfile) -> ParametricProfile:
    """A config that was lowered twice, perhaps for workloads of different sizes: with the laws of either, or
    with the samples of both. There is one structure of each config, that which is known."""
    if known.structure != other.structure or known.laws is not None:
        return known
    return other if other.laws is not None else known.with_samples_of(other)


def shipped_profiles(path: Path) -> dict[ProfileKey, dict[str, ParametricProfile]]:
    """By config, the profiles that ship already and that the present code read."""
    found: dict[ProfileKey, dict[str, ParametricProfile]] = {}
    if path.exists():
        archive, reader = ProfileArchive(path), reader_version()
        for key in archive_keys(archive):
            if key.reader == reader:
                found[key] = {one.config.key: one for one in archive.cached_profiles(key)}
    return found


def plans_to_ship(
    tables: Sequence[Path], folder: Path, without: Collection[str] = ()
) -> list[tuple[ShippedPlan, str]]:
    """The tables in these folders and those that ship already, the latest of each shape, but for those with
    names in `without`. Exits if a name is of none of them."""
    path = folder / PLANS
    found: dict[str, tuple[ShippedPlan, str]] = {}
    if path.exists():
        archive = PlanArchive(path)
        found = {plan.name: (plan, archive.text(plan)) for plan in archive.plans}
    uses = {(one.n, one.k): [str(use) for use in one.uses] for one in shapes()}
    for source in tables:
        notes = [json.loads(line) for line in (source / MADE).read_text().splitlines()]
        for table, made in {note["table"]: note["made"] for note in notes}.items():
            text = (source / table).read_text()
            fixed = json.loads(text)["fixed"]
            plan = plan_of(text, made, uses.get((fixed["n"], fixed["k"]), ()))
            known = found.get(plan.name)
            if known is None or known[0].made <= plan.made:
                found[plan.name] = plan, text
    if unknown := set(without) - set(found):
        names = ", ".join(sorted(unknown))
        raise SystemExit(f"no plan has the name {names}; `tilesight db plans` lists those that ship")
    return [plan for name, plan in found.items() if name not in without]


def complete(store: Store) -> Iterator[tuple[RecordedSession, Mapping[str, str]]]:
    """The complete sessions that measured something, with their options; none of a plan's sizes."""
    statement = select(schema.sessions.c.id, schema.sessions.c.options)
    options = {row.id: row.options for row in store.database.read(lambda c: c.execute(statement).all())}
    for summary in store.session_summaries():
        of_plan = OPTIONS.items() <= options[summary.id].items()
        if summary.is_measured and summary.state is SessionState.COMPLETE and not of_plan:
            yield store.recorded_session(summary.id), options[summary.id]


def keys(store: Store) -> list[ProfileKey]:
    table = schema.parametric_profiles.c
    columns = [table.template, table.template_version, table.arch, table.shape_class, table.reader]
    found = store.database.read(lambda c: c.execute(select(*columns).distinct()).all())
    return [ProfileKey(*row) for row in found]


def add(store: Store, session: RecordedSession, options: Mapping[str, str]) -> None:
    """Add a session with its measured candidates, without paths of this machine."""
    result, summary = session.result, session.summary
    trials = [without_path(trial) for trial in result.trials if trial.measured_us is not None]
    number = store.begin(
        result.context,
        result.effort,
        summary.seed,
        options,
        result.census,
        flops=result.flops,
        min_bytes=result.min_bytes,
    )
    store.record_many(number, result.context, trials)
    store.record_baselines(number, result.baselines)
    store.finish(number, result.state, result.messages, result.seconds, decision=result.decision)
    times = {"started_at": summary.started_at, "finished_at": summary.finished_at, "owner": ""}
    table = schema.sessions
    store.database.write(lambda c: c.execute(update(table).where(table.c.id == number).values(times)))


def without_path(trial: TrialRecord) -> TrialRecord:
    build = trial.build
    if build is None or build.artifact is None:
        return trial
    return replace(trial, build=replace(build, artifact=NO_LIBRARY))


def check(folder: Path) -> None:
    """Print how many sessions, profiles and plans are of the present code."""
    versions = {one.name: one.version for name in operators() for one in templates(name)}
    with open_store(str(folder / SESSIONS), read_only=True) as store:
        contexts = [summary.context for summary in store.session_summaries()]
    usable = sum(context.template_version == versions.get(context.template) for context in contexts)
    print(f"{usable} of {len(contexts)} sessions")
    reader, counts = reader_version(), {True: 0, False: 0}
    for key in ProfileArchive(folder / PROFILES).keys.values():
        is_usable = key["reader"] == reader and key["template_version"] == versions.get(str(key["template"]))
        counts[is_usable] += int(str(key["profiles"]))
    print(f"{counts[True]} of {sum(counts.values())} profiles")
    path = folder / PLANS
    plans = PlanArchive(path).plans if path.exists() else []
    usable = sum(plan.template_version == versions.get(plan.template) for plan in plans)
    print(f"{usable} of {len(plans)} plans")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    tuning = steps.add_parser("tune", help="run the sessions")
    tuning.add_argument("--out", type=Path, required=True, help="folder of the databases")
    tuning.add_argument("--targets", default="h200,a100,mi300x", help="by commas")
    tuning.add_argument("--only", default="", help="operators, or OPERATOR:SHAPE, by commas [default: all]")
    tuning.add_argument("--all", action="store_true", help="every published workload, not the default ones")
    tuning.add_argument("--reverse", action="store_true", help="the last one first, beside another call")
    tuning.add_argument("--effort", default="quick")
    tuning.add_argument("--processes", type=int, default=1, help="at least; there is one a GPU")
    tuning.add_argument("--workers", type=int, help="of each [default: the cores, divided]")
    tuning.add_argument("--session-s", type=float, default=120.0, help="seconds of a session, at most")
    tuning.add_argument("--layers", nargs="*", default=[], help="databases of earlier calls, to go on with")
    tuning.add_argument("--shipped", action="store_true", help="use the sessions and profiles that ship")
    tuning.add_argument("--limit-s", type=float, default=1e6, help="seconds of the call, at most")
    planning = steps.add_parser("plan", help="make the plans over m of models' products")
    lowering = steps.add_parser("lower", help="choose and lower the configs of these plans, without a GPU")
    for step in (planning, lowering):
        step.add_argument("--out", type=Path, required=True, help="folder of the tables and databases")
        step.add_argument("--have", type=Path, nargs="*", default=[], help="folders of earlier calls")
        step.add_argument("--target", default="h200")
        step.add_argument("--sister", default="", help="a similar chip, whose plans are known")
        step.add_argument("--only", default="", help="models, by commas [default: all]")
        step.add_argument("--layout", default="nn", help="of the operands, as the operator's attribute")
        step.add_argument("--shapes", type=int, default=16, help="sampled sizes of a plan")
        step.add_argument(
            "--kernels",
            type=int,
            nargs="+",
            default=[8, 12, 16],
            help="of a plan, at most; each next if the last loses much",
        )
        step.add_argument("--explore", type=int, default=LIMITS.explore, help="configs that are lowered")
        step.add_argument("--workers", type=int, help="of each [default: the cores, divided]")
        step.add_argument("--limit-s", type=float, default=1e6, help="seconds of the call, at most")
    planning.add_argument("--listed", type=int, default=LIMITS.listed, help="configs that are built first")
    planning.add_argument("--measure", type=int, default=LIMITS.measure, help="configs at a size")
    planning.add_argument("--processes", type=int, default=12, help="at least; there is one a GPU")
    planning.add_argument("--plan-s", "--session-s", type=float, default=180.0, help="of a plan, at most")
    # plans that take turns find the profiles of those before; two keep the cores busy between rounds
    lowering.add_argument("--processes", type=int, default=2, help="plans beside each other")
    lowering.add_argument("--listed", type=int, default=CHOSEN, help="configs that are chosen")
    lowering.add_argument("--pool", action="store_true", help="choose among the kernels of all plans")
    lowering.set_defaults(measure=0, plan_s=math.inf)
    planning.set_defaults(pool=False)
    packing = steps.add_parser("pack", help="write the files of the package")
    packing.add_argument("databases", type=Path, nargs="*", help="of sessions and of profiles")
    packing.add_argument("--plans", type=Path, nargs="*", default=[], help="folders of `plan`")
    packing.add_argument("--without", nargs="+", default=[], help="names of plans that do not ship")
    packing.add_argument("--folder", type=Path, default=PACKAGE, help="[default: that of the package]")
    checking = steps.add_parser("check", help="count what the present code can use")
    checking.add_argument("--folder", type=Path, default=PACKAGE, help="[default: that of the package]")
    given = parser.parse_args()
    if given.step == "tune":
        tune_all(given)
    elif given.step == "plan":
        plan_all(given)
    elif given.step == "lower":
        lower_all(given)
    elif given.step == "check":
        check(given.folder)
    else:
        pack(given.databases, given.folder, given.plans, given.without)


if __name__ == "__main__":
    main()
