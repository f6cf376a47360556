"""Errors of real kernels, relative to their bounds: how far right kernels are from a refusal.

    python experiments/checks/margins.py OUT.csv --target h100 [--configs 4] [--budget 560] [--seed 1]

Builds and runs a sample of the search space of each shipped operator: its published shapes (on a processor
its default ones) and some with remainders in every dimension, in each dtype that the target takes. Each
kernel is checked as `tilesight tune` checks it, on random inputs and on the second inputs, and launched once
more. One row for each candidate, written as soon as it is known:

    element_ratio   largest |error| / bound of an element on inputs that are not exact; 1 is the limit
    tile_ratio      largest root mean square of error / bound of a tile, relative to its limit
    relative_error  ||out - ref|| / ||ref||
    exact, second   on the second inputs: sums of whole numbers equal to the reference, or results within
                    bounds: `right`, `wrong`, or empty if that check was not reached or does not exist
    check_s         seconds of all comparisons of this candidate
    failure         why it was not built, did not run, or is wrong

The limits are the constants of `tilesight/runner/error_bounds.py`. The end prints the largest ratios by
operator and dtype, and all kernels that were not built or found wrong.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path

from tilesight.executor.jobs import BuildDone, BuildJob, Job, Lane, MeasureDone, MeasureJob
from tilesight.executor.local import LocalExecutor
from tilesight.kernels import operator, operators, templates
from tilesight.machine.placement import locate
from tilesight.problem.candidate import Candidate
from tilesight.problem.template import KernelTemplate
from tilesight.problem.workload import Workload
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult
from tilesight.search.stratified import stratified
from tilesight.settings import available_cores, load_settings
from tilesight.target.spec import Target

ODD_SHAPES = {
    "matmul": ("m=511,n=509,k=513", "m=300,n=512,k=8191", "m=1000,n=1000,k=1048", "m=16,n=4096,k=28672"),
    "flash_attention": (
        "batch=2,heads=3,seq_len=777,head_dim=72,causal=true",
        "batch=1,heads=8,seq_len=8192,head_dim=64,causal=true",
        "batch=1,heads=2,seq_len=333,head_dim=256",
        "batch=4,heads=16,seq_len=1000,head_dim=16",
    ),
    "gemv": ("n=1001,k=1003", "n=777,k=4104", "n=100000,k=77"),
    "rms_norm": ("m=1000,n=1001", "m=77,n=770", "m=1,n=1"),
    "dequant_matmul": (
        "m=511,n=509,k=513",
        "m=1000,n=1000,k=2080,group=32",
        "m=8,n=1000,k=4096,group=-1",
        "m=1,n=57344,k=28672",
    ),
    "chunk_state": (
        "batch=2,seq_len=1000,nheads=3,head_dim=64,d_state=128",
        "batch=3,seq_len=777,nheads=5,head_dim=100,d_state=60",
        "batch=1,seq_len=8192,nheads=8,head_dim=64,d_state=128,chunk=1024",
        "batch=1,seq_len=77,nheads=300,head_dim=7,d_state=1,chunk=32",
    ),
}
COLUMNS = (
    *("operator", "shape", "dtype", "template", "config", "element_ratio", "tile_ratio", "relative_error"),
    *("exact", "second", "check_s", "failure"),
)
AHEAD = 64  # built kernels that wait for the device
SECOND = "on second inputs"  # begins the message of a failure on them


class Source:
    """Jobs in the order of `candidates`; kernels of one workload are measured one after another."""

    def __init__(self, candidates: Iterable[Candidate], protocol: MeasurementProtocol, until: float) -> None:
        self._candidates, self._protocol, self._until = iter(candidates), protocol, until
        self._ready: deque[MeasureJob] = deque()
        self._last: Workload | None = None
        self._building = 0

    def next(self, lane: Lane) -> Job | None:
        if time.monotonic() > self._until:
            return None
        if lane is Lane.DEVICE:
            job = next((job for job in self._ready if job.candidate.workload == self._last), None)
            job = job or (self._ready[0] if self._ready else None)
            if job is not None:
                self._ready.remove(job)
                self._last = job.candidate.workload
            return job
        if self._building + len(self._ready) >= AHEAD:
            return None
        candidate = next(self._candidates, None)
        self._building += candidate is not None
        return None if candidate is None else BuildJob(candidate)

    def built(self, candidate: Candidate, build: BuildResult) -> None:
        self._building -= 1
        if build.artifact:
            self._ready.append(MeasureJob(candidate, build, self._protocol))


def cases(target: Target) -> Iterator[tuple[KernelTemplate, Workload]]:
    """Templates with their workloads; operators take turns, so that a budget ends none of them."""
    found = []
    for name in operators():
        ours = operator(name)
        mine = []
        for template in templates(name):
            if target.kind not in template.target_kinds:
                continue
            for dtype in (dtype for dtype in template.dtypes if dtype in target.dtypes):
                names = tuple(ours.named) if target.is_gpu else ()
                shapes = [ours.workload(shape, dtype) for shape in (*names, *ODD_SHAPES[name])]
                shapes += [] if target.is_gpu else ours.default_workloads(dtype)
                mine += [(template, workload) for workload in shapes]
        found.append(mine)
    return (case for case in chain.from_iterable(zip_longest(*found)) if case is not None)


def candidates(target: Target, count: int, seed: int) -> Iterator[Candidate]:
    for template, workload in cases(target):
        first = template.default_config(workload, target)
        for config in stratified(template.space(workload, target), count, seed, first):
            yield Candidate(workload, target, template, config)


def quick(target: Target, seed: int) -> MeasurementProtocol:
    """The checks of a measurement, with hardly any samples."""
    usual = MeasurementProtocol.named("default", target)
    effort = replace(usual, warmup_ms=0.0, min_samples=1, max_samples=1, max_ms=10.0, checks=1, retakes=0)
    return replace(effort, input_sets=1, seed=seed, stretch_us=0.0)


def main(given: argparse.Namespace) -> None:
    begin = time.monotonic()
    placement = locate(given.target, measures=True, predicts=False)
    target = placement.target
    source = Source(
        candidates(target, given.configs, given.seed), quick(target, given.seed), begin + given.budget
    )
    rows: list[dict[str, object]] = []
    executor = LocalExecutor(available_cores(), load_settings().cache_dir, placement.gpus)
    with closing(executor), given.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for event in executor.stream(source):
            if isinstance(event, BuildDone):
                source.built(event.job.candidate, event.result)
                if event.result.failure is None:
                    continue
            rows.append(row_of(event))
            writer.writerow(rows[-1])
            file.flush()
    report(rows, time.monotonic() - begin)


def row_of(event: object) -> dict[str, object]:
    """The row of a candidate that was not built, or of one that was run."""
    assert isinstance(event, BuildDone | MeasureDone)
    candidate = event.job.candidate
    extents = {**candidate.workload.dims, **candidate.workload.attrs}
    row: dict[str, object] = {
        "operator": candidate.workload.operator,
        "shape": candidate.workload.name or ",".join(f"{k}={v}" for k, v in extents.items()),
        "dtype": candidate.workload.dtype,
        "template": candidate.template.name,
        "config": candidate.config,
    }
    if isinstance(event, BuildDone):
        return row | {"failure": f"{event.result.failure}"}
    found = event.measurement
    observed, failure = found.observed, found.failure
    on_second = failure is not None and failure.message.startswith(SECOND)
    second = "wrong" if on_second else "right" if failure is None and observed["second_inputs"] else ""
    is_exact = candidate.workload.operator not in ("flash_attention", "rms_norm")
    figures = {name: observed.get(name) for name in ("element_ratio", "tile_ratio")}
    return (
        row
        | {name: "" if value is None else f"{value:.4g}" for name, value in figures.items()}
        | {
            "relative_error": "" if found.relative_error is None else f"{found.relative_error:.4g}",
            "exact": second if is_exact else "",
            "second": second,
            "check_s": f"{observed.get('check_s', 0.0):.4f}",
            "failure": "" if failure is None else f"{failure.kind}: {failure.message}",
        }
    )


def report(rows: list[dict[str, object]], seconds: float) -> None:
    checked = [row for row in rows if row.get("element_ratio")]
    print(f"{len(rows)} candidates, {len(checked)} checked, in {seconds:.0f} s")
    for key in dict.fromkeys((row["operator"], row["dtype"]) for row in checked):
        mine = [row for row in checked if (row["operator"], row["dtype"]) == key]
        element, tile, check_s = (
            max(float(str(row[name])) for row in mine) for name in ("element_ratio", "tile_ratio", "check_s")
        )
        right = sum(row["second"] == "right" for row in mine)
        print(
            f"{key[0]} {key[1]}: {len(mine)} checked, largest element ratio {element:.3f}, tile {tile:.3f}; "
            f"second inputs right {right}; longest check {check_s:.3f} s"
        )
    for row in rows:
        if row.get("failure"):
            print("FAILURE", row["operator"], row["shape"], row["dtype"], row["config"], row["failure"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Errors of real kernels relative to their bounds.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--configs", type=int, default=4, help="candidates of each workload")
    parser.add_argument("--budget", type=float, default=560.0, help="seconds, after which nothing begins")
    parser.add_argument("--seed", type=int, default=1, help="of samples and inputs")
    main(parser.parse_args())
