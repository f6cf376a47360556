"""Operators of several GPUs of one host: one after the other, torch's own fused operator, and ours.

    python experiments/groups/measure.py --world 2 --out rows.jsonl \\
        matmul_reduce_scatter:m=8192,n=8192,k=4096 matmul_reduce_scatter:L70O

For each case it times the vendor's product and collective, each alone and one after the other; torch's fused
operator, in a process for each GPU; and our fastest kernel, from a session. Each row is written as soon as it
is known, as a line of JSON. At the end it prints a table. NVLink multicast stays off.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from torch_fused import TorchCase, time_torch

from tilesight import tune
from tilesight.errors import TileSightError
from tilesight.executor import tasks
from tilesight.executor.local import GROUP_ENVIRONMENT
from tilesight.machine.device_lock import PROCESSOR_LOCK, alone_on
from tilesight.machine.devices import Device, restricted_to
from tilesight.machine.placement import locate, target_of_world
from tilesight.problem.workload import Workload
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import SessionResult
from tilesight.runner.group.group_bench import GroupCase, group_bench_for
from tilesight.runner.turns import collect_samples
from tilesight.target.spec import Target
from tilesight.tuner.resolve import find_operator
from tilesight.workers import Done, WorkerPool

PARTS, TORCH, OURS = "parts", "torch", "ours"
PARTS_S = 90.0  # for one case
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One workload, as it was named."""

    text: str
    operator: str
    workload: Workload


class Rows:
    """Writes rows as they come, and keeps them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: list[Row] = []

    def add(self, case: Case, kind: str, **values: Any) -> None:
        row = {"case": case.text, "workload": case.workload.key, "kind": kind, **values}
        self.known.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def locks(devices: Sequence[Device]) -> list[str]:
    return [device.uuid for device in devices if device.uuid] or [PROCESSOR_LOCK]


def read_case(text: str, target: Target) -> Case:
    name, _, shape = text.partition(":")
    operator = find_operator(name)
    return Case(text, operator.name, operator.workload_on(target, shape))


def time_parts(case: Case, target: Target) -> Row:
    """Medians of the vendor's part and collective, alone and one after the other, in us. In a worker."""
    protocol = MeasurementProtocol.named("default", target).careful()
    bench = group_bench_for(target, protocol)
    found = bench.case(find_operator(case.operator), case.workload, protocol)
    assert isinstance(found, GroupCase)
    product, collective, *_ = found.vendor_steps(found.sets[0], found.vendor_memory())
    [(name, both)] = found.vendor()[0].items()
    calls = [product, collective, both]
    for call in calls:
        call()
        bench.timer.synchronize()
    taken = collect_samples(bench.timer, calls, protocol, bench.conditions)
    keys = ("product_us", "collective_us", "sequential_us")
    times = dict(zip(keys, map(median, taken.samples_us), strict=True))
    bench.free_memory()
    return {**times, "vendor": name, "samples": len(taken.samples_us[0]), **bench.environment}


def all_parts(cases: Sequence[Case], target: Target, devices: Sequence[Device], rows: Rows) -> None:
    with WorkerPool(
        1,
        timeout_s=PARTS_S,
        preload=tasks.preload_device,
        environment=GROUP_ENVIRONMENT,
        environments=[restricted_to(*devices)],
        gate=partial(alone_on, *locks(devices)),
    ) as pool:
        for index, outcome in pool.run(partial(time_parts, target=target), cases):
            values = outcome.value if isinstance(outcome, Done) else {"error": str(outcome)[-400:]}
            rows.add(cases[index], PARTS, **values)


def all_of_torch(cases: Sequence[Case], devices: Sequence[Device], rows: Rows, limit_s: float) -> None:
    wanted = [
        TorchCase(index, case.operator, dict(case.workload.dims), case.workload.dtype)
        for index, case in enumerate(cases)
    ]
    with alone_on(*locks(devices)):
        for index, values in time_torch(wanted, restricted_to(*devices) | GROUP_ENVIRONMENT, limit_s):
            rows.add(cases[index], TORCH, **values)


