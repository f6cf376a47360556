"""The tuner: the one loop in which all stages meet.

    census -> explore (ask, lower and profile, predict, tell) -> build (predict again) -> measure, tell -> compare

It hands out jobs lane by lane, as the executor has room for them: candidates are built best-predicted first, measured as
soon as a device is free, and on a GPU the first are built while others are still explored. What does the work (executor,
model, search) is handed in, and side effects are observers' business.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from contextlib import closing
from functools import cached_property

from .compiled import SecondLook
from .contenders import Contenders
from .costmodel.model import CostModel
from .device_time import DeviceTime
from .errors import UnknownNameError
from .exploration import EVEN, Exploration
from .finals import Finals
from .observers import Observer
from .predicting import Predicting, without_garbage
from .reasons import no_legal_config, nothing_worked
from .request import PLANS, Request
from .sampling import stratified
from .search import SAMPLERS, Searcher
from .session import Baseline, Decision, SessionResult, State, ranked
from .space import Config
from .trial import TrialRecord
from .trials import Trials
from .twins import Groups
from .work import Build, Built, Compared, Event, Executor, Job, Lane, Lower, Lowered, Measure, Measured

MOST_KEPT = 10_000  # candidates predicted from kept profiles in one go
NEARBY = 16  # asked of the search after as many measurements: near what turned out fast
EXPLORE_SHARE, BUILD_SHARE = 0.5, 0.75  # of a time budget: when these end, where a first measurement follows
EARLY_AFTER = 64  # groups explored after which the first candidates are built


class Tuner:
    """One session, and the source of its jobs. `known` are the records of earlier ones in the same context: none of their
    work is repeated."""

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
        self.predicting = Predicting(model, request.target, self.trials, self.second_look)
        self.baselines: tuple[Baseline, ...] = ()
        self.decision: Decision | None = None
        self.messages: list[str] = []
        self.is_explored = False
        self.device_time = DeviceTime()
        self.space = request.space
        for record in known:
            # one whose prediction was another model's is looked at again, unless it was measured
            if record.config in self.space and (record.prediction or record.measurement or record.failure):
                self.trials.recall(record)
        self._untold = list(self.trials.records)

    @cached_property
    def groups(self) -> Groups:
        """What is lowered together: the search asks for one config of each group."""
        return Groups(self.request.template, self.space.configs())

    @cached_property
    def _search(self) -> Searcher:
        sampler, seed = self.request.sampler, self.request.seed
        return Searcher(self.space, sampler=sampler, seed=seed, first=self._default, configs=self.groups.firsts)

    @cached_property
    def _default(self) -> Config | None:
        config = self.request.template.default_config(self.request.workload, self.request.target)
        return None if config is None or config not in self.space else self.groups.first(config)

    def run(self) -> SessionResult:
        """Raises `NoCandidateError` where nothing is legal or nothing worked; whatever ends it early is passed on."""
        try:
            if not self.space.configs():
                raise no_legal_config(self.request.workload, self.request.target, self.space)
            self._work()
            if self.measures:
                self._compare()
            if not self.trials.works:
                raise nothing_worked(self.request.workload, self.request.target, self.trials.records.values(), self.cut)
        except BaseException:
            self.observer.finished(self._result(State.INTERRUPTED))
            raise
        result = self._result(State.INTERRUPTED if self.cut else State.COMPLETE)
        self.observer.finished(result)
        return result

    @property
    def measures(self) -> bool:
        return self.request.measures and self.plan.measure != 0

    def _take_kept(self) -> None:
        """Predict whatever needs no lowering: all of it, since it costs no more than looking for the promising part."""
        open_configs = (config for config in self.space.configs() if config not in self.trials.records)
        found = self.executor.kept(self.request.candidate(config) for config in itertools.islice(open_configs, MOST_KEPT))
        with without_garbage():
            records = self.predicting.many(found)
            if not records:
                return
            self.observer.phase("kept", len(records))
            self.observer.trials(records)
        self._tell(*(record.config for record in records))
        self.observer.advanced(len(records))
        self.observer.phase_done(f"{self.trials.summary()}; their profiles were kept")

    # ---- the stream of jobs

    def _work(self) -> None:
        """Explore as far as the plan says, and measure what is most promising; on a GPU both overlap."""
        self._take_kept()
        self.exploration = Exploration(self._informed_search, self._tell, self._even_sample, self._unknown())
        widths = self.executor.width(Lane.PREPARE), self.executor.width(Lane.DEVICE)
        self.contenders = Contenders(
            self.trials, self.second_look, self.plan.measure, self.plan.patience, *widths, spare=self.request.target.is_gpu
        )
        if self.exploration.wanted:
            self.observer.phase("explore", self.exploration.wanted)
        with closing(self.executor.stream(self)) as stream:
            for event in stream:
                self._take(event)
        self._leave_exploration()
        if self.measures:
            self.observer.phase_done(self._measured_summary())

    def next(self, lane: Lane) -> Job | None:
        """The next job for an executor that has room on a lane. Builds go before exploring further: devices wait for them."""
        if not self.exploration.is_asked and self._late(EXPLORE_SHARE if self.measures else 1.0):
            self.exploration.stop()
        if self.exploration.is_over:
            self._leave_exploration()
        if lane is Lane.DEVICE:
            return self._next_measurement()
        config = self._next_build()
        if config is not None:
            return Build(self.request.candidate(config))
        if self.is_explored and self.contenders.is_over:
            return None  # what is near the fastest will not be measured any more
        config = self.exploration.next()
        return None if config is None else Lower(self.request.candidate(config))

    def _next_build(self) -> Config | None:
        if not self.measures or self.contenders.is_over or self._late(1.0 if self.trials.measured_count else BUILD_SHARE):
            return None
        if self.is_explored:
            return self.contenders.next_build()
        # a processor does not build or explore while it measures: there is nothing to overlap
        if not self.request.target.is_gpu or not self.exploration.count:
            return None
        if self.exploration.count < EARLY_AFTER:
            return self.contenders.next_build(at_most=1)  # mostly the default config; compilers get warm with it
        return self.contenders.next_build(at_most=None if self.plan.measure is None else int(self.plan.early * self.plan.measure))

    def _next_measurement(self) -> Job | None:
        if not self.measures or self.contenders.is_over or self._late():
            return None
        config = self.contenders.next_measure()
        if config is None:
            return None
        self.device_time.began()
        candidate, build, protocol = self.request.candidate(config), self.contenders.builds[config], self.request.protocol
        # time in which a device would wait for others to be built is well spent on knowing this one better
        if self.request.target.is_gpu and self.device_time.share(self.executor.width(Lane.DEVICE)) < self.plan.care_below:
            return Measure(candidate, build, protocol.careful())
        return Measure(candidate, build, protocol, self.trials.fastest_us)

    def _take(self, event: Event) -> None:
        """Record what came of a job, and tell whoever goes by it."""
        match event:
            case Lowered(job, outcome):
                config = job.candidate.config
                found = [(c, o) for c, o in self.groups.spread(config, outcome) if c not in self.trials.records]
                self.observer.trials(self.predicting.records(found))
                if not self.is_explored:
                    self.observer.advanced()
                self.exploration.arrived(config)
            case Built(job, result):
                config, before = job.candidate.config, self.trials.records[job.candidate.config].prediction
                record = self.contenders.built(config, result)
                self.observer.trial(record)
                if record.failure or record.prediction is not before:
                    self._tell(config)
            case Measured(job, measurement, seconds):
                config = job.candidate.config
                self.device_time.took(seconds)
                self.observer.trial(self.trials.measured(config, measurement))
                self.contenders.measured(config)
                self._tell(config)
                if self.is_explored:
                    self.observer.advanced()
                    self._look_nearby()
            case Compared():
                raise AssertionError("finalists are compared after the stream")

    def _unknown(self) -> int:
        """Groups still to be lowered."""
        groups = len(self.groups.firsts)
        known = {self.groups.first(config) for config in self.trials.records}
        return min(self.plan.explore or groups, groups) - sum(self._is_known(first) for first in known)

    def _is_known(self, first: Config) -> bool:
        """Whether nothing is left to be learned of a group: of one that an earlier model knew, only measured ones are recalled."""
        return all(config in self.trials.records for config in self.groups.members(first))

    def _even_sample(self) -> list[Config]:
        """Groups to begin with, those of an even sample of the space."""
        sample = stratified(self.space, 3 * EVEN, self.request.seed, self._default)
        return list(dict.fromkeys(self.groups.first(config) for config in sample))[:EVEN]

    def _look_nearby(self) -> None:
        """Ask for more configs near what turned out fast."""
        if self.device_time.count % NEARBY or not self.plan.explore or self.contenders.is_over or self._late():
            return
        if len(self.trials.records) < len(self.space.configs()):
            self.exploration.more(NEARBY)

    def _leave_exploration(self) -> None:
        """Once: from here on, candidates are measured."""
        if self.is_explored:
            return
        self.is_explored = True
        if self.exploration.wanted:
            self.observer.phase_done(self.trials.summary())
            self._take_kept()  # what was lowered meanwhile may stand for others
        self.contenders.explored()
        if self.measures:
            self.observer.phase("measure", self.contenders.wanted + self.device_time.count)
            self.observer.advanced(self.device_time.count)

    def _measured_summary(self) -> str:
        left_out = len(self.contenders.left_out())
        if left_out:
            built = len(self.contenders.builds)
            self._say(f"{left_out} of {built} built candidates are not measured: with the compiler's registers and spills they are slow")
        if not self.contenders.builds and not self.device_time.count:
            return "nothing is left to be measured"
        fastest = self.trials.fastest_us
        parts = [f"{len(self.contenders.builds)} built", f"{self.device_time.count} measured"]
        parts += [f"fastest {fastest:.4g} us"] if fastest else []
        if self.device_time.count and self.request.target.is_gpu:  # a processor builds and measures by turns
            parts.append(self.device_time.text(self.executor.width(Lane.DEVICE)))
        return ", ".join(parts)

    def _compare(self) -> None:
        finals = Finals(self.request, self.executor, self.trials, self.observer, self._say)
        finalists = finals.choose()
        if finalists and not self._late():
            finals.run(finalists, self.contenders.builds)
            self.decision, self.baselines = finals.decision, finals.baselines

    def _tell(self, *configs: Config) -> None:
        """What is recorded of `configs` is news for the search, should it be asked again."""
        self._untold += configs

    def _informed_search(self) -> Searcher:
        """The search, told of the best of each group with news. Made when it is first asked: kept profiles of a whole space
        need none, nor the packages behind it."""
        records, news = self.trials.records, dict.fromkeys(self.groups.first(config) for config in self._untold)
        self._untold.clear()
        for first in filter(self._is_known, news):
            known = self.groups.members(first)
            values = [value for config in known if (value := self.trials.value(config)) is not None]
            is_measured = any(records[config].measured_us is not None for config in known)
            self._search.tell(first, min(values, default=None), measured=is_measured)
        return self._search

    def _late(self, share: float = 1.0) -> bool:
        budget = self.request.budget_s
        late = budget is not None and time.monotonic() - self.begin > share * budget
        self.cut = self.cut or late
        return late

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
            trials=ranked({config.key: trial for config, trial in self.trials.records.items()}, self.decision),
            baselines=self.baselines,
            decision=self.decision,
            flops=operator.flops(workload),
            min_bytes=operator.min_bytes(workload),
            seconds=time.monotonic() - self.begin,
            messages=tuple(self.messages),
        )
