"""Builds, checks and measures given configs of operators on the GPUs of one host.

    python experiments/groups/given.py --target h200x4 --configs configs.jsonl --out rows.jsonl

A line of the configs has a case, as `measure.py` takes it, and a config: {"case": "all_gather_matmul:L70G",
"config": {...}}. Operators of one GPU are measured on the first of them. Rows of another call in the same
file are continued. Each row has the slowest rank's time or the failure.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilesight.builder.build import build_kernel
from tilesight.executor import tasks
from tilesight.executor.local import GROUP_ENVIRONMENT
from tilesight.machine.devices import restricted_to
from tilesight.machine.placement import locate
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult, Measurement
from tilesight.runner.measure import measure_kernel
from tilesight.settings import load_settings
from tilesight.target.spec import Target
from tilesight.tuner.resolve import find_operator, find_template
from tilesight.workers import Done, WorkerPool

BUILD_S, MEASURE_S = 200.0, 60.0  # of one kernel


@dataclass(frozen=True)
class Given:
    """One line of the configs."""

    case: str
    candidate: Candidate

    def row(self, **values: Any) -> dict[str, Any]:
        return {"case": self.case, "kind": "given", "config": dict(self.candidate.config), **values}


def candidate_of(entry: Mapping[str, Any], target: Target) -> Candidate:
    """The candidate of a line, on all devices of the target or on one."""
    name, _, shape = str(entry["case"]).partition(":")
    operator = find_operator(name)
    on = target if operator.communicates else target.device_target
    workload = operator.workload_on(on, shape) if operator.communicates else operator.workload(shape)
    config = Config(entry["config"])
    return Candidate(workload, on, find_template(operator, on, workload.dtype).for_config(config), config)


def read_given(path: Path, target: Target) -> Iterator[Given]:
    """The configs of a file that are legal. Others are reported."""
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        candidate = candidate_of(entry, target)
        template = find_template(candidate.template.operator, candidate.target, candidate.workload.dtype)
        broken = template.space(candidate.workload, candidate.target).violations(candidate.config)
        if broken:
            print(f"{entry['case']} {candidate.config}: {broken}", flush=True)
        else:
            yield Given(entry["case"], candidate)


def build(given: Sequence[Given], cache_dir: Path) -> Iterator[tuple[Given, BuildResult]]:
    """Those that could be built. Others are reported."""
    with WorkerPool(min(len(given), os.cpu_count() or 1), timeout_s=BUILD_S) as pool:
        candidates = [one.candidate for one in given]
        for index, outcome in pool.run(partial(build_kernel, cache_dir=cache_dir), candidates):
            if isinstance(outcome, Done) and outcome.value.artifact:
                yield given[index], outcome.value
            else:
                print(f"{given[index].row()}: {outcome}", flush=True)


def measure(item: tuple[BuildResult, Candidate]) -> Measurement:
    return measure_kernel(*item, MeasurementProtocol())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True, help="several devices of one host")
    parser.add_argument("--configs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="rows are appended to this file")
    parser.add_argument("--build-only", action="store_true", help="fill the kernel cache, measure nothing")
    arguments = parser.parse_args()
    placement = locate(arguments.target, measures=True, predicts=False, communicates=True)
    known = {_key(row) for row in _rows(arguments.out)}
    given = [one for one in read_given(arguments.configs, placement.target) if _key(one.row()) not in known]
    built = sorted(build(given, load_settings().cache_dir), key=lambda pair: given.index(pair[0]))
    print(f"{len(built)} of {len(given)} are built", flush=True)
    if arguments.build_only:
        return
    if not placement.devices:
        raise SystemExit("; ".join(placement.messages))
    visible = restricted_to(*placement.devices[: placement.target.world])
    with (
        WorkerPool(
            1,
            timeout_s=MEASURE_S,
            preload=tasks.preload_device,
            environment=GROUP_ENVIRONMENT,
            environments=[visible],
        ) as pool,
        arguments.out.open("a", encoding="utf-8") as file,
    ):
        for index, outcome in pool.run(measure, [(result, one.candidate) for one, result in built]):
            one, found = built[index][0], outcome.value if isinstance(outcome, Done) else None
            failure = str(outcome) if found is None else found.failure and found.failure.message
            row = one.row(us=found.latency_us if found else None, failure=failure)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{row['us']} us  {row['case']}  {one.candidate.config}  {failure or ''}", flush=True)


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return (json.loads(line) for line in lines)


def _key(row: dict[str, Any]) -> str:
    return json.dumps([row["case"], row["config"]], sort_keys=True)


if __name__ == "__main__":
    main()