def all_of_ours(
    cases: Sequence[Case], target: Target, rows: Rows, effort: str, budget_s: float, database: str
) -> None:
    for case in cases:
        begin = time.monotonic()
        try:
            [found] = tune(
                case.operator,
                target,
                {**case.workload.dims, **case.workload.attrs},
                dtype=case.workload.dtype,
                effort=effort,
                budget_s=budget_s,
                database=database,
            )
        except TileSightError as error:
            rows.add(case, OURS, error=str(error))
            continue
        rows.add(case, OURS, **_of_session(found), session_s=round(time.monotonic() - begin, 1))


def _of_session(found: SessionResult) -> Row:
    """What a session says: its winner beside the vendor, and the fastest kernel of each algorithm."""
    best, sequential = found.best, found.fastest_baseline
    algorithms: dict[str, float] = {}
    for trial in found.trials:
        if trial.measured_us is not None:
            name = str(trial.config.get("algorithm", ""))
            algorithms[name] = min(trial.measured_us, algorithms.get(name, trial.measured_us))
    failures: dict[str, int] = {}
    for trial in found.trials:
        if trial.failure is not None:
            failures[trial.failure.kind.value] = failures.get(trial.failure.kind.value, 0) + 1
    return {
        "fused_us": (best.measured_us or best.noisy_us) if best else None,
        "is_noisy": found.is_noisy,
        "predicted_us": best.prediction.latency_us if best and best.prediction else None,
        "config": dict(best.config) if best else None,
        "sequential_us": sequential.latency_us if sequential else None,
        "fastest_by_algorithm_us": algorithms,
        "measured": sum(trial.measured_us is not None for trial in found.trials),
        "failures": failures,
        "messages": list(found.messages),
    }


def overlap_efficiency(
    sequential_us: float, fused_us: float, product_us: float, collective_us: float
) -> float | None:
    """The share of what overlap can save that a fused kernel saves; None if nothing can be saved."""
    possible = sequential_us - max(product_us, collective_us)
    return (sequential_us - fused_us) / possible if possible > 0 else None


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows of each case side by side. Ours is compared with the vendor's time of the same session."""
    cases: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if "error" not in row:
            cases.setdefault(str(row["case"]), {})[str(row["kind"])] = row
    lines = ["product  collective  sequential  torch fused  ours  efficiency  case  (us)"]
    for case, kinds in cases.items():
        parts, ours, torch = (kinds.get(kind, {}) for kind in (PARTS, OURS, TORCH))
        sequential = ours.get("sequential_us") or parts.get("sequential_us")
        given = [sequential, ours.get("fused_us"), parts.get("product_us"), parts.get("collective_us")]
        known = [float(value) for value in given if value is not None]
        share = overlap_efficiency(*known) if len(known) == len(given) else None
        shown = [given[2], given[3], sequential, torch.get("fused_us"), given[1]]
        numbers = "  ".join("-" if value is None else f"{value:.1f}" for value in shown)
        lines.append(f"{numbers}  {'-' if share is None else f'{share:.2f}'}  {case}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="+", metavar="OPERATOR:SHAPE")
    parser.add_argument(
        "--target", default="auto", help="several devices, or a chip [default: that found here]"
    )
    parser.add_argument("--world", type=int, help="number of devices [default: those of the target]")
    parser.add_argument("--out", type=Path, required=True, help="rows are appended to this file")
    parser.add_argument("--only", default=f"{PARTS},{TORCH},{OURS}", help="what to time, by commas")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of a session")
    parser.add_argument("--torch-limit", type=float, default=120.0, help="seconds of all cases of torch")
    parser.add_argument("--database", default="", help="of the sessions [default: beside the rows]")
    given = parser.parse_args()
    named = target_of_world(given.target, given.world)
    placement = locate(named, measures=True, predicts=False, communicates=True)
    target, devices = placement.target, placement.devices[: placement.target.world]
    if not devices:
        raise SystemExit("; ".join(placement.messages))
    rows = Rows(given.out)
    cases = [read_case(text, target) for text in given.cases]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {placement.device_name}, driver {devices[0].driver}", flush=True)
    database = given.database or str(given.out.with_suffix(".db"))
    steps: dict[str, Callable[[], None]] = {
        PARTS: lambda: all_parts(cases, target, devices, rows),
        TORCH: lambda: all_of_torch(cases, devices, rows, given.torch_limit),
        OURS: lambda: all_of_ours(cases, target, rows, given.effort, given.budget, database),
    }
    for name in given.only.split(","):
        steps[name]()
    print(table(rows.known))


if __name__ == "__main__":
    main()
