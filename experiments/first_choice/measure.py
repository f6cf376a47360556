"""Build, check and time the first choices on the local GPU, beside the vendor's libraries. Rows come as CSV.

    python experiments/first_choice/measure.py experiments/first_choice/choices-h200.json --out rows.csv
        [--limit 450] [--builders 16] [--cache FOLDER]

First every kernel is built and launched once, in many processes; a crash or a hang there costs one kernel.
Then one process takes shape after shape: it checks results, and times all kernels of the shape and the
vendor's libraries in turns (default protocol, random data, cold cache, the care for finalists). After
`--limit` seconds no new shape begins. CARD.json beside OUT says what the card reports of itself.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool of its own in every process

from gpu_work import (
    Entrant,
    FirstLaunch,
    ShapeTask,
    Timed,
    figures,
    first_launch,
    measure_shape,
    preload,
)
from shapes import DTYPE, workloads
from stand_in import COMPARED

COLUMNS = (
    *("operator", "shape", "tool", "form", "status", "median_us", "low_us", "high_us", "samples"),
    *("predicted_us", "relative_error", "config", "own", "changed", "dropped", "clock_mhz", "disturbed"),
    *("registers", "spill_bytes", "smem_bytes", "failure", "note"),
)
LAUNCH_LIMIT_S, SHAPE_LIMIT_S = 90.0, 60.0
RESOURCES = ("registers", "spill_bytes", "smem_bytes")


class Rows:
    """The CSV file."""

    def __init__(self, path: Path, choices: Sequence[dict[str, Any]]) -> None:
        self._file = path.open("w", newline="")
        self._writer = csv.DictWriter(self._file, COLUMNS)
        self._writer.writeheader()
        self._choices = {(c["shape"], c["tool"], c["form"]): c for c in choices}
        self.count = 0

    def add(self, operator: str, shape: str, timed: Timed, build: Any = None, status: str = "") -> None:
        choice = self._choices.get((shape, timed.tool, timed.form), {})
        row = {
            "operator": operator,
            "shape": shape,
            "tool": timed.tool,
            "form": timed.form,
            "status": status or ("measured" if timed.samples_us else "failed"),
            "predicted_us": choice.get("predicted_us") or "",
            "relative_error": "" if timed.relative_error is None else f"{timed.relative_error:.2e}",
            "config": json.dumps(choice.get("config", {})),
            "own": json.dumps(timed.own or choice.get("own", {}), default=str),
            "changed": json.dumps(choice.get("changed", {})),
            "dropped": json.dumps(choice.get("dropped", {})),
            "failure": timed.failure,
            "note": timed.note,
            **figures(timed),
        }
        resources = build.resources if build is not None else {}
        self._writer.writerow(row | {name: resources.get(name, "") for name in RESOURCES})
        self._file.flush()
        self.count += 1


def build_all(
    choices: Sequence[dict[str, Any]], target: Any, builders: int, cache: Path
) -> dict[tuple[str, str, str], Entrant]:
    """Entrants by shape, tool and form; each distinct candidate is built once."""
    from tilesight.executor.jobs import BuildDone, BuildJob, SingleLaneSource
    from tilesight.executor.local import LocalExecutor
    from tilesight.kernels import template_for
    from tilesight.problem.candidate import Candidate
    from tilesight.problem.config import Config

    known = {shape: (operator, workload) for operator, shape, workload in workloads()}
    candidates: dict[tuple[str, str, str], Candidate] = {}
    for choice in choices:
        if choice["config"]:
            operator, workload = known[choice["shape"]]
            template = template_for(operator, target, DTYPE)
            config = Config(choice["config"])
            label = (choice["shape"], choice["tool"], choice["form"])
            candidates[label] = Candidate(workload, target, template.for_config(config), config)
    distinct = {candidate.key: candidate for candidate in candidates.values()}
    builds = {}
    with LocalExecutor(builders, cache) as executor:
        for event in executor.stream(SingleLaneSource(map(BuildJob, distinct.values()))):
            assert isinstance(event, BuildDone)
            builds[event.job.candidate.key] = event.result
    return {
        label: Entrant(label[1], label[2], candidate, builds[candidate.key])
        for label, candidate in candidates.items()
    }


def reason(outcome: Any) -> str:
    """Why a worker has no value."""
    if hasattr(outcome, "type_name"):
        return f"{outcome.type_name}: {' '.join(str(outcome.message).split())}"[:300]
    return f"{type(outcome).__name__}: {' '.join(str(getattr(outcome, 'output', ''))[-250:].split())}"


def main(given: argparse.Namespace) -> None:
    from tilesight.target.spec import load_target
    from tilesight.workers import Done, WorkerPool

    begin = time.monotonic()
    content = json.loads(given.choices.read_text())
    choices, target = content["choices"], load_target(content["target"])
    rows = Rows(given.out, choices)

    def say(text: str) -> None:
        print(f"{time.monotonic() - begin:.0f} s: {text}", flush=True)

    entrants = build_all(choices, target, given.builders, given.cache)
    say(f"{len(entrants)} choices built, {len({str(e.build.artifact) for e in entrants.values()})} distinct")
    launches: list[tuple[str, FirstLaunch]] = []
    for operator, shape, workload in workloads():
        mine = [entrant for label, entrant in entrants.items() if label[0] == shape]
        for choice in (c for c in choices if c["shape"] == shape):
            failed = Timed(choice["tool"], choice["form"], failure=choice["failure"])
            if choice["tool"] == "Helion" and not choice["failure"]:
                mine.append(Entrant("Helion", choice["form"]))
            elif choice["failure"]:
                rows.add(operator, shape, failed, status="no choice")
        if operator == "rms_norm":
            mine.append(Entrant("torch.compile"))
        for entrant in mine:
            if entrant.build is not None and entrant.build.failure is not None:
                why = f"{entrant.build.failure.kind}: {entrant.build.failure.message}"
                rows.add(operator, shape, Timed(*entrant.label, failure=why), status="not built")
            else:
                launches.append((shape, FirstLaunch(operator, workload, target, entrant)))
    # what compiles at the first call comes first
    launches.sort(key=lambda launch: launch[1].entrant.build is not None)
    good: dict[str, list[Entrant]] = {}
    with WorkerPool(given.builders, timeout_s=LAUNCH_LIMIT_S, preload=preload) as pool:
        for number, outcome in pool.run(first_launch, [launch for _, launch in launches]):
            shape, launch = launches[number]
            if isinstance(outcome, Done):
                good.setdefault(shape, []).append(launch.entrant)
            else:
                timed = Timed(*launch.entrant.label, failure=reason(outcome))
                rows.add(launch.operator, shape, timed, launch.entrant.build, "failed at first launch")
    say(f"{sum(map(len, good.values()))} of {len(launches)} kernels launched")
    card_path = given.out.with_name(f"{given.out.stem}-card.json")
    subprocess.run([sys.executable, __file__, "--card", str(card_path)], check=False)

    tasks: list[tuple[str, ShapeTask]] = []
    order = ("tilesight", "nvMatmulHeuristics", "roller", "Helion", "torch.compile")
    for operator, shape, workload in workloads():
        mine = sorted(good.get(shape, []), key=lambda e: (order.index(e.tool), e.form))
        tasks.append((shape, ShapeTask(operator, workload, target, tuple(mine))))

    def pending() -> Iterator[ShapeTask]:
        for place, (_, task) in enumerate(tasks):  # grows: shapes that failed come again
            if time.monotonic() - begin > given.limit:
                say(f"the limit: {len(tasks) - place} shapes are left out")
                return
            yield task

    with WorkerPool(1, timeout_s=SHAPE_LIMIT_S, preload=preload) as pool:
        for number, outcome in pool.run(measure_shape, pending()):
            shape, task = tasks[number]
            builds = {entrant.label: entrant.build for entrant in task.entrants}
            if isinstance(outcome, Done):
                for timed in outcome.value:
                    rows.add(task.operator, shape, timed, builds.get((timed.tool, timed.form)))
                continue
            say(f"{shape}: {reason(outcome)}")
            kept = tuple(e for e in task.entrants if e.tool in ("tilesight", "torch.compile"))
            for entrant in task.entrants:
                if entrant not in kept or kept == task.entrants:
                    why = f"the shape's process was lost: {reason(outcome)}"
                    rows.add(task.operator, shape, Timed(*entrant.label, failure=why), entrant.build)
            if kept != task.entrants:
                tasks.append((shape, ShapeTask(task.operator, task.workload, target, kept)))
    say(f"{rows.count} rows")


def write_card(path: Path) -> None:
    """What torch reports of the card and of itself; in a process of its own, since `main` uses no GPU."""
    import torch

    from tilesight.machine.devices import find_devices
    from tilesight.machine.toolchain import package_version

    properties = torch.cuda.get_device_properties(0)
    found = {name: getattr(properties, name) for name in COMPARED}
    versions = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
    for package in ("triton", "helion", "tilelang"):
        versions[package] = package_version(package)
    drivers = [device.driver for device in find_devices()]
    content = {"name": properties.name, **found, "drivers": drivers, "versions": versions}
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build, check and time the first choices on the local GPU.")
    parser.add_argument("choices", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=450.0, help="seconds after which no shape begins")
    parser.add_argument("--builders", type=int, default=16)
    parser.add_argument("--cache", type=Path, default=Path("/tmp/first-choice-cache"))
    parser.add_argument("--card", type=Path, help="only write what the card reports")
    arguments = parser.parse_args()
    if arguments.card:
        write_card(arguments.card)
    elif arguments.choices and arguments.out:
        main(arguments)
    else:
        parser.error("give CHOICES and --out")
