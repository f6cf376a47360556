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
# # The analytical model, term by term
# The analytical model needs no training. It turns a profile into microseconds by resource (terms), combines
# those of a core into the period of each loop, blocks into waves, and the cores with device memory into a
# time. Here its terms are looked at on measured matmuls and attentions of the shipped dataset.
# `docs/model.md` has the source of each term.

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display
from matplotlib.ticker import LogLocator, NullLocator

from tilesight import load_target
from tilesight.research import AnalyticalModel, Figure, limits, profiles_of, read_dataset

HERE = Path(__file__).parent if "__file__" in globals() else Path.cwd()
CHIPS = ("h200", "h100")
targets, model = {chip: load_target(chip) for chip in CHIPS}, AnalyticalModel()
measured = {chip: read_dataset(HERE.parent / "datasets" / chip).verified().frame for chip in CHIPS}
target, rows = targets["h200"], measured["h200"]
print(model.version, *(f"{len(found)} rows measured on {chip}" for chip, found in measured.items()), sep="; ")

# %% [markdown]
# ## Three candidates of one case
# The fastest, the middle one and the slowest of matmul M0. Resource terms are busy times over the whole
# grid, as if all cores shared the work evenly; `makespan` is what the cores need together with waits, waves
# and tails.

# %%
case = rows[
    (rows["operator"] == "matmul") & (rows["shape"] == "M0") & (rows["dtype"] == "bfloat16")
].sort_values("measured_us")
chosen = {"fastest": case.iloc[0], "middle": case.iloc[len(case) // 2], "slowest": case.iloc[-1]}
predictions = {name: model.predict(profiles_of(row["profile"]), target) for name, row in chosen.items()}
table = pd.DataFrame({name: p.terms_us for name, p in predictions.items()})
table.loc["predicted"] = {name: p.latency_us for name, p in predictions.items()}
table.loc["measured"] = {name: row["measured_us"] for name, row in chosen.items()}
display(table.round(1))
for name, row in chosen.items():
    print(
        f"{name:8} {predictions[name].limiting:16} "
        f"{', '.join(f'{k}={v}' for k, v in json.loads(row['config']).items())}"
    )

# %% [markdown]
# The same as shares of the predicted time. If the bar of `load latency` is the longest, the pipeline is too
# shallow. If that of `dependency chain` is, steps wait for one another.

# %%
least = 0.02 * table.loc["predicted"].min()
terms = [
    t for t in table.index if t not in ("predicted", "measured", "makespan") and table.loc[t].max() > least
]
figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
for number, (name, p) in enumerate(predictions.items()):
    axes.barh(
        np.arange(len(terms)) + 0.27 * (1 - number),
        [p.terms_us[t] / p.latency_us for t in terms],
        0.25,
        label=name,
    )
axes.set_yticks(range(len(terms)), terms)
axes.invert_yaxis()
axes.axvline(1, color="grey", linewidth=0.8)
axes.set(xlabel="share of the predicted time", title="matmul M0")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Gains
# A busy share does not tell whether the kernel waits for the resource. `limits` predicts again without one
# cost at a time.

# %%
gains = {}
for name, row in chosen.items():
    found = limits(profiles_of(row["profile"]), target, predictions[name].latency_us)
    gains[name] = {h.name: h.gain for h in (*found.limits, *found.wastes)}
shown = pd.DataFrame(gains)
display((100 * shown[shown.max(axis=1) > 0.01]).round(0).rename_axis("% of the time that would go"))

# %% [markdown]
# ## One term against its cause: pipeline depth
# The dataset's rows of M0 by `num_stages`. With one stage each iteration waits for its copy. With each
# further stage the term for load latency falls, until copies arrive before they are needed and it is 0.

# %%
known = pd.DataFrame(
    [
        {**json.loads(row.config), "measured": row.measured_us, "profile": row.profile}
        for row in case.itertuples()
    ]
)
answers = [model.predict(profiles_of(text), target) for text in known["profile"]]
known["predicted"] = [p.latency_us for p in answers]
for term in ("load latency", "matrix", "makespan"):
    known[term] = [p.terms_us.get(term, 0.0) for p in answers]
display(
    known.groupby("num_stages")[["measured", "predicted", "load latency", "matrix", "makespan"]]
    .median()
    .round(1)
)

# %% [markdown]
# ## Predicted against measured
# All candidates of two cases on both chips, coloured by the predicted limit. The lines are equality and a
# quarter off in both directions.

# %%
figure, panels = plt.subplots(2, 2, figsize=(10, 9), layout="constrained")
errors = []
for axes, (chip, operator, shape) in zip(
    panels.flat,
    [(chip, *of) for chip in CHIPS for of in (("matmul", "M0"), ("flash_attention", "FA4"))],
    strict=True,
):
    found, title = measured[chip], f"{operator} {shape} on {chip}"
    frame = found[
        (found["operator"] == operator) & (found["shape"] == shape) & (found["dtype"] == "bfloat16")
    ]
    said = [model.predict(profiles_of(text), targets[chip]) for text in frame["profile"]]
    points = pd.DataFrame({"predicted": [p.latency_us for p in said], "by": [p.limiting for p in said]})
    points["measured"] = frame["measured_us"].to_numpy()
    for by, group in points.groupby("by"):
        axes.scatter(group["measured"], group["predicted"], s=14, label=f"{by} ({len(group)})", alpha=0.8)
    ends = np.array(
        [points[["measured", "predicted"]].min().min(), points[["measured", "predicted"]].max().max()]
    )
    for factor, style in ((1, "-"), (0.75, ":"), (1.25, ":")):
        axes.plot(ends, factor * ends, style, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured, us", ylabel="predicted, us", title=title)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    axes.legend(frameon=False, fontsize=8)
    off = points["predicted"] / points["measured"] - 1
    picked = points.loc[points["predicted"].idxmin(), "measured"]
    errors.append(
        {
            "case": title,
            "candidates": len(points),
            "MAPE": off.abs().mean(),
            "median signed": off.median(),
            "best / first choice": points["measured"].min() / picked,
        }
    )
plt.show()
display(pd.DataFrame(errors).round(3))

# %% [markdown]
# ## Leaving parts out
# The effect of a resource's figure on the predicted times: each is made 20 % slower, for all candidates of
# M0. With perfectly overlapping terms the time would change by a quarter if the resource limits it and not
# at all otherwise; the p-norm is between.

# %%
from dataclasses import replace  # noqa: E402

FIGURES = {
    "matrix rate": ("core.unit.matrix.", "flops_per_cycle"),
    "device memory": ("device.memory.dram.", "gb_per_s"),
    "L2": ("device.memory.l2.", "gb_per_s"),
    "shared memory": ("core.memory.shared.", "bytes_per_cycle"),
}
base = known["predicted"].to_numpy()
slower = {}
for name, (start, end) in FIGURES.items():
    figures = {
        path: Figure(0.8 * f.value, "derived")
        for path, f in target.figures.items()
        if path.startswith(start) and path.endswith(end)
    }
    changed = replace(target, figures={**target.figures, **figures})
    slower[name] = (
        np.array([model.predict(profiles_of(text), changed).latency_us for text in known["profile"]]) / base
        - 1
    )
figure, axes = plt.subplots(figsize=(8, 2.8), layout="constrained")
axes.boxplot(list(slower.values()), orientation="horizontal", tick_labels=list(slower), whis=(0, 100))
axes.set(xlabel="rise of the predicted time when the rate is 20 % lower", title="matmul M0, all candidates")
axes.invert_yaxis()
plt.show()
