"""Predictions beside measured times of a benchmark's database: `python errors.py PERFORMANCE.db ROWS.csv`.

Takes the first prediction of each measured candidate, which was made before it was built, writes a row for
each, and prints a Markdown table by operator.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import pandas as pd

ROWS = """
select w.operator, w.key as workload, c.config, p.model, p.latency_us as predicted_us,
       p.uncertainty as sigma, p.limiting, m.latency_us as measured_us, p.created_at
from measurements m
join candidates c on c.id = m.candidate_id
join workloads w on w.id = c.workload_id
join predictions p on p.candidate_id = c.id
where m.latency_us is not null
order by p.created_at
"""


def main() -> None:
    database, out = sys.argv[1:]
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows = pd.read_sql_query(ROWS, connection)
    rows = rows.drop_duplicates(["workload", "config"]).drop(columns="created_at")
    rows.sort_values(["operator", "workload", "measured_us"]).to_csv(out, index=False, float_format="%.4g")
    ratio = rows["predicted_us"] / rows["measured_us"]
    rows["error"], rows["sigmas"] = (ratio - 1).abs(), (ratio - 1).abs() / rows["sigma"]
    rows["near"] = ratio.between(0.8, 1.25)
    print("| operator | candidates | mean error | within 1.25x | within one, two sigma |")
    print("|---|---|---|---|---|")
    for name, some in [*rows.groupby("operator"), ("all", rows)]:
        one, two = ((some["sigmas"] <= limit).mean() for limit in (1, 2))
        print(
            f"| {name} | {len(some)} | {some['error'].mean():.1%} | {some['near'].mean():.0%} | "
            f"{one:.0%}, {two:.0%} |"
        )


if __name__ == "__main__":
    main()
