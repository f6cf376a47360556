"""Measures chosen candidates of a dataset again, on the GPU of this machine.

    python experiments/datasets/measure_again.py chosen.jsonl again.parquet --target h100 --budget 300

A line of `chosen.jsonl` has the columns operator, shape, dims, attrs, dtype, template and config of a row.
The result is a dataset of its own. So an old time that differs much from the prediction and from similar
candidates can be told from a fault of the model.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

from tilesight import kernels
from tilesight.datasets.collect import collect_cases
from tilesight.datasets.collector import CollectionCase
from tilesight.errors import InputError
from tilesight.machine.placement import locate
from tilesight.problem.config import Config
from tilesight.problem.workload import Workload
from tilesight.records.dataset import workload_of
from tilesight.target.spec import Target
from tilesight.tuner.observers import Observer


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("chosen", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--budget", type=float, default=None, help="seconds of measuring")
    given = parser.parse_args()
    placement = locate(given.target, measures=True, predicts=False)
    if placement.device is None:
        raise InputError(f"candidates are measured on a GPU: {'; '.join(placement.messages)}")
    cases = chosen_cases(given.chosen, placement.target)
    found = collect_cases(
        cases,
        placement,
        given.out,
        vendor=False,
        workers=given.workers,
        until=None if given.budget is None else time.monotonic() + given.budget,
        program="experiments/datasets/measure_again.py",
        observer=Observer(),
    )
    print(f"{len(found.dataset.frame)} rows of {len(cases)} workloads in {found.seconds:.0f} s")


def chosen_cases(path: Path, target: Target) -> list[CollectionCase]:
    """A case for each workload of the lines of `path`, with the configs of its lines."""
    wanted: defaultdict[tuple[str, str], list[Config]] = defaultdict(list)
    workloads: dict[tuple[str, str], Workload] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        workload = workload_of(row)
        key = workload.key, row["template"]
        workloads[key] = workload
        config = Config(json.loads(row["config"]))
        if config not in wanted[key]:
            wanted[key].append(config)
    found = []
    for key, configs in wanted.items():
        template = next(t for t in kernels.templates(workloads[key].operator) if t.name == key[1])
        found.append(CollectionCase(workloads[key], template, target, len(configs), configs))
    return found


if __name__ == "__main__":
    main()
