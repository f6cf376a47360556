"""Twenty sessions on one workload: how much the winners' times vary, and how far they are from the best time.

Each session has a database of its own, so that it measures anew; the others start with the profiles of the
first one and need no lowering. At the end all winners are timed in turns: python
experiments/measuring/repeat.py > repeat.csv
"""

from __future__ import annotations

import argparse
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tilesight import tune
from tilesight.executor.jobs import BuildDone, BuildJob, CompareDone, CompareJob, SingleLaneSource
from tilesight.executor.local import LocalExecutor
from tilesight.machine.placement import locate
from tilesight.problem.candidate import Candidate
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import Comparison
from tilesight.settings import available_cores, load_settings
from tilesight.tuner.resolve import find_operator, find_template, find_workloads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="matmul")
    parser.add_argument("--shape", default="M0")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--protocol", default="default")
    options = parser.parse_args()
    placement = locate(options.target, measures=True, predicts=False)
    name = placement.device.name if placement.device else "nothing"
    print(
        f"# {datetime.now(UTC):%Y-%m-%d}, {options.kernel} {options.shape} on {name}, quick, "
        f"protocol {options.protocol}"
    )
    print("session,seconds,winner_us,vendor_us,tied,winner")
    times, winners = [], []
    with TemporaryDirectory() as folder:
        seed = Path(folder) / "profiles.db"
        tune(options.kernel, options.target, options.shape, effort="predict", database=str(seed))
        for number in range(options.sessions):
            database = Path(folder) / f"{number}.db"
            shutil.copy(seed, database)
            begin = time.perf_counter()
            [found] = tune(
                options.kernel,
                options.target,
                options.shape,
                protocol=options.protocol,
                database=str(database),
                seed=number,
            )
            seconds, best, decision = time.perf_counter() - begin, found.best, found.decision
            assert best is not None
            assert best.measured_us is not None
            vendor = found.fastest_baseline
            times.append(best.measured_us)
            winners.append(best.config)
            tied = len(decision.tied) if decision else 0
            vendor_us = f"{vendor.latency_us:.3f}" if vendor else ""
            print(
                number,
                f"{seconds:.2f}",
                f"{best.measured_us:.3f}",
                vendor_us,
                tied,
                f'"{best.config}"',
                sep=",",
                flush=True,
            )
    spread = (max(times) - min(times)) / median(times)
    print(f"# winners' times: median {median(times):.3f} us, largest minus smallest {100 * spread:.2f} %")
    operator = find_operator(options.kernel)
    [workload] = find_workloads(operator, placement.target, options.shape, None)
    template = find_template(operator, placement.target, workload.dtype)
    candidates = [
        Candidate(workload, placement.target, template, config) for config in dict.fromkeys(winners)
    ]
    with LocalExecutor(available_cores(), load_settings().cache_dir, placement.devices) as executor:
        events = executor.stream(SingleLaneSource(BuildJob(candidate) for candidate in candidates))
        built = tuple(
            (e.job.candidate, e.result) for e in events if isinstance(e, BuildDone) and e.result.artifact
        )
        [compared] = executor.stream(
            SingleLaneSource(
                [CompareJob(built, MeasurementProtocol.named(options.protocol, placement.target).careful())]
            )
        )
    assert isinstance(compared, CompareDone)
    assert isinstance(compared.found, Comparison)
    again = {c.config: m.latency_us for (c, _), m in zip(built, compared.found.measurements, strict=True)}
    for config, time_us in again.items():
        loss = 100 * (time_us / min(again.values()) - 1)
        print(
            f"# in turns: {time_us:.3f} us, won {winners.count(config)} times, loses {loss:.2f} %: {config}"
        )


if __name__ == "__main__":
    main()
