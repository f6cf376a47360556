"""Fit the analytical model's constants to measured rows, and say how well each case is predicted and ranked.

    python experiments/model_fit/fit.py [SECONDS]      fits that long (600 where left out), then prints; 0 only evaluates

The rows are those of measure.py and of experiments/tune_h200. Lowering them takes minutes; profiles are kept in the
temporary folder for the next call.
"""

import csv
import hashlib
import json
import math
import multiprocessing
import pickle
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

from tilesight.costmodel.analytical import AnalyticalModel
from tilesight.costmodel.constants import DEFAULT, Constants
from tilesight.target import Figure, Target, load_target

HERE = Path(__file__).parent
TARGET = load_target("h200")
FIGURES = {  # of the target, fitted with the constants
    "device.memory.l2.gb_per_s": (9000, 17000),
    "device.block_start_us": (0.3, 3),
    "device.launch_us": (2, 5),
}
RANGES = {
    "overlap_norm": (2, 10), "memory_norm": (1.5, 8), "barrier_wait_cycles": (10, 150), "matrix_drain_cycles": (10, 250),
    "shuffle_cycles": (5, 60), "copy_start_cycles": (200, 1200), "warp_issue_share": (0.3, 1), "bulk_copy_share": (0, 1),
    "copy_row_cycles": (0.5, 3), "operand_share": (0.4, 1.1), "spill_bytes_per_cycle": (12, 80), "kept_share": (0.2, 1),
    "core_l2_bytes_per_cycle": (48, 80), "drift_share": (0, 2),
}  # fmt: skip


def rows():
    """(case, how to build it, microseconds) of every measured row."""
    with (HERE / "rows.csv").open() as file:
        for row in csv.DictReader(file):
            if row["latency_us"]:
                yield (
                    row["name"],
                    ("plain", row["kind"], tuple(json.loads(row["shape"])), tuple(json.loads(row["config"]))),
                    float(row["latency_us"]),
                )
    for path in sorted((HERE.parent / "tune_h200").glob("*.csv")):
        kernel, shape = path.stem.rsplit("-", 1)
        with path.open() as file:
            for row in csv.DictReader(file):
                if row["measured_us"]:
                    yield path.stem, ("template", kernel, shape, row["config"]), float(row["measured_us"])


def profiles(item):
    from tilesight.costmodel.profile import read_profiles
    from tilesight.lowering import lower

    origin, kind, shape, config = item
    if origin == "plain":
        sys.path.insert(0, str(HERE))
        from plain_kernels import build

        return read_profiles(lower(build(kind, shape, config), TARGET), TARGET)
    from tilesight.kernels import operator, template_for

    workload = operator(kind).workload(shape)
    template = template_for(kind, TARGET, workload.dtype)
    return read_profiles(lower(template.build(workload, template.space(workload, TARGET).parse(config)), TARGET), TARGET)


def load():
    """Cases: name -> list of (microseconds, profiles)."""
    found = list(rows())
    key = hashlib.sha256(repr(found).encode())
    for source in sorted((HERE.parent.parent / "costmodel" / "profile").glob("*.py")):
        key.update(source.read_bytes())
    kept = Path(tempfile.gettempdir()) / f"tilesight-model-fit-{key.hexdigest()[:16]}.pickle"
    if not kept.exists():
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            read = list(pool.map(profiles, [item for _, item, _ in found], chunksize=4))
        kept.write_bytes(pickle.dumps(read))
    cases = {}
    for (name, _, latency), kernels in zip(found, pickle.loads(kept.read_bytes()), strict=True):
        cases.setdefault(name, []).append((latency, kernels))
    return cases


def with_figures(target: Target, values: dict[str, float]) -> Target:
    return replace(target, figures={**target.figures, **{path: Figure(value, "measured") for path, value in values.items()}})


def evaluate(cases, constants, target):
    """For each case: weighted log error, regret of the first choice and of the first three, best of eight, MAPE."""
    model = AnalyticalModel(constants)
    for name, measured in cases.items():
        pairs = sorted((model.predict(kernels, target).latency_us, latency) for latency, kernels in measured)
        best = min(latency for _, latency in pairs)
        weights = [(best / latency) ** 0.7 for _, latency in pairs]  # slow candidates matter less
        error = sum(w * abs(math.log(p / m)) for w, (p, m) in zip(weights, pairs, strict=True)) / sum(weights)
        top = [best / min(m for _, m in pairs[:count]) for count in (1, 8, 16)]
        of_three = best / (sum(m for _, m in pairs[:3]) / len(pairs[:3]))
        mape = sum(abs(p - m) / m for p, m in pairs) / len(pairs)
        yield name, len(pairs), error, *top, of_three, mape


def loss(cases, constants, target):
    found = list(evaluate(cases, constants, target))
    return sum(error + 0.5 * (1 - top1) + 0.25 * (1 - of_three) for _, _, error, top1, _, _, of_three, _ in found) / len(found)


def fit(cases, seconds):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1, multivariate=True))
    study.enqueue_trial({**{f.name: getattr(DEFAULT, f.name) for f in fields(Constants)}, **{path: TARGET[path] for path in FIGURES}})

    def objective(trial):
        constants = Constants(**{name: trial.suggest_float(name, *bounds) for name, bounds in RANGES.items()})
        figures = {path: trial.suggest_float(path, *bounds) for path, bounds in FIGURES.items()}
        return loss(cases, constants, with_figures(TARGET, figures))

    study.optimize(objective, timeout=seconds)
    print(f"{len(study.trials)} trials, loss {study.trials[0].value:.4f} -> {study.best_value:.4f}")
    for name, value in study.best_params.items():
        print(f"  {name} = {value:.3g}")
    best = study.best_params
    return Constants(**{n: best[n] for n in RANGES}), with_figures(TARGET, {p: best[p] for p in FIGURES})


def main(seconds):
    begin = time.perf_counter()
    cases = load()
    print(f"{sum(map(len, cases.values()))} rows in {len(cases)} cases, read in {time.perf_counter() - begin:.0f} s", flush=True)
    constants, target = fit(cases, seconds) if seconds else (DEFAULT, TARGET)
    print("case                      n  top-1  top-8  top-16  MAPE")
    for name, count, _, top1, top8, top16, _, mape in evaluate(cases, constants, target):
        print(f"{name:22s} {count:4d}  {top1:.3f}  {top8:.3f}  {top16:.3f}  {mape:6.1%}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 600)
