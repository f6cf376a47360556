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
# # Dispatch over dynamic shapes
# A service multiplies by the same weights with another number of rows in every call. `tilesight plan` chose
# eight kernels that serve 1 to 16,384 rows on an H200, each with m as an argument. This notebook looks at its
# table, asks a dispatcher for shapes, and checks the table against sizes that the plan never measured.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display

import tilesight

HERE = Path(__file__).parent if "__file__" in globals() else Path.cwd()
PLAN = HERE.parent / "plan" / "h200"
table = tilesight.read_table(PLAN / "matmul-plan.json")
print(f"{len(table.kernels)} kernels, {len(table.segments)} segments, m={table.first}..{table.last}")

# %% [markdown]
# ## The kernels
# Small tiles for few rows, large ones for many. Between them segments alternate, since a size just above a
# multiple of the tile wastes most of a wave.

# %%
kernels = pd.DataFrame([dict(config) for config in table.kernels]).rename_axis("kernel")
kernels["sizes"] = [
    sum(s.last - s.first + 1 for s in table.segments if s.kernel == number) for number in kernels.index
]
display(kernels[["block_m", "block_n", "block_k", "num_stages", "threads", "swizzle", "sizes"]])

# %%
figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
for segment in table.segments:
    axes.barh(
        segment.kernel,
        segment.last + 1 - segment.first,
        left=segment.first,
        color=f"C{segment.kernel}",
        height=0.8,
    )
axes.set(xscale="log", xlabel="m", ylabel="kernel", title="which kernel serves which size")
axes.set_yticks(range(len(table.kernels)))
axes.invert_yaxis()
plt.show()

# %% [markdown]
# ## A dispatcher
# It takes the table, and would build a kernel when a call needs it. `choose` builds nothing and needs no GPU.
# Records of this very shape in the database would come before the table.

# %%
with tempfile.TemporaryDirectory() as folder:
    matmul = tilesight.dispatcher(
        "matmul", target="h200", n=8192, k=8192, table=table, database=f"{folder}/empty.db", misses=False
    )
    choices = {m: matmul.choose(m=m) for m in (1, 16, 17, 100, 777, 1024, 1025, 5000, 16384)}
    print(matmul.explain())
    matmul.close()
display(
    pd.DataFrame(
        [
            {
                "m": m,
                "source": choice.source.value,
                "block_m": choice.config["block_m"],
                "reason": choice.reason,
            }
            for m, choice in choices.items()
        ]
    ).set_index("m")
)

# %% [markdown]
# ## What the plan measured
# At each sampled size the chosen kernel and the best kernel that was measured there.

# %%
evidence = pd.DataFrame(
    [{"m": e.size, "kernel": e.kernel, "chosen": e.chosen_us, "best": e.best_us} for e in table.evidence]
).set_index("m")
evidence["loss"] = evidence["chosen"] / evidence["best"] - 1
held = pd.read_csv(PLAN / "matmul-held-out.csv").sort_values("size")
figure, (times, losses) = plt.subplots(2, 1, figsize=(8, 5.4), layout="constrained", sharex=True)
times.plot(
    evidence.index, 2e-6 * evidence.index * 8192 * 8192 / evidence["chosen"], "o-", ms=3, label="chosen"
)
times.plot(held["size"], 2e-6 * held["size"] * 8192 * 8192 / held["vendor_us"], ".", label="cuBLAS")
times.set(ylabel="TFLOP/s", yscale="log")
times.legend(frameon=False)
losses.bar(evidence.index, 100 * evidence["loss"], width=0.06 * evidence.index, label="sampled by the plan")
losses.errorbar(
    held["size"],
    100 * held["loss"],
    100 * np.clip([held["loss"] - held["loss_low"], held["loss_high"] - held["loss"]], 0, None),
    fmt=".",
    color="C1",
    label="held out, with 95 % interval",
)
losses.set(xscale="log", xlabel="m", ylabel="loss, %")
losses.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Held-out sizes
# 60 sizes that the plan never measured. The loss is the time of the table's dynamic kernel over that of the
# fastest static kernel, tuned for this size, less one.

# %%
summary = held["loss"].describe(percentiles=[0.5, 0.9])[["mean", "50%", "90%", "max"]]
display((100 * summary).round(2).to_frame("loss, %"))
ours = (held["vendor_us"] / held["open_us"]).groupby(pd.cut(held["size"], [0, 64, 512, 4096, 16384]))
means = ours.agg(["count", lambda ratios: np.exp(np.log(ratios).mean())])
display(means.set_axis(["sizes", "cuBLAS's time over ours"], axis=1).round(2))
