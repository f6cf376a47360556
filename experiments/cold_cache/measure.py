"""What the dirty lines of a cold cache cost: times after the cache was written, and after it was also read.

    python experiments/cold_cache/measure.py --out rows.csv

The default protocol writes twice the last-level cache before each sample. Lines that were written and not yet
stored leave the cache while the kernel runs. `read` reads other bytes in between, so that lines are clean.
The kernels are the winners of the sessions that ship, beside the vendor's and copies of as many bytes. All
calls of a case are timed in turns, and both states of the cache one after the other, three times.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

import torch

import tilesight.database
from tilesight.builder.build import build_kernel
from tilesight.builder.loaded_kernel import LoadedKernel
from tilesight.database.shipped import SESSIONS
from tilesight.database.store import open_store
from tilesight.kernels import operator, template_for
from tilesight.machine.placement import locate
from tilesight.problem.candidate import Candidate
from tilesight.records.trial import BuildResult
from tilesight.runner.bench import spin_up
from tilesight.runner.conditions import Conditions
from tilesight.runner.timers import GpuTimer
from tilesight.target.spec import Target

CASES = (
    ("rms_norm", "R0"),
    ("rms_norm", "R2"),
    ("layer_norm", "L0"),
    ("layer_norm", "L3"),
    ("quantize", "Q0"),
    ("quantize", "Q2"),
    ("softmax", "S1"),
    ("silu_mul", "U0"),
    ("rope", "P0"),
    ("gemv", "V5"),
    ("gemv", "V0"),
    ("dequant_matmul", "D0"),
    ("flash_decoding", "FD5"),
    ("matmul", "M0"),
)
SHIPPED = Path(tilesight.database.__file__).parent / SESSIONS
CLEANED = 4  # caches that are read after the write: what replaces lines is not known
COUNT = 60


class CleaningTimer(GpuTimer):
    """The default protocol's timer, which can also read other memory after it has written the cache."""

    def __init__(self, cache_bytes: int) -> None:
        super().__init__(2 * cache_bytes, burst_ms=15.0, rest=3.0)
        self._read = torch.ones(CLEANED * cache_bytes // 4, device="cuda")
        self.cleans = False

    def _flush(self) -> None:
        super()._flush()
        if self.cleans:
            self._read.sum()


def winner(name: str, shape: str, target: Target) -> Candidate:
    """The candidate that the shipped sessions found fastest."""
    op = operator(name)
    workload = op.workload(shape)
    with open_store(str(SHIPPED), read_only=True) as store:
        config = next(b.config for b in store.best(name, target.name) if b.workload == workload.key)
    return Candidate(workload, target, template_for(name, target, workload.dtype), config)


def calls_of(candidate: Candidate, build: BuildResult) -> dict[str, Callable[[], object]]:
    """Our kernel, the vendor's calls, and a copy of as many bytes, all with memory of their own."""
    op, workload = operator(candidate.workload.operator), candidate.workload
    inputs = {name: t.contiguous() for name, t in op.inputs(workload, "cuda", 1).items()}
    scratch = candidate.template.scratch(workload, candidate.config).values()
    wanted = [(s, op.dtype_of(name, workload)) for name, s in op.outputs(workload).items()]
    made = [torch.empty(*s, dtype=getattr(torch, d), device="cuda") for s, d in (*wanted, *scratch)]
    assert build.artifact is not None, build.failure
    kernel = LoadedKernel(build.artifact, build.entry)
    stream = torch.cuda.current_stream().cuda_stream
    own = kernel.bind([*inputs.values(), *made], stream)
    vendor = {name: call for name, call in op.vendor(workload, inputs).items() if "compile" not in name}
    return {"ours": own, **vendor, **copies(op.min_bytes(workload))}


def copies(size: int) -> dict[str, Callable[[], object]]:
    """A copy that reads and writes half of `size` bytes each, and a sum that reads all of them."""
    source = torch.ones(size // 8, device="cuda")
    target = torch.empty_like(source)
    whole = torch.ones(size // 4, device="cuda")
    return {"copy": lambda: target.copy_(source), "sum": lambda: whole.sum()}


def timed(timer: CleaningTimer, calls: dict[str, Callable[[], object]]) -> list[tuple[str, str, float]]:
    """(call, state of the cache, median in us)."""
    stretches = []
    for call in calls.values():
        timer.warm_up(call, 5.0)
        stretches.append(timer.stretch(call))
    samples: dict[tuple[str, str], list[float]] = {}
    for _ in range(3):
        for state in ("written", "read"):
            timer.cleans = state == "read"
            for row in timer.turns(stretches, COUNT // 3):
                for name, us in zip(calls, row, strict=True):
                    samples.setdefault((name, state), []).append(us)
    return [(name, state, median(found)) for (name, state), found in samples.items()]


def build(item: tuple[str, str, Target, Path]) -> tuple[Candidate, BuildResult]:
    name, shape, target, folder = item
    candidate = winner(name, shape, target)
    return candidate, build_kernel(candidate, folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    target = locate("auto", measures=True).target
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor() as pool:
        built = list(pool.map(build, [(*case, target, Path(folder)) for case in CASES]))
        timer = CleaningTimer(target.int("device.memory.l2.bytes"))
        spin_up(Conditions())
        with given.out.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["operator", "shape", "bytes", "call", "cache", "us"])
            for (name, shape), (candidate, result) in zip(CASES, built, strict=True):
                size = operator(name).min_bytes(candidate.workload)
                for call, state, us in timed(timer, calls_of(candidate, result)):
                    writer.writerow([name, shape, size, call, state, f"{us:.2f}"])
                file.flush()


if __name__ == "__main__":
    main()
