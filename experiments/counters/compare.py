"""Compare each term of the cost model with its hardware counter.

    python experiments/counters/compare.py DATASET.parquet... [--out FOLDER] [--case TEXT]

For every row that has counters, the default cost model predicts from the stored profile. Shares (matrix pipe,
DRAM, L2 hits, occupancy, issue slots) are compared in points, counts (bytes, wavefronts, instructions) and
the clock by their ratio. Prints a table over all rows and one for each case; writes compare.md, and
compare.csv with a line a row and term.

Shares refer to the kernel's own time, as the profiler measures it: predicted busy time is divided by the
predicted time without the launch.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

LEAST_COUNT = 1.0  # smaller counts are taken as 0
Values = Mapping[str, float]


@dataclass(frozen=True)
class Term:
    """A value that is both predicted and counted.

    Shares (`points`) are compared by difference, others by ratio.
    """

    name: str
    points: bool
    predicted: Callable[["PredictedTerms"], float | None]
    counted: Callable[[Values], float | None]


@dataclass(frozen=True)
class PredictedTerms:
    """The prediction for one candidate."""

    prediction: Any
    target: Any

    @property
    def own_us(self) -> float:
        """Time without the launch, which no counter includes."""
        return max(self.prediction.latency_us - self.prediction.terms_us.get("launch", 0.0), 1e-3)


def _expected(key: str) -> Callable[[PredictedTerms], float | None]:
    return lambda said: said.prediction.expected.get(key)


def _counter(key: str) -> Callable[[Values], float | None]:
    return lambda counters: counters.get(key)


def _busy(name: str) -> Callable[[PredictedTerms], float | None]:
    def share(said: PredictedTerms) -> float | None:
        if name not in said.prediction.utilization:
            return None
        return min(1.0, said.prediction.utilization[name] * said.prediction.latency_us / said.own_us)

    return share


def _dram_busy(said: PredictedTerms) -> float | None:
    """Share of the data sheet's bandwidth, as for the counter."""
    read, written = (
        said.prediction.expected.get("dram_read_bytes"),
        said.prediction.expected.get("dram_write_bytes"),
    )
    if read is None or written is None:
        return None
    bandwidth = said.target.get("device.memory.dram.spec_gb_per_s", said.target.dram_gb_per_s)
    return (read + written) / (said.own_us * 1e3) / bandwidth


def _core_hit(counters: Values) -> float | None:
    hit, miss = counters.get("l2_core_hit_bytes"), counters.get("l2_core_miss_bytes")
    return hit / (hit + miss) if hit is not None and miss is not None and hit + miss > 0 else None


def _sum(*keys: str) -> Callable[[Values], float | None]:
    return lambda counters: sum(counters[k] for k in keys) if all(k in counters for k in keys) else None


TERMS = (
    Term("time without launch", False, lambda said: said.own_us, _counter("duration_us")),
    Term("matrix pipe busy", True, _busy("matrix"), _counter("tensor_active")),
    Term("DRAM busy", True, _dram_busy, _counter("dram_throughput")),
    Term("L2 hits", True, _expected("l2_hit"), _counter("l2_hit")),
    Term("L2 hits of cores' requests", True, _expected("l2_hit"), _core_hit),
    Term("issue slots busy", True, _busy("issue"), _counter("issue_active")),
    Term("shared memory busy, loads and stores", True, _busy("shared"), _counter("shared_utilization")),
    Term("banks busy, all that use them", True, _busy("shared"), _sum("bank_reads", "bank_writes")),
    Term("occupancy", True, _expected("occupancy"), _counter("occupancy")),
    Term("clock", False, _expected("clock_mhz"), _counter("sm_clock_mhz")),
    Term("DRAM bytes read", False, _expected("dram_read_bytes"), _counter("dram_read_bytes")),
    Term("DRAM bytes written", False, _expected("dram_write_bytes"), _counter("dram_write_bytes")),
    Term("L2 bytes", False, _expected("l2_bytes"), _counter("l2_bytes")),
    Term(
        "L2 bytes, over the crossbar",
        False,
        _expected("l2_bytes"),
        _sum("xbar_read_bytes", "xbar_write_bytes"),
    ),
    Term("shared wavefronts", False, _expected("shared_wavefronts"), _counter("shared_wavefronts")),
    Term("special instructions", False, _expected("special_instructions"), _counter("special_instructions")),
    Term(
        "local bytes (spills)", False, _expected("local_bytes"), _sum("local_load_bytes", "local_store_bytes")
    ),
)


@dataclass(frozen=True)
class Pair:
    case: str
    operator: str
    config: str
    term: Term
    predicted: float
    counted: float

    @property
    def error(self) -> float:
        """Signed error: points of a share, else the ratio minus one.

        Infinite if only the prediction is not 0.
        """
        if self.term.points:
            return 100 * (self.predicted - self.counted)
        if max(self.predicted, self.counted) < LEAST_COUNT:
            return 0.0
        return self.predicted / self.counted - 1 if self.counted >= LEAST_COUNT else math.inf


