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
# # Predicted utilization against hardware counters
# Two wrong terms can add up to a right time. For a part of the dataset's rows there are counters by Nsight
# Compute. Here each term of the model is compared with its counter by `experiments/counters/compare.py`.

# %%
import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display

from tilesight import load_target
from tilesight.research import AnalyticalModel, read_dataset

HERE = Path(__file__).parent if "__file__" in globals() else Path.cwd()
sys.path.insert(0, str(HERE.parent / "counters"))
import compare  # noqa: E402

CHIPS = ("h200", "h100")
model, targets = AnalyticalModel(), {chip: load_target(chip) for chip in CHIPS}
frame = read_dataset([HERE.parent / "datasets" / chip for chip in CHIPS]).frame
counted = frame[frame["counters"].notna() & frame["profile"].notna()]
pairs, chips, refused = [], [], 0
for row in counted.to_dict("records"):
    try:
        found = compare.pairs_of(row, model, targets[row["target"]])
    except ValueError:  # the model says that this kernel does not fit, and it ran
        refused += 1
        continue
    pairs += found
    chips += [row["target"]] * len(found)
print(f"{model.version}: {len(counted)} candidates with counters, {refused} refused by the model")
display(counted.groupby(["target", "operator"]).size().rename("candidates with counters").to_frame())

# %% [markdown]
# ## All terms
# Shares are compared in points, amounts by their ratio.

# %%
summary = []
groups = [
    (chip, term, group)
    for chip in CHIPS
    for term, group in compare.by_term([p for p, on in zip(pairs, chips, strict=True) if on == chip])
]
for chip, term, group in groups:
    s = compare.summarise(group)
    unit = "points" if term.points else "%"
    scale = 1 if term.points else 100
    sizes = {"mean absolute": s.mean_absolute, "median absolute": s.median_absolute, "median, signed": s.bias}
    sizes = {name: scale * size for name, size in sizes.items()}
    summary.append(
        {
            "term": term.name,
            "target": chip,
            "unit": unit,
            "rows": s.rows,
            **sizes,
            "within 8 points / 10 %": s.within,
        }
    )
display(pd.DataFrame(summary).set_index(["term", "target"]).sort_index(sort_remaining=False).round(2))

# %% [markdown]
# ## Shares, point by point
# Each point is a candidate. On the line, prediction and counter agree.

# %%
table = pd.DataFrame(
    [
        {
            "operator": p.operator,
            "target": chip,
            "case": p.case,
            "config": p.config,
            "term": p.term.name,
            "points": p.term.points,
            "predicted": p.predicted,
            "counted": p.counted,
            "error": p.error,
        }
        for p, chip in zip(pairs, chips, strict=True)
    ]
)
colors = {name: f"C{number}" for number, name in enumerate(sorted(table["operator"].unique()))}


def scatter(axes, name, ends):
    own = table[table["term"] == name]
    for operator, group in own.groupby("operator"):
        axes.scatter(
            group["counted"], group["predicted"], s=8, alpha=0.7, color=colors[operator], label=operator
        )
    axes.plot(ends, ends, color="grey", linewidth=0.8)
    axes.set(title=name, xlabel="counted", ylabel="predicted")


shares = list(table.loc[table["points"], "term"].unique())
COLUMNS = 3


