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
# # From the database to a figure for a paper
# Everything that TileSight measures is in one SQL database, so a figure is a query and twenty lines of
# Matplotlib. No GPU is here, so the database is filled from the shipped dataset first: four workloads of
# matmul on an H200, as a session each. With a database of your own leave that cell out.

# %%
import sqlite3
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display

import tilesight

HERE = Path(__file__).parent if "__file__" in globals() else Path.cwd()
sys.path.insert(0, str(HERE.parent / "datasets"))
import as_session  # noqa: E402

folder = tempfile.TemporaryDirectory()
database = f"{folder.name}/performance.db"
SHAPES = ("M0", "M1", "M4", "m=64,n=4096,k=4096")
for shape in SHAPES:
    as_session.record(HERE.parent / "datasets" / "h200" / "matmul-bf16.parquet", shape, database)
for summary in tilesight.sessions(database=database):
    print(summary.id, summary.context.workload.label, summary.state.value)

# %% [markdown]
# ## Query
# The views `leaderboard`, `best` and `prediction_error` are made for plain SQL (docs/database.md). The file
# is opened to be read only.

# %%
connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
best = pd.read_sql("SELECT shape, latency_us, tflops, vendor_us, config FROM best", connection)
errors = pd.read_sql(
    "SELECT shape, predicted_us, measured_us, relative_error FROM prediction_error", connection
)
best = best.set_index("shape").loc[list(SHAPES)]
best["speedup"] = best["vendor_us"] / best["latency_us"]
display(best[["latency_us", "vendor_us", "speedup", "tflops"]].round(2))

# %% [markdown]
# The parameters of a config are JSON, which SQL reads, too: the fastest candidate by number of stages. The
# three fastest of a workload were timed in turns with cuBLAS, the others alone on a chip that had rested,
# which is some percent faster; so small differences mean nothing here.

# %%
stages = pd.read_sql(
    """
    SELECT shape, config ->> 'num_stages' AS stages, count(*) AS candidates, min(measured_us) AS fastest
    FROM leaderboard
    GROUP BY shape, stages
    ORDER BY shape, stages
    """,
    connection,
)
display(stages.pivot(index="shape", columns="stages", values="fastest").round(1))
connection.close()

# %% [markdown]
# ## Draw
# One column of a paper is 3.35 inches wide. Type of 8 points, fonts that can be edited (`fonttype` 42), and a
# PDF, whose lines stay sharp.

# %%
STYLE = {
    "figure.figsize": (3.35, 2.2),
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
}
with plt.rc_context(STYLE):
    figure, (left, right) = plt.subplots(1, 2, layout="constrained", width_ratios=(3, 2))
    colors = {shape: f"C{number}" for number, shape in enumerate(SHAPES)}  # the bars are their legend
    for shape, group in errors.groupby("shape"):
        left.plot(group["measured_us"], group["predicted_us"], ".", ms=3, color=colors[shape], alpha=0.7)
    ends = np.array([errors["measured_us"].min(), errors["measured_us"].max()])
    left.plot(ends, ends, color="black", linewidth=0.6)
    left.set(xscale="log", yscale="log", xlabel="measured, us", ylabel="predicted, us")
    names = [shape.replace(",", "\n") for shape in SHAPES]
    right.barh(names, best["speedup"], color=colors.values(), height=0.6)
    right.invert_yaxis()
    right.axvline(1, color="black", linewidth=0.6)
    right.set(xlabel="speed over cuBLAS")
    figure.savefig(f"{folder.name}/figure.pdf")
    plt.show()
print(f"{Path(folder.name, 'figure.pdf').stat().st_size / 1024:.0f} KB")

# %% [markdown]
# ## State what it holds for
# A caption needs the device, the software and the conditions. They are columns of the same database.

# %%
session = tilesight.session(tilesight.sessions(database=database)[0].id, database=database)
context = session.summary.context
print(context.device, dict(context.software), context.model, *session.result.messages, sep="\n")
print(f"{len(errors)} candidates, median error {errors['relative_error'].abs().median():.1%}")
folder.cleanup()