def pairs_of(row: Mapping[str, Any], model: Any, target: Any) -> list[Pair]:
    """Predicted and counted value of each term that has both.

    Raises `ValueError` if the model refuses the row.
    """
    from tilesight.records.dataset import profiles_of

    counters = json.loads(row["counters"])
    said = PredictedTerms(model.predict(profiles_of(row["profile"]), target), target)
    found = []
    for term in TERMS:
        predicted, counted = term.predicted(said), term.counted(counters)
        if predicted is not None and counted is not None:
            found.append(
                Pair(
                    f"{row['operator']} {row['shape']} {row['dtype']}",
                    row["operator"],
                    row["config"],
                    term,
                    predicted,
                    counted,
                )
            )
    return found


@dataclass(frozen=True)
class Summary:
    rows: int
    mean_absolute: float
    median_absolute: float
    bias: float  # median of the signed errors
    within: float  # share of rows within 8 points, or 10 %
    one_sided: int  # rows with a predicted value and a count of 0


def summarise(pairs: Sequence[Pair]) -> Summary:
    finite = [pair.error for pair in pairs if math.isfinite(pair.error)]
    if not finite:
        return Summary(len(pairs), math.nan, math.nan, math.nan, 0.0, len(pairs))
    bound = 8 if pairs[0].term.points else 0.10
    return Summary(
        rows=len(pairs),
        mean_absolute=sum(map(abs, finite)) / len(finite),
        median_absolute=median(map(abs, finite)),
        bias=median(finite),
        within=sum(abs(error) <= bound for error in finite) / len(pairs),
        one_sided=len(pairs) - len(finite),
    )


def by_term(pairs: Sequence[Pair]) -> list[tuple[Term, list[Pair]]]:
    groups = [(term, [pair for pair in pairs if pair.term is term]) for term in TERMS]
    return [(term, group) for term, group in groups if group]


def _size(term: Term, value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f} points" if term.points else f"{100 * value:.1f} %"


def overall_table(pairs: Sequence[Pair]) -> list[str]:
    columns = [
        "term",
        "rows",
        "mean absolute error",
        "median absolute",
        "median, signed",
        "within 8 points or 10 %",
        "only predicted",
    ]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for term, group in by_term(pairs):
        s = summarise(group)
        sizes = [_size(term, value) for value in (s.mean_absolute, s.median_absolute, s.bias)]
        cells = [term.name, s.rows, *sizes, f"{100 * s.within:.0f} %", s.one_sided]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def case_table(pairs: Sequence[Pair]) -> list[str]:
    """Mean absolute error of each term, a line a case."""
    present = [term for term, _ in by_term(pairs)]
    lines = [
        "| case | rows | " + " | ".join(term.name for term in present) + " |",
        "|---" * (len(present) + 2) + "|",
    ]
    for case in dict.fromkeys(pair.case for pair in pairs):
        groups = {term: [p for p in pairs if p.case == case and p.term is term] for term in present}
        rows = max(len(group) for group in groups.values())
        cells = [
            _size(term, summarise(group).mean_absolute) if group else "-" for term, group in groups.items()
        ]
        lines.append(f"| {case} | {rows} | " + " | ".join(cells) + " |")
    return lines


def write_rows(path: Path, pairs: Sequence[Pair]) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["case", "config", "term", "unit", "predicted", "counted", "error"])
        for p in pairs:
            rows.writerow(
                [
                    p.case,
                    p.config,
                    p.term.name,
                    "points" if p.term.points else "ratio",
                    f"{p.predicted:.6g}",
                    f"{p.counted:.6g}",
                    f"{p.error:.4g}",
                ]
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", nargs="+", type=Path)
    parser.add_argument(
        "--out", type=Path, help="folder for compare.md and compare.csv [default: that of the first dataset]"
    )
    parser.add_argument("--case", help="only cases whose name has this in it")
    parser.add_argument(
        "--target", help="a target file in place of the one that the rows name, e.g. a calibrated one"
    )
    given = parser.parse_args()

    from tilesight.costmodel import default_model
    from tilesight.records.dataset import read_dataset
    from tilesight.target.spec import load_target

    model = default_model()
    pairs: list[Pair] = []
    refused = 0
    frame = read_dataset(given.dataset).frame
    for _, row in frame[frame["counters"].notna() & frame["profile"].notna()].iterrows():
        try:
            found = pairs_of(row, model, load_target(given.target or row["target"]))
        except ValueError as error:
            refused += 1
            print(f"left out: {row['workload']} {row['config']}: {error}", file=sys.stderr)
            continue
        pairs += [pair for pair in found if not given.case or given.case in pair.case]
    if not pairs:
        sys.exit("no row of these datasets has counters; collect_counters.py adds them")
    lines = [f"Model {model.version}.", "", "## All rows", "", *overall_table(pairs), "", "## By operator"]
    for operator in dict.fromkeys(pair.operator for pair in pairs):
        lines += [
            "",
            f"### {operator}",
            "",
            *overall_table([pair for pair in pairs if pair.operator == operator]),
        ]
    lines += ["", "## By case, mean absolute errors", "", *case_table(pairs)]
    folder = given.out or given.dataset[0].parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.md").write_text("\n".join(lines) + "\n")
    write_rows(folder / "compare.csv", pairs)
    print("\n".join(lines))
    if refused:
        print(f"{refused} rows were left out: the model refuses their profiles")


if __name__ == "__main__":
    main()
