# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From dataset to held-out errors
# A model is evaluated on cases that it was not trained on. A case is all candidates of one workload on one
# target. This notebook runs the protocol of `tilesight model evaluate` on a part of the shipped rows, so
# that it takes a minute: every third candidate of each case, few folds, small ensembles. Its numbers are
# therefore not those of the full evaluation.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display

from tilesight.research import (
    ALONE,
    ANALYTICAL,
    BOTH,
    CONFIGS,
    RANDOM,
    AnalyticalModel,
    Dataset,
    codes,
    describe,
    evaluate,
    measured_rows,
    read_dataset,
    train_correction,
)

HERE = Path(__file__).parent if "__file__" in globals() else Path.cwd()
EVERY, FOLDS, MEMBERS = 3, 4, 2

# %% [markdown]
# ## The rows

# %%
dataset = read_dataset([HERE.parent / "datasets" / chip for chip in ("h200", "h100")])
frame = dataset.frame
counts = frame.groupby(["target", "operator"]).agg(
    cases=("workload", "nunique"),
    rows=("workload", "size"),
    verified=("measured_us", "count"),
    failed=("status", lambda s: (s == "failed").sum()),
    counters=("counters", "count"),
)
display(counts)
print(frame.loc[frame["status"] == "failed", "failure_kind"].value_counts().to_string())

# %% [markdown]
# The difficulty of cases: each line is a case and shows the share of its candidates within a factor of the
# fastest.

# %%
verified = dataset.verified().frame
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for color, (name, group) in zip(plt.cm.tab10.colors, verified.groupby("operator"), strict=False):
    for number, (_, times) in enumerate(group.groupby(["target", "workload"])["measured_us"]):
        ratio = np.sort(times / times.min())
        axes.step(
            ratio,
            np.arange(1, len(ratio) + 1) / len(ratio),
            color=color,
            linewidth=0.8,
            alpha=0.7,
            label=None if number else name,
        )
axes.set(
    xscale="log", xlim=(1, 10), xlabel="measured time over the case's fastest", ylabel="share of candidates"
)
axes.set_xticks([1, 1.5, 2, 3, 5, 10], ["1", "1.5", "2", "3", "5", "10"])
axes.minorticks_off()
axes.legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# ## Held-out shapes
# Whole shapes are held out, fold by fold, in all their dtypes. Yardsticks on the same rows: random choice,
# boosting on config values, boosting on plain counts without the analytical model. Cases of which fewer
# than 12 rows are left are not judged. *top-1* is the case's best measured time over that of the model's
# first choice, *top-8* over the best of its first eight.

# %%
part = Dataset(
    verified.groupby(["target", "workload"], group_keys=False)
    .nth(slice(None, None, EVERY))
    .reset_index(drop=True),
    dataset.metadata,
)
rows = measured_rows(part)
shapes = evaluate(rows, "shape", most_folds=FOLDS, members=MEMBERS)
print(
    f"{shapes.rows} rows in {len(shapes.of(ANALYTICAL))} cases, {shapes.folds} folds; constants: "
    f"{shapes.constants}"
)


def summaries(evaluation):
    shown = ("cases", "spearman", "top1", "top1_worst", "top8", "top8_worst", "mape", "mape_worst")
    found = {
        (target, m): evaluation.summary(m, target=target)
        for target in evaluation.targets
        for m in evaluation.models
    }
    return (
        pd.DataFrame({of: {name: getattr(s, name) for name in shown} for of, s in found.items()})
        .T.astype(float)
        .round(3)
    )


display(summaries(shapes))

# %%
models = [ANALYTICAL, BOTH, ALONE, CONFIGS, RANDOM]
operators = shapes.operators
figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", width_ratios=(3, 2))
for number, name in enumerate(models):
    for place, operator in enumerate(operators):
        values = [c.scores.top1 for c in shapes.of(name, operator)]
        across = np.full(len(values), place + 0.15 * (number - 2))
        panels[0].scatter(across, values, s=10, color=f"C{number}", label=None if place else name)
panels[0].set_xticks(range(len(operators)), operators, rotation=20)
panels[0].set(ylabel="top-1, one point a case", title="held-out shapes: first choice")
panels[0].legend(frameon=False, fontsize=8, loc="lower right")
timed = [m for m in models if shapes.summary(m).mape is not None]
for name in timed:
    errors = np.sort([c.scores.mape for c in shapes.of(name)])
    panels[1].step(
        100 * errors, np.arange(1, len(errors) + 1) / len(errors), label=name, color=f"C{models.index(name)}"
    )
panels[1].set(
    xscale="log", xlabel="MAPE of a case, %", ylabel="share of cases", title="held-out shapes: time"
)
panels[1].legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# ## Held-out operators
# Each operator is predicted by models that were trained on the other five only. Boosting on configs cannot
# learn from other operators and is left out.

# %%
operators_out = evaluate(rows, "operator", members=MEMBERS, yardsticks=False)
by_operator = pd.DataFrame(
    [
        {
            "operator": o,
            "target": t,
            "model": m,
            **{k: getattr(operators_out.summary(m, o, t), k) for k in ("top1", "top8", "mape")},
        }
        for o in operators_out.operators
        for t in operators_out.targets
        for m in (ANALYTICAL, BOTH)
    ]
)
display(
    by_operator.pivot(index=["operator", "target"], columns="model", values=["top1", "top8", "mape"])
    .astype(float)
    .round(3)
)

# %% [markdown]
# ## Is the uncertainty right?
# 68 % of the rows should lie within one sigma and 95 % within two.

# %%
display(
    pd.DataFrame(
        [
            {
                "split": e.split,
                "target": c.target or "all",
                "within 1 sigma": c.one_sigma,
                "within 2": c.two_sigma,
                "median sigma": c.median_sigma,
            }
            for e in (shapes, operators_out)
            for c in e.coverage
        ]
    ).round(3)
)

# %% [markdown]
# ## One estimator by hand
# The learned part follows scikit-learn's conventions. Here it is trained on the log of measured over
# analytical time of all operators but one, and predicts that one.

# %%
HELD = "rms_norm"
described = describe(rows, AnalyticalModel())
out = np.array([row.operator == HELD for row in rows])
estimator = train_correction(rows, described, ~out, members=MEMBERS)
correction, sigma = estimator.predict_with_sigma(described.features[out])
measured = np.array([row.measured_us for row in rows])[out]
analytical = described.analytical_us[out]
corrected = analytical * np.exp(correction)
case = codes(row.case for row, held in zip(rows, out, strict=True) if held)
figure, panels = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained", sharey=True)
for axes, (title, predicted) in zip(
    panels, {"analytical": analytical, "corrected, unseen": corrected}.items(), strict=True
):
    axes.scatter(measured, predicted, s=9, c=case, cmap="tab20", alpha=0.8)
    axes.plot([measured.min(), measured.max()], [measured.min(), measured.max()], color="grey", linewidth=0.8)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="measured, us",
        title=f"{HELD}, {title}: MAPE {np.mean(abs(predicted / measured - 1)):.1%}",
    )
panels[0].set_ylabel("predicted, us")
plt.show()
print(f"median sigma of the correction: {np.median(sigma):.3f} in log time")
