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
# # One kernel: its lowered IR and its profile
# A cost model for kernels can use the config (tile sizes, stages) or the compiler's output. TileSight uses
# the second: it lowers the kernel to TVM IR on the CPU and counts the work of the hardware. No GPU is
# needed here. The kernel is the fastest measured one of a matmul in the shipped dataset.

# %%
import json
import re
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display

import tilesight
from tilesight import Config, load_target
from tilesight.research import lower, operator, read_dataset, read_profiles, template_for

warnings.filterwarnings("ignore", message="IProgress not found")  # TileLang's progress bars look for widgets
HERE = Path(__file__).parent if "__file__" in globals() else Path.cwd()
target = load_target("h200")
rows = read_dataset(HERE.parent / "datasets" / "h200").verified().frame
case = rows[(rows["operator"] == "matmul") & (rows["shape"] == "M0") & (rows["dtype"] == "bfloat16")]
best = case.loc[case["measured_us"].idxmin()]
config = Config(json.loads(best["config"]))
print(
    f"{len(case)} measured configs of {best['workload']}; the fastest takes {best['measured_us']:.1f} "
    f"us:\n{config}"
)

# %% [markdown]
# ## Lower it
# `template.build` gives a TileLang function with tile operators (`T.copy`, `T.gemm`). `lower` runs
# TileLang's passes on it.

# %%
workload = operator("matmul").workload("M0", "bfloat16")
function = template_for("matmul", target, "bfloat16").build(workload, config)
lowered = lower(function, target)
script = lowered.device.script()
print(f"{len(function.script().splitlines())} lines as traced, {len(script.splitlines())} lines of device IR")

# %% [markdown]
# The reader looks for copies, matrix instructions, barriers, roles and loops in the device IR. These are
# the lines with them, cut to a readable width.

# %%
TELLING = re.compile(
    r"tma_load|tma_store|wgmma|mbarrier|barrier_wait|set_max_nreg|launch_thread|threadIdx|blockIdx|for \w+ "
    r"in|dyn_shared"
)
for line in [line for line in script.splitlines() if TELLING.search(line)][:60]:
    print(line[:150] + ("…" if len(line) > 150 else ""))

# %% [markdown]
# ## Read its profile
# A `KernelProfile` has roles (threads with a program of their own), each with phases (straight-line code,
# or a loop with the work of one iteration). Everything is for one block.

# %%
(profile,) = read_profiles(lowered, target)
print(
    f"grid {profile.grid}, {profile.block_threads} threads, {profile.shared_bytes} bytes of shared "
    "memory a block"
)
display(
    pd.DataFrame(
        [
            {
                "role": role.name,
                "threads": role.threads,
                "phase": "loop" if phase.is_loop else "straight",
                "trips": phase.trips.mean,
                "depth": phase.pipeline_depth,
                "matrix flops": sum(m.count * m.flops for m in phase.work.matrix),
                "vector ops": phase.work.vector_ops,
                "convert ops": phase.work.convert_ops,
                "barrier waits": phase.work.barrier_waits,
                "matrix waits": phase.work.matrix_waits,
                "block syncs": phase.work.block_syncs,
            }
            for role in profile.roles
            for phase in role.phases
        ]
    )
)

# %% [markdown]
# Each access has its width and the operations of the memory: 32-byte sectors in global memory, wavefronts
# in shared memory. `slots` are the buffers that a copy cycles through; more of them hide more latency.

# %%
accesses = pd.DataFrame(
    [
        {
            "role": role.name,
            "trips": phase.trips.mean,
            "space": str(a.space),
            "tensor": a.tensor,
            "way": "write" if a.write else "read",
            "mechanism": a.mechanism,
            "bytes": a.bytes,
            "transactions": a.transactions,
            "instructions": a.instructions,
            "width": a.vector_bytes,
            "slots": a.slots,
            "block axes": "".join(sorted(a.axes)),
        }
        for role in profile.roles
        for phase in role.phases
        for a in phase.work.accesses
    ]
)
display(accesses)

# %% [markdown]
# Bytes of the whole grid by memory space. Operands that matrix instructions read directly from shared
# memory are counted with the matrix work, not as accesses of threads.

# %%
moved = (accesses["bytes"] * accesses["trips"] * profile.blocks).groupby(
    [accesses["space"], accesses["way"]]
).sum() / 1e6
operands = sum(
    m.count * m.shared_bytes * p.trips.mean for r in profile.roles for p in r.phases for m in p.work.matrix
)
labels = [f"{space} {way}" for space, way in moved.index] + ["shared, by matrix instructions"]
values = [*moved.values, operands * profile.blocks / 1e6]
figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
bars = axes.barh(labels, values, color="#4477aa")
axes.bar_label(bars, fmt="{:,.0f}", padding=3)
axes.axvline(best["min_bytes"] / 1e6, color="#cc6677", linestyle="--", label="least: each tensor once")
axes.set(xlabel="MB over the whole grid", xlim=(0, 1.15 * max(values)))
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Predict it
# `tilesight.predict` does all of the above for any TileLang function, also for one that is not in this
# repository.

# %%
predictions = {chip: tilesight.predict(function, chip) for chip in ("h200", "h100")}
for chip, prediction in predictions.items():
    found = read_dataset(HERE.parent / "datasets" / chip).verified().frame
    same = found[(found["workload"] == best["workload"]) & (found["config"] == best["config"])]
    times = [f"{us:.1f} us" for us in same["measured_us"]]
    print(
        f"{chip}: predicted {prediction.latency_us:.1f} us, measured {', '.join(times) or 'not there'}, "
        f"limiting: {prediction.limiting}"
    )
shares = pd.DataFrame({chip: prediction.utilization for chip, prediction in predictions.items()})
display(shares.round(3).sort_values("h200", ascending=False))

# %% [markdown]
# Another kernel, which TileSight does not contain. It reads each row of a matrix and writes its sum.

# %%
import tilelang.language as T  # noqa: E402, N812


def row_sums(rows: int, columns: int, block: int):
    @T.prim_func
    def kernel(A: T.Tensor((rows, columns), "float16"), B: T.Tensor((rows,), "float32")):  # noqa: N803
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            tile = T.alloc_fragment((block, columns), "float16")
            wide = T.alloc_fragment((block, columns), "float32")
            sums = T.alloc_fragment((block,), "float32")
            T.copy(A[bx * block, 0], tile)
            T.copy(tile, wide)
            T.reduce_sum(wide, sums, dim=1)
            T.copy(sums, B[bx * block])

    return kernel


answers = {block: tilesight.predict(row_sums(16384, 2048, block), target) for block in (1, 2, 4, 8)}
display(
    pd.DataFrame(
        [
            {"rows a block": b, "predicted us": p.latency_us, "limiting": p.limiting}
            for b, p in answers.items()
        ]
    ).round(1)
)
