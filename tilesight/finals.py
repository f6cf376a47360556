"""Finals: the fastest candidates and the vendor's library, timed in turns in a fresh process. What was measured minutes
apart is no fair comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .errors import Failure
from .observers import Observer
from .reasons import common_failures
from .request import Request
from .session import Baseline, Comparison, Decision
from .space import Config
from .trial import BuildResult
from .trials import Trials
from .work import Build, Built, Compare, Compared, Executor, OneLane

# those within this factor of the fastest, and some in any case, since it may have been lucky
FINALISTS, LEAST_FINALISTS, FINALIST_MARGIN = 8, 3, 1.05


class Finals:
    """`say` takes what the user must know."""

    def __init__(self, request: Request, executor: Executor, trials: Trials, observer: Observer, say: Callable[[str], None]) -> None:
        self._request, self._executor, self._trials, self._observer, self._say = request, executor, trials, observer, say
        self.baselines: tuple[Baseline, ...] = ()
        self.decision: Decision | None = None

    def choose(self) -> list[Config]:
        """Who takes part. Says why, where nobody can."""
        finalists = self._trials.fastest(FINALISTS, FINALIST_MARGIN, LEAST_FINALISTS)
        broken = [t for t in self._trials.records.values() if t.build and t.failure]
        if not finalists and broken:
            self._say(f"no candidate could be measured: {common_failures(broken)}")
        return finalists

    def run(self, finalists: Sequence[Config], known: Mapping[Config, BuildResult]) -> None:
        """`known`: what is built. Those that were measured in an earlier session are built anew."""
        self._observer.phase("compare", None)
        builds = {config: known[config] for config in finalists if config in known}
        missing = OneLane(Build(self._request.candidate(config)) for config in finalists if config not in builds)
        for event in self._executor.stream(missing):
            if isinstance(event, Built) and event.result.artifact:
                builds[event.job.candidate.config] = event.result
        ready = {config: builds[config] for config in finalists if config in builds}
        if ready:
            self._time(ready)
        else:
            self._fail("the finalists, measured in an earlier session, do not build any more")

    def _time(self, ready: Mapping[Config, BuildResult]) -> None:
        pairs = tuple((self._request.candidate(config), build) for config, build in ready.items())
        [event] = self._executor.stream(OneLane([Compare(pairs, self._request.protocol.careful())]))
        assert isinstance(event, Compared)
        found = event.found
        if isinstance(found, Failure):
            self._fail(found.message)
            return
        measured = dict(zip(ready, found.measurements, strict=True))
        for config, measurement in measured.items():
            # one that turns out wrong is no result, however right it was before; other faults say nothing against its time
            if not measurement.failure or measurement.is_wrong:
                self._observer.trial(self._trials.measured(config, measurement))
        faults = {c: m for c, m in measured.items() if m.failure and not m.is_wrong and not m.is_bystander}
        if len(faults) == 1 and len(ready) > 1 and all(m.failure for m in found.measurements):
            # it spoiled the comparison for all: the others have theirs without it
            [(config, measurement)] = faults.items()
            assert measurement.failure is not None
            self._say(f"finalist {config} is left out: {measurement.failure.kind}: {measurement.failure.message}")
            self._observer.trial(self._trials.measured(config, measurement))
            self._time({other: build for other, build in ready.items() if other != config})
            return
        self._conclude(found, len(ready))

    def _conclude(self, found: Comparison, count: int) -> None:
        for note in found.notes:
            self._say(note)
        failures = [m.failure for m in found.measurements if m.failure]
        if len(failures) == len(found.measurements):
            self._fail(failures[0].message)
            return
        if found.decision is not None and found.decision.tied:
            self._say(f"the winner: {found.decision.reason}")
        self.decision, self.baselines = found.decision, found.baselines
        self._observer.baselines(found.baselines)
        vendor = ", ".join(f"{b.name} {b.latency_us:.4g} us" for b in found.baselines)
        ours = "the fastest" if count == 1 else f"the {count} fastest"
        self._observer.phase_done(f"{ours} in turns with {vendor or 'no vendor library: none is here'}")

    def _fail(self, reason: str) -> None:
        self._say(f"no comparison with the vendor's library: {reason}")
        self._observer.phase_done("failed")
