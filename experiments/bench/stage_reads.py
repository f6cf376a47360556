"""Launches two kernels many times on a GPU, with and without the fence of `with_complete_reads`.

    python experiments/bench/stage_reads.py ROWS.jsonl

Their consumers multiply by mma.sync what TMA has copied. Each row has the launches with a wrong element.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tilesight.builder import build
from tilesight.builder.loaded_kernel import LoadedKernel
from tilesight.kernels import operator, template_for
from tilesight.machine.placement import locate
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config

SHAPE = "tokens=64,groups=8,n=14336,k=4096"
COMMON = {"block_k": 32, "block_n": 256, "skip": "loop"}
CONFIGS = (
    {"block_m": 16, "num_stages": 3, "persistent": 0, "policy": "square", "swizzle": 8, "threads": 512},
    {"block_m": 32, "num_stages": 1, "persistent": 132, "policy": "full_col", "swizzle": 0, "threads": 256},
)
SEEDS, LAUNCHES = 4, 100  # of each seed's inputs
BOUND = 0.1  # of an element's error; elements are N(0, 1) in bfloat16


def wrong_launches(candidate: Candidate, kernel: LoadedKernel) -> tuple[int, int]:
    """Of all launches those with a wrong element, and the wrong elements of all."""
    workload, op = candidate.workload, operator("grouped_matmul")
    launches = elements = 0
    for seed in range(SEEDS):
        inputs = op.inputs(workload, "cuda", seed)
        expected = op.reference(workload, inputs)["C"].float()
        result = torch.empty(op.outputs(workload)["C"], dtype=torch.bfloat16, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        call = kernel.bind([*inputs.values(), result], stream, candidate.run_time_slots)
        for _ in range(LAUNCHES):
            result.fill_(float("nan"))
            call()
            wrong = ~((result.float() - expected).abs() <= BOUND)
            elements += int(wrong.sum())
            launches += bool(wrong.any())
    return launches, elements


def main() -> None:
    target = locate("auto", measures=True).target
    workload = operator("grouped_matmul").workload(SHAPE, "bfloat16")
    template = template_for("grouped_matmul", target, "bfloat16")
    torch.zeros(1, device="cuda")  # a context, which libraries of kernels need
    fenced: Any = build.with_complete_reads
    with Path(sys.argv[1]).open("w", encoding="utf-8") as out:
        for values in CONFIGS:
            candidate = Candidate(workload, target, template, Config({**values, **COMMON}))
            for fence in (False, True):
                build.with_complete_reads = fenced if fence else lambda kernels: kernels
                built = build.build_kernel(candidate, Path(tempfile.mkdtemp()))
                if built.artifact is None:
                    raise SystemExit(str(built.failure))
                launches, elements = wrong_launches(candidate, LoadedKernel(built.artifact, built.entry))
                row = {
                    "config": values,
                    "fence": fence,
                    "launches": SEEDS * LAUNCHES,
                    "wrong_launches": launches,
                    "wrong_elements": elements,
                }
                out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
