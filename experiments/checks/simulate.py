"""Errors of right results, relative to their bounds, in simulated arithmetic.

    python experiments/checks/simulate.py OUT.csv [--seeds 3] [--operators matmul gemv ...]

Needs no GPU. For each operator, dtype, shape and seed, a result is rounded as real kernels round it
(`tests/support/rounded.py`) and checked as in a measurement. A row has the largest error of an element and of
a tile relative to its limit, on random inputs and on the second ones; 1 is the limit.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.rounded import right_outputs
from tilesight.kernels import operator, operators
from tilesight.runner.bench import draw_second, draw_set
from tilesight.runner.verify import check_outputs

# operator, shape, terms after which matrix units cut the sum off (0: they round)
CASES = (
    ("matmul", "m=256,n=8192,k=28672", 0),
    ("matmul", "m=512,n=8192,k=8192", 0),
    ("matmul", "m=64,n=1024,k=28672", 8),
    ("matmul", "m=512,n=1024,k=8192", 16),
    ("matmul", "m=511,n=509,k=513", 8),
    ("matmul", "m=2000,n=2000,k=16", 8),
    ("matmul", "m=1,n=1,k=1", 0),
    ("gemv", "n=16384,k=16384", 0),
    ("gemv", "n=4096,k=57344", 0),
    ("gemv", "n=100001,k=77", 0),
    ("dequant_matmul", "m=64,n=9216,k=9216", 0),
    ("dequant_matmul", "m=512,n=4096,k=2048", 16),
    ("dequant_matmul", "m=64,n=1024,k=28672,group=-1", 8),
    ("dequant_matmul", "m=511,n=509,k=513", 0),
    ("dequant_matmul", "m=2000,n=1000,k=3", 0),
    ("flash_attention", "FA0", 0),
    ("flash_attention", "FA1", 16),
    ("flash_attention", "batch=1,heads=4,seq_len=4096,head_dim=128,causal=true", 0),
    ("flash_attention", "batch=1,heads=2,seq_len=4096,head_dim=128", 16),
    ("flash_attention", "batch=2,heads=3,seq_len=777,head_dim=72,causal=true", 0),
    ("flash_attention", "batch=1,heads=64,seq_len=1000,head_dim=16,causal=true", 0),
    ("rms_norm", "m=4096,n=4096", 0),
    ("rms_norm", "m=512,n=16384", 0),
    ("rms_norm", "R4", 0),
    ("rms_norm", "m=3001,n=2880", 0),
    ("chunk_state", "CT0", 0),
    ("chunk_state", "batch=1,seq_len=1024,nheads=16,head_dim=64,d_state=128", 16),
    ("chunk_state", "batch=3,seq_len=777,nheads=5,head_dim=100,d_state=60", 0),
    ("chunk_state", "batch=1,seq_len=4096,nheads=8,head_dim=64,d_state=64,chunk=1024", 16),
    ("chunk_state", "batch=1,seq_len=77,nheads=300,head_dim=7,d_state=1,chunk=32", 0),
)
COLUMNS = ("operator", "shape", "dtype", "cut", "seed", "inputs", "elements", "relative_error")
RATIOS = ("element_ratio", "tile_ratio", "failure", "check_s")


def main(out: Path, seeds: int, names: Sequence[str]) -> None:
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *RATIOS])
        for name, shape, cut in (case for case in CASES if case[0] in names):
            for dtype in ("bfloat16", "float16"):
                for seed in range(1, seeds + 1):
                    writer.writerows(rows_of(name, shape, dtype, cut, seed))
                    file.flush()


def rows_of(name: str, shape: str, dtype: str, cut: int, seed: int) -> list[list[object]]:
    """A row for random inputs, and one for the second ones."""
    ours = operator(name)
    workload = ours.workload(shape, dtype)
    rows: list[list[object]] = []
    for kind, draw in (("random", draw_set), ("second", draw_second)):
        drawn = draw(ours, workload, "cpu", seed)
        assert drawn is not None
        results = right_outputs(workload, drawn.inputs, seed, cut)
        begin = time.perf_counter()
        found = check_outputs(ours, workload, results, drawn.reference, drawn.magnitude, drawn.is_exact)
        seconds = time.perf_counter() - begin
        (size,) = (result.numel() for result in results.values())
        figures = [found.relative_error, found.element_ratio, found.tile_ratio]
        failure = found.failure.message if found.failure else ""
        case = [name, shape, dtype, cut, seed, kind, size]
        rows.append([*case, *(f"{figure:.3g}" for figure in figures), failure, f"{seconds:.3f}"])
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Errors of right results relative to their bounds.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--operators", nargs="*", default=operators(), choices=operators())
    given = parser.parse_args()
    main(given.out, given.seeds, given.operators)
