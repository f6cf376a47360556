"""Hardware counters of static matmuls with n = k = 8192 whose last tile of rows is partly filled.

    python experiments/partial_tiles/counters.py OUT.csv [--target h200]

It needs ncu. Each kernel is launched once under it, after two launches without (`../counters/launch.py`),
with cold caches and unchanged clocks.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "counters"))
import ncu

from tilesight.executor.jobs import BuildDone, BuildJob, SingleLaneSource
from tilesight.executor.local import LocalExecutor
from tilesight.kernels import template_for
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.settings import available_cores, load_settings
from tilesight.target.spec import load_target

# block_m, block_n, block_k, num_stages, threads, policy, and the sizes
CASES = (
    ((128, 128, 128, 3, 512, "full_row"), (65, 128, 129, 161, 192, 193, 224, 256)),
    ((128, 128, 64, 5, 256, "full_row"), (129, 256)),
    ((128, 64, 128, 4, 128, "square"), (72, 94, 112, 128)),
    ((192, 128, 64, 5, 384, "square"), (96, 128, 192)),
)
METRICS = (
    "gpu__time_duration.sum",
    "sm__cycles_active.avg",
    "sm__cycles_active.max",
    "dram__bytes_read.sum",
    "dram__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "lts__t_requests_srcunit_tex.sum",
    "lts__t_sectors_srcunit_tex.sum",
    "lts__t_sectors_srcunit_tex_lookup_miss.sum",
    "lts__t_sectors_srcunit_ltcfabric.sum",
    "lts__t_sector_hit_rate.pct",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    "gpc__cycles_elapsed.avg.per_second",
)
LIMIT_S = 150.0


def main(out: Path, target_name: str) -> int:
    target = load_target(target_name)
    template = template_for("matmul", target, "bfloat16")
    names = ("block_m", "block_n", "block_k", "num_stages", "threads", "policy")
    candidates = []
    for values, sizes in CASES:
        config = Config({**dict(zip(names, values, strict=True)), "epilogue": "shared", "swizzle": 0})
        workloads = (template.operator.workload(f"m={m},n=8192,k=8192", "bfloat16") for m in sizes)
        candidates += [Candidate(workload, target, template, config) for workload in workloads]
    builds = {}
    with LocalExecutor(available_cores(), load_settings().cache_dir, ()) as executor:
        for event in executor.stream(SingleLaneSource(map(BuildJob, candidates))):
            assert isinstance(event, BuildDone)
            builds[event.job.candidate] = event.result
    items = [
        {
            "number": number,
            "operator": "matmul",
            "shape": f"m={candidate.workload.dims['m']},n=8192,k=8192",
            "dtype": "bfloat16",
            "artifact": builds[candidate].artifact,
            "entry": builds[candidate].entry,
        }
        for number, candidate in enumerate(candidates)
    ]
    tool = ncu.find_ncu()
    if tool is None:
        print("ncu was not found: install NVIDIA Nsight Compute", file=sys.stderr)
        return 1
    known = ncu.known_metrics(tool)
    metrics = [name for name in METRICS if known is None or name.partition(".")[0] in known]
    with tempfile.TemporaryDirectory() as folder:
        job, log, table = Path(folder, "job.json"), Path(folder, "log.jsonl"), Path(folder, "ncu.csv")
        job.write_text(
            json.dumps(
                {
                    "log": str(log),
                    "deadline": time.time() + LIMIT_S,
                    "seed": 1,
                    "target": target_name,
                    "items": items,
                }
            )
        )
        program = [sys.executable, str(Path(ncu.__file__).parent / "launch.py"), str(job)]
        subprocess.run(ncu.command(tool, metrics, table, program), timeout=LIMIT_S, check=True)
        launches = ncu.parse(table.read_text())
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["config", "m", "blocks", *metrics])
        for candidate, launch in zip(candidates, launches, strict=True):
            values = (launch.metrics.get(name) for name in metrics)
            writer.writerow(
                [candidate.config, candidate.workload.dims["m"], "x".join(map(str, launch.grid)), *values]
            )
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Counters of matmuls with a partial tile of rows.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="h200")
    given = parser.parse_args()
    sys.exit(main(given.out, given.target))
