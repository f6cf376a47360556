"""Predicts the given configs of a file of `given.py` or of its rows, and writes them beside measured times.

    python experiments/groups/predict.py --target h200x4 h200x4/rows.jsonl --out h200x4/given.csv

No GPU is needed. At the end it prints errors by operator, and how fast the first choice of each case is.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from given import candidate_of

from tilesight.costmodel import default_model
from tilesight.executor.tasks import Profiled, lower_and_profile
from tilesight.target.spec import load_target


def predicted(entry: Mapping[str, Any], target_name: str) -> dict[str, Any]:
    """A row of the table. A config that cannot be lowered raises."""
    target = load_target(target_name)
    candidate = candidate_of(entry, target)
    lowered = lower_and_profile(candidate)
    if not isinstance(lowered, Profiled):
        raise RuntimeError(f"{entry['case']} {candidate.config}: {lowered.message}")
    found = default_model().predict(lowered.kernels, candidate.target)
    return {
        "case": entry["case"],
        "config": candidate.config.key,
        "measured_us": entry["us"],
        "predicted_us": found.latency_us,
        "sigma": found.uncertainty,
    }


def summary(table: pd.DataFrame) -> str:
    """Errors by operator, and of each case the fastest measured time over that of the first choice."""
    table = table.assign(
        operator=table["case"].str.partition(":")[0],
        error=(table["predicted_us"] / table["measured_us"] - 1).abs(),
    )
    lines = []
    for operator, rows in table.groupby("operator"):
        first = [
            case["measured_us"].min() / case.loc[case["predicted_us"].idxmin(), "measured_us"]
            for _, case in rows.groupby("case")
        ]
        lines.append(
            f"{operator}: {len(rows)} configs of {len(first)} cases, error {rows['error'].mean():.3f} "
            f"(median {rows['error'].median():.3f}), first choice {sum(first) / len(first):.3f} "
            f"(worst {min(first):.2f})"
        )
    return "\n".join(lines)


def read(path: Path) -> Iterable[dict[str, Any]]:
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return (row for row in rows if row.get("kind") == "given" and row["us"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        table = pd.DataFrame(pool.map(partial(predicted, target_name=given.target), read(given.rows)))
    table.to_csv(given.out, index=False, float_format="%.4g")
    print(summary(table))


if __name__ == "__main__":
    main()
