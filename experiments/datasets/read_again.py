"""Finds the rows that a change of the reader concerns, and reads those of their operators again.

    python experiments/datasets/read_again.py experiments/datasets/library/h200.parquet [--most 16]
    python experiments/datasets/read_again.py experiments/datasets/*/*.parquet --again retention,mla_decode

A reading of all rows takes hours on two cores. The first call lowers a sample of the rows, in which each
attribute, dtype and parameter of an operator has each of its values at least once, as far as `--most` rows
of an operator allow. It prints for which operators profiles or analytical times change. The second call
lowers all rows of the named operators, and writes their profiles into the datasets. Nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.datasets.refresh import refresh
from tilesight.profile.codec import profiles_of
from tilesight.records.dataset import Dataset, read_dataset, write_dataset
from tilesight.settings import available_cores
from tilesight.target.spec import load_target

SEED = 0
NAME = "rows.parquet"
LEAST = 0.001  # change of a time that counts


@dataclass(frozen=True)
class Change:
    """What a new reading of an operator's rows gives.

    Attributes:
        operator: its name.
        read: rows that were read.
        ratios: new over old analytical times of the rows whose profile is another one.
    """

    operator: str
    read: int
    ratios: Sequence[float]

    def text(self) -> str:
        """The change as a line of the report."""
        if not self.ratios:
            return f"{self.operator}: {self.read} rows, no profile changes"
        moved = sum(not abs(ratio - 1) <= LEAST for ratio in self.ratios)
        range_ = f"{min(self.ratios):.3f} to {max(self.ratios):.3f} of the old ones"
        return (
            f"{self.operator}: {len(self.ratios)} of {self.read} profiles change, the times of {moved} by "
            f"more than {100 * LEAST} %: {range_}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument("--most", type=int, default=16, help="rows of an operator in the sample")
    parser.add_argument("--again", default="", help="operators, by commas, of which all rows are read again")
    parser.add_argument("--workers", type=int, default=available_cores())
    given = parser.parse_args()
    again = {name for name in given.again.split(",") if name}
    for path in given.datasets:
        dataset = read_dataset(path)
        known = dataset.frame["profile"].notna()
        if again:
            rows = dataset.frame.index[known & dataset.frame["operator"].isin(again)]
        else:
            rows = sample(dataset.frame[known], given.most)
        if rows.empty:
            continue
        read = read_rows(dataset, rows, given.workers)
        print(f"{path}:")
        for change in changes(dataset.frame.loc[rows], read):
            print(f"  {change.text()}", flush=True)
        if again:
            frame = dataset.frame.copy()
            frame.loc[rows, "profile"] = read
            write_dataset(path, Dataset(frame, dataset.metadata))


def sample(frame: pd.DataFrame, most: int) -> pd.Index[int]:
    """Rows that have each value of an operator's attributes, dtype and parameters at least once.

    Args:
        frame: rows of a dataset.
        most: rows of an operator; values that come rarely may be missing beyond them.

    Returns:
        Their labels, at least one of each operator.
    """
    shuffled = frame.sample(frac=1, random_state=SEED)
    chosen: list[int] = []
    for _, rows in shuffled.groupby("operator", sort=True):
        values = {label: _values(row) for label, row in zip(rows.index, rows.to_dict("records"), strict=True)}
        missing = set().union(*values.values())
        for _ in range(min(most, len(rows))):
            best = max(values, key=lambda label: len(values[label] & missing))
            chosen.append(best)
            missing -= values.pop(best)
            if not missing:
                break
    return pd.Index(chosen)


def _values(row: Mapping[Any, Any]) -> frozenset[tuple[str, str]]:
    """The values of a row that may decide what the reader finds."""
    named = {"target": row["target"], "dtype": row["dtype"]}
    for column in ("attrs", "config"):
        named |= json.loads(row[column])
    return frozenset((name, str(value)) for name, value in named.items())


def read_rows(dataset: Dataset, rows: pd.Index[int], workers: int) -> list[str]:
    """The profiles of these rows as the present code reads them, in their order.

    A row whose candidate lowers to other code than the measured one keeps its profile.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        write_dataset(path, Dataset(dataset.frame.loc[rows].reset_index(drop=True), dataset.metadata))
        print(refresh(path, workers=workers).text(), flush=True)
        return list(read_dataset(path).frame["profile"])


def changes(old: pd.DataFrame, profiles: Sequence[str]) -> Iterator[Change]:
    """How the profiles of rows and their analytical times change, by operator."""
    model, target = AnalyticalModel(), cache(load_target)

    def ratio(row: Mapping[Any, Any]) -> float:
        try:
            new, before = (
                model.predict(profiles_of(row[column]), target(row["target"])).latency_us
                for column in ("new", "profile")
            )
        except ValueError:
            return math.nan  # one of them cannot be predicted
        return new / before

    for operator, rows in old.assign(new=profiles).groupby("operator", sort=True):
        other = rows[rows["profile"] != rows["new"]]
        yield Change(str(operator), len(rows), [ratio(row) for row in other.to_dict("records")])


if __name__ == "__main__":
    main()
