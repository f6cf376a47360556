"""The tuner: the loop of a session, in which all stages meet.

    census -> explore (ask, lower and profile, predict, tell) -> build (predict again) -> measure, tell ->
    compare

The tuner is a source of jobs: an executor takes them as it has room. Candidates are built best-predicted
first and measured as soon as a device is free; on a GPU the first are built while others are still explored.
Effort `build` ends after the builds. Executor, model and search are arguments; observers do the side effects.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace

from ..costmodel.model import CostModel
from ..errors import UnknownNameError
from ..executor.jobs import (
    BuildDone,
    BuildJob,
    CompareDone,
    Event,
    Executor,
    Job,
    Lane,
    LowerDone,
    LowerJob,
    MeasureDone,
    MeasureJob,
)
from ..problem.space import Config
from ..records.session import Baseline, Decision, SessionResult, SessionState, ranked
from ..records.trial import TrialRecord
from ..search.explore import Exploration
from ..search.optuna_search import SAMPLERS
from .build_queue import BuildQueue
from .device_time import DeviceTime
from .diagnostics import no_legal_config, nothing_worked
from .finals import Finals
from .group_search import GroupSearch
from .observers import Observer
from .predict import TrialPredictor, without_garbage
from .queue import MeasurementQueue
from .request import EFFORT_LIMITS, Request
from .rerank import Reranker
from .trials import Trials

MOST_CACHED = 10_000  # candidates predicted from cached profiles in one step
NEARBY = 16  # after so many measurements the search is asked for as many configs near fast ones
# shares of a time budget after which exploring ends, and building ends if nothing was measured yet
EXPLORE_SHARE, BUILD_SHARE = 0.5, 0.75
EARLY_AFTER = 64  # groups explored before several candidates are built
EARLY_SHARE = 0.25  # of a time budget, after which several are built although fewer groups are explored
_STAGES = {LowerJob: "lowering", BuildJob: "building", MeasureJob: "measuring"}


class Tuner:
    """One session, and the source of its jobs.

    `known` are the records of earlier sessions in the same context; their work is not repeated.
    """

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
        self.limits = EFFORT_LIMITS[request.effort]
        self.begin = time.monotonic()
        self.is_cut = False  # whether the time budget ended something early
        self.trials = Trials()
        self.reranker = Reranker(model, request.target)
        self.predictor = TrialPredictor(model, request.target, self.trials, self.reranker)
        self.baselines: tuple[Baseline, ...] = ()
        self.decision: Decision | None = None
        self.is_noisy = False  # the comparison of the finalists was disturbed
        self.messages: list[str] = []
        self.is_explored = False
        self.device_time = DeviceTime()
        self.space = request.space
        for record in known:
            # a record predicted by another model holds only if it has a measurement or a failure
            if record.config in self.space and (record.prediction or record.measurement or record.failure):
                self.trials.recall(record)
        self.search = GroupSearch(request, self.trials)

    def run(self) -> SessionResult:
        """Run the session. Raises `NoCandidateError` if no config is legal or none works."""
        try:
            if not self.space.configs():
                raise no_legal_config(self.request.workload, self.request.target, self.space)
            self._work()
            if self.measures:
                self._compare()
            if not self.trials.works:
                raise nothing_worked(
                    self.request.workload, self.request.target, self.trials.records.values(), self.is_cut
                )
        except BaseException:
            self.observer.finished(self._result(SessionState.INTERRUPTED))
            raise
        result = self._result(SessionState.COMPLETE)
        if self.is_cut or result.is_noisy or self.is_noisy:  # the next call goes on
            result = replace(result, state=SessionState.INTERRUPTED)
        self.observer.finished(result)
        return result

    @property
    def measures(self) -> bool:
        return self.request.measures and self.limits.measure != 0

    @property
    def only_builds(self) -> bool:
        """Whether candidates are built for the compiler's figures alone."""
        return self.limits.build > 0

    def _predict_cached(self) -> None:
        """Predict all candidates in the profile cache: that costs no more than finding the promising ones."""
        configs = (config for config in self.space.configs() if config not in self.trials.records)
        found = self.executor.cached(
            self.request.candidate(config) for config in itertools.islice(configs, MOST_CACHED)
        )
        with without_garbage():
            records = self.predictor.many(found)
            if not records:
                return
            self.observer.phase("cached", len(records))
            self.observer.trials(records)
        self.search.tell(*(record.config for record in records))
        self.observer.advanced(len(records))
        self.observer.phase_done(f"{self.trials.summary()}; read from the profile cache")

    def _predict_measured(self) -> None:
        """Predict measured candidates that another model or target file predicted, if the cache has them."""
        without = [
            c for c, trial in self.trials.records.items() if trial.measurement and not trial.prediction
        ]
        records = self.predictor.again(self.executor.cached(map(self.request.candidate, without)))
        if records:
            self.observer.trials(records)

    # ---- the stream of jobs

    def _work(self) -> None:
        """Explore up to the limit of the effort, and measure the most promising; on a GPU both overlap."""
        self._predict_measured()
        self._predict_cached()
        self.exploration = Exploration(
            self.search.informed,
            self.search.tell,
            self.search.even_sample,
            self.search.left(self.limits.explore),
        )
        widths = self.executor.width(Lane.PREPARE), self.executor.width(Lane.DEVICE)
        self.queue = MeasurementQueue(
            self.trials,
            self.reranker,
            self.limits.measure,
            self.limits.patience,
            *widths,
            spare=self.request.target.is_gpu,
            default=self.search.default,
        )
        self.builds = BuildQueue(self.trials, self.reranker, self.limits.build, widths[0])
        if self.exploration.wanted:
            self.observer.phase("explore", self.exploration.wanted)
        with closing(self.executor.stream(self)) as stream:
            for event in stream:
                self._take(event)
        self._leave_exploration()
        if self.measures:
            self.observer.phase_done(self._measured_summary())
        if self.only_builds:
            self.observer.phase_done(self.builds.summary())
            self._notify(
                f"{self.builds.built_count} candidates are built and predicted with the compiler's "
                "registers, spills and shared memory; nothing is measured"
            )

    def next(self, lane: Lane) -> Job | None:
        """The next job of a lane, None if there is none now. Builds come before lowerings: devices wait for
        them.
        """
        job = self._next(lane)
        if job is not None:
            self.observer.job_began(_STAGES[type(job)], job.candidate.config)
        return job

    def _next(self, lane: Lane) -> LowerJob | BuildJob | MeasureJob | None:
        if not self.exploration.all_asked and self._late(
            EXPLORE_SHARE if self.measures or self.only_builds else 1.0
        ):
            self.exploration.stop()
        if self.exploration.is_over:
            self._leave_exploration()
        if lane is Lane.DEVICE:
            return self._next_measurement()
        config = self._next_build()
        if config is not None:
            return BuildJob(self.request.candidate(config), runnable=not self.only_builds)
        if self.is_explored and self.queue.is_over:
            return None  # configs near the fastest would not be measured any more
        config = self.exploration.next()
        return None if config is None else LowerJob(self.request.candidate(config))

    def _next_build(self) -> Config | None:
        if self.only_builds:
            return self.builds.next() if self.is_explored and not self._late() else None
        if (
            not self.measures
            or self.queue.is_over
            or self._late(1.0 if self.trials.measured_count else BUILD_SHARE)
        ):
            return None
        if self.is_explored:
            return self.queue.next_build()
        # a processor neither builds nor explores while it measures
        if not self.request.target.is_gpu or not self.exploration.count:
            return None
        if self.exploration.count < EARLY_AFTER and not self._passed(EARLY_SHARE):
            return self.queue.next_build(at_most=1)  # mostly the default config; the file cache warms up
        return self.queue.next_build(
            at_most=None if self.limits.measure is None else int(self.limits.early * self.limits.measure)
        )

    def _next_measurement(self) -> MeasureJob | None:
        if not self.measures or self.queue.is_over or self._late():
            return None
        config = self.queue.next_measure()
        if config is None:
            return None
        self.device_time.began()
        candidate, build, protocol = (
            self.request.candidate(config),
            self.queue.builds[config],
            self.request.protocol,
        )
        # a device that would wait for builds measures this candidate with more samples instead
        if (
            self.request.target.is_gpu
            and self.device_time.share(self.executor.width(Lane.DEVICE)) < self.limits.careful_below
        ):
            return MeasureJob(candidate, build, protocol.careful())
        return MeasureJob(candidate, build, protocol, self.trials.fastest_us)

    def _take(self, event: Event) -> None:
        """Record the outcome of a job, and pass it to queue, exploration and search."""
        if not isinstance(event, CompareDone):
            self.observer.job_ended(_STAGES[type(event.job)], event.job.candidate.config)
        match event:
            case LowerDone(job, outcome):
                config = job.candidate.config
                found = [
                    (c, o)
                    for c, o in self.search.groups.spread(config, outcome)
                    if c not in self.trials.records
                ]
                self.observer.trials(self.predictor.records(found))
                if not self.is_explored:
                    self.observer.advanced()
                self.exploration.record(config)
            case BuildDone(job, result):
                config, before = job.candidate.config, self.trials.records[job.candidate.config].prediction
                record = (self.builds if self.only_builds else self.queue).built(config, result)
                self.observer.trial(record)
                if self.only_builds:
                    self.observer.advanced()
                if record.failure or record.prediction is not before:
                    self.search.tell(config)
            case MeasureDone(job, measurement, seconds):
                config = job.candidate.config
                self.device_time.took(seconds)
                self.observer.trial(self.trials.measured(config, measurement.taking(seconds)))
                self.queue.measured(config)
                self.search.tell(config)
                if self.is_explored:
                    self.observer.advanced()
                    self._look_nearby()
            case CompareDone():
                raise AssertionError("finalists are compared after the stream")

    def _look_nearby(self) -> None:
        """Ask the search for more configs near fast ones."""
        if self.device_time.count % NEARBY or not self.limits.explore or self.queue.is_over or self._late():
            return
        if len(self.trials.records) < len(self.space.configs()):
            self.exploration.more(NEARBY)

    def _leave_exploration(self) -> None:
        """End the exploration, once."""
        if self.is_explored:
            return
        self.is_explored = True
        if self.exploration.wanted:
            lowered = self.exploration.count  # others differ in the order of blocks alone
            shared = f"{lowered} lowerings for " if lowered < len(self.trials.records) else ""
            self.observer.phase_done(shared + self.trials.summary())
            self._predict_cached()  # parametric profiles learned meanwhile may cover others
        self.queue.explored()
        if self.measures:
            self.observer.phase("measure", self.queue.wanted + self.device_time.count)
            self.observer.advanced(self.device_time.count)
        if self.only_builds:
            self.observer.phase("build", self.builds.wanted)

    def _measured_summary(self) -> str:
        left_out = len(self.queue.left_out())
        if left_out:
            built = len(self.queue.builds)
            self._notify(
                f"{left_out} of {built} built candidates were not measured: "
                "by the compiler's registers and spills they are slow"
            )
        if not self.queue.builds and not self.device_time.count:
            return "no candidate is left to measure"
        fastest = self.trials.fastest_us
        parts = [f"{len(self.queue.builds)} built", f"{self.device_time.count} measured"]
        parts += [f"fastest {fastest:.4g} us"] if fastest else []
        if self.device_time.count and self.request.target.is_gpu:  # a processor builds and measures by turns
            parts.append(self.device_time.text(self.executor.width(Lane.DEVICE)))
        return ", ".join(parts)

    def _compare(self) -> None:
        finals = Finals(self.request, self.executor, self.trials, self.observer, self._notify)
        finalists = finals.choose()
        if finalists and not self._late():
            finals.run(finalists, self.queue.builds)
            self.decision, self.baselines = finals.decision, finals.baselines
            self.is_noisy = finals.is_noisy

    def _late(self, share: float = 1.0) -> bool:
        """Whether that share of the time budget has passed, which ends something early."""
        late = self._passed(share)
        self.is_cut = self.is_cut or late
        return late

    def _passed(self, share: float) -> bool:
        budget = self.request.budget_s
        return budget is not None and time.monotonic() - self.begin > share * budget

    def _notify(self, text: str) -> None:
        self.messages.append(text)
        self.observer.message(text)

    def _result(self, state: SessionState) -> SessionResult:
        if self.is_cut:
            self._notify("the time budget ended the search early; run the same command again to continue")
        operator, workload = self.request.template.operator, self.request.workload
        return SessionResult(
            context=self.request.context,
            effort=self.request.effort,
            state=state,
            census=self.space.census(),
            trials=ranked(
                {config.key: trial for config, trial in self.trials.records.items()}, self.decision
            ),
            baselines=self.baselines,
            decision=self.decision,
            flops=operator.flops(workload),
            min_bytes=operator.min_bytes(workload),
            seconds=time.monotonic() - self.begin,
            messages=tuple(self.messages),
        )
