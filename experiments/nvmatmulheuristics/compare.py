"""nvMatmulHeuristics on the matmul cases of a dataset, with the metrics of `tilesight model evaluate`.

    pip install nvidia-matmul-heuristics
    python experiments/nvmatmulheuristics/compare.py DATASET... [--gpu H200_SXM] [--backend CUTLASS3] [--json
    FILE]

Two results for each case are compared with the measured rows:

picks      Its first 64 configs, in its order. A pick stands for the measured candidates with the nearest
block_m,
           block_n, block_k and num_stages; the distance is |log2| of each tile side plus a quarter of the
           difference in stages. Cluster, threads, warp layout and block order are ignored: TileLang's
           candidates have no clusters, and the other values have another meaning. If several candidates share
           the four values, the pick is a random one of them (exact expectation); `picks, kindly` takes the
           fastest one, which it cannot know. A later pick of candidates already picked is skipped. If the
           picks end before 8 candidates, the rest is drawn at random (exact expectation).
estimates  Its estimated runtime for every candidate's tile, stages, warps and swizzle, as a cost model: order
of all
           candidates, and MAPE.

It predicts CUTLASS kernels and not those of TileLang, so its times have that difference. Only fp16 and bf16
rows are compared, since it has no name for tf32 with fp32 results.
"""

import argparse
import ctypes
import itertools
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import nvMatmulHeuristics as nv  # noqa: N813

from tilesight.costmodel.training import metrics
from tilesight.costmodel.training.measured import measured_rows
from tilesight.records.dataset import read_dataset

PRECISIONS = {"bfloat16": "TST", "float16": "HSH"}  # operands, accumulator, result
ASKED = 64


def compare(rows, interface):
    """(model, case label, dtype, Scores) of one case's rows."""
    first = rows[0]
    precision = PRECISIONS[first.dtype]
    layout = nv.NvMatmulHeuristicsMatmulLayout.NN_ROW_MAJOR
    problem = interface.makeNvMatmulHeuristicsProblem(*(int(first.dims[d]) for d in ("m", "n", "k")), layout)
    measured = np.array([row.measured_us for row in rows])
    groups = defaultdict(list)
    for number, row in enumerate(rows):
        groups[tile(row.config)].append(number)
    answers = interface.get(problem, ASKED, precision=precision)
    plain, kindly = np.full(len(rows), np.inf), np.full(len(rows), np.inf)
    for answer in answers:
        kernel = answer["kernel"]
        own = (kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k, kernel.stages)
        members = groups[min(groups, key=lambda group: distance(group, own))]
        if math.isinf(plain[members[0]]):
            place = float(np.isfinite(kindly).sum())
            plain[members] = place
            kindly[min(members, key=lambda number: measured[number])] = place
    estimates = np.array([estimate(row.config, problem, interface, precision) for row in rows])
    yield "picks", metrics.scores(plain, measured, times=False)
    yield "picks, kindly", metrics.scores(kindly, measured, times=False)
    yield "estimates", metrics.scores(estimates, measured)
    yield "random", metrics.random_scores(measured)


def tile(config):
    return config["block_m"], config["block_n"], config["block_k"], config["num_stages"]


def distance(ours, theirs):
    return sum(abs(math.log2(a / b)) for a, b in zip(ours[:3], theirs[:3], strict=True)) + 0.25 * abs(
        ours[3] - theirs[3]
    )