def grid_of_panels(count):
    down = -(-count // COLUMNS)
    figure, panels = plt.subplots(
        down, COLUMNS, figsize=(11, 3.6 * down), layout="constrained", squeeze=False
    )
    for axes in panels.flat[count:]:
        axes.axis("off")
    return figure, panels


figure, panels = grid_of_panels(len(shares))
for axes, name in zip(panels.flat, shares, strict=False):
    scatter(axes, name, (0, 1))
handles, labels = panels[0][0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside lower center", ncols=len(colors), frameon=False)
plt.show()

# %% [markdown]
# ## Amounts and times
# Logarithmic axes; the dotted lines are a factor of two off. Rows with a value of 0 are left out.

# %%
amounts = list(table.loc[~table["points"], "term"].unique())
figure, panels = grid_of_panels(len(amounts))
for axes, name in zip(panels.flat, amounts, strict=False):
    own = table[
        (table["term"] == name)
        & (table["predicted"] >= compare.LEAST_COUNT)
        & (table["counted"] >= compare.LEAST_COUNT)
    ]
    if own.empty:
        axes.set(title=f"{name}: none on both sides", xticks=[], yticks=[])
        continue
    for operator, group in own.groupby("operator"):
        axes.scatter(group["counted"], group["predicted"], s=8, alpha=0.7, color=colors[operator])
    ends = np.array([own[["predicted", "counted"]].min().min(), own[["predicted", "counted"]].max().max()])
    if ends[1] < 4 * ends[0]:  # a narrow range: what a factor of two would hide
        axes.plot(ends, ends, color="grey", linewidth=0.8)
        axes.set(title=name, xlabel="counted", ylabel="predicted")
        continue
    for factor, style in ((1, "-"), (2, ":"), (0.5, ":")):
        axes.plot(ends, factor * ends, style, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", title=name, xlabel="counted", ylabel="predicted")
figure.legend(handles, labels, loc="outside lower center", ncols=len(colors), frameon=False)
plt.show()

# %% [markdown]
# ## Errors by operator
# Mean absolute error in points.

# %%
points = table[table["points"]]
grid = points.assign(error=points["error"].abs()).pivot_table(
    index="operator", columns="term", values="error"
)[shares]
figure, axes = plt.subplots(figsize=(9, 3.4), layout="constrained")
image = axes.imshow(grid, cmap="Reds", vmin=0, vmax=max(20, np.nanmax(grid.to_numpy())), aspect="auto")
axes.set_xticks(range(len(grid.columns)), grid.columns, rotation=25, ha="right")
axes.set_yticks(range(len(grid.index)), grid.index)
for (y, x), value in np.ndenumerate(grid.to_numpy()):
    text, color = (
        ("-", "black")
        if np.isnan(value)
        else (f"{value:.0f}", "white" if value > 0.6 * image.get_clim()[1] else "black")
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=9, color=color)
figure.colorbar(image, label="points")
plt.show()

# %% [markdown]
# ## The largest misses
# The rows with the largest errors of shares, with their configs.

# %%
worst = (
    points.reindex(points["error"].abs().sort_values(ascending=False).index)
    .drop_duplicates(["term", "target", "case"])
    .groupby("term")
    .head(2)
)
with pd.option_context("display.max_colwidth", 90):
    display(
        worst.assign(
            config=[", ".join(f"{k}={v}" for k, v in json.loads(c).items()) for c in worst["config"]]
        )[["term", "target", "case", "predicted", "counted", "config"]]
        .sort_values("term")
        .round(2)
        .reset_index(drop=True)
    )

# %% [markdown]
# ## Does a wrong term make a wrong time?
# A share is a busy time over the kernel's time, so a predicted time that is too long makes all shares too
# small. Here both shares are converted to busy microseconds. Their rank correlation with the error of the
# time shows the resource that causes it, over the candidates whose counter is busy for at least a fifth of
# the time.

# %%
shown = table.pivot_table(
    index=["target", "operator", "case", "config"], columns="term", values=["predicted", "counted"]
)
times = {side: shown[side]["time without launch"] for side in ("predicted", "counted")}
rows = []
for name in ("matrix pipe busy", "DRAM busy", "issue slots busy", "shared memory busy, loads and stores"):
    if name not in shown["counted"]:
        continue
    busy = {side: shown[side][name] * times[side] for side in times}
    used = (shown["counted"][name] > 0.2) & (busy["predicted"] > 0)
    ratios = {
        "term": busy["predicted"][used] / busy["counted"][used],
        "time": times["predicted"][used] / times["counted"][used],
    }
    errors = np.log(pd.DataFrame(ratios))
    rows.append(
        {
            "resource": name,
            "candidates": len(errors),
            "busy time, median ratio": np.exp(errors["term"].median()),
            "time, median ratio": np.exp(errors["time"].median()),
            "rank correlation": errors.rank().corr().iloc[0, 1],
        }
    )
display(pd.DataFrame(rows).set_index("resource").round(2))
