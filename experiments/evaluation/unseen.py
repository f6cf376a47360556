"""Judge the shipped model on measured candidates that it was not trained on, by operator. No GPU needed.

python experiments/evaluation/unseen.py experiments/datasets/library/*.parquet --csv ROWS.csv
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tilesight.costmodel import default_model
from tilesight.costmodel.training.evaluation import FEWEST_ROWS
from tilesight.costmodel.training.metrics import geometric_mean, scores
from tilesight.records.dataset import profiles_of, read_dataset
from tilesight.target.spec import load_target


def predicted(files: list[str]) -> pd.DataFrame:
    """A row for each verified candidate: its operator, case, times in us, and relative uncertainty."""
    model, rows = default_model(), []
    for file in files:
        for case in read_dataset([file]).verified().cases():
            target = load_target(case.target)
            for row in case.frame.to_dict("records"):
                found = model.predict(profiles_of(row["profile"]), target)
                rows.append(
                    {
                        "operator": row["operator"],
                        "case": row["workload"],
                        "target": row["target"],
                        "config": row["config"],
                        "measured_us": row["measured_us"],
                        "predicted_us": found.latency_us,
                        "ranking_us": found.ranking_us,
                        "sigma": math.log1p(found.uncertainty),
                        "limit": found.limiting,
                    }
                )
    return pd.DataFrame(rows)


def line(name: str, rows: pd.DataFrame) -> str:
    """A line of the table: errors are of the logarithm; top-1 is the geometric mean over cases."""
    error = rows["error"].abs()
    best = [
        scores(case["predicted_us"], case["measured_us"], order_us=case["ranking_us"]).top1
        for _, case in rows.groupby(["case", "target"])
        if len(case) >= FEWEST_ROWS
    ]
    top = f"{geometric_mean(best):.3f} ({min(best):.2f})" if best else "-"
    return (
        f"| {name} | {len(rows)} | {len(best)} | {error.mean():.3f} / {error.median():.3f} | "
        f"{(error < math.log(1.25)).mean():.0%} / {(error < math.log(2)).mean():.0%} | "
        f"{(error <= rows['sigma']).mean():.0%} / {(error <= 2 * rows['sigma']).mean():.0%} | "
        f"{rows['error'].median():+.2f} | {top} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    rows = predicted(given.files)
    rows["error"] = (rows["predicted_us"] / rows["measured_us"]).map(math.log)
    if given.csv:
        rows.to_csv(given.csv, index=False, float_format="%.4g")
    columns = ("rows", "cases", "mean / median error", "within 1.25x / 2x", "within one / two sigma", "bias")
    print(f"| operator | {' | '.join(columns)} | top-1 (worst) |")
    print("|---|---|---|---|---|---|---|---|")
    for name, some in [*rows.groupby("operator"), ("all", rows)]:
        print(line(str(name), some))


if __name__ == "__main__":
    main()
