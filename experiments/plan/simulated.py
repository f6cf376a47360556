"""The loss of a plan's kernels on a simulated device: a judgement of the planner without a GPU.

    python experiments/plan/simulated.py OUT.csv --kept PROFILES.db [--seeds 0,1,2,3,4,5]

`matmul`, n=8192, k=8192, m = 1 .. 16384 dynamic, 8 kernels, effort quick without comparisons in turns. All
configs of the space are lowered once (some 1,600, about ten minutes on two cores; PROFILES.db keeps their
profiles for the next run). Then the planner runs for each seed, with an empty database and an executor that
answers at once: a lowering from those profiles, a build with success, a measurement with the time that the
model predicts times an error that the planner does not know. Errors are drawn for each seed, in log time:
0.03 for each pair of block_m and block_n and 0.025 more that changes slowly with the size (in whole tiles),
0.025 and 0.015 for each config, and 0.004 of noise. The model's errors on the 444 kernels of
`h200/matmul-plan-8f635a4` are of that size: 0.059 in all, 0.044 between configs, 0.039 within.

One row per seed and size, for 49 sizes (60 were drawn, uniformly in the logarithm; some came twice): `us` of
the kernel that the table gives the size, `best_us` of all configs of the space, both without noise, and the
`loss`. The best config is the best of a hundred with similar predictions, so a part of each loss cannot be
known to any planner.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import random
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

from tilesight.costmodel import default_model
from tilesight.database import open_store
from tilesight.executor.caching_executor import CachingExecutor
from tilesight.executor.jobs import (
    BuildDone,
    BuildJob,
    Event,
    Job,
    JobSource,
    Lane,
    LowerDone,
    LowerJob,
    MeasureDone,
    MeasureJob,
)
from tilesight.executor.local import LocalExecutor
from tilesight.executor.profile_cache import ProfileCache
from tilesight.executor.shared_lowering import RasterizationGroups
from tilesight.executor.tasks import Answer
from tilesight.kernels import template_for
from tilesight.machine.devices import Device
from tilesight.machine.placement import locate
from tilesight.planner.plan_options import PlanOptions, limits_for
from tilesight.planner.plan_problem import PlanProblem, base_workload
from tilesight.planner.planner import Planner
from tilesight.planner.record_sessions import PlanRecorder
from tilesight.planner.size_predictions import SizePredictions
from tilesight.planner.sizes import SizeRange
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import Effort
from tilesight.records.trial import BuildResult, Measurement
from tilesight.settings import available_cores, load_settings
from tilesight.tuner.observers import Observer

VARY, FIXED, KERNELS, SHAPES, HELD_OUT = SizeRange("m", 1, 16384), "n=8192,k=8192", 8, 48, 60
SPACES = (1, 28, 64, 101, 160, 256, 512, 1024, 4096, 16384)  # sizes whose spaces have all configs together
BY_TILE, BY_TILE_AND_SIZE, OWN, OWN_BY_SIZE, NOISE = 0.03, 0.025, 0.025, 0.015, 0.004
MAY_BE_BEST, HAS_VARIANTS = (
    1.15,
    1.3,
)  # of the best predicted at a size: within which a config may be best, or one that reorders its blocks
AT_ONCE = 16  # jobs under way


def device_problem(has_device: bool) -> PlanProblem:
    placement = locate("h200", measures=False, predicts=True)
    if has_device:
        placement = replace(placement, devices=(Device("NVIDIA H200", "simulated", "1", "cuda", 0, 1),))
    template = template_for("matmul", placement.target, "bfloat16")
    base = base_workload(template, VARY, FIXED, "bfloat16")
    return PlanProblem(
        template,
        placement,
        base,
        VARY,
        (VARY.dim,),
        MeasurementProtocol.named("default", placement.target),
        default_model().version,
    )


class Truth:
    """Times of the device: predictions, with an error of this seed."""

    def __init__(self, predictions: SizePredictions, problem: PlanProblem, seed: int) -> None:
        self._predictions, self._problem, self._seed = predictions, problem, seed
        self.us = cache(self._us)

    def _us(self, config: Config, size: int) -> float:
        if math.isnan(self._predictions.time_us(config, size)):
            self._predictions.predict([(config, size)])
        tile, own = (config["block_m"], config["block_n"]), str(config)
        at = math.log2(self._problem.whole_tiles(size, config))
        error = BY_TILE * self._random(tile).gauss(0, 1) + BY_TILE_AND_SIZE * self._wave(tile, at)
        error += OWN * self._random(own).gauss(0, 1) + OWN_BY_SIZE * self._wave(own, at)
        return self._predictions.time_us(config, size) * math.exp(error)

    def _random(self, *key: object) -> random.Random:
        return random.Random(hashlib.sha256(repr((self._seed, *key)).encode()).digest())

    def _wave(self, key: object, at: float) -> float:
        """Smooth in `at`, with a variance of 1."""
        drawn = self._random(key, "wave")
        return sum(
            drawn.gauss(0, 1) * math.sin(drawn.uniform(0.3, 1.5) * at + drawn.uniform(0, 6.3))
            for _ in range(4)
        ) / math.sqrt(2)


class SimulatedDevice:
    """An executor that takes its times from `Truth`."""

    def __init__(self, lowered: CachingExecutor, truth: Truth, seed: int) -> None:
        self._lowered, self._truth, self._random = lowered, truth, random.Random(seed)

    def width(self, _lane: Lane) -> int:
        return AT_ONCE

    def cached(self, _candidates: Iterable[Candidate]) -> Iterator[Answer]:
        return iter(())

    def stream(self, source: JobSource) -> Generator[Event]:
        waiting: dict[Lane, deque[Job]] = {Lane.PREPARE: deque(), Lane.DEVICE: deque()}
        while True:
            for lane, most in ((Lane.PREPARE, AT_ONCE), (Lane.DEVICE, 1)):
                while len(waiting[lane]) < most and (job := source.next(lane)) is not None:
                    waiting[lane].append(job)
            ready = [lane for lane, jobs in waiting.items() if jobs]
            if not ready:
                return
            yield self._done(waiting[self._random.choice(ready)].popleft())

    def _done(self, job: Job) -> Event:
        match job:
            case LowerJob(candidate):
                outcome = next((found for _, found in self._lowered.cached([candidate])), None)
                assert outcome is not None, f"{candidate.config} was not lowered beforehand"
                return LowerDone(job, outcome)
            case BuildJob(candidate):
                return BuildDone(job, BuildResult("simulated.so", entry="f", binary=str(candidate.config)))
            case MeasureJob(candidate, _):
                us = self._truth.us(candidate.config, candidate.workload.dims[VARY.dim]) * math.exp(
                    self._random.gauss(0, NOISE)
                )
                return MeasureDone(job, Measurement((us,), relative_error=0.0))
            case _:
                raise AssertionError(f"unexpected job {job}")


def may_be_best(
    problem: PlanProblem, predictions: SizePredictions, sizes: Sequence[int]
) -> Mapping[int, list[Config]]:
    """The configs of the whole space that are predicted to be near the best, by size."""
    spaces = [RasterizationGroups(problem.template, problem.space(size).configs()) for size in SPACES]
    firsts: dict[Config, int] = {}
    for size, groups in zip(SPACES, spaces, strict=True):
        for config in groups.firsts:
            firsts.setdefault(config, size)
    predictions.predict(firsts.items())
    found = {}
    for size in sizes:
        works = [config for config in firsts if problem.works(size, config)]
        predictions.predict(((config, size) for config in works), lower=False)
        times = predictions.times(works, size)
        best = min(times.values())
        near = {config for config, us in times.items() if us <= HAS_VARIANTS * best}
        variants = [
            variant
            for groups in spaces
            for first in groups.firsts
            if first in near
            for variant in groups.members(first)
        ]
        variants = [variant for variant in dict.fromkeys(variants) if problem.works(size, variant)]
        predictions.predict(((config, size) for config in variants), lower=False)
        times |= predictions.times(variants, size)
        best = min(times.values())
        found[size] = [config for config, us in times.items() if us <= MAY_BE_BEST * best]
    return found


def main(given: argparse.Namespace) -> None:
    drawn = random.Random(7)
    low, high = math.log(VARY.first), math.log(VARY.last)
    sizes = sorted({round(math.exp(drawn.uniform(low, high))) for _ in range(HELD_OUT)})
    model, store = default_model(), open_store(f"sqlite:///{given.kept.absolute()}")
    with (
        LocalExecutor(available_cores(), load_settings().cache_dir, ()) as workers,
        given.out.open("w", newline="") as file,
    ):
        lowered, problem = CachingExecutor(workers, ProfileCache(store)), device_problem(has_device=False)
        predictions = SizePredictions(problem, model, lowered, Observer())
        near = may_be_best(problem, predictions, sizes)
        print(
            f"{predictions.lowered} lowered, {predictions.count} predictions, "
            f"{fmean(map(len, near.values())):.0f} that may be the best of a size"
        )
        writer = csv.writer(file)
        writer.writerow(["seed", "size", "kernel", "us", "best_config", "best_us", "loss"])
        worst, means = [], []
        for seed in given.seeds:
            truth, planned = Truth(predictions, problem, seed), device_problem(has_device=True)
            options = PlanOptions(KERNELS, SHAPES, Effort.QUICK, seed=seed)
            with open_store("sqlite://") as nothing_known:
                recorder = PlanRecorder(planned, nothing_known, options.effort, seed)
                executor = CachingExecutor(SimulatedDevice(lowered, truth, seed), ProfileCache(nothing_known))
                # the simulated device compares nothing in turns: its measurements have little noise
                limits = replace(limits_for(planned, options.effort), compare=0)
                planner = Planner(planned, options, model, executor, recorder, Observer(), limits)
                table = planner.run().table
            losses = []
            for size in sizes:
                chosen = table.choose(size).config
                best = min([*near[size], chosen], key=lambda config: truth.us(config, size))
                losses.append(truth.us(chosen, size) / truth.us(best, size) - 1)
                row = [
                    seed,
                    size,
                    chosen,
                    round(truth.us(chosen, size), 3),
                    best,
                    round(truth.us(best, size), 3),
                    round(losses[-1], 5),
                ]
                writer.writerow(row)
            means.append(fmean(losses))
            worst.append(max(losses))
            print(
                f"seed {seed}: mean loss {100 * means[-1]:.2f} %, worst {100 * worst[-1]:.2f} %", flush=True
            )
            file.flush()
    mean_worst = f"{100 * fmean(means):.2f} %, worst {100 * fmean(worst):.2f} % on the mean of seeds"
    print(f"mean loss {mean_worst}, {100 * max(worst):.2f} % at most")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The loss of a plan's kernels on a simulated device.")
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--kept", type=Path, required=True, help="database that keeps the profiles of what is lowered"
    )
    parser.add_argument(
        "--seeds", type=lambda text: [int(part) for part in text.split(",")], default=list(range(6))
    )
    main(parser.parse_args())
