"""Predicts traced loops again, with the present model and no GPU, and compares them with their traces.

python experiments/traces/again.py experiments/traces/h200.jsonl again.csv [--target h200]
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import CASES

from tilesight.api.timelines import profiles_timeline
from tilesight.costmodel import default_model
from tilesight.executor.tasks import Profiled, lower_and_profile
from tilesight.records.timeline import View
from tilesight.target.spec import load_target

COLUMNS = ("case", "loop", "then_us", "predicted_us", "traced_us", "error", "model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", type=Path, help="what measure.py wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="h200")
    stated = parser.parse_args()
    target = load_target(stated.target)
    rows = [json.loads(line) for line in stated.rows.read_text(encoding="utf-8").splitlines()]
    with stated.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for case in CASES:
            traced = [row for row in rows if row["case"] == case.name and row.get("loop")]
            if not traced:
                continue
            lowered = lower_and_profile(case.candidate(target))
            assert isinstance(lowered, Profiled), lowered
            iterations = profiles_timeline(case.name, lowered.kernels, target).of(View.ITERATION)
            for row in traced:
                found = [part for part in iterations if part.title.partition(": ")[2] == row["loop"]]
                if len(found) != 1:  # of several kernels
                    continue
                error = found[0].us / row["traced_iteration_us"] - 1
                told = {
                    "case": case.name,
                    "loop": row["loop"],
                    "then_us": round(row["predicted_iteration_us"], 4),
                    "predicted_us": round(found[0].us, 4),
                    "traced_us": round(row["traced_iteration_us"], 4),
                    "error": round(error, 4),
                    "model": default_model().version,
                }
                writer.writerow(told)
                print(told, flush=True)


if __name__ == "__main__":
    main()
