"""What a plan's kernels lose on a device that is made up: a judge of the planner that needs no GPU.

    python experiments/plan/simulated.py OUT.csv --kept FAMILIES.db [--seeds 0,1,2,3,4,5]

`matmul`, n=8192, k=8192, m = 1 .. 16384 open, 8 kernels, effort quick without the comparisons in turns. All configs of the space are
lowered once (some 1,600, about ten minutes on two cores; FAMILIES.db keeps their profiles for the next run). Then the planner
itself runs for each seed, from nothing known, with an executor that answers at once: a lowering from those profiles, a build
with success, a measurement with the time that the model predicts, times an error that the planner does not know. Errors are
drawn for each seed, in log time: of each pair of block_m and block_n 0.03 and 0.025 more that changes slowly with the size (in
whole tiles), of each config 0.025 and 0.015, and 0.004 of noise. The model's errors on the 444 kernels of `h200/matmul-plan-8f635a4`
are of that size: 0.059 on the whole, 0.044 between configs, 0.039 within.

A row a seed and size, of 49 different sizes (60 were drawn, uniformly in the logarithm): `us` of the kernel that the table gives
it, `best_us` of all configs of the space, without noise, and the `loss`. The best of all is the best of a hundred that are
predicted alike, so part of each loss is what no planner could know.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import random
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from tilesight.costmodel import default_model
from tilesight.database import open_store
from tilesight.device import Device
from tilesight.executor import LocalExecutor
from tilesight.families import FamilyKey, ProfileFamily
from tilesight.kept import KeptExecutor
from tilesight.kernels import template_for
from tilesight.observers import Observer
from tilesight.planning import planner
from tilesight.planning.planner import Planner, Wish
from tilesight.planning.sizes import Vary
from tilesight.planning.subject import Subject, base_workload
from tilesight.planning.survey import Survey
from tilesight.protocol import Protocol
from tilesight.session import Effort
from tilesight.settings import available_cores, load_settings
from tilesight.space import Config
from tilesight.trial import BuildResult, Measurement
from tilesight.twins import Groups
from tilesight.where import locate
from tilesight.work import Build, Built, Event, Job, Lane, Lower, Lowered, Measure, Measured, Source

VARY, FIXED, KERNELS, SHAPES, HELD_OUT = Vary("m", 1, 16384), "n=8192,k=8192", 8, 48, 60
SPACES = (1, 28, 64, 101, 160, 256, 512, 1024, 4096, 16384)  # sizes whose spaces have all configs together
BY_TILE, BY_TILE_AND_SIZE, OWN, OWN_BY_SIZE, NOISE = 0.03, 0.025, 0.025, 0.015, 0.004
MAY_BE_BEST, HAS_TWINS = 1.15, 1.3  # of the best predicted at a size: within which a config may be best, or one that reorders its blocks
AT_ONCE = 16  # jobs under way


def a_subject(has_device: bool) -> Subject:
    where = locate("h200", measures=False, predicts=True)
    if has_device:
        where = replace(where, devices=(Device("NVIDIA H200", "made up", "1", "cuda", 0, 1),))
    template = template_for("matmul", where.target, "bfloat16")
    base = base_workload(template, VARY, FIXED, "bfloat16")
    return Subject(template, where, base, VARY, (VARY.dim,), Protocol.named("default", where.target), default_model().version)


class Truth:
    """Times of the device, as the survey predicts them with an error of this seed's."""

    def __init__(self, survey: Survey, subject: Subject, seed: int) -> None:
        self._survey, self._subject, self._seed = survey, subject, seed
        self.us = cache(self._us)

    def _us(self, config: Config, size: int) -> float:
        if math.isnan(self._survey.time_us(config, size)):
            self._survey.predict([(config, size)])
        tile, own = (config["block_m"], config["block_n"]), str(config)
        at = math.log2(self._subject.whole(size, config))
        error = BY_TILE * self._random(tile).gauss(0, 1) + BY_TILE_AND_SIZE * self._wave(tile, at)
        error += OWN * self._random(own).gauss(0, 1) + OWN_BY_SIZE * self._wave(own, at)
        return self._survey.time_us(config, size) * math.exp(error)

    def _random(self, *key: object) -> random.Random:
        return random.Random(hashlib.sha256(repr((self._seed, *key)).encode()).digest())

    def _wave(self, key: object, at: float) -> float:
        """Smooth in `at`, with a variance of 1."""
        drawn = self._random(key, "wave")
        return sum(drawn.gauss(0, 1) * math.sin(drawn.uniform(0.3, 1.5) * at + drawn.uniform(0, 6.3)) for _ in range(4)) / math.sqrt(2)


