"""Builds, checks and times a sample of configs of many workloads on a GPU, and the vendor beside the fastest.

    python experiments/bench/check_kernels.py --target h200 --samples 12 --out rows.jsonl --limit 500 \
        'flash_decoding:FD0' 'rms_norm:m=3,n=1000,residual=true:float16'

`--configs FILE` names configs for cases in place of a sample.
A case is OPERATOR[:SHAPE[:DTYPE]]; without a shape all published shapes are taken. Each row is one candidate,
failures included; a last row of a case has the times of its three fastest candidates and of the vendor, in
turns. Sampled configs include the template's default. The whole run ends after `--limit` seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tilesight.errors import TileSightError
from tilesight.executor.jobs import (
    BuildDone,
    BuildJob,
    CompareDone,
    CompareJob,
    Event,
    Job,
    Lane,
    MeasureDone,
    MeasureJob,
)
from tilesight.executor.local import LocalExecutor
from tilesight.kernels import operator, template_for
from tilesight.machine.placement import locate
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult
from tilesight.target.spec import Target

FINALISTS = 3


@dataclass
class Case:
    """One workload: its candidates that are left, and the fastest right ones."""

    workload: Workload
    wanted: deque[Candidate]
    open: int = 0
    right: list[tuple[float, Candidate, BuildResult]] = field(default_factory=list)
    failed: int = 0


class Work:
    """The source of jobs: builds in the order of the cases, measurements as builds end."""

    def __init__(self, cases: list[Case], protocol: MeasurementProtocol, limit_s: float, out: Path) -> None:
        self.cases, self.protocol, self.end, self.out = cases, protocol, time.monotonic() + limit_s, out
        self.ready: deque[Job] = deque()
        self.case_of = {case.workload: case for case in cases}

    def next(self, lane: Lane) -> Job | None:
        if lane is Lane.DEVICE:
            return self.ready.popleft() if self.ready else None
        if time.monotonic() > self.end or len(self.ready) > 64:
            return None
        for case in self.cases:
            if case.wanted:
                return BuildJob(case.wanted.popleft())
        return None

    def follow(self, event: Event) -> None:
        if isinstance(event, BuildDone):
            candidate = event.job.candidate
            if event.result.artifact is None:
                self.done(candidate, failure=event.result.failure)
            else:
                self.ready.append(MeasureJob(candidate, event.result, self.protocol))
        elif isinstance(event, MeasureDone):
            found, candidate = event.measurement, event.job.candidate
            if found.failure is None:
                case = self.case_of[candidate.workload]
                case.right.append((found.latency_us, candidate, event.job.build))
                error = {
                    "relative_error": found.relative_error,
                    "element_ratio": found.observed.get("element_ratio"),
                }
                self.done(candidate, us=found.latency_us, build=event.job.build, **error)
            else:
                self.done(candidate, failure=found.failure, build=event.job.build)
        elif isinstance(event, CompareDone):
            self.compared(event)

    def done(
        self, candidate: Candidate, failure: object = None, build: BuildResult | None = None, **more: object
    ) -> None:
        row: dict[str, object] = {"workload": candidate.workload.key, "config": str(candidate.config), **more}
        if failure is not None:
            row |= {"failure": failure.kind.value, "message": failure.message[:600]}  # type: ignore[attr-defined]
        if build is not None:
            row["resources"] = dict(build.resources)
        self.write(row)
        case = self.case_of[candidate.workload]
        case.open -= 1
        case.failed += failure is not None
        if case.open == 0:
            fastest = sorted(case.right, key=lambda item: item[0])[:FINALISTS]
            if fastest:
                finalists = tuple((candidate, build) for _, candidate, build in fastest)
                self.ready.append(CompareJob(finalists, self.protocol))
            else:
                print(f"{case.workload.label}: NONE of {case.failed} is right", flush=True)

    def compared(self, event: CompareDone) -> None:
        workload = event.job.finalists[0][0].workload
        case, found = self.case_of[workload], event.found
        if not hasattr(found, "baselines"):
            print(f"{workload.label}: the comparison failed: {found}", flush=True)
            self.write({"workload": workload.key, "compared": str(found)})
            return
        times = [m.latency_us for m in found.measurements if m.failure is None]
        vendors = {b.name: b.latency_us for b in found.baselines}
        best, op = min(times, default=float("nan")), operator(workload.operator)
        fastest = min(vendors.values(), default=float("nan"))
        rates = (
            f"{op.flops(workload) / best / 1e6:.0f} TFLOP/s {op.min_bytes(workload) / best / 1e3:.0f} GB/s"
        )
        shown = " ".join(f"{name} {us:.1f}" for name, us in vendors.items())
        config = min(case.right, key=lambda item: item[0])[1].config
        print(
            f"{workload.label}: {best:.1f} us, {rates}, ratio {fastest / best:.2f} | {shown} | "
            f"{len(case.right)} right, {case.failed} failed | {config}",
            flush=True,
        )
        notes = list(found.notes)
        for note in notes:
            print(f"  {note}", flush=True)
        self.write(
            {
                "workload": workload.key,
                "ours_us": times,
                "vendors_us": vendors,
                "notes": notes,
                "best": str(config),
            }
        )

    def write(self, row: dict[str, object]) -> None:
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def cases_of(
    texts: list[str], target: Target, samples: int, seed: int, given: Mapping[str, list[Config]]
) -> list[Case]:
    """The cases of the command line; those that cannot be made are named and left out.

    `given` are configs by case, which are measured in place of a sample.
    """
    found = []
    for text in texts:
        name, _, rest = text.partition(":")
        shape, _, dtype = rest.partition(":")
        op = operator(name)
        for one in [shape] if shape else list(op.named):
            try:
                chosen = dtype or next(d for d in op.dtypes if d in target.dtypes)
                template = template_for(name, target, chosen)
                workload = op.workload(one, chosen)
                space, default = template.space(workload, target), template.default_config(workload, target)
                more = given[text] if text in given else space.sample(samples, seed=seed)
                configs = dict.fromkeys([*([default] if default else []), *more])
            except TileSightError as error:
                print(f"{text}: {error}", flush=True)
                continue
            wanted = deque(Candidate(workload, target, template, config) for config in configs)
            found.append(Case(workload, wanted, len(wanted)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--configs", type=Path, help='lines {"case": ..., "config": {...}}')
    parser.add_argument("--target", default="auto")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--limit", type=float, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("/tmp/tilesight-check"))
    given = parser.parse_args()
    placement = locate(given.target, measures=True)
    if placement.device is None:
        raise SystemExit("; ".join(placement.messages) or "no device of the target")
    given.out.write_text("", encoding="utf-8")
    configs: dict[str, list[Config]] = {}
    for line in given.configs.read_text(encoding="utf-8").splitlines() if given.configs else []:
        row = json.loads(line)
        configs.setdefault(row["case"], []).append(Config(row["config"]))
    texts = dict.fromkeys([*given.cases, *configs])
    cases = cases_of(list(texts), placement.target, given.samples, given.seed, configs)
    work = Work(cases, MeasurementProtocol.named("default", placement.target), given.limit, given.out)
    begin = time.monotonic()
    with LocalExecutor(given.workers, given.cache, [placement.device]) as executor:
        executor.start(measures=True)
        with closing(executor.stream(work)) as events:
            for event in events:
                work.follow(event)
                if time.monotonic() > work.end + 30:
                    break
    for case in cases:
        if case.open > 0:
            print(
                f"{case.workload.label}: not finished, {case.open} left, {len(case.right)} right", flush=True
            )
    print(f"{time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
