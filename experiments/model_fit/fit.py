"""Fit the analytical model's constants to measured datasets, and print them.

    python experiments/model_fit/fit.py [DATASET...] [--processes N] [--evaluations N]

The default DATASETs are those of experiments/datasets/h200. Nothing is lowered, since the datasets contain
the profiles. The printed constants are copied to costmodel/analytical/constants.py by hand. With
--evaluations 0 the current constants are evaluated and nothing is fitted.
"""

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.analytical.constants import DEFAULT
from tilesight.costmodel.training.fit_constants import EVALUATIONS, fit
from tilesight.costmodel.training.measured import measured_rows
from tilesight.costmodel.training.train import describe
from tilesight.records.dataset import read_dataset

DATASETS = Path(__file__).parent.parent / "datasets" / "h200"


def print_errors(rows, constants):
    """Print the errors |predicted / measured - 1| of the rows that the model does not refuse."""
    described = describe(rows, AnalyticalModel(constants))
    measured = np.array([row.measured_us for row in rows])
    errors = np.abs(described.analytical_us / measured - 1)
    for operator in sorted({row.operator for row in rows}):
        chosen = described.usable & np.array([row.operator == operator for row in rows])
        print(
            f"  {operator:16s} {chosen.sum():5d} rows, mean error {errors[chosen].mean():6.1%}, median "
            f"{np.median(errors[chosen]):6.1%}"
        )
    print(
        f"  {'all':16s} {described.usable.sum():5d} rows, mean error {errors[described.usable].mean():6.1%}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="*", default=[DATASETS])
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS, help="of the slopes of all constants")
    chosen = parser.parse_args()
    rows = measured_rows(read_dataset(chosen.datasets))
    print(
        f"{len(rows)} verified rows in {len({row.case for row in rows})} cases; with the current constants:"
    )
    print_errors(rows, DEFAULT)
    if not chosen.evaluations:
        return
    begin = time.perf_counter()
    with ProcessPoolExecutor(chosen.processes) as pool:
        fitted = fit(rows, evaluations=chosen.evaluations, map_like=pool.map)
    print(f"fitted in {time.perf_counter() - begin:.0f} s:")
    before = asdict(DEFAULT)
    for name, value in asdict(fitted).items():
        print(
            f"    {name}: float = {value:g}" + ("" if value == before[name] else f"  # was {before[name]:g}")
        )
    print_errors(rows, fitted)


if __name__ == "__main__":
    main()
