"""Merges measured candidates into a dataset, and keeps the newest row of each candidate.

    cd experiments/datasets
    python merge.py library/h100.parquet new.parquet again.parquet --least-us 15

The first file is the dataset, which is written anew. Of the others only verified rows come in, and none whose
samples scatter: the middle half of them may span at most a fifth of the median. `--least-us` leaves out
shorter times, since launches take longer on hosts with several cards, unless an older time is longer still. A
candidate is a config of a template for a workload on a target, whatever the template's version. Counters of
an older row stay if its device code is the same.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

from tilesight.records.dataset import Dataset, read_dataset, write_dataset

WIDEST = 0.2  # middle half of the samples over their median
CANDIDATE = ["workload", "target", "template", "sorted_config"]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("added", type=Path, nargs="*")
    parser.add_argument("--least-us", type=float, default=0.0)
    parser.add_argument("--known-only", action="store_true", help="replace rows, add none")
    given = parser.parse_args()
    old = read_dataset(given.dataset)
    added = [steady(read_dataset(path)) for path in given.added]
    merged, left = newest([old, *added], least_us=given.least_us, known_only=given.known_only)
    write_dataset(given.dataset, merged)
    print(f"{given.dataset}: {len(old)} rows before, {len(merged)} now, {left} left out")


def steady(dataset: Dataset) -> Dataset:
    """The verified rows whose samples do not scatter."""
    frame = dataset.verified().frame
    spans = np.array([np.subtract(*np.percentile(samples, [75, 25])) for samples in frame["samples_us"]])
    return Dataset.of(frame[spans <= WIDEST * frame["measured_us"]].to_dict("records"), dataset.runs)


def newest(
    datasets: list[Dataset], *, least_us: float = 0.0, known_only: bool = False
) -> tuple[Dataset, int]:
    """The newest row of each candidate, in the order of the oldest ones, and the number of other rows.

    Args:
        datasets: the dataset and what is added to it.
        least_us: shorter added times only replace longer ones.
        known_only: whether candidates that the first dataset lacks are left out.
    """
    runs = {name: run for dataset in datasets for name, run in dataset.runs.items()}
    frame = pd.concat([dataset.frame for dataset in datasets], ignore_index=True)
    frame["sorted_config"] = [json.dumps(json.loads(text), sort_keys=True) for text in frame["config"]]
    keys = list(frame[CANDIDATE].itertuples(index=False, name=None))
    dates = [str(runs[run]["date"]) for run in frame["run"]]
    times = frame["measured_us"].to_list()
    old = len(datasets[0])
    known = set(keys[:old])
    best: dict[tuple[str, ...], int] = {}
    for number, key in enumerate(keys):
        before, short = best.get(key), number >= old and times[number] < least_us
        if before is None:
            if number < old or not (short or (known_only and key not in known)):
                best[key] = number
        elif dates[number] >= dates[before] and not (short and times[number] >= times[before]):
            best[key] = number
    rows = frame.drop(columns="sorted_config").iloc[list(best.values())].to_dict("records")
    counters = {
        (key, code): text
        for key, code, text in zip(keys, frame["fingerprint"], frame["counters"], strict=True)
        if isinstance(text, str)
    }
    for key, row in zip(best, rows, strict=True):  # those of the same device code, which were not read again
        if not isinstance(row["counters"], str):
            row["counters"] = counters.get((key, row["fingerprint"]))
    used = {row["run"] for row in rows}
    return Dataset.of(rows, {name: run for name, run in runs.items() if name in used}), len(frame) - len(rows)


if __name__ == "__main__":
    main()
