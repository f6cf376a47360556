"""Prints the rows of `check_kernels.py` as a Markdown table: `python show_checks.py ROWS.jsonl ...`.

A line is a workload whose fastest candidates were compared with the vendor's implementations in one run. Of
several runs, the last one stands.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def main() -> None:
    rows = [json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]
    right = Counter(row["workload"] for row in rows if "us" in row)
    wrong = Counter(row["workload"] for row in rows if "failure" in row)
    compared = {row["workload"]: row for row in rows if row.get("ours_us")}
    print("| workload | ours us | fastest other | its us | ratio | right, failed |")
    print("|---|---|---|---|---|---|")
    for workload, row in sorted(compared.items()):
        ours = min(row["ours_us"])
        name, vendor_us = min(row["vendors_us"].items(), key=lambda item: item[1], default=("-", None))
        others = f"{name} | {vendor_us:.1f} | {vendor_us / ours:.2f}" if vendor_us else "- | - | -"
        print(f"| `{workload}` | {ours:.1f} | {others} | {right[workload]}, {wrong[workload]} |")


if __name__ == "__main__":
    main()
