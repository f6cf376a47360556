"""Counts launches of kernels until they stall because a warp is late, with and without the waits of idle
warps.

    python experiments/idle_warps/stalls.py OUT.csv [--target h200] [--seconds 2]

Each kernel is built three ways and launched repeatedly for some seconds, in a process that is killed when it
stalls:

- `led`: as TileSight builds it: only the thread that loads enters the producer's loop
(`tilesight/builder/producer_warps.py`);
- `tilelang`: as TileLang generates it: all warps of the producer wait in that loop;
- `late`: as `tilelang`, and the warps that load nothing sleep for 20 us in the eighth iteration, or before
the only one, as a
  scheduler might delay them.

One row for each kernel and way: `launches` that ended (counted by fifties), whether the next `stalled`, the
    fastest launch in us (the mean of fifty), and whether the last result was that of the operator's
    reference.
"""

from __future__ import annotations

import argparse
import csv
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tilesight.builder import build as builder
from tilesight.builder.loaded_kernel import LoadedKernel
from tilesight.kernels import template_for
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult
from tilesight.runner.bench import bench_for
from tilesight.runner.verify import check_outputs
from tilesight.settings import available_cores
from tilesight.target.spec import Target, load_target
from tilesight.workers import Done, TimedOut, WorkerPool

PLAIN = builder.device_source
WAYS = ("led", "tilelang", "late")
BURST = 50
GRACE_S = 10.0  # beyond the time of the launches; then a kernel counts as stalled
FIRST_LATE = 4  # the first case that is also tried `late`
STALLING = "m=8192,n=1024,k=2048"
SQUARE = {"policy": "square", "epilogue": "shared"}
# operator, shape, dynamic dimensions, config (None: the default of the template)
CASES: list[tuple[str, str, tuple[str, ...], dict[str, int | str] | None]] = [
    (
        "matmul",
        STALLING,
        ("m",),
        {**SQUARE, "block_m": 64, "block_n": 64, "block_k": 32,
         "num_stages": 5, "threads": 512, "swizzle": 4},
    ),
    (
        "matmul",
        STALLING,
        ("m",),
        {**SQUARE, "block_m": 64, "block_n": 64, "block_k": 64,
         "num_stages": 3, "threads": 512, "swizzle": 4},
    ),
    (
        "matmul",
        STALLING,
        ("m",),
        {**SQUARE, "block_m": 64, "block_n": 64, "block_k": 64,
         "num_stages": 3, "threads": 128, "swizzle": 8},
    ),
    (
        "matmul",
        STALLING,
        ("m",),
        {**SQUARE, "block_m": 64, "block_n": 64, "block_k": 32,
         "num_stages": 2, "threads": 256, "swizzle": 0},
    ),
    ("matmul", "m=4096,n=4096,k=4096", (), None),
    ("matmul", "m=8192,n=1024,k=64", ("m",), None),
    ("flash_attention", "batch=1,heads=32,seq_len=4096,head_dim=128,causal=true", (), None),
    ("dequant_matmul", "m=64,n=8192,k=8192", ("m",), None),
    ("chunk_state", "batch=8,seq_len=4096,nheads=80,head_dim=64,d_state=128", (), {
        "block_k": 64, "block_n": 64, "block_p": 64, "copies": "bulk", "num_stages": 2, "policy": "square",
         "scaled_x": "shared",
        "threads": 256}),
]  # fmt: skip


def candidates(target: Target) -> Iterator[Candidate]:
    for name, shape, dims, given in CASES:
        template = template_for(name, target, "bfloat16")
        workload = template.operator.workload(shape, "bfloat16")
        config = Config(given) if given is not None else template.default_config(workload, target)
        assert config is not None, name
        yield Candidate(workload, target, template, config, dims)


