"""An executor that answers lowerings from a profile cache, and adds the results of other lowerings to it.

The first workload of a shape class is lowered as without a cache. From the second workload on, lowering one
config of each structure at two probe workloads (`profile/inference.py`) takes the place of lowering all
configs with that structure. A class without a dimension that scales has one workload: its profiles are those
that were lowered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

from ..errors import Failure
from ..problem.candidate import Candidate
from ..problem.rasterization import Rasterization
from ..profile.inference import PROBES
from ..profile.parametric import ParametricProfile
from .jobs import Event, Executor, Job, JobSource, Lane, LowerDone, LowerJob
from .profile_cache import CacheEntry, ProfileCache, base_of
from .shared_lowering import rasterized
from .tasks import Answer, Profiled

# Number of configs of one structure after which its laws are inferred without a need at the current workload.
# The probes are an eighth more lowerings of that structure, and other workloads find most of their configs in
# the cache.
CONFIGS_FOR_INFERENCE = 16


class CachingExecutor:
    """Wraps another executor, which also builds and measures."""

    def __init__(self, inner: Executor, cache: ProfileCache) -> None:
        self._inner, self._cache = inner, cache

    def stream(self, source: JobSource) -> Generator[Event]:
        return _CachedStream(self._cache, self._inner, source).events()

    def width(self, lane: Lane) -> int:
        return self._inner.width(lane)

    def cached(self, candidates: Iterable[Candidate]) -> Iterator[Answer]:
        for candidate in candidates:
            answer = self._cache.lookup(candidate)
            if answer is not None:
                yield candidate, answer


@dataclass
class _PendingInference:
    """A structure whose probes are being lowered. The `waiting` candidates are answered afterwards."""

    entry: CacheEntry
    profile: ParametricProfile  # of the config that is probed
    probed: dict[int, Profiled | Failure] = field(default_factory=dict)  # by number of the probe
    waiting: list[Candidate] = field(default_factory=list)


class _CachedStream:
    """One call of `stream`: sends the source's jobs and the probes for them through the inner executor.

    It is the job source of the inner executor.
    """

    def __init__(self, cache: ProfileCache, inner: Executor, source: JobSource) -> None:
        self._cache, self._inner, self._source = cache, inner, source
        self._to_lower: deque[Candidate] = deque()
        self._answered: deque[Answer] = deque()
        # by key of the candidate that is lowered for them
        self._waiting: dict[str, list[tuple[Candidate, Rasterization | None]]] = {}
        self._inferences: dict[
            tuple[str, str], _PendingInference
        ] = {}  # by (digest of the cache key, structure)
        self._postponed: list[Candidate] = []  # requested again when an inference ends
        # by key of the candidate at the probe: two structures of one config have the same probes
        self._probes: dict[str, list[tuple[_PendingInference, int]]] = {}

    def events(self) -> Generator[Event]:
        """Run until the source has no more jobs and all candidates are answered."""
        try:
            progress = True
            while progress:  # answers from the cache may lead to new jobs after the inner stream has ended
                progress = False
                with closing(self._inner.stream(self)) as stream:
                    for event in stream:
                        progress = True
                        if isinstance(event, LowerDone):
                            self._handle_lowered(event.job.candidate, event.outcome)
                        else:
                            yield event
                        yield from self._answers()
                while self._answered:
                    progress = True
                    yield from self._answers()
        finally:
            self._cache.flush()

    def next(self, lane: Lane) -> Job | None:
        """The next job of the inner executor: a candidate or probe to lower, or another job of the source."""
        while lane is Lane.DEVICE or not self._to_lower:
            job = self._source.next(lane)
            if not isinstance(job, LowerJob):
                return job
            self._request(job.candidate)
        return LowerJob(self._to_lower.popleft())

    def _answers(self) -> Iterator[Event]:
        while self._answered:
            candidate, outcome = self._answered.popleft()
            yield LowerDone(LowerJob(candidate), outcome)

    def _request(self, candidate: Candidate) -> None:
        """Answer `candidate` from the cache, or lower it, or infer the laws of its structure first."""
        answer = self._cache.lookup(candidate)
        if answer is not None:
            self._answered.append((candidate, answer))
            return
        entry = self._cache.entry(candidate)
        profile = entry.profiles.get(base_of(candidate)[0]) if entry is not None else None
        if entry is None or profile is None or not self._should_infer(entry, profile):
            self._lower(candidate)
        elif self._inferences and not entry.inference.structures:
            # the first inference of a class shows how many samples its other structures need
            self._postponed.append(candidate)
        else:
            self._infer(entry, profile, candidate).waiting.append(candidate)

    def _should_infer(self, entry: CacheEntry, profile: ParametricProfile) -> bool:
        """Whether the structure was lowered at other workloads at least as often as its inference costs."""
        if entry.is_exact or profile.laws is not None or profile.refusal is not None:
            return False
        if profile.structure in entry.inference.structures:
            return False
        if len(profile.samples) < entry.inference.samples_needed:
            return False  # its config would have to be lowered in any case
        alike = entry.without_laws(profile.structure)
        return sum(len(other.samples) for other in alike) >= PROBES

    def _infer(
        self, entry: CacheEntry, profile: ParametricProfile, candidate: Candidate
    ) -> _PendingInference:
        """The pending inference of a structure. Starts it by lowering its probes if there is none."""
        pending = self._inferences.get((entry.key.digest, profile.structure))
        if pending is None:
            pending = self._inferences[entry.key.digest, profile.structure] = _PendingInference(
                entry, profile
            )
            for number in range(PROBES):
                workload = entry.inference.shape_class.probe(number)
                probe = replace(candidate, workload=workload, config=profile.config)
                if probe.key not in self._probes:
                    self._to_lower.append(probe)
                self._probes.setdefault(probe.key, []).append((pending, number))
        return pending

    def _lower(self, candidate: Candidate) -> None:
        config, rasterization = base_of(candidate)
        base = candidate if rasterization is None else replace(candidate, config=config)
        if base.key not in self._waiting:
            self._to_lower.append(base)
        self._waiting.setdefault(base.key, []).append((candidate, rasterization))

    def _handle_lowered(self, lowered: Candidate, outcome: Profiled | Failure) -> None:
        if lowered.key in self._probes:
            for pending, number in self._probes.pop(lowered.key):
                pending.probed[number] = outcome
                if len(pending.probed) == PROBES:
                    self._finish(pending)
            return
        for candidate, rasterization in self._waiting.pop(lowered.key):
            self._answered.append((candidate, rasterized(outcome, rasterization)))
        entry = self._cache.entry(lowered)
        if entry is not None and isinstance(outcome, Profiled):
            self._add_to_cache(entry, lowered, outcome)

    def _add_to_cache(self, entry: CacheEntry, lowered: Candidate, outcome: Profiled) -> None:
        dims = lowered.workload.dims
        profile = entry.inference.first_profile(lowered.config, dims, outcome.fingerprint, outcome.kernels)
        before = entry.profiles.get(lowered.config)
        if before is not None:
            profile = before.with_samples_of(profile)
        self._cache.add(entry, entry.inference.apply_laws(profile))
        unknown = not entry.is_exact and profile.structure not in entry.inference.structures
        if unknown and len(entry.without_laws(profile.structure)) >= CONFIGS_FOR_INFERENCE:
            self._infer(entry, profile, lowered)

    def _finish(self, pending: _PendingInference) -> None:
        """Infer the laws of a structure whose probes are lowered, and answer the waiting candidates."""
        entry, probed = pending.entry, [pending.probed[number] for number in range(PROBES)]
        kernels = [outcome.kernels for outcome in probed if isinstance(outcome, Profiled)]
        self._cache.add(entry, entry.inference.infer_laws(pending.profile, kernels))
        for profile in entry.without_laws(pending.profile.structure):
            self._cache.add(entry, entry.inference.apply_laws(profile))
        del self._inferences[entry.key.digest, pending.profile.structure]
        for candidate in pending.waiting:
            answer = self._cache.lookup(candidate)
            if answer is None:
                self._lower(candidate)
            else:
                self._answered.append((candidate, answer))
        postponed, self._postponed = self._postponed, []
        for candidate in postponed:
            self._request(candidate)
