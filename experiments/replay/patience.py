"""Number of measurements without improvement after which a search may end.

    python experiments/replay/patience.py DATASET... --predictions FILE [--split operator]

Replays strategies, and ends each after that many measurements in a row without a time below 0.995 of the best
one. `tilesight replay --predictions` writes FILE for the same datasets and split.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tilesight.costmodel.training.metrics import geometric_mean
from tilesight.datasets.replay import Curve, replay
from tilesight.tuner.queue import GAIN

STRATEGIES = ("model", "residuals")
PATIENCES = (4, 6, 8, 12, 16, 24, 32, 48)


def ended(curve: Curve, patience: int) -> int:
    """Number of measurements until the search ends."""
    best, fruitless = 0.0, 0
    for count, share in enumerate(curve.shares, 1):
        if share > best / GAIN:
            best, fruitless = share, 0
        else:
            fruitless += 1
        if fruitless >= patience:
            return count
    return len(curve.shares)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--predictions", type=Path, required=True)
    parser.add_argument("--split", default="shape")
    given = parser.parse_args()
    found = replay(given.datasets, STRATEGIES, split=given.split, predictions=given.predictions)
    print(f"{'strategy':10} {'patience':>8} {'measured':>8} {'share':>7} {'worst':>7} {'cases at 99 %':>14}")
    for strategy in STRATEGIES:
        curves = [curve for curve in found.curves if curve.strategy == strategy]
        for patience in PATIENCES:
            counts = [ended(curve, patience) for curve in curves]
            shares = [curve.at(count) for curve, count in zip(curves, counts, strict=True)]
            good = sum(share >= 0.99 for share in shares)
            means = f"{fmean(counts):8.1f} {geometric_mean(shares):7.4f} {min(shares):7.4f}"
            line = f"{strategy:10} {patience:8} {means}"
            print(f"{line} {good:7} of {len(shares)}")


if __name__ == "__main__":
    main()
