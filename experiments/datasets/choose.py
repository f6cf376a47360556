"""Chooses candidates that no row of the datasets has, for operators with too few rows; `measure_again.py`
measures them.

    python experiments/datasets/choose.py chosen.jsonl --target h200 --rows 400 [--new new-workloads.txt]

Cases with the fewest rows get the next candidate, drawn at random from the legal configs, until each operator
has so many verified rows on that target. Cases are those of any target in the datasets, and the workloads of
`--new`, a file for `tilesight tune --shapes`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from tilesight.api import shapes_files
from tilesight.kernels import template_for, templates
from tilesight.problem.config import Config
from tilesight.problem.template import KernelTemplate
from tilesight.problem.workload import Workload
from tilesight.records.dataset import workload_of
from tilesight.records.shapes_file import read_shapes
from tilesight.target.spec import load_target

HERE = Path(__file__).resolve().parent
COLUMNS = [
    "operator",
    "workload",
    "shape",
    "dims",
    "attrs",
    "dtype",
    "template",
    "target",
    "config",
    "status",
]
SPARE = 1.25  # candidates for each missing row, since some fail or scatter


@dataclass
class Case:
    """A workload: how many rows there are or will be, and the legal configs that no row has."""

    workload: Workload
    template: KernelTemplate
    rows: int
    left: list[Config]
    chosen: list[Config] = field(default_factory=list)

    def take(self) -> None:
        self.chosen.append(self.left.pop())
        self.rows += 1

    def lines(self) -> list[str]:
        one = self.workload
        facts = {
            "operator": one.operator,
            "shape": one.name,
            "dims": json.dumps(dict(one.dims)),
            "attrs": json.dumps(dict(one.attrs)),
            "dtype": one.dtype,
            "template": self.template.name,
        }
        return [json.dumps({**facts, "config": json.dumps(dict(config))}) for config in self.chosen]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--rows", type=int, required=True, help="verified rows that an operator should have")
    parser.add_argument("--only", default="", help="operators, by commas [default: all]")
    parser.add_argument("--new", type=Path, help="file of further workloads")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    generator, target = random.Random(given.seed), load_target(given.target)
    paths = sorted(HERE.glob("*/*.parquet"))
    rows = pd.concat([pd.read_parquet(path, columns=COLUMNS) for path in paths])
    here = rows[rows["target"] == given.target]
    counts = Counter(here[here["status"] == "verified"]["operator"])
    only = set(given.only.split(",")) if given.only else set(counts)
    workloads = [
        (workload_of(row), row["template"]) for row in rows.drop_duplicates("workload").to_dict("records")
    ]
    for line in read_shapes(given.new) if given.new else ():
        workload = shapes_files.workload_of(line, shapes_files.operator_of(line), target)
        workloads.append((workload, template_for(workload.operator, target, workload.dtype).name))
    lines: list[str] = []
    for name in sorted(only):
        cases: list[Case] = []
        missing = round(SPARE * (given.rows - counts[name]))
        for workload, kind in workloads if missing > 0 else ():
            if workload.operator == name:
                template = next(one for one in templates(name) if one.name == kind)
                known = here[here["workload"] == workload.key]["config"]
                keys = {Config(json.loads(text)).key for text in known}
                left = [one for one in template.space(workload, target).configs() if one.key not in keys]
                generator.shuffle(left)
                cases.append(Case(workload, template, len(keys), left))
        for _ in range(missing):
            if open_cases := [case for case in cases if case.left]:
                min(open_cases, key=lambda case: case.rows).take()
        found = [line for case in cases for line in case.lines()]
        if missing > 0:
            print(f"{name}: {counts[name]} rows, {len(found)} of {missing} candidates chosen")
        lines += found
    generator.shuffle(lines)  # so that a run that is cut short has all operators
    given.out.write_text("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