def late(source: str) -> str:
    """`source` with a sleep before a wait of the producer: in the eighth iteration of its loop, or at once
    if it has none.
    """
    producer = re.search(r"if \(\(\(int\)threadIdx\.x\) < 128\) \{\n", source)
    assert producer is not None, "no producer"
    wait = re.compile(r"(?:for \(int (\w+) = 0;[^\n]*\{\n\s*)?(?=mbarrier\[[^\n]*\.wait\()").search(
        source, producer.end()
    )
    assert wait is not None, "no producer that waits"
    nap = f"if (((int)threadIdx.x) >= 32{f' && {wait[1]} == 7' if wait[1] else ''}) __nanosleep(20000);\n"
    return source[: wait.end()] + nap + source[wait.end() :]


def build(item: tuple[Candidate, str, Path]) -> BuildResult:
    candidate, way, cache = item
    if way != "led":
        builder.without_idle_warps = lambda kernels: kernels
    if way == "late":
        builder.device_source = lambda lowered, target: late(PLAIN(lowered, target))
    return builder.build_kernel(candidate, cache)


def launch(item: tuple[BuildResult, Candidate, float, Path]) -> tuple[float, bool]:
    """(time of a launch in the fastest burst in us, whether the result was correct).

    The number of finished launches is written to a file.
    """
    import torch

    built, candidate, seconds, count_file = item
    assert built.artifact is not None
    bench = bench_for(candidate.target, MeasurementProtocol(input_sets=1))
    case = bench.case(candidate.template.operator, candidate.workload, MeasurementProtocol(input_sets=1))
    outputs = case.outputs()
    candidate.template.operator.preset(candidate.workload, outputs)
    kernel = LoadedKernel(built.artifact, built.entry)
    call = kernel.bind(
        [*case.sets[0].inputs.values(), *outputs.values()], bench.stream, candidate.dynamic_sizes
    )
    best, count, begin = float("inf"), 0, time.monotonic()
    while time.monotonic() - begin < seconds:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(BURST):
            call()
        end.record()
        torch.cuda.synchronize()
        best, count = min(best, start.elapsed_time(end) * 1e3 / BURST), count + BURST
        count_file.write_text(str(count))
    first = case.sets[0]
    verdict = check_outputs(case.operator, case.workload, outputs, first.reference, first.magnitude)
    return best, verdict.failure is None


def main(given: argparse.Namespace) -> None:
    target, folder = load_target(given.target), Path(tempfile.mkdtemp())
    some = list(candidates(target))
    work = [
        (candidate, way, folder / way)
        for way in WAYS
        for candidate in (some[FIRST_LATE:] if way == "late" else some)
    ]
    built: dict[int, BuildResult] = {}
    for way in WAYS:  # in a process of its own, since it changes how the process builds
        mine = [index for index, item in enumerate(work) if item[1] == way]
        with WorkerPool(min(len(mine), available_cores()), timeout_s=300) as pool:
            for place, outcome in pool.run(build, [work[index] for index in mine]):
                assert isinstance(outcome, Done), outcome
                assert outcome.value.failure is None, outcome.value.failure
                built[mine[place]] = outcome.value
    with WorkerPool(1, timeout_s=given.seconds + GRACE_S) as pool, given.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["operator", "shape", "dynamic", "config", "way", "launches", "stalled", "us", "right"]
        )
        for index, (candidate, way, _) in enumerate(work):
            count_file = folder / f"{index}.txt"
            count_file.write_text("0")
            ((_, outcome),) = pool.run(launch, [(built[index], candidate, given.seconds, count_file)])
            us, right = outcome.value if isinstance(outcome, Done) else ("", "")
            assert isinstance(outcome, Done | TimedOut), outcome
            row = [
                candidate.template.operator.name,
                candidate.workload.label,
                " ".join(candidate.dynamic),
                candidate.config,
                way,
            ]
            row += [count_file.read_text(), isinstance(outcome, TimedOut), round(us, 2) if us else "", right]
            writer.writerow(row)
            file.flush()
            print(*row, sep="  ", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Which kernels never end, and which do when idle warps do not wait."
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--seconds", type=float, default=2.0, help="of launches, for each kernel and way")
    main(parser.parse_args())
