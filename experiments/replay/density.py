"""Number of measurements to 99 % of the best time, by density of the recorded candidates.

    python experiments/replay/density.py DATASET... --predictions FILE [--split operator]

A recorded case is a sample of its space. Strategies are replayed on random parts of it; the trend from a
quarter to the whole is extrapolated to denser spaces. `tilesight replay --predictions` writes FILE for the
same datasets and split.
"""

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tilesight.datasets.replay.cases import (
    RecordedCase,
    RecordedSpace,
    ReplayPrediction,
    recorded_cases,
    replayable_rows,
)
from tilesight.datasets.replay.curves import Curve, summary
from tilesight.datasets.replay.held_out import data_key, read_predictions
from tilesight.datasets.replay.replay_runner import replay_case
from tilesight.datasets.replay.strategies import ReplayProblem, make
from tilesight.problem.space import Config
from tilesight.records.dataset import read_dataset

SHARES = (0.25, 0.5, 0.75, 1.0)
STRATEGIES = ("random", "model", "neighbours", "residuals")
DRAWINGS = 3
FEWEST = 4  # verified candidates of a part that is replayed


def part_of(case: RecordedCase, share: float, seed: int) -> RecordedCase | None:
    configs = random.Random(f"{case.workload} {seed}").sample(
        list(case.times_us), round(share * len(case.times_us))
    )
    times = {config: case.times_us[config] for config in case.times_us if config in set(configs)}
    if sum(us is not None for us in times.values()) < FEWEST:
        return None
    return replace(case, space=RecordedSpace(list(times)), times_us=times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--predictions", type=Path, required=True)
    parser.add_argument("--split", default="shape")
    given = parser.parse_args()
    rows = replayable_rows(read_dataset(given.datasets))
    cases, positions = recorded_cases(rows)
    predicted = read_predictions(given.predictions, data_key(rows, given.split, 0)).predictions("learned")
    predictions: list[dict[Config, ReplayPrediction]] = [
        {
            config: prediction
            for config, at in zip(case.times_us, own, strict=True)
            if (prediction := predicted[at]) is not None
        }
        for case, own in zip(cases, positions, strict=True)
    ]
    print(f"{'part':>5} {'strategy':12} {'to 99 %':>8} {'to 95 %':>8}  share at 1, 8")
    for share in SHARES:
        for name in STRATEGIES:
            curves = []
            for seed in range(DRAWINGS if share < 1 else 1):
                for number, (case, case_predictions) in enumerate(zip(cases, predictions, strict=True)):
                    if (part := part_of(case, share, seed)) is None:
                        continue
                    own = {c: p for c, p in case_predictions.items() if c in part.times_us}
                    shares = replay_case(part, make(name, ReplayProblem(part.space, own, seed)), 128)
                    curves.append(Curve(name, seed, number, case.operator, tuple(shares)))
            found = summary(curves, (1, 8))
            to_99, to_95 = found.goals
            line = f"{share:5.2f} {name:12} {to_99.mean:8.2f} {to_95.mean:8.2f}  " + " ".join(
                f"{p.share:.4f}" for p in found.points
            )
            print(line, flush=True)


if __name__ == "__main__":
    main()
