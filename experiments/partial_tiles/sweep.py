"""Times of kernels with dynamic m, at sizes that fill their last tile of rows partly.

    python experiments/partial_tiles/sweep.py OUT.csv matmul [--target h200] [--budget 60]
    python experiments/partial_tiles/sweep.py OUT.csv dequant_matmul

Each config is built once with dynamic m for each n and k, measured under the default protocol, and checked
against the operator's reference. To compare two versions of the kernels, run it at two commits.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from pathlib import Path

from tilesight.executor.jobs import BuildDone, BuildJob, MeasureDone, MeasureJob, SingleLaneSource
from tilesight.executor.local import LocalExecutor
from tilesight.kernels import template_for
from tilesight.machine.placement import locate
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.problem.template import KernelTemplate
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult
from tilesight.settings import available_cores, load_settings
from tilesight.target.spec import Target

SIZES = {
    "matmul": (
        65,
        72,
        96,
        112,
        128,
        129,
        161,
        181,
        192,
        193,
        225,
        256,
        257,
        300,
        340,
        384,
        385,
        512,
        520,
        777,
        1100,
        1990,
        3000,
        4097,
    ),
    "dequant_matmul": (17, 24, 40, 65, 72, 100, 129, 161, 181, 225, 257, 340, 520, 777, 1100),
}
WIDTHS = {
    "matmul": ((8192, 8192), (1024, 8192), (2048, 2048), (4096, 4096), (28672, 4096), (8192, 28672)),
    "dequant_matmul": ((8192, 8192), (28672, 8192)),
}
# block_m, block_n, block_k, num_stages, threads, policy, swizzle
MATMUL = (
    (128, 128, 128, 3, 512, "full_row", 0),
    (128, 128, 64, 5, 256, "full_row", 0),
    (128, 64, 128, 4, 256, "full_row", 0),
    (192, 128, 64, 5, 384, "square", 0),
    (64, 128, 128, 4, 256, "square", 0),
    (64, 256, 64, 4, 256, "square", 0),
    (64, 64, 128, 4, 128, "square", 0),
    (128, 256, 64, 4, 256, "full_row", 8),
    (192, 256, 64, 3, 256, "square", 8),
    (192, 192, 64, 4, 384, "full_row", 8),
)
MOST_TILES = 16  # of rows: with more tiles one partial tile does not matter


def configs(template: KernelTemplate, target: Target) -> list[Config]:
    if template.operator.name == "matmul":
        names = ("block_m", "block_n", "block_k", "num_stages", "threads", "policy", "swizzle")
        return [Config({**dict(zip(names, values, strict=True)), "epilogue": "shared"}) for values in MATMUL]
    found: dict[Config, None] = {}
    for n, k in WIDTHS[template.operator.name]:
        for m in (32, 64, 128, 256, 512):
            workload = template.operator.workload(f"m={m},n={n},k={k}", "bfloat16")
            sample = template.space(workload, target).sample(60, seed=5)
            deep = [
                c
                for c in sample
                if c.int("block_m") <= 128 and c.int("num_stages") >= 3 and c.int("block_k") >= 64
            ]
            default = template.default_config(workload, target)
            found.update(dict.fromkeys([*([default] if default else []), *deep[:3]]))
    return list(found)


def main(given: argparse.Namespace) -> None:
    until = time.monotonic() + given.budget
    placement = locate(given.target, measures=True, predicts=False)
    template, protocol = (
        template_for(given.kernel, placement.target, "bfloat16"),
        MeasurementProtocol.named("default", placement.target),
    )

    def candidate(config: Config, m: int, n: int, k: int) -> Candidate:
        workload = template.operator.workload(f"m={m},n={n},k={k}", "bfloat16")
        return Candidate(workload, placement.target, template, config, ("m",))

    some, widths = configs(template, placement.target), WIDTHS[given.kernel]
    builds: dict[tuple[Config, int, int], BuildResult] = {}
    executor = LocalExecutor(available_cores(), load_settings().cache_dir, placement.devices)
    with executor, given.out.open("w", newline="") as file:
        executor.start(measures=True)
        for event in executor.stream(
            SingleLaneSource(BuildJob(candidate(config, 1024, n, k)) for n, k in widths for config in some)
        ):
            assert isinstance(event, BuildDone)
            dims = event.job.candidate.workload.dims
            builds[event.job.candidate.config, dims["n"], dims["k"]] = event.result

        def jobs() -> Iterator[MeasureJob]:
            for n, k in widths:
                for m in SIZES[given.kernel]:
                    for config in some:
                        build, tile = builds[config, n, k], config.int("block_m")
                        if (
                            build.artifact
                            and tile < 2 * m
                            and m <= MOST_TILES * tile
                            and time.monotonic() < until
                        ):
                            yield MeasureJob(candidate(config, m, n, k), build, protocol)

        writer = csv.writer(file)
        writer.writerow(["n", "k", "m", "config", "us", "relative_error", "failure"])
        for event in executor.stream(SingleLaneSource(jobs())):
            assert isinstance(event, MeasureDone)
            job, found = event.job.candidate, event.measurement
            dims, time_us = job.workload.dims, "" if found.failure else round(found.latency_us, 3)
            writer.writerow(
                [
                    dims["n"],
                    dims["k"],
                    dims["m"],
                    job.config,
                    time_us,
                    found.relative_error,
                    found.failure or "",
                ]
            )
            file.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What masked rows of a kernel's last tile cost.")
    parser.add_argument("out", type=Path)
    parser.add_argument("kernel", choices=list(SIZES))
    parser.add_argument("--target", default="h200")
    parser.add_argument(
        "--budget", type=float, default=60.0, help="seconds, after which nothing more is measured"
    )
    main(parser.parse_args())
