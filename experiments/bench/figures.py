"""Draws rows of `tilesight bench --out` and of `check_kernels.py` beside what the TileLang paper states.

    python experiments/bench/figures.py experiments/bench/h200/*.jsonl

One figure for each machine, which is the name of the rows' folder, and each group of the paper's workloads
that has rows with a comparison: bars say how many times as fast the kernel is as each other implementation.
Of several rows of a workload, the last one stands. What the paper states is hatched, and was measured by its
authors, on the machine that stands there; it names averages, except where a label says otherwise.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilesight.errors import InputError
from tilesight.kernels import operator, operators
from tilesight.reports.pictures import new_figure, save_figure

FOLDER = Path(__file__).parent / "figures"
MEAN = "geometric\nmean"  # of the workloads that are shown


@dataclass(frozen=True)
class Stated:
    """A ratio that the paper states: over what, on which machine, and of which workloads if not of all."""

    over: str
    machine: str
    ratio: float
    of: str = ""

    @property
    def label(self) -> str:
        return "\n".join(filter(None, (self.over, self.machine, self.of)))


@dataclass(frozen=True)
class Group:
    """Workloads of the paper that belong into one figure.

    Attributes:
        title: of the figure.
        shapes: a pattern of the names of workloads, by operator.
        stated: the ratios of the paper.
    """

    title: str
    shapes: dict[str, str]
    stated: tuple[Stated, ...]


GROUPS = {
    "attention": Group(
        "attention",
        {"flash_attention": "FA[0-4]"},
        (
            Stated("FlashAttention-3", "H100", 1.36),
            Stated("Triton", "H100", 1.41),
            Stated("PyTorch", "H100", 1.70),
        ),
    ),
    "linear-attention": Group(
        "linear attention",
        {"chunk_scan": "CC[0-5]", "chunk_state": "CT[0-5]"},
        (
            Stated("Triton", "H100", 1.77, "chunk_scan"),
            Stated("Triton", "H100", 2.10, "chunk_state"),
        ),
    ),
    "matmul": Group(
        "matmul",
        {"matmul": "M[0-7]"},
        (
            Stated("cuBLAS", "H100", 1.00),
            Stated("cuBLAS", "A100", 0.97),
            Stated("Triton", "H100", 1.13),
            Stated("Triton", "A100", 1.03),
        ),
    ),
    "dequant": Group(
        "matmul with packed weights",
        {"dequant_matmul": "(D|NF|FP|MX|T|Z)[0-9]+"},
        (
            Stated("Marlin", "A100", 1.04, "int4"),
            Stated("BitsandBytes", "A100", 1.62, "nf4"),
            Stated("cuBLAS fp16", "A100", 7.65, "int2, best"),
        ),
    ),
    "mla": Group(
        "decoding with latent attention",
        {"mla_decode": "MLA[0-9]+"},
        (Stated("FlashMLA", "H100", 0.98), Stated("AITER", "MI300X", 0.95)),
    ),
}


def read(paths: Sequence[Path]) -> pd.DataFrame:
    """Rows with a measured comparison, one for each machine, operator, workload, dtype and implementation.

    Columns: machine, operator, shape, dtype, over, and ratio, how many times as fast as it.
    """
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for path in paths:
        machine = path.resolve().parent.name
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            named = _compared(row)
            if named:
                *workload, ours_us = named
                found[machine, *workload] = {name: us / ours_us for name, us in row["vendors_us"].items()}
    lines = [(*keys, name, ratio) for keys, ratios in found.items() for name, ratio in ratios.items()]
    return pd.DataFrame(lines, columns=["machine", "operator", "shape", "dtype", "over", "ratio"])


def _compared(row: dict[str, Any]) -> tuple[str, str, str, float] | None:
    """Operator, published name, dtype and our time in us, if the row has a comparison of such a workload."""
    if not row.get("vendors_us") or not row.get("ours_us"):
        return None
    if "workload" in row:  # of check_kernels.py: several finalists, in turns
        name = _names().get(row["workload"])
        return name and (*name, min(row["ours_us"]))
    if row["status"] != "verified" or not row.get("shape"):
        return None
    return row["operator"], row["shape"], row["dtype"], row["ours_us"]


@cache
def _names() -> dict[str, tuple[str, str, str]]:
    """Operator, published name and dtype by the key of a workload."""
    found = {}
    for one in map(operator, operators()):
        for name in one.named:
            for dtype in one.dtypes:
                with suppress(InputError):  # not every dtype has every workload
                    found[one.workload(name, dtype).key] = (one.name, name, dtype)
    return found


def ratios_of(group: Group, rows: pd.DataFrame) -> pd.DataFrame:
    """A line for each workload in the order of names, with a column for each other implementation.

    Geometric means of an operator follow its workloads. Workloads of a dtype that is not the group's most
    frequent one have it in their name.
    """
    parts = []
    for name, shapes in group.shapes.items():
        of_it = rows[(rows["operator"] == name) & rows["shape"].str.fullmatch(shapes)]
        if of_it.empty:
            continue
        usual = of_it["dtype"].mode()[0]
        names = of_it["shape"].where(of_it["dtype"] == usual, of_it["shape"] + "\n" + of_it["dtype"])
        table = of_it.assign(name=names).pivot(index="name", columns="over", values="ratio")
        table = table.loc[sorted(table.index, key=_natural), list(dict.fromkeys(of_it["over"]))]
        if len(table) > 1:
            mean = MEAN if len(group.shapes) == 1 else f"{MEAN}\n{name}"
            table.loc[mean] = np.exp(np.log(table).mean())
        parts.append(table)
    return pd.concat(parts) if parts else pd.DataFrame()


def draw(path: Path, title: str, table: pd.DataFrame, stated: Sequence[Stated]) -> None:
    """Measured ratios on the left, stated ones on the right, on one scale."""
    bars = int(table.notna().sum(axis=None))
    widths = [max(3.0, 0.32 * bars + 0.3 * len(table)), 0.4 + 1.05 * len(stated)]
    figure = new_figure("a figure of a benchmark", figsize=(sum(widths) + 1.2, 4.6), layout="constrained")
    measured, paper = figure.subplots(1, 2, sharey=True, width_ratios=widths)
    for position, (_, line) in enumerate(table.iterrows()):
        present = line.dropna()
        for place, (name, ratio) in enumerate(present.items()):
            at = position + (place - (len(present) - 1) / 2) * 0.8 / len(table.columns)
            colour = f"C{list(table.columns).index(name)}"
            _bar(measured, at, ratio, width=0.72 / len(table.columns), color=colour)
    for number, name in enumerate(table.columns):
        measured.bar(0, 0, color=f"C{number}", label=name)
    measured.set_xticks(range(len(table)), list(table.index), fontsize=8)
    measured.set_ylabel("times as fast as")
    measured.set_title("measured here", fontsize=10)
    measured.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False, ncols=3)
    for position, one in enumerate(stated):
        _bar(paper, position, one.ratio, width=0.6, color="0.85", edgecolor="0.4", hatch="//")
    paper.set_xticks(range(len(stated)), [one.label for one in stated], fontsize=7)
    paper.set_title("stated by the paper", fontsize=10)
    for axes in (measured, paper):
        axes.axhline(1, color="0.3", linewidth=0.8)
    if max(table.max(axis=None), *(one.ratio for one in stated)) > 12:
        measured.set_yscale("log")
        measured.yaxis.set_major_formatter("{x:g}")
    measured.margins(y=0.1)
    figure.suptitle(title, fontsize=11)
    save_figure(path, figure)


def _bar(axes: Any, at: float, ratio: float, **options: Any) -> None:
    axes.bar_label(axes.bar(at, ratio, **options), fmt="%.2f", padding=2, fontsize=6.5)


def _natural(name: str) -> list[object]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="+", type=Path, help="files of rows")
    parser.add_argument("--into", type=Path, default=FOLDER)
    given = parser.parse_args()
    given.into.mkdir(exist_ok=True)
    for machine, rows in read(given.rows).groupby("machine"):
        for name, group in GROUPS.items():
            table = ratios_of(group, rows)
            if not table.empty:
                path = given.into / f"{machine}-{name}.png"
                draw(path, f"{group.title}: {str(machine).upper()}", table, group.stated)
                print(f"{path}: {len(table)} lines, {', '.join(table.columns)}")


if __name__ == "__main__":
    main()
