"""Judge models that were trained on one chip with the measured kernels of another one. No GPU needed.

    tilesight model train experiments/datasets/h200 --no-evaluate --out /tmp/of-h200
    python experiments/evaluation/transfer.py /tmp/of-h200 --trained-on h200 --judged-on h100 --json OUT.json

The judged chip has its own figures (calibrated), or those of the training's chip where they were measured
(uncalibrated): then only its data sheet is known, and rates of its memory are in proportion to the sheets.
Unfitted: uncalibrated, and the constants of the analytical model are the round figures from which a fit
starts, which depend on no measured kernel.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.learned.hybrid import HybridModel
from tilesight.costmodel.learned.model_file import load
from tilesight.costmodel.model import CostModel
from tilesight.costmodel.training.evaluation import FEWEST_ROWS
from tilesight.costmodel.training.fit_constants import ROUGH
from tilesight.costmodel.training.metrics import geometric_mean, scores
from tilesight.records.dataset import profiles_of, read_dataset
from tilesight.target.fields import Figure
from tilesight.target.spec import Target, load_target

DATASETS = Path(__file__).resolve().parents[1] / "datasets"
SHEET = "device.memory.dram.spec_gb_per_s"
RATES = ("device.memory.dram.gb_per_s", "device.memory.dram.read_gb_per_s")


def uncalibrated(judged: Target, known: Target) -> Target:
    """`judged` with the figures of `known` in place of what was measured, or derived from measurements."""
    figures = dict(judged.figures)
    for path, figure in judged.figures.items():
        other = known.figures.get(path)
        if other is None or figure.provenance == "spec" or path == "device.memory.l2.bytes":
            continue
        ratio = judged[SHEET] / known[SHEET] if path in RATES else 1.0
        figures[path] = Figure(other.value * ratio, "derived", f"taken from {known.name}")
    return replace(judged, figures=figures)


def judge(model: CostModel, target: Target, folder: Path) -> dict[str, Any]:
    """Scores of a model on the cases of a dataset."""
    top1, mapes, inside, wide, errors = [], [], [], [], []
    operators: dict[str, list[float]] = {}
    for case in read_dataset([folder]).verified().cases():
        frame = case.frame
        if len(frame) < FEWEST_ROWS:
            continue
        found = [model.predict(profiles_of(text), target) for text in frame["profile"]]
        measured = frame["measured_us"].tolist()
        score = scores([p.latency_us for p in found], measured, order_us=[p.ranking_us for p in found])
        top1.append(score.top1)
        mapes.append(score.mape or 0.0)
        operators.setdefault(case.operator, []).append(score.mape or 0.0)
        for prediction, us in zip(found, measured, strict=True):
            error, sigma = abs(math.log(prediction.latency_us / us)), math.log1p(prediction.uncertainty)
            errors.append(error)
            inside.append(error <= sigma)
            wide.append(error <= 2 * sigma)
    return {
        "cases": len(top1),
        "rows": len(inside),
        "top1": geometric_mean(top1),
        "top1_worst": min(top1),
        "mape": fmean(mapes),
        "one_sigma": fmean(inside),
        "two_sigma": fmean(wide),
        "sigma": sorted(errors)[int(0.68 * len(errors))],  # 68 % of the log errors are smaller
        "mape_by_operator": {name: fmean(values) for name, values in sorted(operators.items())},
    }


def main(given: argparse.Namespace) -> None:
    known, own = load_target(given.trained_on), load_target(given.judged_on)
    analytical = AnalyticalModel()
    both = HybridModel(analytical, load(given.model))
    models: dict[str, CostModel] = {"analytical": analytical, "both": both}
    judged = [("calibrated", own, models)]
    if known.name != own.name:
        other = uncalibrated(own, known)
        judged += [
            ("uncalibrated", other, models),
            ("unfitted", other, {"analytical": AnalyticalModel(ROUGH)}),
        ]
    found = [
        {
            "trained_on": given.trained_on,
            "judged_on": given.judged_on,
            "target": figures,
            "model": name,
            **judge(model, target, DATASETS / given.judged_on),
        }
        for figures, target, models in judged
        for name, model in models.items()
    ]
    for row in found:
        print(
            f"{row['trained_on']} -> {row['judged_on']}, {row['target']}, {row['model']}: "
            f"top-1 {row['top1']:.3f} ({row['top1_worst']:.2f}), MAPE {row['mape']:.1%}, within one and two "
            f"sigma {row['one_sigma']:.0%} {row['two_sigma']:.0%}, 68 % of the log errors within "
            f"{row['sigma']:.3f}, {row['cases']} cases"
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Judge a model with the kernels of another chip.")
    parser.add_argument("model", type=Path, help="folder of the trained model")
    parser.add_argument("--trained-on", required=True, choices=("h200", "h100"))
    parser.add_argument("--judged-on", required=True, choices=("h200", "h100"))
    parser.add_argument("--json", type=Path)
    main(parser.parse_args())
