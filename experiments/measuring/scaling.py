"""Candidates measured per second on one GPU and on several of a machine.

Builds all candidates first, then measures the same ones on 1, 2, ... GPUs at once, each by a process of its
own. Needs a
machine with several GPUs of one target: python experiments/measuring/scaling.py > scaling.csv
"""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tilesight.executor.jobs import BuildDone, BuildJob, MeasureDone, MeasureJob, SingleLaneSource
from tilesight.executor.local import LocalExecutor
from tilesight.machine.placement import locate
from tilesight.problem.candidate import Candidate
from tilesight.records.protocol import MeasurementProtocol
from tilesight.search.stratified import stratified
from tilesight.settings import available_cores
from tilesight.tuner.resolve import find_operator, find_template, find_workloads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="matmul")
    parser.add_argument("--shape", nargs="+", default=["M0", "M1"])
    parser.add_argument("--target", default="h200")
    parser.add_argument("--samples", type=int, default=192)
    options = parser.parse_args()
    placement = locate(options.target, measures=True, predicts=False)
    operator, protocol = find_operator(options.kernel), MeasurementProtocol.named("default", placement.target)
    name = placement.device.name if placement.device else "nothing"
    print(
        f"# {datetime.now(UTC):%Y-%m-%d}, {len(placement.devices)} x {name}, {available_cores()} cores, "
        f"protocol {protocol.key}"
    )
    print("shape,devices,measured,failed,seconds,per_second,busy")
    with TemporaryDirectory() as folder:
        for shape in options.shape:
            [workload] = find_workloads(operator, placement.target, shape, None)
            template = find_template(operator, placement.target, workload.dtype)
            configs = stratified(template.space(workload, placement.target), options.samples)
            candidates = [Candidate(workload, placement.target, template, config) for config in configs]
            with LocalExecutor(available_cores(), Path(folder), placement.devices) as executor:
                events = list(
                    executor.stream(SingleLaneSource(BuildJob(candidate) for candidate in candidates))
                )
            builds = {
                event.job.candidate: event.result
                for event in events
                if isinstance(event, BuildDone) and event.result.artifact
            }
            for count in [n for n in (1, 2, 4, 8) if n <= len(placement.devices)]:
                with LocalExecutor(1, Path(folder), placement.devices[:count]) as executor:
                    first = list(builds.items())[
                        :count
                    ]  # starts processes, and computes inputs and references
                    list(executor.stream(SingleLaneSource(MeasureJob(c, b, protocol) for c, b in first)))
                    begin = time.perf_counter()
                    found = [
                        e
                        for e in executor.stream(
                            SingleLaneSource(MeasureJob(c, b, protocol) for c, b in builds.items())
                        )
                        if isinstance(e, MeasureDone)
                    ]
                    seconds = time.perf_counter() - begin
                failed = sum(event.measurement.failure is not None for event in found)
                busy = sum(event.device_seconds for event in found) / seconds / count
                row = (
                    shape,
                    count,
                    len(found) - failed,
                    failed,
                    f"{seconds:.2f}",
                    f"{len(found) / seconds:.2f}",
                    f"{busy:.2f}",
                )
                print(*row, sep=",", flush=True)


if __name__ == "__main__":
    main()
