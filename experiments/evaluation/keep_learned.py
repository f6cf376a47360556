"""Keeps the learned part for a change of the analytical model that concerns no row it was trained on.

    git worktree add ../before COMMIT
    python experiments/evaluation/keep_learned.py experiments/datasets/*/*.parquet --before ../before

A learned part corrects one version of the analytical model, since another version may predict its rows
otherwise. A rule for kernels of others may concern no row at all; then a training would find the same. The
program predicts all rows with the checkout `--before`, whose version the learned part was trained with, and
with this one. If all times and their parts are equal, the card names this version; otherwise the program says
which operators change, and the model must be trained again. Profiles that the reader changes are read again
first (`../datasets/read_again.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.learned.model_file import read_card, write_card
from tilesight.costmodel.training import card as model_card
from tilesight.costmodel.training.measured import MeasuredRow, measured_rows
from tilesight.errors import TileSightError
from tilesight.records.dataset import read_dataset
from tilesight.settings import available_cores

MODEL = Path(__file__).resolve().parents[2] / "costmodel" / "pretrained"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument("--before", type=Path, help="checkout of the version that the model was trained with")
    parser.add_argument("--times", type=Path, help="only write the times of this version to a file")
    parser.add_argument("--workers", type=int, default=available_cores())
    given = parser.parse_args()
    if (given.before is None) == (given.times is None):
        parser.error("give --before or --times")
    rows = measured_rows(read_dataset(given.datasets))
    now = {"version": AnalyticalModel().version, "times": times(rows, given.workers)}
    if given.times is not None:
        given.times.write_text(json.dumps(now))
        return
    before = of_checkout(given.before, given.datasets, given.workers)
    card = read_card(MODEL)
    if before["version"] not in (card["analytical"], now["version"]):
        sys.exit(f"the model corrects {card['analytical']}, but {given.before} has {before['version']}")
    if changed := changes(rows, before["times"], now["times"]):
        counts = ", ".join(f"{operator} {count}" for operator, count in changed.items())
        sys.exit(
            f"the times of {changed.total()} of {len(rows)} rows change ({counts}): train the model again"
        )
    stamp(MODEL, now["version"])
    print(f"the times of all {len(rows)} rows are equal: the learned part corrects {now['version']}")


def times(rows: list[MeasuredRow], workers: int) -> list[Any]:
    """Of each row the analytical time and its parts, or the error, in JSON's types."""
    with get_context("fork").Pool(workers) as pool:
        return pool.map(partial(_time, AnalyticalModel()), rows, chunksize=100)


def _time(model: AnalyticalModel, row: MeasuredRow) -> Any:
    try:
        found = model.predict(row.kernels, row.target)
    except TileSightError as error:
        return str(error)
    return [found.latency_us, dict(sorted(found.terms_us.items()))]


def of_checkout(folder: Path, datasets: list[Path], workers: int) -> dict[str, Any]:
    """The version of a checkout, and what `times` gives there."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "times.json"
        paths = [str(path.resolve()) for path in datasets]
        command = [sys.executable, __file__, *paths, "--times", str(out), "--workers", str(workers)]
        environment = {**os.environ, "PYTHONPATH": str(folder.resolve())}
        subprocess.run(command, cwd=folder, env=environment, check=True)
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def changes(rows: list[MeasuredRow], before: list[Any], now: list[Any]) -> Counter[str]:
    """How many rows of each operator have other times."""
    return Counter(row.operator for row, old, new in zip(rows, before, now, strict=True) if old != new)


def stamp(folder: Path, version: str) -> None:
    """Write the version of the analytical model into the card of a model, which keeps the one before."""
    card = read_card(folder)
    card |= {"analytical": version, "trained_with": card.get("trained_with", card["analytical"])}
    write_card(folder, card, model_card.text(card))


if __name__ == "__main__":
    main()
