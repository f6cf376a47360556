"""How far predictions of outside kernels are from their times.

    python experiments/outside/evaluate.py rows.csv predictions.csv [--half looked] [--card DIR]

`--card` writes the figures into the card of the model in DIR, under the device that measured the rows.
`--half unopened` and `--half all` show what no one may look at before the closing note; they need
`--open-the-other-half`. Without it, figures and rows are of kernels of the half that may be looked at.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).resolve().parent))

from corpus import half_of

Row = Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """A candidate that was measured, and its prediction. `sigma` is of the logarithm."""

    name: str
    group: str
    config: str
    measured_us: float
    predicted_us: float
    sigma: float
    unknown_calls: bool
    notes: str

    @property
    def error(self) -> float:
        """Logarithm of predicted over measured."""
        return math.log(self.predicted_us / self.measured_us)


def cases_of(rows: Iterable[Row], predictions: Iterable[Row], half: str) -> list[Case]:
    """Measured candidates with predictions, of one half of the kernels, or of "all"."""
    known = {one["key"]: one for one in predictions if one["predicted_us"]}
    found = []
    for row in rows:
        other = known.get(row["key"])
        if row["status"] != "measured" or other is None or half not in ("all", half_of(row["name"])):
            continue
        found.append(
            Case(
                row["name"],
                row["group"],
                row["config"],
                float(row["median_us"]),
                float(other["predicted_us"]),
                float(other["sigma"] or "nan"),
                bool(int(other["unknown_calls"] or 0)),
                other["notes"],
            )
        )
    return found


def figures(cases: Sequence[Case]) -> dict[str, float]:
    """Errors of all cases alike; `kernel_mean` weighs each kernel the same."""
    errors = [abs(case.error) for case in cases]
    if not errors:
        return {"cases": 0}
    by_kernel: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        by_kernel[case.name].append(abs(case.error))
    sure = [case for case in cases if case.sigma > 0]
    return {
        "cases": len(cases),
        "kernels": len(by_kernel),
        "mean_abs_log_error": fmean(errors),
        "median_abs_log_error": median(errors),
        "kernel_mean": fmean(map(fmean, by_kernel.values())),
        "within_1.25x": _share(error <= math.log(1.25) for error in errors),
        "within_2x": _share(error <= math.log(2) for error in errors),
        "bias": fmean(case.error for case in cases),
        "within_one_sigma": _share(abs(case.error) <= case.sigma for case in sure),
        "within_two_sigma": _share(abs(case.error) <= 2 * case.sigma for case in sure),
    }


def top_one(cases: Iterable[Case], least: int = 3) -> dict[str, float]:
    """Best time of a group over the time of the config that is predicted fastest, of groups with at least
    `least` configs: geometric mean and worst."""
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.group].append(case)
    reached = []
    for mine in groups.values():
        if len(mine) >= least:
            first = min(mine, key=lambda case: case.predicted_us)
            reached.append(min(case.measured_us for case in mine) / first.measured_us)
    if not reached:
        return {"groups": 0}
    return {
        "groups": len(reached),
        "top1_geo": math.exp(fmean(map(math.log, reached))),
        "top1_worst": min(reached),
    }


def _share(values: Iterable[bool]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else math.nan


def show(title: str, cases: Sequence[Case]) -> None:
    print(f"{title}: " + ", ".join(f"{n} {v:.3g}" for n, v in (figures(cases) | top_one(cases)).items()))


def _write_card(folder: Path, rows: Sequence[Row], found: Mapping[str, float]) -> None:
    from tilesight.costmodel.learned.model_file import read_card, write_card
    from tilesight.costmodel.training.card import text, with_outside

    (device,) = {row["device"] for row in rows if row["device"]}
    card = with_outside(read_card(folder), device, found)
    write_card(folder, card, text(card))
    print(f"written into the card of {folder}, for {device}")


def main(given: argparse.Namespace) -> None:
    if given.half != "looked" and not given.open_the_other_half:
        raise SystemExit(
            f"--half {given.half} has kernels that are opened once, for a closing note; "
            "add --open-the-other-half if this is it"
        )
    rows = list(csv.DictReader(given.rows.open()))
    predictions = list(csv.DictReader(given.predictions.open()))
    mine = [row for row in rows if given.half in ("all", half_of(row["name"]))]
    status = {
        one: sum(row["status"] == one for row in mine) for one in sorted({row["status"] for row in mine})
    }
    print(f"half {given.half}: {len(mine)} rows of {len({row['name'] for row in mine})} kernels, {status}")
    cases = cases_of(rows, predictions, given.half)
    measured = [row["key"] for row in mine if row["status"] == "measured"]
    print(f"measured {len(measured)}, of them predicted {len(cases)}")
    show("all", cases)
    if given.card:
        _write_card(given.card, mine, figures(cases) | top_one(cases))
    show("without an unknown call", [case for case in cases if not case.unknown_calls])
    for repository in sorted({case.name.partition("/")[0] for case in cases}):
        show(repository, [case for case in cases if case.name.startswith(f"{repository}/")])
    print("\nlargest errors, one of each kernel: predicted / measured")
    seen: set[str] = set()
    for case in sorted(cases, key=lambda case: -abs(case.error)):
        if case.name in seen or len(seen) >= given.largest:
            continue
        seen.add(case.name)
        print(
            f"  {math.exp(case.error):6.2f}x  {case.predicted_us:10.1f} / {case.measured_us:10.1f} us "
            f"sigma {case.sigma:.2f}  {case.group} {case.config}  {case.notes[:160]}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="How far predictions of outside kernels are from their times."
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--half", choices=("looked", "unopened", "all"), default="looked")
    parser.add_argument("--open-the-other-half", action="store_true")
    parser.add_argument("--card", type=Path, help="folder of a trained model")
    parser.add_argument("--largest", type=int, default=15)
    main(parser.parse_args())
