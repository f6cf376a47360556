"""The loss of the plans for public models to tuning each shape, at sizes that no plan measured.

    python experiments/shipped/check_plans.py rank static.json --plans FOLDER... [--models ...]
    python experiments/shipped/check_plans.py measure OUT --static static.json --plans FOLDER...

For each model a few of the tables in the folders are drawn from a seed, and sizes of m for each of them, as
`experiments/plan/held_out.py` draws them. `rank` needs no GPU: for each size it explores as
`tilesight rank` does, with all dimensions fixed, and writes the configs that the model prefers.
`measure` builds the first of them and the static kernel of the table's own config, and times all in turns
with the table's kernel; the loss is to the fastest, as that program says. Several processes share the GPUs,
each with a table. Rows are written to OUT as they come; another call measures only what is missing. A summary
is printed at the end.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from statistics import fmean
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "plan"))

from build import find_places
from held_out import COLUMNS, Contest, held_out, rows_of, with_other_tiles
from models import shapes
from plans import LEAST_S, LIMITS, VARY, PlanJob, PlanRun, run_all

import tilesight
from tilesight.costmodel import default_model
from tilesight.dispatch.table.table_file import read_table
from tilesight.executor.local import LocalExecutor
from tilesight.kernels import template_for
from tilesight.machine.placement import locate
from tilesight.planner.plan_problem import PlanProblem, base_workload
from tilesight.planner.sizes import read_vary
from tilesight.problem.config import Config
from tilesight.records.protocol import MeasurementProtocol
from tilesight.settings import available_cores, load_settings

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

MODELS = "Llama 3.1 8B,Llama 3.1 70B,Qwen3 32B,DeepSeek-V3"
SEED = 20261127
RANKED = 12  # configs of a size in the file of `rank`


@dataclass(frozen=True)
class Check:
    """Sizes of one table. `candidates`: static kernels that are built for each size, beside that of the
    table's config; `static`: the file that names them."""

    table: Path
    model: str
    sizes: int
    candidates: int
    static: Path | None = None


class Ranked:
    """The configs that the model prefers at a size, all dimensions fixed, as `rank` wrote them."""

    def __init__(self, path: Path, table: str) -> None:
        self._configs = json.loads(path.read_text())[table]

    def __contains__(self, size: int) -> bool:
        return str(size) in self._configs

    def best(self, size: int, count: int) -> list[Config]:
        return [Config(values) for values in self._configs[str(size)][:count]]


def rank_tables(checks: Sequence[Check], given: argparse.Namespace) -> None:
    """Write the configs that the model prefers at each size of the tables; sizes in the file stay."""
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    for check in checks:
        table = read_table(check.table)
        known = found.setdefault(check.table.name, {})
        for size in sizes_of(check):
            if str(size) not in known:
                shape = {"m": size, **table.fixed, **table.attrs}
                text = ",".join(f"{name}={value}" for name, value in shape.items())
                options = {"workers": given.workers, "database": f"{given.out}.db"}
                [ranked] = tilesight.rank(table.operator, table.target, text, dtype=table.dtype, **options)
                configs = with_other_tiles([trial.config for trial in ranked.trials], RANKED)
                known[str(size)] = [dict(config) for config in configs]
                given.out.write_text(json.dumps(found))
                print(f"{check.table.stem} m={size}: {known[str(size)][0]}", flush=True)


def sizes_of(check: Check) -> list[int]:
    """The held-out sizes of a table."""
    return held_out(read_vary(VARY), check.sizes, [piece.size for piece in read_table(check.table).evidence])


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
            found.append(Check(path, model, count, given.candidates, given.static))
    return found


def check_tables(queue: Queue[Check], environment: Mapping[str, str], run: PlanRun, _slot: int) -> None:
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
            check_table(check, executor, run)
    finally:
        if executor is not None:
            executor.close()


def check_table(check: Check, executor: LocalExecutor, run: PlanRun) -> None:
    table, path = read_table(check.table), run.out / f"{check.table.stem}.csv"
    placement = locate(table.target, measures=True, predicts=False)
    template, vary = template_for(table.operator, placement.target, table.dtype), read_vary(VARY)
    shape = {**table.fixed, **table.attrs}
    base = base_workload(template, placement.target, vary, shape, table.dtype)
    protocol = MeasurementProtocol.named("default", placement.target)
    version = default_model().version
    problem = PlanProblem(template, placement, base, vary, table.dynamic, protocol, version)
    sizes = sizes_of(check)
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

        assert check.static is not None
        ranked = Ranked(check.static, check.table.name)
        until = time.monotonic() + run.end - time.time()
        left = [size for size in sizes if size not in known and size in ranked]
        contest = Contest(problem, table, ranked, left, until, write, check.candidates)
        for event in executor.stream(contest):
            contest.take(event)


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
    parser.add_argument("step", choices=["rank", "measure"])
    parser.add_argument("out", type=Path, help="file of `rank`, folder of `measure`")
    parser.add_argument("--plans", type=Path, nargs="+", required=True, help="folders of `build.py plan`")
    parser.add_argument("--static", type=Path, help="file of `rank`, for `measure`")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--layout", default="nn")
    parser.add_argument("--models", default=MODELS, help="by commas")
    parser.add_argument("--tables", type=int, default=2, help="of each model")
    parser.add_argument("--sizes", type=int, default=10, help="of each model")
    parser.add_argument("--candidates", type=int, default=6, help="static kernels of each size")
    parser.add_argument("--processes", type=int, default=8, help="at least; there is one a GPU")
    parser.add_argument("--workers", type=int, help="of `rank` [default: one a core]")
    parser.add_argument("--limit-s", type=float, default=480.0)
    given = parser.parse_args()
    checks = draw(given)
    if given.step == "rank":
        rank_tables(checks, given)
        return
    if given.static is None:
        parser.error("measure needs --static, the file that rank wrote")
    given.out.mkdir(parents=True, exist_ok=True)
    places = find_places(given.processes)
    run = PlanRun(
        out=given.out,
        layers=(),
        workers=max(1, available_cores() // len(places)),
        sizes=0,
        kernels=0,
        limits=LIMITS,
        plan_s=0.0,
        end=time.time() + given.limit_s,
    )
    run_all(check_tables, checks, places, run)
    print_summary(checks, given.out)


if __name__ == "__main__":
    main()
