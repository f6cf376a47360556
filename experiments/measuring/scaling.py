"""Candidates measured per second on one GPU and on several of a machine.

Builds all candidates first, then measures the same ones on 1, 2, ... GPUs at once, each by a process of its own. Needs a
machine with several GPUs of one target: python experiments/measuring/scaling.py > scaling.csv
"""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tilesight.candidate import Candidate
from tilesight.executor import LocalExecutor
from tilesight.lookup import find_operator, find_template, find_workloads
from tilesight.protocol import Protocol
from tilesight.sampling import stratified
from tilesight.settings import available_cores
from tilesight.where import locate
from tilesight.work import Build, Built, Measure, Measured, OneLane


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="matmul")
    parser.add_argument("--shape", nargs="+", default=["M0", "M1"])
    parser.add_argument("--target", default="h200")
    parser.add_argument("--samples", type=int, default=192)
    asked = parser.parse_args()
    where = locate(asked.target, measures=True, predicts=False)
    operator, protocol = find_operator(asked.kernel), Protocol.named("default", where.target)
    name = where.device.name if where.device else "nothing"
    print(f"# {datetime.now(UTC):%Y-%m-%d}, {len(where.devices)} x {name}, {available_cores()} cores, protocol {protocol.key}")
    print("shape,devices,measured,failed,seconds,per_second,busy")
    with TemporaryDirectory() as folder:
        for shape in asked.shape:
            [workload] = find_workloads(operator, where.target, shape, None)
            template = find_template(operator, where.target, workload.dtype)
            configs = stratified(template.space(workload, where.target), asked.samples)
            candidates = [Candidate(workload, where.target, template, config) for config in configs]
            with LocalExecutor(available_cores(), Path(folder), where.devices) as executor:
                events = list(executor.stream(OneLane(Build(candidate) for candidate in candidates)))
            builds = {event.job.candidate: event.result for event in events if isinstance(event, Built) and event.result.artifact}
            for count in [n for n in (1, 2, 4, 8) if n <= len(where.devices)]:
                with LocalExecutor(1, Path(folder), where.devices[:count]) as executor:
                    first = list(builds.items())[:count]  # processes start, inputs and references are made
                    list(executor.stream(OneLane(Measure(c, b, protocol) for c, b in first)))
                    begin = time.perf_counter()
                    found = [
                        e for e in executor.stream(OneLane(Measure(c, b, protocol) for c, b in builds.items())) if isinstance(e, Measured)
                    ]
                    seconds = time.perf_counter() - begin
                failed = sum(event.measurement.failure is not None for event in found)
                busy = sum(event.device_seconds for event in found) / seconds / count
                row = (shape, count, len(found) - failed, failed, f"{seconds:.2f}", f"{len(found) / seconds:.2f}", f"{busy:.2f}")
                print(*row, sep=",", flush=True)


if __name__ == "__main__":
    main()