class MadeUp:
    """An executor of a machine that is not there."""

    def __init__(self, lowered: KeptExecutor, truth: Truth, seed: int) -> None:
        self._lowered, self._truth, self._random = lowered, truth, random.Random(seed)

    def width(self, _lane: Lane) -> int:
        return AT_ONCE

    def stream(self, source: Source) -> Generator[Event]:
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
            case Lower(candidate):
                outcome = self._lowered.known(candidate)
                assert outcome is not None, f"{candidate.config} was not lowered beforehand"
                return Lowered(job, outcome)
            case Build(candidate):
                return Built(job, BuildResult("made-up.so", entry="f", binary=str(candidate.config)))
            case Measure(candidate, _):
                us = self._truth.us(candidate.config, candidate.workload.dims[VARY.dim]) * math.exp(self._random.gauss(0, NOISE))
                return Measured(job, Measurement((us,), relative_error=0.0))
            case _:
                raise AssertionError("nothing is compared")


class Nothing:
    """A store of families and sessions that keeps nothing."""

    def kept_families(self, _key: FamilyKey) -> list[ProfileFamily]:
        return []

    def keep_families(self, key: FamilyKey, families: Iterable[ProfileFamily]) -> None: ...

    def known_sizes(self) -> list[int]:
        return []

    def recall(self, sizes: Sequence[int]) -> dict[int, dict[str, Any]]:
        return {size: {} for size in sizes}

    def record(self, *_: object) -> None: ...

    def close(self, *_: object) -> None: ...


def may_be_best(subject: Subject, survey: Survey, sizes: Sequence[int]) -> Mapping[int, list[Config]]:
    """At each size the configs of the whole space that are predicted to be near the best."""
    spaces = [Groups(subject.template, subject.space(size).configs()) for size in SPACES]
    firsts: dict[Config, int] = {}
    for size, groups in zip(SPACES, spaces, strict=True):
        for config in groups.firsts:
            firsts.setdefault(config, size)
    survey.predict(firsts.items())
    found = {}
    for size in sizes:
        works = [config for config in firsts if subject.works(size, config)]
        survey.predict(((config, size) for config in works), lower=False)
        times = survey.times(works, size)
        best = min(times.values())
        near = {config for config, us in times.items() if us <= HAS_TWINS * best}
        twins = [twin for groups in spaces for first in groups.firsts if first in near for twin in groups.members(first)]
        twins = [twin for twin in dict.fromkeys(twins) if subject.works(size, twin)]
        survey.predict(((config, size) for config in twins), lower=False)
        times |= survey.times(twins, size)
        best = min(times.values())
        found[size] = [config for config, us in times.items() if us <= MAY_BE_BEST * best]
    return found


def main(given: argparse.Namespace) -> None:
    # comparisons in turns settle what measurements have settled here
    planner.EXTENTS = {**planner.EXTENTS, Effort.QUICK: replace(planner.EXTENTS[Effort.QUICK], compare=0)}
    drawn = random.Random(7)
    low, high = math.log(VARY.first), math.log(VARY.last)
    sizes = sorted({round(math.exp(drawn.uniform(low, high))) for _ in range(HELD_OUT)})
    model, store = default_model(), open_store(f"sqlite:///{given.kept.absolute()}")
    with LocalExecutor(available_cores(), load_settings().cache_dir, ()) as workers, given.out.open("w", newline="") as file:
        lowered, subject = KeptExecutor(workers, store), a_subject(has_device=False)
        survey = Survey(subject, model, lowered, Observer())
        near = may_be_best(subject, survey, sizes)
        print(f"{survey.lowered} lowered, {survey.count} predictions, {fmean(map(len, near.values())):.0f} that may be the best of a size")
        writer = csv.writer(file)
        writer.writerow(["seed", "size", "kernel", "us", "best_config", "best_us", "loss"])
        worst, means = [], []
        for seed in given.seeds:
            truth, none = Truth(survey, subject, seed), Nothing()
            wish, executor = Wish(KERNELS, SHAPES, Effort.QUICK, seed=seed), KeptExecutor(MadeUp(lowered, truth, seed), none)
            table = Planner(a_subject(has_device=True), wish, model, executor, none, Observer()).run().table  # type: ignore[arg-type]
            losses = []
            for size in sizes:
                chosen = table.choose(size).config
                best = min([*near[size], chosen], key=lambda config: truth.us(config, size))
                losses.append(truth.us(chosen, size) / truth.us(best, size) - 1)
                row = [seed, size, chosen, round(truth.us(chosen, size), 3), best, round(truth.us(best, size), 3), round(losses[-1], 5)]
                writer.writerow(row)
            means.append(fmean(losses))
            worst.append(max(losses))
            print(f"seed {seed}: mean loss {100 * means[-1]:.2f} %, worst {100 * worst[-1]:.2f} %", flush=True)
            file.flush()
    print(f"mean loss {100 * fmean(means):.2f} %, worst {100 * fmean(worst):.2f} % on the mean of seeds, {100 * max(worst):.2f} % at most")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What a plan's kernels lose on a device that is made up.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--kept", type=Path, required=True, help="database that keeps the profiles of what is lowered")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=list(range(6)))
    main(parser.parse_args())
