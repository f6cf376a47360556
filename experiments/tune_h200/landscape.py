"""Result of quick tuning, compared with a measured sample of the space.

    python experiments/tune_h200/landscape.py OUT KERNEL SHAPE [SAMPLE]

For one workload: `tilesight.tune` with quick effort and an empty database, timed from call to result. Then
SAMPLE random candidates of the same space (default: all legal ones), built and measured by the same stages.
Then the winner of quick tuning, the sample's five fastest candidates and the vendor's library, timed in
turns. Rows go to OUT/KERNEL-SHAPE.csv, the summary to OUT/KERNEL-SHAPE.json.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import tilesight
from tilesight.costmodel import default_model
from tilesight.errors import Failure
from tilesight.executor.jobs import (
    BuildDone,
    BuildJob,
    CompareDone,
    CompareJob,
    MeasureDone,
    MeasureJob,
    SingleLaneSource,
    lower_all,
)
from tilesight.executor.local import LocalExecutor
from tilesight.executor.shared_lowering import SharedLowering
from tilesight.kernels import operator, template_for
from tilesight.machine.devices import Device, device_for, find_devices
from tilesight.problem.candidate import Candidate
from tilesight.records.protocol import MeasurementProtocol
from tilesight.settings import available_cores
from tilesight.target.spec import load_target


def main(out: Path, kernel: str, shape: str, sample: int | None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    target = load_target("h200")
    device = device_for(target, find_devices())
    assert isinstance(device, Device), device
    workload = operator(kernel).workload(shape)
    template = template_for(kernel, target, workload.dtype)
    space = template.space(workload, target)
    scratch = Path(tempfile.mkdtemp())
    begin = time.perf_counter()
    (quick,) = tilesight.tune(kernel, target="h200", shape=shape, database=f"sqlite:///{scratch}/quick.db")
    quick_s = time.perf_counter() - begin
    print(
        kernel,
        shape,
        f"quick {quick_s:.1f} s",
        quick.best and quick.best.measured_us,
        [b.name + f" {b.latency_us:.4g}" for b in quick.baselines],
        flush=True,
    )

    chosen = list(space.configs()) if sample is None else space.sample(sample, seed=20261121)
    candidates = [Candidate(workload, target, template, config) for config in chosen]
    model, predicted = default_model(), {}
    protocol, builds = MeasurementProtocol.named("default", target), {}
    with (
        (out / f"{kernel}-{shape}.csv").open("w", newline="") as file,
        LocalExecutor(available_cores(), scratch, [device]) as executor,
    ):
        rows = csv.writer(file)
        rows.writerow(
            [
                "config",
                "status",
                "predicted_us",
                "measured_us",
                "relative_error",
                "spill_bytes",
                "registers",
                "at_seconds",
            ]
        )
        begin = time.perf_counter()
        for candidate, lowered in SharedLowering().lower(candidates, partial(lower_all, executor)):
            if isinstance(lowered, Failure):
                rows.writerow([candidate.config, lowered.kind, "", "", "", "", "", ""])
            else:
                predicted[candidate.config] = model.predict(lowered.kernels, target).latency_us
        print(
            f"lowered {len(predicted)} of {len(candidates)} in {time.perf_counter() - begin:.1f} s",
            flush=True,
        )
        begin = time.perf_counter()
        for event in executor.stream(
            SingleLaneSource(BuildJob(c) for c in candidates if c.config in predicted)
        ):
            assert isinstance(event, BuildDone)
            candidate, build = event.job.candidate, event.result
            if build.failure:
                rows.writerow(
                    [candidate.config, build.failure.kind, predicted[candidate.config], "", "", "", "", ""]
                )
            else:
                builds[candidate.config] = (candidate, build)
        print(f"built {len(builds)} in {time.perf_counter() - begin:.1f} s", flush=True)
        begin = time.perf_counter()
        measured: dict[object, float] = {}
        for event in executor.stream(
            SingleLaneSource(MeasureJob(*pair, protocol) for pair in builds.values())
        ):
            assert isinstance(event, MeasureDone)
            candidate, build, measurement = event.job.candidate, event.job.build, event.measurement
            kind = "verified" if not measurement.failure else measurement.failure.kind
            time_us = measurement.latency_us if not measurement.failure else ""
            rows.writerow(
                [candidate.config, kind, predicted[candidate.config], time_us, measurement.relative_error]
                + [build.resources.get(k, "") for k in ("spill_bytes", "registers")]
                + [round(time.perf_counter() - begin, 2)]
            )
            file.flush()
            if not measurement.failure:
                measured[candidate.config] = measurement.latency_us
        print(f"measured {len(measured)} in {time.perf_counter() - begin:.1f} s", flush=True)
        best = sorted(measured, key=lambda c: measured[c])[:5]
        assert quick.best is not None
        winner = Candidate(workload, target, template, quick.best.config)
        (built,) = executor.stream(SingleLaneSource([BuildJob(winner)]))
        assert isinstance(built, BuildDone)
        finalists = ((winner, built.result), *(builds[c] for c in best if c != winner.config))
        (compared,) = executor.stream(SingleLaneSource([CompareJob(finalists, protocol.careful())]))
        assert isinstance(compared, CompareDone)
    together = compared.found
    assert not isinstance(together, Failure), together
    ours, *others = (m.latency_us for m in together.measurements)
    summary = {
        "kernel": kernel,
        "shape": shape,
        "device": device.name,
        "driver": device.driver,
        "space": len(space.configs()),
        "sampled": len(candidates),
        "lowered": len(predicted),
        "measured": len(measured),
        "quick_seconds": quick_s,
        "quick_measured": sum(t.measured_us is not None for t in quick.trials),
        "quick_best": str(quick.best.config),
        "quick_best_us": ours,
        "sample_best": [str(c) for c in best],
        "sample_best_us": min([*others, ours]) if not others else min(others),
        "share_of_sample_best": min(others, default=ours) / ours,
        "baselines_us": {b.name: b.latency_us for b in together.baselines},
        "quick_top_ten": [
            {"config": str(t.config), "predicted_us": t.predicted_us, "measured_us": t.measured_us}
            for t in [t for t in quick.trials if t.measured_us][:10]
        ],
    }
    (out / f"{kernel}-{shape}.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else None)
