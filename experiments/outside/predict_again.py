"""Predict kept profiles of a corpus again, after a change of the model or for another chip. Takes seconds.

    python experiments/outside/predict_again.py PROFILES ROWS --out predictions.csv [--target h100]

PROFILES is what predict.py kept for a chip of the same instruction set (`profiles.jsonl.xz` or a plain file),
ROWS what measure.py wrote. Candidates that were not measured are left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from predict import COLUMNS, figures_of  # noqa: E402

from tilesight.costmodel import default_model  # noqa: E402
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel  # noqa: E402
from tilesight.costmodel.foreign import ForeignModel  # noqa: E402
from tilesight.costmodel.learned.hybrid import HybridModel  # noqa: E402
from tilesight.costmodel.learned.model_file import load  # noqa: E402
from tilesight.profile.codec import profiles_of  # noqa: E402
from tilesight.target.spec import load_target  # noqa: E402


def main(given: argparse.Namespace) -> None:
    target = load_target(given.target)
    own = HybridModel(AnalyticalModel(), load(given.model)) if given.model else default_model()
    model = ForeignModel(own)
    rows = {row["key"]: row for row in csv.DictReader(given.rows.open())}
    count = 0
    opened = lzma.open if given.profiles.suffix == ".xz" else open
    with opened(given.profiles, "rt") as kept, given.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for line in kept:
            one = json.loads(line)
            row = rows.get(one["key"])
            if row is None:
                continue
            profiles = profiles_of(one["profiles"])
            named = {name: row[name] for name in ("name", "group", "config", "key")}
            writer.writerow(
                named | {"target": target.name} | figures_of(model.predict(profiles, target), profiles)
            )
            count += 1
    print(f"{count} of {len(rows)} candidates predicted, into {given.out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Predict kept profiles of a corpus again.")
    parser.add_argument("profiles", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--model", type=Path, help="folder of a trained model, in place of the shipped one")
    main(parser.parse_args())
