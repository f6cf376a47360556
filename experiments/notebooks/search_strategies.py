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
# # Search strategies, by replay
# Which candidate should be measured next? A replay answers without a GPU: a strategy asks for candidates of a
# recorded case, and gets the times of the dataset's rows. Strategies that use a model get predictions of one
# that was not trained on the case. Here one strategy of each kind runs on the matmuls in float16 of an H200.
# `tilesight replay` does the same for all datasets; its results are in `experiments/replay`.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display

import tilesight

HERE = Path(__file__).parent if "__file__" in globals() else Path.cwd()
STRATEGIES = ("random", "tpe", "model", "residuals")
SEEDS, LIMIT = 2, 32
found = tilesight.replay(
    HERE.parent / "datasets" / "h200" / "matmul-fp16.parquet",
    STRATEGIES,
    model="analytical",
    limit=LIMIT,
    seeds=SEEDS,
)
print(f"{len(found.cases)} cases, {found.recorded} recorded configs, of which {found.failed} failed")

# %% [markdown]
# ## The cases
# A case is hard if few of its candidates are near the best: the median is up to several times as slow.

# %%
rows = []
for case in found.cases:
    times = pd.Series(case.times_us.values(), dtype=float).dropna()  # a failed candidate has no time
    rows.append(
        {
            "case": case.shape,
            "right results": len(times),
            "best, us": times.min(),
            "median / best": times.median() / times.min(),
            "share within 5 %": (times < 1.05 * times.min()).mean(),
        }
    )
display(pd.DataFrame(rows).set_index("case").round(2))

# %% [markdown]
# ## The best so far
# The best recorded time over the best time that the strategy has seen after so many measurements; 1 is
# reached when it has measured the best candidate. The line is the mean over cases and seeds, the band lies
# between the worst and the best of them.

# %%
curves = pd.DataFrame(
    [
        {"strategy": curve.strategy, "case": curve.case, "seed": curve.seed, "measured": n, "share": share}
        for curve in found.curves
        for n, share in enumerate(curve.shares, 1)
    ]
)
figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
for number, (strategy, group) in enumerate(curves.groupby("strategy", sort=False)):
    by_count = group.groupby("measured")["share"]
    axes.plot(by_count.mean(), color=f"C{number}", label=strategy)
    axes.fill_between(
        by_count.min().index, by_count.min(), by_count.max(), color=f"C{number}", alpha=0.1, linewidth=0
    )
axes.set(xscale="log", xlabel="candidates measured", ylabel="best recorded over best so far")
axes.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
axes.minorticks_off()
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## How many measurements for 95 and 99 %
# What a session saves: each measurement costs a build and some hundred launches.

# %%
needed = []
for (strategy, *_), group in curves.groupby(["strategy", "case", "seed"], sort=False):
    shares = group.set_index("measured")["share"]
    for goal in (0.95, 0.99):
        reached = shares.index[shares >= goal]
        needed.append(
            {
                "strategy": strategy,
                "goal": f"{goal:.0%}",
                "measured": reached[0] if len(reached) else LIMIT + 1,
                "first": shares.iloc[0],
            }
        )
table = pd.DataFrame(needed).pivot_table(index="strategy", columns="goal", values="measured", sort=False)
table["share after the first"] = curves[curves["measured"] == 1].groupby("strategy")["share"].mean()
display(table.round(2))

# %% [markdown]
# Strategies that start from predictions are near the best at once, where the others need luck. The model's
# errors on the first measurements teach `residuals` (a Gaussian process) where to look for the last percent.
