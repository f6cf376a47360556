"""The loss of the plans for public models to tuning each shape, at sizes that no plan measured.

    python experiments/shipped/check_plans.py rank static.json --plans FOLDER... [--models ...]
    python experiments/shipped/check_plans.py measure OUT --static static.json --plans FOLDER...

`rank` needs no GPU. For each model it draws a few of the tables in the folders from a seed, and sizes of m
for each of them, as `experiments/plan/held_out.py` draws them. For each size it explores as `tilesight rank`
does, with all dimensions fixed, and writes the configs that the model prefers. Only the shapes of the tables
matter to it: their plans may be made anew after that.
`measure` takes the tables and sizes of that file, but for sizes that the plan measured. It builds the first
configs of each size and the static kernel of the table's own config, and times all in turns with the table's
kernel; the loss is to the fastest, as that program says. Several processes share the GPUs, each with a table.
Rows are written to OUT as they come; another call measures only what is missing. A summary is printed at the
end.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
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
    """What is measured of one table.

    Attributes:
        table: its file.
        ranked: for each size, the static configs that the model prefers, best first.
        candidates: how many of them are built, beside that of the table's config.
    """

    table: Path
    ranked: Mapping[int, Sequence[Config]]
    candidates: int

    def best(self, size: int, count: int) -> list[Config]:
        return list(self.ranked[size][:count])


def rank_tables(given: argparse.Namespace) -> None:
    """Write the configs that the model prefers at each size of the tables; sizes in the file stay.

    Each size is kept when it is ranked, in a file of lines beside it, so a call that is cut loses none.
    """
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    lines = given.out.with_suffix(".jsonl")
    for line in lines.read_text().splitlines() if lines.exists() else ():
        table, size, configs = json.loads(line)
        found.setdefault(table, {})[size] = configs
    tasks = []
    for path, count in draw(given):
        seen = [piece.size for piece in read_table(path).evidence]
        known = found.setdefault(path.name, {})
        sizes = held_out(read_vary(VARY), count, seen, given.seed)
        tasks.append((path, [size for size in sizes if str(size) not in known]))
    workers = given.workers or max(1, available_cores() // given.processes)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.processes, context) as pool:
        futures = [pool.submit(rank_table, *task, workers, lines) for task in tasks]
        for future in as_completed(futures):
            name, ranked = future.result()
            found[name] |= ranked
            given.out.write_text(json.dumps(found))
            print(f"{name}: {len(ranked)} sizes", flush=True)


def rank_table(
    path: Path, sizes: Sequence[int], workers: int, lines: Path
) -> tuple[str, dict[str, list[dict[str, object]]]]:
    """The name of a table, and by size the configs that the model prefers. Its sizes share profiles.

    Each size is also added to the file of lines.
    """
    table, found = read_table(path), {}
    for size in sizes:
        shape = {"m": size, **table.fixed, **table.attrs}
        text = ",".join(f"{name}={value}" for name, value in shape.items())
        options = {"workers": workers, "database": str(lines.with_suffix(f".{path.stem}.db"))}
        [ranked] = tilesight.rank(table.operator, table.target, text, dtype=table.dtype, **options)
        configs = with_other_tiles([trial.config for trial in ranked.trials], RANKED)
        found[str(size)] = [dict(config) for config in configs]
        with lines.open("a") as file:
            file.write(json.dumps([path.name, str(size), found[str(size)]]) + "\n")
    return path.name, found


def draw(given: argparse.Namespace) -> list[tuple[Path, int]]:
    """Tables of each model, without those of another model, and how many sizes of each are checked."""
    found: dict[Path, int] = {}
    generator = random.Random(given.seed)
    for model in given.models.split(","):
        jobs = [PlanJob(given.target, one.n, one.k, "bfloat16", given.layout) for one in shapes([model])]
        known = [path for job in jobs if (path := path_of(job.name, given.plans)) and path not in found]
        chosen = generator.sample(known, min(given.tables, len(known)))
        for number, path in enumerate(chosen):
            found[path] = given.sizes // len(chosen) + (number < given.sizes % len(chosen))
    return list(found.items())


def path_of(name: str, folders: Sequence[Path]) -> Path | None:
    """The table of that name in the first folder that has it."""
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def checks_of(given: argparse.Namespace) -> list[Check]:
    """The tables and sizes that `rank` wrote. Exits if a table is in no folder."""
    found = []
    for name, ranked in json.loads(given.static.read_text()).items():
        path = path_of(name, given.plans)
        if path is None:
            raise SystemExit(f"no folder of --plans has {name}, which {given.static} names")
        configs = {int(size): [Config(values) for values in best] for size, best in ranked.items()}
        found.append(Check(path, configs, given.candidates))
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
    known = {int(row["size"]) for row in rows_in(path)} | {piece.size for piece in table.evidence}
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

        until = time.monotonic() + run.end - time.time()
        left = [size for size in check.ranked if size not in known]
        contest = Contest(problem, table, check, left, until, write, check.candidates)
        for event in executor.stream(contest):
            contest.take(event)


def rows_in(path: Path) -> list[dict[str, str]]:
    """The rows of a file, none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def print_summary(checks: Sequence[Check], out: Path) -> None:
    """Mean and worst loss, of each table and of all; sizes where the plan is faster count as no loss."""
    every: list[float] = []
    for check in checks:
        rows = rows_in(out / f"{check.table.stem}.csv")
        losses = {int(row["size"]): max(0.0, float(row["loss"])) for row in rows if row["loss"]}
        every += losses.values()
        if losses:
            at = max(losses, key=losses.__getitem__)
            counts = f"{len(losses)} sizes, mean {fmean(losses.values()):.2%}"
            print(f"{check.table.stem}: {counts}, worst {losses[at]:.2%} at m={at}")
    if every:
        wanted = sum(len(check.ranked) for check in checks)
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
    parser.add_argument("--seed", type=int, default=SEED, help="of the tables and sizes of `rank`")
    parser.add_argument("--models", default=MODELS, help="by commas")
    parser.add_argument("--tables", type=int, default=2, help="of each model")
    parser.add_argument("--sizes", type=int, default=10, help="of each model")
    parser.add_argument("--candidates", type=int, default=6, help="static kernels of each size")
    parser.add_argument("--processes", type=int, default=8, help="at least one a GPU; `rank`: tables at once")
    parser.add_argument("--workers", type=int, help="of each [default: the cores, divided]")
    parser.add_argument("--limit-s", type=float, default=480.0)
    given = parser.parse_args()
    if given.step == "rank":
        rank_tables(given)
        return
    if given.static is None:
        parser.error("measure needs --static, the file that rank wrote")
    checks = checks_of(given)
    given.out.mkdir(parents=True, exist_ok=True)
    places = find_places(given.processes)
    run = PlanRun(
        out=given.out,
        layers=(),
        workers=max(1, available_cores() // len(places)),
        sizes=0,
        kernels=(),
        limits=LIMITS,
        plan_s=0.0,
        end=time.time() + given.limit_s,
    )
    run_all(check_tables, checks, places, run)
    print_summary(checks, given.out)


if __name__ == "__main__":
    main()
