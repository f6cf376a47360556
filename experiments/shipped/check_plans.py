"""The loss of the plans for public models to tuning each shape, at sizes that no plan measured.

    python experiments/shipped/check_plans.py OUT --plans FOLDER... [--models ...] [--limit-s 480]

For each model a few of the tables in the folders are drawn from a seed, and sizes of m for each of them, as
`experiments/plan/held_out.py` draws them; that program also says what tuning a shape means here, and how the
loss is measured. Several processes share the GPUs, each with a table. Rows are written to OUT as they
come; another call measures only what is missing. A summary is printed at the end.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty
from statistics import fmean
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "plan"))

from build import find_places
from held_out import COLUMNS, Contest, Expectations, held_out, rows_of
from models import shapes
from plans import LEAST_S, LIMITS, VARY, PlanJob, PlanRun, run_all

from tilesight.costmodel import default_model
from tilesight.dispatch.table.table_file import read_table
from tilesight.executor.local import LocalExecutor
from tilesight.kernels import template_for
from tilesight.machine.placement import locate
from tilesight.planner.plan_problem import PlanProblem, base_workload
from tilesight.planner.sizes import read_vary
from tilesight.records.protocol import MeasurementProtocol
from tilesight.settings import available_cores, load_settings

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

MODELS = "Llama 3.1 8B,Llama 3.1 70B,Qwen3 32B,DeepSeek-V3"
SEED = 20261127


@dataclass(frozen=True)
class Check:
    """Sizes of one table. `candidates`: static kernels that are built for each size."""

    table: Path
    model: str
    sizes: int
    candidates: int


def draw(given: argparse.Namespace) -> list[Check]:
    """Tables of each model, without those of another model that is checked."""
    found: list[Check] = []
    generator = random.Random(SEED)
    for model in given.models.split(","):
        known = []
        for one in shapes([model]):
            job = PlanJob(given.target, one.n, one.k, "bfloat16", given.layout)
            paths = [path for folder in given.plans if (path := folder / job.name).exists()]
            known += [path for path in paths[:1] if all(path.name != check.table.name for check in found)]
        chosen = generator.sample(known, min(given.tables, len(known)))
        for number, path in enumerate(chosen):
            count = given.sizes // len(chosen) + (number < given.sizes % len(chosen))
            found.append(Check(path, model, count, given.candidates))
    return found


def check_tables(queue: Queue[Check], environment: Mapping[str, str], run: PlanRun, slot: int) -> None:
    """What one process does: tables, until none is left or the time is over."""
    os.environ.update(environment)
    executor = None
    try:
        while run.end - time.time() > LEAST_S:
            try:
                check = queue.get(timeout=1.0)
            except Empty:
                return
            if executor is None:
                placement = locate(read_table(check.table).target, measures=True, predicts=False)
                assert placement.devices, placement.messages
                executor = LocalExecutor(run.workers, load_settings().cache_dir, placement.gpus)
                executor.start(measures=True)
            check_table(check, executor, run, slot)
    finally:
        if executor is not None:
            executor.close()


def check_table(check: Check, executor: LocalExecutor, run: PlanRun, slot: int) -> None:
    table, path = read_table(check.table), run.out / f"{check.table.stem}.csv"
    placement = locate(table.target, measures=True, predicts=False)
    template, vary = template_for(table.operator, placement.target, table.dtype), read_vary(VARY)
    shape = {**table.fixed, **table.attrs}
    base = base_workload(template, placement.target, vary, shape, table.dtype)
    protocol = MeasurementProtocol.named("default", placement.target)
    version = default_model().version
    problem = PlanProblem(template, placement, base, vary, table.dynamic, protocol, version)
    sizes = held_out(vary, check.sizes, [piece.size for piece in table.evidence])
    known = {int(row["size"]) for row in rows_in([path])}
    begin = time.monotonic()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not file.tell():
            writer.writeheader()

        def write(state: Any, finalists: Any, compared: Any) -> None:
            row = rows_of(state, finalists, compared, time.monotonic() - begin)
            writer.writerow(row)
            file.flush()
            print(f"{path.stem} m={row['size']}: loss {row['loss']} {row['note']}", flush=True)

        database = str(run.out / f"check{slot}.db")
        expectations = Expectations(problem, table, database, executor, run.layers, run.limits.explore)
        until = time.monotonic() + run.end - time.time()
        left = [size for size in sizes if size not in known]
        contest = Contest(problem, table, expectations, left, until, write, check.candidates)
        for event in executor.stream(contest):
            contest.take(event)
        expectations.close()


def rows_in(paths: Sequence[Path]) -> list[dict[str, str]]:
    found = []
    for path in paths:
        if path.exists():
            with path.open(newline="") as file:
                found += list(csv.DictReader(file))
    return found


def print_summary(checks: Sequence[Check], out: Path) -> None:
    """Mean and worst loss, of each model and of all; sizes where the plan is faster count as no loss."""
    every: list[float] = []
    for model in dict.fromkeys(check.model for check in checks):
        paths = [out / f"{check.table.stem}.csv" for check in checks if check.model == model]
        losses = [max(0.0, float(row["loss"])) for row in rows_in(paths) if row["loss"]]
        every += losses
        if losses:
            print(f"{model}: {len(losses)} sizes, mean {fmean(losses):.2%}, worst {max(losses):.2%}")
    if every:
        wanted = sum(check.sizes for check in checks)
        print(f"{len(every)} of {wanted} sizes: mean {fmean(every):.2%}, worst {max(every):.2%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--plans", type=Path, nargs="+", required=True, help="folders of `build.py plan`")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--layout", default="nn")
    parser.add_argument("--models", default=MODELS, help="by commas")
    parser.add_argument("--tables", type=int, default=2, help="of each model")
    parser.add_argument("--sizes", type=int, default=10, help="of each model")
    parser.add_argument("--candidates", type=int, default=6, help="static kernels of each size")
    parser.add_argument("--explore", type=int, default=LIMITS.explore, help="as for the plans")
    parser.add_argument("--processes", type=int, default=8, help="at least; there is one a GPU")
    parser.add_argument("--limit-s", type=float, default=480.0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    places, checks = find_places(given.processes), draw(given)
    run = PlanRun(
        out=given.out,
        layers=tuple(str(path) for folder in given.plans for path in sorted(folder.glob("*.db"))),
        workers=max(1, available_cores() // len(places)),
        sizes=0,
        kernels=0,
        limits=replace(LIMITS, explore=given.explore),
        plan_s=0.0,
        end=time.time() + given.limit_s,
    )
    run_all(check_tables, checks, places, run)
    print_summary(checks, given.out)


if __name__ == "__main__":
    main()
