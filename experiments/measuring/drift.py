"""How a time drifts from minute to minute: cuBLAS' bfloat16 product M0 under the default
protocol, six times in turns (three sets of memory with the same values, three with other values), again and
again with pauses of 2.5 s.

    python experiments/measuring/drift.py > drift.txt
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from statistics import mean, median

import torch

from tilesight.machine.placement import locate
from tilesight.records.protocol import MeasurementProtocol
from tilesight.runner.bench import bench_for
from tilesight.runner.turns import collect_samples
from tilesight.tuner.resolve import find_operator

ROUNDS, SETS, PAUSE_S = 12, 6, 2.5


def main() -> None:
    target = locate("h200", measures=True, predicts=False).target
    protocol = MeasurementProtocol.named("default", target).careful()
    bench = bench_for(target, protocol)
    operator = find_operator("matmul")
    workload = operator.workload("M0", "bfloat16")
    calls: list[Callable[[], object]] = []
    between = []  # memory between the sets, of different sizes
    for number in range(SETS):
        given = operator.inputs(workload, bench.device, 1 if number < SETS // 2 else number)
        between.append(torch.empty(37_000_000 + number * 5_000_000, dtype=torch.uint8, device=bench.device))
        out = torch.empty(workload.dims["m"], workload.dims["n"], dtype=torch.bfloat16, device=bench.device)
        calls.append(partial(torch.matmul, given["A"], given["B"], out=out))
    print(
        f"# {datetime.now(UTC):%Y-%m-%d}, {bench.environment['device']}, "
        f"protocol {protocol.key}; medians in us"
    )
    for number in range(ROUNDS):
        bench.conditions.begin()
        taken = collect_samples(bench.timer, calls, protocol, bench.conditions)
        medians = [median(samples) for samples in taken.samples_us]
        shown = " ".join(f"{us:7.2f}" for us in medians)
        print(
            f"round {number:2} samples {len(taken.samples_us[0]):3} {shown} mean {mean(medians):.2f}",
            bench.conditions.observed(),
            flush=True,
        )
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
