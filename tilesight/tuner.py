"""The tuner: the one loop in which all stages meet.

    census -> explore (ask, lower and profile, predict, tell) -> choose -> build (predict again) -> measure -> tell ... -> compare

What does the work (executor, model, search) is handed in, and side effects are observers' business.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from .candidate import Candidate
from .compiled import SPARE, SecondLook, clearly_worse
from .costmodel.model import CostModel, predict_many
from .errors import Failure, FailureKind, UnknownNameError
from .executor import Executor
from .jobs import Profiled
from .observers import Observer
from .reasons import common_failures, no_legal_config, nothing_worked
from .search import SAMPLERS, Searcher
from .selection import choose
from .session import Baseline, Context, Effort, SessionResult, State, ranked
from .space import Config, SearchSpace
from .target import Target
from .template import KernelTemplate
from .trial import BuildResult, Prediction, TrialRecord
from .trials import Trials
from .workload import Workload

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """How far an effort goes. None: to the end of the space."""

    explore: int | None
    measure: int | None
    round: int = 16  # measured between two looks at what they teach
    patience: int | None = 3  # rounds without a faster kernel after which no other begins


PLANS: Mapping[Effort, Plan] = {
    Effort.PREDICT: Plan(explore=300, measure=0),
    Effort.QUICK: Plan(explore=300, measure=16),
    Effort.FULL: Plan(explore=1000, measure=128),
    Effort.EXHAUSTIVE: Plan(explore=None, measure=None, round=64, patience=None),
}
MOST_KEPT = 10_000  # candidates predicted from kept profiles in one go
TOGETHER = 512  # of these in one call of the model
BATCH = 32  # asked at once: fixed, so that the questions do not depend on how many processes answer
EXPLORE_SHARE, BUILD_SHARE = 0.5, 0.75  # of a time budget: when these end, where a first measurement follows
FINALISTS, FINALIST_MARGIN = 8, 1.05  # measured again beside the vendor: those within this factor of the fastest


@dataclass(frozen=True, slots=True)
class Request:
    """What one session is asked to do. `measures`: a device of the target is at hand. No budget: no time limit."""

    workload: Workload
    target: Target
    template: KernelTemplate
    space: SearchSpace
    context: Context
    effort: Effort
    measures: bool = False
    budget_s: float | None = None
    seed: int = 0
    sampler: str = "tpe"


class Tuner:
    """One session. `known` are the records of earlier ones in the same context: none of their work is repeated."""

    def __init__(
        self,
        request: Request,
        model: CostModel,
        executor: Executor,
        observer: Observer,
        known: Iterable[TrialRecord] = (),
    ) -> None:
        if request.sampler not in SAMPLERS:
            raise UnknownNameError("sampler", request.sampler, SAMPLERS)
        self.request, self.model, self.executor, self.observer = request, model, executor, observer
        self.plan = PLANS[request.effort]
        self.begin = time.monotonic()
        self.cut = False  # the time budget has ended something early
        self.trials = Trials()
        self.second_look = SecondLook(model, request.target)
        self.builds: dict[Config, BuildResult] = {}
        self.baselines: tuple[Baseline, ...] = ()
        self.messages: list[str] = []
        self.space = request.space
        for record in known:
            # one whose prediction was another model's is looked at again, unless it was measured
            if record.config in self.space and (record.prediction or record.measurement or record.failure):
                self.trials.recall(record)
        for config in self.trials.records:
            self._tell(config)

    @cached_property
    def search(self) -> Searcher:
        """Made where something is asked or told: kept profiles of the whole space need none, nor the packages behind it."""
        first = self.request.template.default_config(self.request.workload, self.request.target)
        return Searcher(self.space, sampler=self.request.sampler, seed=self.request.seed, first=first)

    def run(self) -> SessionResult:
        """Raises `NoCandidateError` where nothing is legal or nothing worked; whatever ends it early is passed on."""
        try:
            if not self.space.configs():
                raise no_legal_config(self.request.workload, self.request.target, self.space)
            self._explore()
            if self.request.measures and self.plan.measure != 0:
                self._measure_rounds()
                self._compare()
            if not self.trials.works:
                raise nothing_worked(self.request.workload, self.request.target, self.trials.records.values(), self.cut)
        except BaseException:
            self.observer.finished(self._result(State.INTERRUPTED))
            raise
        result = self._result(State.INTERRUPTED if self.cut else State.COMPLETE)
        self.observer.finished(result)
        return result

    def _explore(self) -> None:
        """Predict what the search asks for, until as many as the plan says are known."""
        self._take_kept()
        legal = len(self.space.configs())
        left = min(self.plan.explore or legal, legal) - len(self.trials.records)
        if left <= 0:
            return
        self.observer.phase("explore", left)
        share = EXPLORE_SHARE if self.request.measures else 1.0
        while left > 0 and not self._late(share):
            # a space that is wanted whole needs no search, and no waiting between batches
            asked = self._questions(left)
            self._predict(asked, share)
            left -= len(asked)
        self.observer.phase_done(self.trials.summary())
        self._take_kept()  # what was lowered meanwhile may stand for others

    def _take_kept(self) -> None:
        """Predict whatever needs no lowering: all of it, since it costs no more than looking for the promising part."""
        open_configs = (config for config in self.space.configs() if config not in self.trials.records)
        found = self.executor.kept(self._candidate(config) for config in itertools.islice(open_configs, MOST_KEPT))
        records: list[TrialRecord] = []
        with _without_garbage():
            while some := list(itertools.islice(found, TOGETHER)):
                records += self._predicted([(candidate.config, outcome) for candidate, outcome in some])
            if not records:
                return
            self.observer.phase("kept", len(records))
            self.observer.trials(records)
        if self.request.measures or len(self.trials.records) < (self.plan.explore or len(self.space.configs())):
            for record in records:  # the search will be asked
                self._tell(record.config)
        self.observer.advanced(len(records))
        self.observer.phase_done(f"{self.trials.summary()}; their profiles were kept")

    def _questions(self, left: int) -> list[Config]:
        if left >= self.search.remaining:
            return self.search.ask(left)
        batch = min(BATCH, left)
        likely = self.search.promising(batch // 2)
        return [*likely, *self.search.ask(batch - len(likely))]

    def _predict(self, configs: Sequence[Config], share: float = 1.0) -> None:
        for candidate, outcome in self.executor.lower(self._in_time((self._candidate(c) for c in configs), share)):
            self.observer.advanced()
            self.observer.trial(self._predicted([(candidate.config, outcome)])[0])
        for config in configs:  # in the order of the questions: the same seed gives the same search
            self._tell(config)

    def _predicted(self, outcomes: Sequence[tuple[Config, Profiled | Failure]]) -> list[TrialRecord]:
        profiled = {config: outcome.kernels for config, outcome in outcomes if isinstance(outcome, Profiled)}
        found = dict(zip(profiled, predict_many(self.model, list(profiled.values()), self.request.target), strict=True))
        return [self._recorded(config, outcome, found.get(config)) for config, outcome in outcomes]

    def _recorded(self, config: Config, outcome: Profiled | Failure, prediction: Prediction | Exception | None) -> TrialRecord:
        if isinstance(outcome, Failure):
            return self.trials.failed(config, outcome)
        if not isinstance(prediction, Prediction):
            failure = Failure(FailureKind.PROFILE_ERROR, f"the cost model refuses it: {type(prediction).__name__}: {prediction}")
            return self.trials.failed(config, failure, outcome)
        self.second_look.remember(config, outcome.kernels, prediction.ranking_us)
        return self.trials.predicted(config, outcome, prediction)

    def _measure_rounds(self) -> None:
        stale = 0
        limit = len(self.space.configs()) if self.plan.measure is None else self.plan.measure
        while not self._late() and (self.plan.patience is None or stale < self.plan.patience):
            count = min(self.plan.round, limit - self.trials.measured_count)
            # compilers for GPUs say what they spilled: some of what is built will not be worth its measurement
            spare = SPARE if self.request.target.is_gpu and self.plan.measure is not None else 1.0
            picked = choose(self.trials.open(), math.ceil(spare * count))
            if not picked:
                return
            before = self.trials.fastest_us
            self._measure(picked, count)
            after = self.trials.fastest_us
            stale = 0 if after and (not before or after < 0.995 * before) else stale + 1
            if self.trials.measured_count < limit and self.plan.explore and not self._late():
                self._predict(self.search.ask(self.plan.round))  # near what turned out fast

    def _measure(self, configs: Sequence[Config], count: int) -> None:
        """Build `configs`, and measure the best `count` of those that are still promising then."""
        ready = self._build(configs)
        open_us = self.trials.open()
        ready = choose({config: open_us[config] for config in ready}, count)
        self.observer.phase("measure", len(ready))
        pairs = ((self._candidate(c), self.builds[c]) for c in ready)
        for candidate, measurement in self.executor.measure(self._in_time(pairs)):
            self.observer.advanced()
            self.observer.trial(self.trials.measured(candidate.config, measurement))
            self._tell(candidate.config)
        right = sum(self.trials.records[c].measured_us is not None for c in ready)
        fastest = self.trials.fastest_us
        self.observer.phase_done(f"{right} of {len(ready)} measured and right" + (f", fastest {fastest:.4g} us" if fastest else ""))

    def _build(self, configs: Sequence[Config]) -> list[Config]:
        """Those of `configs` that build and, with the compiler's figures, are still worth measuring."""
        self.observer.phase("build", len(configs))
        share = 1.0 if self.trials.measured_count else BUILD_SHARE
        before: dict[Config, Prediction] = {}
        fresh = [c for c in configs if c not in self.builds]
        for candidate, build in self.executor.build(self._in_time((self._candidate(c) for c in fresh), share)):
            self.observer.advanced()
            predicted = self.trials.records[candidate.config].prediction
            if build.failure or predicted is None:
                self.observer.trial(self.trials.built(candidate.config, build))
                self._tell(candidate.config)
                continue
            before[candidate.config] = predicted
            self.builds[candidate.config] = build
            again = self.second_look.predict(candidate.config, build, predicted)
            self.observer.trial(self.trials.built(candidate.config, build, again))
        ready = [c for c in configs if c in self.builds]
        self.observer.phase_done(f"{len(ready)} of {len(configs)} built")
        dropped = self._no_longer_worth(ready, before)
        return [c for c in ready if c not in dropped]

    def _no_longer_worth(self, ready: Sequence[Config], before: Mapping[Config, Prediction]) -> set[Config]:
        """Of those just built, the ones that the compiler's figures show to be too slow. They stay open: a later round
        may still choose them, where nothing better is left."""
        after = {c: self.trials.records[c].prediction or before[c] for c in before}
        for config in before:
            if after[config] is not before[config]:
                self._tell(config)
        if self.plan.measure is None or not after:
            return set()
        open_us = self.trials.open()
        best_us = min([open_us[c] for c in ready] + ([self.trials.fastest_us] if self.trials.fastest_us else []))
        dropped = clearly_worse(before, after, open_us, best_us)
        if dropped:
            self._say(
                f"{len(dropped)} of {len(after)} built candidates are not measured: with the compiler's registers and spills they are slow"
            )
        return set(dropped)

    def _compare(self) -> None:
        """Time the finalists and the vendor's library in turns: what was measured minutes apart is no fair comparison."""
        finalists = self.trials.fastest(FINALISTS, FINALIST_MARGIN)
        if not finalists:
            broken = [t for t in self.trials.records.values() if t.build and t.failure]
            if broken:
                self._say(f"no candidate could be measured: {common_failures(broken)}")
            return
        if self._late():
            return
        self.observer.phase("compare", None)
        missing = [self._candidate(c) for c in finalists if c not in self.builds]
        self.builds |= {candidate.config: build for candidate, build in self.executor.build(missing) if build.artifact}
        ready = [c for c in finalists if c in self.builds]
        found = self.executor.compare([(self._candidate(c), self.builds[c]) for c in ready])
        if isinstance(found, Failure):
            self._say(f"no comparison with the vendor's library: {found.message}")
            self.observer.phase_done("failed")
            return
        for config, measurement in zip(ready, found.measurements, strict=True):
            if not measurement.failure:
                self.observer.trial(self.trials.measured(config, measurement))
        for note in found.notes:
            self._say(note)
        self.baselines = found.baselines
        self.observer.baselines(found.baselines)
        vendor = ", ".join(f"{b.name} {b.latency_us:.4g} us" for b in found.baselines)
        ours = "the fastest" if len(ready) == 1 else f"the {len(ready)} fastest"
        self.observer.phase_done(f"{ours} in turns with {vendor or 'no vendor library: none is here'}")

    def _candidate(self, config: Config) -> Candidate:
        return Candidate(self.request.workload, self.request.target, self.request.template, config)

    def _tell(self, config: Config) -> None:
        if config in self.trials.records:
            trial = self.trials.records[config]
            self.search.tell(config, self.trials.value(config), measured=trial.measured_us is not None)

    def _late(self, share: float = 1.0) -> bool:
        budget = self.request.budget_s
        late = budget is not None and time.monotonic() - self.begin > share * budget
        self.cut = self.cut or late
        return late

    def _in_time(self, items: Iterable[T], share: float = 1.0) -> Iterator[T]:
        for item in items:
            if self._late(share):
                return
            yield item

    def _say(self, text: str) -> None:
        self.messages.append(text)
        self.observer.message(text)

    def _result(self, state: State) -> SessionResult:
        if self.cut:
            self._say("the time budget ended the search early; the same command goes on from here")
        operator, workload = self.request.template.operator, self.request.workload
        return SessionResult(
            context=self.request.context,
            effort=self.request.effort,
            state=state,
            census=self.space.census(),
            trials=ranked({config.key: trial for config, trial in self.trials.records.items()}),
            baselines=self.baselines,
            flops=operator.flops(workload),
            min_bytes=operator.min_bytes(workload),
            seconds=time.monotonic() - self.begin,
            messages=tuple(self.messages),
        )


@contextmanager
def _without_garbage() -> Iterator[None]:
    """For making values by the ten thousand, none of them garbage: looking for some takes an eighth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