def estimate(config, problem, interface, precision):
    """Microseconds that it predicts for one candidate; infinite where it has no answer."""
    kernel = nv.NvMatmulHeuristicsInterface.nvmmhKernelConfiguration()
    m, n, k, stages = tile(config)
    rows, cols = warps_of(m, n, config["threads"] // 32)
    kernel.cta[:] = (m, n, k)
    kernel.warp[:] = (m // rows, n // cols, k)
    kernel.instr[:] = (64 if m >= 64 else 16, 8, 16)
    kernel.splitK, kernel.loadStages, kernel.ctaOrder = 1, stages, 1
    kernel.gridSwizzle = max(1, config["swizzle"])
    kernel.cluster[:] = (1, 1)
    # its Python class has no method for this: the call that its own `get` makes for each of its answers
    seconds = interface.nvMatmulHeuristicsEstimateRuntime(
        interface.handle,
        precision.encode("ascii"),
        ctypes.c_int(interface.target),
        ctypes.byref(problem),
        ctypes.byref(kernel),
        interface.hardware_descriptor,
    )
    return seconds * 1e6 if seconds and math.isfinite(seconds) and seconds > 0 else math.inf


def warps_of(m, n, warps):
    """Rows x columns of warps, whose parts of the tile come closest to squares."""
    shapes = [
        (r, warps // r)
        for r in range(1, warps + 1)
        if warps % r == 0 and m % r == 0 and n % (warps // r) == 0
    ]
    return min(shapes or [(1, 1)], key=lambda s: abs(math.log2((m / s[0]) / (n / s[1]))))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--gpu", default="H200_SXM", choices=[g.name for g in nv.NvMatmulHeuristicsNvidiaGpu])
    parser.add_argument(
        "--backend", default="CUTLASS3", choices=[t.name for t in nv.NvMatmulHeuristicsTarget]
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    interface = nv.NvMatmulHeuristicsInterfaceEx(
        backend=nv.NvMatmulHeuristicsTarget[arguments.backend],
        flags=nv.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=nv.NvMatmulHeuristicsNvidiaGpu[arguments.gpu],
    )
    rows = [
        r
        for r in measured_rows(read_dataset(arguments.datasets))
        if r.operator == "matmul" and r.dtype in PRECISIONS
    ]
    if not rows:
        raise SystemExit("the datasets hold no measured matmul in bfloat16 or float16; nothing to compare")
    found = []
    print(
        f"{'case':24s} {'dtype':9s} {'n':>4s}  {'model':14s} "
        f"{'rho':>6s} {'top-1':>6s} {'top-8':>6s} {'top-5%':>6s} {'MAPE':>7s}"
    )
    for case, members in itertools.groupby(sorted(rows, key=lambda r: r.case), key=lambda r: r.case):
        own = list(members)
        for model, s in compare(own, interface):
            found.append(
                {
                    "model": model,
                    "case": case,
                    "shape": own[0].shape,
                    "dtype": own[0].dtype,
                    **scores_plain(s),
                }
            )
            show(
                own[0].shape, own[0].dtype, s.count, model, s.spearman, s.top1, s.top8, s.top5_percent, s.mape
            )
    print("geometric means; MAPE and rho: means")
    for model in dict.fromkeys(entry["model"] for entry in found):
        own = [entry for entry in found if entry["model"] == model]
        tops = [metrics.geometric_mean(e[k] for e in own) for k in ("top1", "top8", "top5_percent")]
        show(
            "all", "", len(own), model, mean(e["spearman"] for e in own), *tops, mean(e["mape"] for e in own)
        )
        show(
            "worst",
            "",
            len(own),
            model,
            None,
            *(min(e[k] for e in own) for k in ("top1", "top8", "top5_percent")),
            None,
        )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"gpu": arguments.gpu, "backend": arguments.backend, "cases": found}, indent=1)
        )


def scores_plain(scores):
    return {
        name: getattr(scores, name) for name in ("count", "spearman", "top1", "top8", "top5_percent", "mape")
    }


def mean(values):
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def show(shape, dtype, count, model, rho, top1, top8, top5, mape):
    number = "     -" if rho is None else f"{rho:6.3f}"
    error = "      -" if mape is None else f"{mape:7.1%}"
    print(
        f"{shape[:24]:24s} {dtype:9s} {count:4d}  {model:14s} "
        f"{number} {top1:6.3f} {top8:6.3f} {top5:6.3f} {error}"
    )


if __name__ == "__main__":
    main()
