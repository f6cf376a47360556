"""Build and measure a few kernels on the GPU at hand and print what was seen, one JSON object a line.

    python tests/gpu/report_build_measure.py [cache folder [protocol]]

Not a test: it shows how long things take, and whether our times stand in a sane relation to the vendor
    library's.
"""

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from conftest import gpu_or_reason

from tests.support.sample_kernels import product
from tilesight.builder.build import build_kernel
from tilesight.machine.toolchain import report
from tilesight.problem.candidate import Candidate
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import Comparison
from tilesight.records.trial import BuildResult, Measurement
from tilesight.runner.measure import measure_kernel, measure_together
from tilesight.settings import available_cores
from tilesight.workers import Done, WorkerPool

SHAPE = "m=4096,n=1024,k=8192"
Kernel = tuple[BuildResult, Candidate]


def show(**values: object) -> None:
    print(json.dumps(values, default=str), flush=True)


def measure(item: Kernel, protocol: MeasurementProtocol) -> tuple[Measurement, float]:
    begin = time.perf_counter()
    return measure_kernel(*item, protocol), time.perf_counter() - begin


def compare(items: list[Kernel], protocol: MeasurementProtocol) -> Comparison:
    return measure_together(items, protocol.careful())


def import_tilelang() -> None:
    import tilelang  # noqa: F401


def main() -> None:
    for check in report():
        show(check=check.name, ok=check.ok, found=check.found)
    target = gpu_or_reason()
    if isinstance(target, str):
        sys.exit(target)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    protocol = MeasurementProtocol.named(sys.argv[2] if len(sys.argv) > 2 else "default", target)
    candidates = [product(target.name, tile, stages, SHAPE) for tile in (64, 128) for stages in (1, 2, 3, 4)]
    kernels: list[Kernel] = []
    with (
        WorkerPool(available_cores(), timeout_s=300, initializer=import_tilelang) as builders,
        WorkerPool(1, timeout_s=120) as runner,
    ):
        runner.start()
        begin = time.perf_counter()
        for index, built in builders.run(partial(build_kernel, cache_dir=folder), candidates):
            assert isinstance(built, Done), built
            build = built.value
            show(
                config=dict(candidates[index].config),
                build_s=round(build.seconds, 2),
                failure=build.failure,
                **build.resources,
            )
            if build.failure is None:
                kernels.append((build, candidates[index]))
        show(all_built_after_s=round(time.perf_counter() - begin, 2), cores=available_cores())
        best: list[tuple[float, Kernel]] = []
        begin = time.perf_counter()
        for index, measured in runner.run(partial(measure, protocol=protocol), kernels):
            assert isinstance(measured, Done), measured
            (measurement, seconds), (_, candidate) = measured.value, kernels[index]
            if measurement.failure is None:
                best.append((measurement.latency_us, kernels[index]))
            show(
                config=dict(candidate.config),
                failure=measurement.failure,
                latency_us=measurement.latency_us if measurement.samples_us else None,
                samples=len(measurement.samples_us),
                spread_us=(min(measurement.samples_us), max(measurement.samples_us))
                if measurement.samples_us
                else None,
                relative_error=measurement.relative_error,
                seconds=round(seconds, 3),
                observed=dict(measurement.observed),
            )
        if not best:
            sys.exit("no kernel could be measured")
        show(
            all_measured_after_s=round(time.perf_counter() - begin, 2),
            environment=dict(measurement.environment),
        )
        finalists = [kernel for _, kernel in sorted(best, key=lambda pair: pair[0])[:4]]
        begin = time.perf_counter()
        for _, compared in runner.run(partial(compare, protocol=protocol), [finalists]):
            assert isinstance(compared, Done), compared
            for (_, candidate), measurement in zip(finalists, compared.value.measurements, strict=True):
                show(
                    final=dict(candidate.config),
                    latency_us=measurement.latency_us,
                    samples=len(measurement.samples_us),
                )
            for baseline in compared.value.baselines:
                show(vendor=baseline.name, latency_us=baseline.latency_us)
            show(
                decision=compared.value.decision,
                notes=compared.value.notes,
                observed=dict(compared.value.measurements[0].observed),
            )
        show(compared_after_s=round(time.perf_counter() - begin, 2))


if __name__ == "__main__":
    main()
