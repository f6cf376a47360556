"""Traces kernels of many kinds on a GPU, and writes predicted beside traced iterations.

    python experiments/traces/measure.py OUT [--target h200] [--only NAME ...]

OUT gets `rows.jsonl`, one row for each loop of each case as soon as it is traced (a row of a case that fails
has `failure`), and `NAME.json` for each case: the whole timeline as a Chrome trace. Kernels are built on all
cores, each without and with stamps, and run one after another on one GPU; all cases take about a minute on 16
cores.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tilesight.api.timeline_files import write_timeline
from tilesight.api.timelines import profiles_timeline, traced_device
from tilesight.errors import Failure, FailureKind
from tilesight.executor.tasks import (
    COMPILER_ENVIRONMENT,
    Profiled,
    lower_and_profile,
    preload_compiler,
    start_compiler,
)
from tilesight.explanation.traced_timeline import typical_block, with_trace
from tilesight.problem.candidate import Candidate
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.timeline import Timeline, View
from tilesight.settings import available_cores, load_settings
from tilesight.target.spec import Target, load_target
from tilesight.tracing.build_stamped import StampedBuild, build_stamped
from tilesight.tracing.compare_loops import compare_loops, kernel_name
from tilesight.tracing.run_stamped import Trace, run_stamped
from tilesight.tracing.trace_kernel import BUILD_LIMIT_S, device_pool
from tilesight.tuner.resolve import find_operator, find_template, find_workloads
from tilesight.workers import Done, WorkerPool, failure_of

BUILD_FAULTS = (FailureKind.BUILD_ERROR, FailureKind.BUILD_CRASH, FailureKind.BUILD_TIMEOUT)
RUN_FAULTS = (FailureKind.RUN_ERROR, FailureKind.RUN_CRASH, FailureKind.RUN_TIMEOUT)
Row = dict[str, Any]
FP8 = "float8_e4m3fn"


@dataclass(frozen=True)
class Case:
    """A kernel to trace."""

    name: str
    operator: str
    shape: str
    config: str
    dtype: str | None = None

    def candidate(self, target: Target) -> Candidate:
        operator = find_operator(self.operator)
        workload = find_workloads(operator, target, self.shape, self.dtype)[0]
        template = find_template(operator, target, workload.dtype)
        space = template.space(workload, target)
        config = space.read(self.config)
        space.check(config)
        return Candidate(workload, target, template, config)


# builds that take longest first
CASES = (
    Case(
        "mla_decode", "mla_decode", "MLA0",
        "block_m=16,block_n=64,gather=by_page,num_stages=2,policy=full_row,split_k=2,threads=256",
    ),
    Case(
        "attention_causal", "flash_attention", "batch=1,heads=32,seq_len=4096,head_dim=128,causal=true",
        "block_m=128,block_n=128,block_order=by_length,num_stages=2,schedule=serial,threads=256",
    ),
    Case(
        "attention_ping_pong", "flash_attention", "batch=1,heads=32,seq_len=4096,head_dim=128,causal=false",
        "block_m=128,block_n=128,block_order=by_head,num_stages=2,schedule=ping_pong,threads=256",
    ),
    Case(
        "attention_serial", "flash_attention", "batch=1,heads=32,seq_len=4096,head_dim=128,causal=false",
        "block_m=128,block_n=128,block_order=by_head,num_stages=2,schedule=serial,threads=256",
    ),
    Case(
        "flash_decoding", "flash_decoding", "FD0",
        "block_m=64,block_n=128,gather=by_page,num_stages=1,split_k=1,threads=128,weights=registers",
    ),
    Case(
        "dequant_matmul_tall", "dequant_matmul", "D8",
        "block_k=64,block_m=256,block_n=128,decode=words,num_stages=4,overlapped=true,policy=full_row,"
        "swizzle=0,threads=256,weights=registers",
    ),
    Case(
        "dequant_matmul_row", "dequant_matmul", "D0",
        "block_k=256,block_m=8,block_n=32,decode=words,num_stages=3,persistent=132,policy=square,"
        "reduce_warps=8,swizzle=0,threads=256,weights=registers",
    ),
    Case(
        "chunk_scan", "chunk_scan", "CC0",
        "block_k=64,block_m=64,block_n=64,copies=threads,num_stages=1,threads=128",
    ),
    Case(
        "matmul_persistent", "matmul", "M1",
        "block_k=64,block_m=128,block_n=256,epilogue=shared,num_stages=4,persistent=132,policy=full_row,"
        "schedule=overlapped,swizzle=16,threads=256",
    ),
    Case(
        "matmul_specialised", "matmul", "M0",
        "block_k=64,block_m=128,block_n=256,epilogue=shared,num_stages=4,policy=full_row,swizzle=0,"
        "threads=256",
    ),
    Case(
        "matmul_one_stage", "matmul", "M0",
        "block_k=128,block_m=128,block_n=128,epilogue=shared,num_stages=1,policy=full_row,swizzle=8,"
        "threads=256",
    ),
    Case(
        "matmul_float8", "matmul", "M0",
        "block_k=128,block_m=128,block_n=128,epilogue=shared,num_stages=4,policy=full_row,swizzle=0,"
        "threads=256",
        FP8,
    ),
    Case(
        "matmul_16_rows", "matmul", "m=16,n=8192,k=8192",
        "block_k=128,block_m=16,block_n=64,epilogue=shared,num_stages=4,policy=square,swizzle=0,"
        "threads=128",
    ),
    Case(
        "gemv", "gemv", "V0",
        "block_n=2,num_stages=0,reduce_threads=128,threads=128,unroll=2,vector=8",
    ),
    Case(
        "rms_norm", "rms_norm", "R2",
        "block_m=1,keep=global,reduce_threads=512,threads=512,unroll=2,vector=8",
    ),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--only", nargs="*", choices=[case.name for case in CASES])
    parser.add_argument("--build-only", action="store_true", help="for a machine without a GPU")
    stated = parser.parse_args()
    target = load_target(stated.target)
    stated.out.mkdir(parents=True, exist_ok=True)
    cases = [case for case in CASES if not stated.only or case.name in stated.only]
    began = time.perf_counter()
    with (stated.out / "rows.jsonl").open("a", encoding="utf-8") as file:
        for row in _rows(cases, target, stated.out, build_only=stated.build_only):
            row["at_s"] = round(time.perf_counter() - began, 1)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(json.dumps(row), flush=True)


def _rows(cases: list[Case], target: Target, out: Path, *, build_only: bool) -> Iterator[Row]:
    """Build on all cores, and trace what is built; rows come as cases end."""
    device = None if build_only else traced_device(target)
    builders = WorkerPool(
        min(available_cores(), len(cases)),
        timeout_s=BUILD_LIMIT_S,
        preload=preload_compiler,
        initializer=start_compiler,
        environment=COMPILER_ENVIRONMENT,
    )
    with builders, ExitStack() as held:
        runner = None if device is None else held.enter_context(device_pool(device))
        for index, outcome in builders.run(_prepared, [(case, target) for case in cases]):
            case = cases[index]
            if not isinstance(outcome, Done):
                yield {"case": case.name, "failure": failure_of(outcome, *BUILD_FAULTS).message}
                continue
            profiled, build = outcome.value
            failure = profiled if isinstance(profiled, Failure) else build.failure
            if failure is not None:
                yield {"case": case.name, "failure": failure.message, "detail": failure.detail[-1500:]}
                continue
            candidate = case.candidate(target)
            timeline = profiles_timeline(
                f"{candidate.workload.label}, {candidate.config}", profiled.kernels, target
            )
            if runner is None:
                yield {"case": case.name, "built": True, **_builds(build)}
                continue
            yield from _traced(case, candidate, timeline, build, runner, out)


def _prepared(item: tuple[Case, Target]) -> tuple[Profiled | Failure, StampedBuild]:
    case, target = item
    candidate = case.candidate(target)
    return lower_and_profile(candidate), build_stamped(candidate, load_settings().cache_dir)


def _traced(
    case: Case,
    candidate: Candidate,
    timeline: Timeline,
    build: StampedBuild,
    runner: WorkerPool,
    out: Path,
) -> Iterator[Row]:
    protocol = MeasurementProtocol.named("default", candidate.target)
    (outcome,) = (found for _, found in runner.run(run_stamped, [(build, candidate, protocol)]))
    failure = outcome.value.failure if isinstance(outcome, Done) else failure_of(outcome, *RUN_FAULTS)
    if failure is not None:
        yield {"case": case.name, "failure": failure.message, "detail": failure.detail[-1500:]}
        return
    trace: Trace = outcome.value
    whole = with_trace(timeline, trace)
    write_timeline(whole, out / f"{case.name}.json")
    yield from _loop_rows(case, candidate, timeline, trace, build)


def _loop_rows(
    case: Case, candidate: Candidate, timeline: Timeline, trace: Trace, build: StampedBuild
) -> Iterator[Row]:
    plain, stamped = median(trace.plain_us), median(trace.stamped_us)
    common = {
        "case": case.name,
        "workload": candidate.workload.key,
        "config": str(candidate.config),
        "device": trace.environment.get("device"),
        "driver": trace.environment.get("driver"),
        "compiler": trace.environment.get("compiler"),
        "date": trace.date,
        "plain_us": plain,
        "stamped_us": stamped,
        "slow_down": stamped / plain - 1,
        "predicted_us": timeline.parts[0].us,
        "sm_clock_mhz": trace.observed.get("sm_clock_mhz"),
        **_builds(build),
    }
    compared = compare_loops(timeline, trace.kernels)
    for number, kernel in enumerate(trace.kernels):
        name = kernel_name(number, len(trace.kernels))
        block = next((p.us for p in timeline.of(View.BLOCK) if p.title.startswith(f"{name}: ")), None)
        typical = typical_block(kernel)
        of_kernel = {
            "kernel": kernel.kernel.function,
            "clock_mhz": kernel.clock_mhz,
            "timer_ns": kernel.timer_ns,
            "blocks": kernel.kernel.blocks,
            "cores": len({b.core for b in kernel.blocks}),
            "is_cut": kernel.is_cut,
            "predicted_block_us": block,
            "traced_block_us": median(b.us for b in kernel.blocks),
            "sampled_block_us": None if typical is None else typical.time.us,
            "traced_grid_us": kernel.us,
        }
        loops = [one for one in compared if one.kernel == number]
        if not loops:
            yield {**common, **of_kernel, "loop": None}
        for one in loops:
            yield {
                **common,
                **of_kernel,
                "loop": one.name,
                "role": one.traced.role,
                "predicted_trips": one.part.trips,
                "traced_trips": one.traced.iterations,
                "predicted_iteration_us": one.part.us,
                "traced_iteration_us": one.traced.steady_us,
                "traced_single_us": one.traced.single_us,
                "basis": str(one.traced.basis),
                "ratio": one.part.us / one.traced.steady_us if one.traced.steady_us else None,
            }


def _builds(build: StampedBuild) -> dict[str, Any]:
    return {"plain": dict(build.plain.resources), "stamped": dict(build.stamped.resources)}


if __name__ == "__main__":
    main()
