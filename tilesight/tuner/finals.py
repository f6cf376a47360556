"""The comparison of finalists: the fastest candidates and the vendor's library, timed in turns in a fresh
process.

Times that were taken minutes apart cannot be compared fairly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..errors import Failure
from ..executor.jobs import BuildDone, BuildJob, CompareDone, CompareJob, Executor, SingleLaneSource
from ..problem.space import Config
from ..records.session import Baseline, Comparison, Decision
from ..records.trial import BuildResult
from .diagnostics import common_failures
from .observers import Observer
from .request import Request
from .trials import Trials

OTHER_LOADS = ("other_load", "other_gpu_load")  # in `Measurement.observed`
# finalists are within the margin of the fastest; at least three, since the fastest may have been lucky
FINALISTS, LEAST_FINALISTS, FINALIST_MARGIN = 8, 3, 1.05


class Finals:
    """The comparison that ends a session. `notify` receives messages for the user."""

    def __init__(
        self,
        request: Request,
        executor: Executor,
        trials: Trials,
        observer: Observer,
        notify: Callable[[str], None],
    ) -> None:
        self._request, self._executor, self._trials, self._observer, self._notify = (
            request,
            executor,
            trials,
            observer,
            notify,
        )
        self.baselines: tuple[Baseline, ...] = ()
        self.decision: Decision | None = None
        self.is_noisy = False  # other work on the machine disturbed the comparison

    def choose(self) -> list[Config]:
        """The finalists, fastest first. If no candidate was measured, the user is told why."""
        finalists = self._trials.fastest(FINALISTS, FINALIST_MARGIN, LEAST_FINALISTS)
        broken = [t for t in self._trials.records.values() if t.build and t.failure]
        if not finalists and broken:
            self._notify(f"no candidate could be measured: {common_failures(broken)}")
        return finalists

    def run(self, finalists: Sequence[Config], known: Mapping[Config, BuildResult]) -> None:
        """Time the finalists. `known` are the builds of this session; finalists of an earlier session are
        built anew.
        """
        self._observer.phase("compare", None)
        builds = {config: known[config] for config in finalists if config in known}
        missing = SingleLaneSource(
            BuildJob(self._request.candidate(config)) for config in finalists if config not in builds
        )
        for event in self._executor.stream(missing):
            if isinstance(event, BuildDone) and event.result.artifact:
                builds[event.job.candidate.config] = event.result
        ready = {config: builds[config] for config in finalists if config in builds}
        if ready:
            self._time(ready)
        else:
            self._fail("the finalists, which were measured in an earlier session, no longer build")

    def _time(self, ready: Mapping[Config, BuildResult]) -> None:
        pairs = tuple((self._request.candidate(config), build) for config, build in ready.items())
        [event] = self._executor.stream(
            SingleLaneSource([CompareJob(pairs, self._request.protocol.careful())])
        )
        assert isinstance(event, CompareDone)
        found = event.found
        if isinstance(found, Failure):
            self._fail(found.message)
            return
        measured = dict(zip(ready, found.measurements, strict=True))
        for config, measurement in measured.items():
            # a wrong result here invalidates an earlier correct one; other faults do not affect the earlier
            # time
            if not measurement.failure or measurement.is_wrong:
                self._observer.trial(self._trials.measured(config, measurement))
        faults = {c: m for c, m in measured.items() if m.failure and not m.is_wrong and not m.is_collateral}
        if len(faults) == 1 and len(ready) > 1 and all(m.failure for m in found.measurements):
            # one kernel spoiled the comparison: the others are compared without it
            [(config, measurement)] = faults.items()
            assert measurement.failure is not None
            self._notify(
                f"finalist {config} is left out: {measurement.failure.kind}: {measurement.failure.message}"
            )
            self._observer.trial(self._trials.measured(config, measurement))
            self._time({other: build for other, build in ready.items() if other != config})
            return
        self._conclude(found, len(ready))

    def _conclude(self, found: Comparison, count: int) -> None:
        for note in found.notes:
            self._notify(note)
        failures = [m.failure for m in found.measurements if m.failure]
        if len(failures) == len(found.measurements):
            self._fail(failures[0].message)
            return
        self.decision, self.baselines = found.decision, found.baselines
        self._note_noise(found)
        if self.decision is not None and self.decision.tied:
            self._notify(f"the winner: {self.decision.reason}")
        self._observer.baselines(found.baselines)
        vendor = ", ".join(f"{b.name} {b.latency_us:.4g} us" for b in found.baselines)
        ours = "the fastest" if count == 1 else f"the {count} fastest"
        self._observer.phase_done(
            f"{ours} in turns with {vendor or 'no vendor library, since none is installed'}"
        )

    def _note_noise(self, found: Comparison) -> None:
        """Drop the decision if the finalists' times are noisy, and tell the user."""
        noisy = [measurement.spread for measurement in found.measurements if measurement.is_noisy]
        loads = [m.observed.get(name, 0.0) for m in found.measurements for name in OTHER_LOADS]
        load = max(loads, default=0.0)
        vendor = [baseline.spread for baseline in found.baselines if baseline.is_noisy]
        self.is_noisy = bool(noisy or vendor)
        if noisy:
            self.decision = None
            self._notify(
                f"too noisy to tell which finalist is the fastest (± {max(noisy):.0%}"
                f"{f', other processes used {load:.0%} of the device' if load else ''}); tune again when the "
                "machine is idle"
            )
        elif vendor:
            self._notify(
                f"a vendor's time is noisy (± {max(vendor):.0%}); tune again when the machine is idle"
            )

    def _fail(self, reason: str) -> None:
        self._notify(f"no comparison with the vendor's library: {reason}")
        self._observer.phase_done("failed")
