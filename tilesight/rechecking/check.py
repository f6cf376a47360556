"""The check of one recorded winner: the kernels that it is compared with, and how far they are."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from ..builder.index_files import kernel_name
from ..costmodel.model import CostModel
from ..errors import ConfigError, Failure, FailureKind, UnknownNameError
from ..executor.jobs import Executor
from ..executor.tasks import Profiled
from ..problem.candidate import Candidate
from ..problem.space import Config
from ..records.session import Comparison
from ..records.trial import BuildResult, Measurement, Status, TrialRecord
from ..tuner.predict import TrialPredictor, without_garbage
from ..tuner.request import Request
from ..tuner.rerank import Reranker
from ..tuner.trials import Trials
from .due import DueWinner
from .verdict import RecheckOutcome, RecheckVerdict, judge

if TYPE_CHECKING:
    from ..database.store import Store

MODEL_CHOICES = 3
# Configs that are predicted from cached profiles: those that the recorded context predicted best, and others.
# A prediction takes up to a millisecond, and no comparison begins meanwhile.
PROMISING, OTHERS = 192, 320
MOST_CACHED = 10_000  # if nothing was predicted there
LOWERED = 24  # configs that are lowered if too few profiles are cached, as by `--effort glance`
LOWERED_BEFORE = 16  # of these, of the promising ones
PASSING = (FailureKind.BUILD_MEMORY, FailureKind.RUN_MEMORY)  # of the machine's state, not of the kernel


class WinnerCheck:
    """The stages of one winner: profiles, builds, comparison, verdict.

    Args:
        due: The recorded winner.
        request: Its workload in the present context.
        model: Ranks the configs of its space.
        executor: Knows cached profiles.
        store: Has the predictions of the recorded context.
    """

    def __init__(
        self, due: DueWinner, request: Request, model: CostModel, executor: Executor, store: Store
    ) -> None:
        self.due, self.request = due, request
        self.to_lower: deque[Config] = deque()
        self.lowering: set[Config] = set()
        self.to_build: deque[Config] = deque()
        self.building: set[str] = set()  # names of kernels
        self.builds: dict[Config, BuildResult] = {}
        self.is_comparing = False
        self._choices: list[Config] | None = None  # the recorded winner first
        self._faults: dict[Config, Measurement] = {}  # kernels that spoiled a comparison
        self._trials = Trials()
        self._predictor = TrialPredictor(model, request.target, self._trials, Reranker(model, request.target))
        self._refused = _refusal(request, due.config)
        self._default = request.template.default_config(request.workload, request.target)
        self._predict(executor, store)

    @property
    def recorded(self) -> Config:
        return self.due.config

    @property
    def is_ready(self) -> bool:
        """Whether all that it needs is built."""
        return self._choices is not None and not self.to_build and not self.building and not self.is_comparing

    def candidate(self, config: Config) -> Candidate:
        return self.request.candidate(config)

    def lowered(self, config: Config, outcome: Profiled | Failure) -> None:
        """Take the outcome of a lowering; after the last one the model's choices are known."""
        self.lowering.discard(config)
        self._predictor.records([(config, outcome)])
        if not self.to_lower and not self.lowering:
            self._choose()

    def built(self, name: str, result: BuildResult) -> None:
        """Take the result of a build; `name`: of the kernel."""
        for config in self._choices or ():
            if kernel_name(self.candidate(config)) == name:
                self.builds[config] = result
        self.building.discard(name)

    def finalists(self) -> list[tuple[Candidate, BuildResult]]:
        """The kernels that are compared, the recorded winner first; of equal binaries the first one."""
        found: dict[str, tuple[Candidate, BuildResult]] = {}
        for config in self._choices or ():
            build = self.builds.get(config)
            if build is not None and build.artifact is not None and config not in self._faults:
                found.setdefault(build.binary or config.key, (self.candidate(config), build))
        return list(found.values())

    def spoiled_by(self, found: Comparison) -> bool:
        """Whether one kernel alone spoiled the comparison: it is left out, and the others are compared."""
        compared = [candidate.config for candidate, _ in self.finalists()]
        times = dict(zip(compared, found.measurements, strict=True))
        faults = {c: m for c, m in times.items() if m.failure and not m.is_wrong and not m.is_collateral}
        if len(faults) != 1 or len(times) == 1 or not all(m.failure for m in times.values()):
            return False
        self._faults.update(faults)
        return True

    def conclude(self, found: Comparison) -> tuple[RecheckVerdict, list[TrialRecord], Comparison]:
        """The verdict, the records of all kernels, and the comparison with its final decision."""
        compared = [candidate.config for candidate, _ in self.finalists()]
        times = {**dict(zip(compared, found.measurements, strict=True)), **self._faults}
        verdict, kept = judge(self.recorded, self._fault(), found, times)
        records = [self._record(config, times.get(config)) for config in self._choices or ()]
        return verdict, [record for record in records if record is not None], kept

    def not_compared(self, reason: str) -> RecheckVerdict:
        """The verdict if there is no comparison."""
        fault = self._fault()
        if fault is None or self.finalists():
            return RecheckVerdict(RecheckOutcome.UNDECIDED, f"nothing was compared: {reason}")
        return RecheckVerdict(fault[0], f"{fault[1]}; no other kernel takes its place")

    # ---- the kernels

    def _predict(self, executor: Executor, store: Store) -> None:
        """Predict promising configs from cached profiles; lower some if that are too few.

        Those are promising that were predicted best in the recorded context; others of the space complete
        them. Profiles are not cached for a new TileLang or a changed template.
        """
        space, seed = self.request.space, self.request.seed
        before = [c for c in store.best_predicted(self.due.context, PROMISING) if c in space]
        others = space.sample(OTHERS if before else MOST_CACHED, seed)
        wanted = dict.fromkeys([*before, *others])
        with without_garbage():
            self._predictor.many(executor.cached(map(self.candidate, wanted)))
        if len(self._predicted()) < MODEL_CHOICES:
            first = dict.fromkeys([*before[:LOWERED_BEFORE], *others])
            new = [config for config in first if config not in self._trials.records]
            self.to_lower.extend(new[:LOWERED])
        if not self.to_lower:
            self._choose()

    def _predicted(self) -> list[Config]:
        """Predicted configs, the model's first choice first."""
        scores = [
            (trial.ranking_us, config.key, config)
            for config, trial in self._trials.records.items()
            if trial.status is Status.PREDICTED and trial.ranking_us is not None
        ]
        return [config for _, _, config in sorted(scores, key=lambda score: score[:2])]

    def _choose(self) -> None:
        wanted = [] if self._refused else [self.recorded]
        wanted += [] if self._default is None else [self._default]
        self._choices = list(dict.fromkeys([*wanted, *self._predicted()[:MODEL_CHOICES]]))
        self.to_build.extend(self._choices)

    # ---- the outcome

    def _fault(self) -> tuple[RecheckOutcome, str] | None:
        """Why the recorded winner was not compared."""
        if self._refused:
            return RecheckOutcome.REFUSED, self._refused
        build = self.builds.get(self.recorded)
        failure = None if build is None else build.failure
        if failure is not None:
            outcome = RecheckOutcome.UNDECIDED if failure.kind in PASSING else RecheckOutcome.NOT_BUILT
            return outcome, f"{failure.kind}: {failure.message}"
        spoiled = self._faults.get(self.recorded)
        if spoiled is not None and spoiled.failure is not None:
            return RecheckOutcome.FAILED, f"{spoiled.failure.kind}: {spoiled.failure.message}"
        return None

    def _record(self, config: Config, measurement: Measurement | None) -> TrialRecord | None:
        known, build = self._trials.records.get(config), self.builds.get(config)
        prediction = None if known is None else known.prediction
        if build is None or (measurement is None and build.failure is None):
            return None  # its binary is that of another one
        if measurement is None:
            return TrialRecord(config, Status.FAILED, prediction, build, failure=build.failure)
        if measurement.is_collateral:
            return None
        found = TrialRecord(config, measurement.status, prediction, build, measurement, measurement.failure)
        return found if known is None else replace(found, fingerprint=known.fingerprint)


def _refusal(request: Request, config: Config) -> str:
    """Why a config is not in the search space of the request; "" if it is."""
    try:
        broken = request.space.violations(config)
    except (UnknownNameError, ConfigError) as error:
        return f"its config is not of the present search space: {error}"
    if not broken or (request.context.dynamic and request.space.works(config)):
        return ""
    return f"its config is no longer in the search space: {'; '.join(one.reason for one in broken)}"
