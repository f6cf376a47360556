"""Times of kernels on one core: streams of four sizes, a softmax, a stencil, a chain of steps, five matmuls.

    python experiments/cpu_model/measure.py OUT.csv

Every config of the operators in `operators/`, and `MATMUL_SAMPLES` configs of each matmul, drawn evenly. Each
is built, checked, and measured under the default protocol. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent / "operators"
OPERATORS = ("stream", "row_softmax", "stencil", "fused_chain")
MATMUL_SIZES = (64, 128, 256, 512, 1024)
MATMUL_SAMPLES = 16
COLUMNS = ("operator", "shape", "config", "us", "half_interval", "status", "failure")

sys.path.insert(0, str(FOLDER))
# worker processes import the operators, too
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
os.environ["TILESIGHT_KERNELS"] = os.pathsep.join(OPERATORS)

from tilesight.executor.jobs import (  # noqa: E402
    BuildDone,
    BuildJob,
    MeasureDone,
    MeasureJob,
    SingleLaneSource,
)
from tilesight.executor.local import LocalExecutor  # noqa: E402
from tilesight.kernels import template_for  # noqa: E402
from tilesight.problem.candidate import Candidate  # noqa: E402
from tilesight.problem.space import Config  # noqa: E402
from tilesight.records.protocol import MeasurementProtocol  # noqa: E402
from tilesight.records.trial import BuildResult  # noqa: E402
from tilesight.settings import available_cores, load_settings  # noqa: E402
from tilesight.target.spec import Target, load_target  # noqa: E402


def candidates(target: Target) -> Iterator[tuple[str, Candidate]]:
    """All candidates, each with the name of its shape."""
    for name in OPERATORS:
        template = template_for(name, target, "float32")
        for shape in template.operator.default_names:
            workload = template.operator.workload(shape, "float32")
            for config in template.space(workload, target).configs():
                yield shape, Candidate(workload, target, template, config)
    template = template_for("matmul", target, "float32")
    for size in MATMUL_SIZES:
        workload = template.operator.workload(f"m={size},n={size},k={size}", "float32")
        drawn = template.space(workload, target).sample(MATMUL_SAMPLES, seed=1)
        default = template.default_config(workload, target)
        for config in dict.fromkeys([*([default] if default else []), *drawn]):
            yield str(size), Candidate(workload, target, template, Config(dict(config)))


def main(out: Path) -> None:
    target = load_target("cpu")
    protocol = MeasurementProtocol.named("default", target)
    shapes = {candidate: shape for shape, candidate in candidates(target)}
    builds: dict[Candidate, BuildResult] = {}
    with (
        LocalExecutor(available_cores(), load_settings().cache_dir, ()) as executor,
        out.open("w", newline="") as file,
    ):
        executor.start(measures=True)
        for event in executor.stream(SingleLaneSource(map(BuildJob, shapes))):
            assert isinstance(event, BuildDone)
            builds[event.job.candidate] = event.result
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for event in executor.stream(
            SingleLaneSource(MeasureJob(candidate, builds[candidate], protocol) for candidate in shapes)
        ):
            assert isinstance(event, MeasureDone)
            candidate, found = event.job.candidate, event.measurement
            writer.writerow(
                [
                    candidate.template.operator.name,
                    shapes[candidate],
                    candidate.config.key,
                    "" if found.failure else f"{found.latency_us:.6g}",
                    "" if found.failure else f"{found.spread:.3g}",
                    found.status,
                    found.failure or "",
                ]
            )
            file.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Times of kernels on one core of this machine.")
    parser.add_argument("out", type=Path)
    main(parser.parse_args().out)
