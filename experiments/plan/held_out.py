"""The loss of a plan's few kernels to tuning each shape, at sizes that the plan never measured.

    python experiments/plan/held_out.py OUT matmul [--budget 200] [--shapes 60] [--kernels 8]
    python experiments/plan/held_out.py OUT flash_attention [...]

1. `tilesight.plan` runs at effort quick with an empty database, within PLAN_SHARE of the budget. Its table is
written to
   OUT/KERNEL-plan.json, its output to OUT/KERNEL-plan.txt.
2. Held-out sizes are drawn from a seed, uniformly in the logarithm of the size over the range of the plan;
none of them
   was measured by the plan. Their order is spread over the range, so that the end of the budget leaves no
   gap.
3. Each shape is tuned statically: at each size the CANDIDATES configs of its own space with the least
expected times are
   built with all dimensions fixed, and beside them the static kernel of the table's config. Expected times
   are those of all configs that the plan explored (some 300, and their rasterization variants), predicted at
   this size from cached profiles and corrected by the plan's measurements nearby. Every second config has
   other tiles (block_m, block_n) than those before it, since a model is wrong for similar configs alike. This
   is no session of `tilesight tune`, which would explore more configs and measure 16: that takes ten seconds
   a size.
4. All of them are timed in turns in a fresh process, with the plan's dynamic kernel and the vendor's library
   (`CompareJob`, the default protocol). The tuned kernel is the static one with the least median, which
   favours it. The loss is the median over the turns of the dynamic kernel's time over its time, less 1: below
   0 where the dynamic kernel is faster than all that tuning tried.

Rows are written to OUT/KERNEL-held-out.csv as they come. Rows of an earlier run stay and their sizes are not
measured again, so a second run goes on where the first ended. A summary is printed at the end and after every
ten sizes.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol

from tilesight.api.planning import plan
from tilesight.costmodel import default_model
from tilesight.database import open_layers
from tilesight.dispatch.table.table_file import DispatchTable, read_table, write_table
from tilesight.errors import Failure, FailureKind
from tilesight.executor.caching_executor import CachingExecutor
from tilesight.executor.jobs import BuildDone, BuildJob, CompareDone, CompareJob, Event, Job, Lane
from tilesight.executor.local import LocalExecutor
from tilesight.executor.profile_cache import ProfileCache
from tilesight.kernels import template_for
from tilesight.machine.placement import locate
from tilesight.planner.plan_options import PLAN_LIMITS
from tilesight.planner.plan_problem import PlanProblem, base_workload
from tilesight.planner.plan_state import PlanState
from tilesight.planner.record_sessions import PlanRecorder
from tilesight.planner.size_predictions import SizePredictions
from tilesight.planner.sizes import SizeRange, read_vary
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.records.intervals import median_interval
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import Effort
from tilesight.records.trial import BuildResult
from tilesight.settings import available_cores, load_settings
from tilesight.tuner.observers import Lines, Observer

PLANS: Mapping[str, tuple[str, str]] = {
    "matmul": ("m=1..16384", "n=8192,k=8192"),
    "flash_attention": ("seq_len=64..16384", "batch=1,heads=32,head_dim=128,causal=true"),
}
PLAN_SHARE = 0.55  # of the budget
PROMISING = 64  # configs that are predicted at each held-out size
GRACE_S = 20.0  # beyond the budget, for what is built already
CANDIDATES = 4  # static kernels that are built for each size, beside that of the table's config
SEED = 20261121

Write = Callable[[Any, Sequence[Candidate], Any], None]

COLUMNS = (
    *(
        "size",
        "kernel",
        "loss",
        "loss_low",
        "loss_high",
        "open_us",
        "tuned_us",
        "tuned_config",
        "vendor",
        "vendor_us",
    ),
    *("static_of_ours_us", "built", "compared", "at_seconds", "note"),
)


def held_out(vary: SizeRange, count: int, seen: Sequence[int], seed: int = SEED) -> list[int]:
    """Sizes that the plan never measured, in an order whose prefixes are all spread over the range."""
    drawn: list[int] = []
    generator = random.Random(seed)
    while len(drawn) < count:
        size = round(vary.first * (vary.last / vary.first) ** generator.random())
        if size not in seen and size not in drawn:
            drawn.append(size)
        if len(drawn) + len(set(seen)) > vary.last - vary.first:
            break
    ordered = sorted(drawn)
    # bit-reversed places: 0, 1/2, 1/4, 3/4, ...
    bits = max(1, (len(ordered) - 1).bit_length())
    places = [int(f"{place:0{bits}b}"[::-1], 2) for place in range(2**bits)]
    return [ordered[place] for place in places if place < len(ordered)]


class StaticConfigs(Protocol):
    """What is worth building at a size, all dimensions fixed."""

    def best(self, size: int, count: int) -> list[Config]: ...


class Expectations:
    """Expected times of configs at a size: predictions, corrected by the measurements of the plan.

    `layers` are further databases with its profiles and measurements, `explore` how many groups it explored.
    """

    def __init__(
        self,
        problem: PlanProblem,
        table: DispatchTable,
        database: str,
        executor: Any,
        layers: Sequence[str] = (),
        explore: int = PLAN_LIMITS[Effort.QUICK].explore,
    ) -> None:
        self._store = open_layers(database, layers, shipped=False)
        self._problem = problem
        caching = CachingExecutor(executor, ProfileCache(self._store))
        self._predictions = predictions = SizePredictions(
            problem, default_model(), caching, Observer(), until=0.0
        )  # nothing is lowered
        predictions.explore(explore, 0)  # as in the plan: its profiles are cached
        sizes = [piece.size for piece in table.evidence]
        predictions.predict(
            ((c, s) for s in sizes for c in predictions.configs if problem.works(s, c)), lower=False
        )
        predictions.anchors = sorted({*predictions.anchors, *sizes})
        recalled = PlanRecorder(problem, self._store, Effort.QUICK, 0).recall(sizes)
        measured = {
            record.config: None
            for records in recalled.values()
            for record in records.values()
            if record.measurement
        }
        self._state = PlanState(problem, predictions, [*dict.fromkeys([*table.kernels, *measured])], sizes)
        self._state.begin(recalled)
        self._measured = list(measured)

    def best(self, size: int, count: int) -> list[Config]:
        """Configs of the static space of a size, best expected first; every second one has other tiles."""
        predictions, space = self._predictions, self._problem.space(size)
        promising = predictions.promising(size, PROMISING)
        predictions.predict(((config, size) for config in promising), lower=False)
        legal = [config for config in promising if config in space and not self._state.is_excluded(config)]
        expected: Any = self._state.expected(legal, [size]).times[:, 0] if legal else []
        ordered = [
            c
            for us, _, c in sorted(
                (us, c.key, c) for us, c in zip(expected, legal, strict=True) if math.isfinite(us)
            )
        ]
        if not ordered:  # a template without cached profiles: measurements at the nearest size
            near = min(self._state.sizes, key=lambda known: abs(math.log(known / size)))
            times = {
                c: us
                for c in self._measured
                if c in space and (us := self._state.measured_us(c, near)) is not None
            }
            ordered = sorted(times, key=lambda config: times[config])
        return with_other_tiles(ordered, count)

    def close(self) -> None:
        self._store.close()


def with_other_tiles(ordered: Sequence[Config], count: int) -> list[Config]:
    """The first configs. Every second one has other tiles than those before it, if there is one, since a
    model is wrong for similar configs alike."""
    chosen: list[Config] = []
    tiles: set[tuple[object, ...]] = set()
    for other_tiles in [place % 2 == 1 for place in range(count)]:
        left = [c for c in ordered if c not in chosen and not (other_tiles and _tiles(c) in tiles)]
        left = left or [c for c in ordered if c not in chosen]
        if left:
            chosen.append(left[0])
            tiles.add(_tiles(left[0]))
    return chosen


def _tiles(config: Config) -> tuple[object, ...]:
    return config.get("block_m"), config.get("block_n")


@dataclass
class _Size:
    """One held-out size on its way through the stages."""

    size: int
    ours: Config
    to_build: list[Config]
    building: int = 0
    builds: dict[Config, BuildResult] = field(default_factory=dict)


class Contest:
    """The source of jobs: builds run some sizes ahead of the comparisons."""

    def __init__(
        self,
        problem: PlanProblem,
        table: DispatchTable,
        static: StaticConfigs,
        sizes: Sequence[int],
        until: float,
        write: Write,
        candidates: int = CANDIDATES,
    ) -> None:
        self._candidates = candidates
        self._problem, self._table, self._configs = problem, table, static
        self._static = replace(problem, dynamic=())
        self._waiting, self._until, self._write = list(sizes), until, write
        self._ahead = 4 + 2 * len(problem.placement.devices)
        self._active: list[_Size] = []
        self._comparing: list[_Size] = []
        self._dynamic_builds: dict[Config, BuildResult] = {}
        self._unbuilt = list(table.kernels)

    def next(self, lane: Lane) -> Job | None:
        return self._next_build() if lane is Lane.PREPARE else self._next_comparison()

    def _next_build(self) -> Job | None:
        if self._unbuilt:
            return BuildJob(self._problem.candidate(self._table.last, self._unbuilt.pop(0)))
        for state in self._active:
            if state.to_build:
                state.building += 1
                return BuildJob(self._static.candidate(state.size, state.to_build.pop(0)))
        if not self._waiting or len(self._active) >= self._ahead or time.monotonic() >= self._until:
            return None
        size = self._waiting.pop(0)
        ours = self._table.choose(size).config
        # where the table's config would waste something as a static kernel it is still built, to see what
        # being open costs
        found = [
            ours,
            *(config for config in self._configs.best(size, self._candidates + 1) if config != ours),
        ]
        self._active.append(_Size(size, ours, found[: self._candidates + 1]))
        return self._next_build()

    def _next_comparison(self) -> Job | None:
        for state in self._active:
            if (
                state.ours not in self._dynamic_builds
                or state.to_build
                or state.building
                or time.monotonic() >= self._until + GRACE_S
            ):
                continue
            ours = self._dynamic_builds[state.ours]
            pairs = [
                (self._static.candidate(state.size, config), build)
                for config, build in state.builds.items()
                if build.artifact
            ]
            self._active.remove(state)
            if ours.artifact is None:
                self._write(
                    state,
                    (),
                    Failure(FailureKind.BUILD_ERROR, f"the dynamic kernel does not build: {ours.failure}"),
                )
                continue
            self._comparing.append(state)
            return CompareJob(
                ((self._problem.candidate(state.size, state.ours), ours), *pairs), self._problem.protocol
            )
        return None

    def take(self, event: Event) -> None:
        match event:
            case BuildDone(job, result) if job.candidate.dynamic:
                self._dynamic_builds[job.candidate.config] = result
            case BuildDone(job, result):
                size = job.candidate.workload.dims[self._problem.vary.dim]
                state = next(state for state in self._active if state.size == size)
                state.building -= 1
                state.builds[job.candidate.config] = result
            case CompareDone(job, found, _):
                size = job.finalists[0][0].workload.dims[self._problem.vary.dim]
                state = next(state for state in self._comparing if state.size == size)
                self._comparing.remove(state)
                self._write(state, [candidate for candidate, _ in job.finalists], found)
            case _:
                raise AssertionError(event)


def rows_of(state: _Size, finalists: Sequence[Candidate], found: Any, at_seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    row |= {
        "size": state.size,
        "kernel": str(state.ours),
        "built": sum(b.artifact is not None for b in state.builds.values()),
        "at_seconds": round(at_seconds, 1),
    }
    if isinstance(found, Failure):
        return row | {"note": f"comparison failed: {found.message}"}
    if found.measurements[0].failure:
        return row | {"note": f"our kernel failed: {found.measurements[0].failure.message}"}
    ours = found.measurements[0]
    others = [(c, m) for c, m in zip(finalists[1:], found.measurements[1:], strict=True) if not m.failure]
    same = [m.latency_us for c, m in others if c.config == state.ours]
    row |= {"open_us": round(ours.latency_us, 3), "static_of_ours_us": round(same[0], 3) if same else ""}
    if others:
        candidate, tuned = min(others, key=lambda other: other[1].latency_us)
        ratios = [mine / theirs for mine, theirs in zip(ours.samples_us, tuned.samples_us, strict=True)]
        low, high = median_interval(ratios)
        row |= {
            "loss": round(median(ratios) - 1, 5),
            "loss_low": round(low - 1, 5),
            "loss_high": round(high - 1, 5),
        }
        row |= {
            "tuned_us": round(tuned.latency_us, 3),
            "tuned_config": str(candidate.config),
            "compared": len(others),
        }
    else:
        row["note"] = "no static kernel worked: there is nothing to lose to"
    if found.baselines:
        vendor = min(found.baselines, key=lambda baseline: baseline.latency_us)
        row |= {"vendor": vendor.name, "vendor_us": round(vendor.latency_us, 3)}
    return row


def summary(path: Path, wanted: int) -> str:
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["loss"] != ""]
    if not rows:
        return "no size was compared"
    losses = sorted((max(0.0, float(row["loss"])), int(row["size"])) for row in rows)
    plain = [float(row["loss"]) for row in rows]
    vendor = [float(row["vendor_us"]) / float(row["open_us"]) for row in rows if row["vendor_us"]]
    text = f"{len(rows)} of {wanted} held-out sizes: mean loss {100 * fmean(us for us, _ in losses):.2f} % "
    text += (
        f"(gains counted: {100 * fmean(plain):.2f} %), median {100 * median(us for us, _ in losses):.2f} %, "
    )
    text += f"worst {100 * losses[-1][0]:.2f} % at {losses[-1][1]}, "
    text += f"above 8 %: {sum(us > 0.08 for us, _ in losses)}, "
    text += f"above 20 %: {sum(us > 0.2 for us, _ in losses)}"
    return text + (
        f"; vendor's time over ours, geometric mean {math.exp(fmean(map(math.log, vendor))):.3f}"
        if vendor
        else ""
    )


def make_table(out: Path, given: argparse.Namespace, say: Callable[[str], None]) -> None:
    found = plan(
        given.kernel,
        given.vary,
        given.target,
        given.shape,
        kernels=given.kernels,
        shapes=given.samples,
        seed=given.seed,
        budget_s=PLAN_SHARE * given.budget,
        database=str(out / f"{given.kernel}.db"),
        observer=Lines(say),
    )
    write_table(found.table, out / f"{given.kernel}-plan.json")
    worst = found.worst
    counts = f"predicted {found.looked_at}, built {found.built}, measured {found.measured}, "
    counts += f"compared {found.compared}"
    say(
        f"plan: {found.seconds:.1f} s, {counts}; {len(found.table.kernels)} kernels, "
        f"{len(found.table.segments)} segments"
    )
    own = f"mean {100 * found.mean_loss:.2f} %, worst {100 * worst.loss if worst else 0:.2f} %"
    expected = f"mean {100 * found.expected_mean:.2f} %, worst {100 * found.expected_worst:.2f} %"
    say(f"plan: at its own sizes {own}; expected over the range {expected}")
    for message in found.messages:
        say(f"plan: {message}")


def main(given: argparse.Namespace) -> None:
    begin = time.monotonic()
    out, kernel, budget_s = given.out, given.kernel, given.budget
    given.vary, given.shape = given.vary or PLANS[kernel][0], given.shape or PLANS[kernel][1]
    out.mkdir(parents=True, exist_ok=True)
    vary, csv_path, table_path = (
        read_vary(given.vary),
        out / f"{kernel}-held-out.csv",
        out / f"{kernel}-plan.json",
    )

    def say(text: str) -> None:
        print(text, flush=True)
        with (out / f"{kernel}-plan.txt").open("a") as file:
            file.write(text + "\n")

    if not table_path.exists():
        make_table(out, given, say)
    table = read_table(table_path)
    placement = locate(given.target, measures=True, predicts=False)
    assert placement.device is not None, placement.messages
    template = template_for(kernel, placement.target, table.dtype)
    base = base_workload(template, placement.target, vary, given.shape, table.dtype)
    problem = PlanProblem(
        template,
        placement,
        base,
        vary,
        table.dynamic,
        MeasurementProtocol.named("default", placement.target),
        default_model().version,
    )
    sizes = held_out(vary, given.shapes, [piece.size for piece in table.evidence])
    known = set()
    if csv_path.exists():
        with csv_path.open(newline="") as file:
            known = {int(row["size"]) for row in csv.DictReader(file)}
    left = [size for size in sizes if size not in known]
    machine = f"{len(placement.devices)} x {placement.device.name}, {available_cores()} cores"
    say(
        f"{len(left)} of {len(sizes)} held-out sizes to go on {machine}; "
        f"{time.monotonic() - begin:.1f} s so far"
    )
    executor = LocalExecutor(available_cores(), load_settings().cache_dir, placement.gpus)
    with csv_path.open("a", newline="") as file, executor:
        executor.start(measures=True)
        writer = csv.DictWriter(file, COLUMNS)
        if not file.tell():
            writer.writeheader()
        done = len(known)

        def write(state: _Size, finalists: Sequence[Candidate], compared: Any) -> None:
            nonlocal done
            writer.writerow(rows_of(state, finalists, compared, time.monotonic() - begin))
            file.flush()
            done += 1
            if done % 10 == 0:
                print(summary(csv_path, len(sizes)), flush=True)

        expectations = Expectations(problem, table, str(out / f"{kernel}.db"), executor)
        contest = Contest(problem, table, expectations, left, begin + budget_s, write)
        for event in executor.stream(contest):
            contest.take(event)
        expectations.close()
    say(f"{summary(csv_path, len(sizes))}; {time.monotonic() - begin:.0f} s in all")
    if done < len(sizes):
        say(
            f"the budget of {budget_s:.0f} s ended it before the other {len(sizes) - done} sizes: "
            "run it again to go on"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The loss of a plan to tuning each shape.")
    parser.add_argument("out", type=Path)
    parser.add_argument("kernel", choices=list(PLANS))
    parser.add_argument("--budget", type=float, default=200.0, help="seconds for all of it")
    parser.add_argument("--shapes", type=int, default=60, help="held-out sizes")
    parser.add_argument(
        "--samples", type=int, help="sizes that the plan measures at, instead of its own default"
    )
    parser.add_argument("--kernels", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, help="of the plan; held-out sizes stay the same")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--vary", help="another range")
    parser.add_argument("--shape", help="other fixed dimensions")
    main(parser.parse_args())
