"""An executor that keeps the profiles of what it lowers, and answers other workloads of the same shape class from them.

A workload is lowered for its own sake: its first answer costs what it costs without any of this. From the second workload
of a class on, two probes for each structure of profiles (`lessons.py`) take the place of lowering all configs that have it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from typing import Protocol

from .candidate import Candidate
from .code_hash import digest, module_hash, modules_used, recorded_version
from .errors import Failure
from .families import DAMAGE, FamilyKey, ProfileFamily
from .jobs import Answer, Profiled, unfit
from .lessons import PROBES, Lessons
from .profile import KernelProfile, Rasterization
from .shape_class import ShapeClass
from .space import Config
from .target import Target
from .twins import ordered
from .work import Event, Executor, Job, Lane, Lower, Lowered, Source
from .workload import Workload

# configs of one structure after which it is learned in passing: an eighth more lowerings of them, and other workloads
# find most of their configs known
ENOUGH_ALIKE = 16
WRITTEN_TOGETHER = 32  # families in one transaction


class FamilyStore(Protocol):
    def kept_families(self, key: FamilyKey) -> list[ProfileFamily]: ...

    def keep_families(self, key: FamilyKey, families: Iterable[ProfileFamily]) -> None: ...


@dataclass
class _Class:
    """What is known of one shape class on one target."""

    key: FamilyKey
    lessons: Lessons
    known: dict[Config, ProfileFamily] = field(default_factory=dict)

    def alike(self, structure: str) -> list[ProfileFamily]:
        """Families of one structure that have no rules."""
        return [f for f in self.known.values() if f.structure == structure and f.rules is None and f.refusal is None]


class KeptExecutor:
    """Wraps another executor. Building and measuring are passed on."""

    def __init__(self, inner: Executor, store: FamilyStore) -> None:
        self._inner, self._store = inner, store
        self._classes: dict[str, _Class] = {}
        self._latest: tuple[Candidate, _Class | None] | None = None
        self._instance: tuple[ProfileFamily, Workload, tuple[KernelProfile, ...] | None] | None = None

    def stream(self, source: Source) -> Generator[Event]:
        return _Call(self, self._inner, self._store, source).events()

    def width(self, lane: Lane) -> int:
        return self._inner.width(lane)

    def kept(self, candidates: Iterable[Candidate]) -> Iterator[Answer]:
        for candidate in candidates:
            answer = self.known(candidate)
            if answer is not None:
                yield candidate, answer

    # ---- what is kept

    def known(self, candidate: Candidate) -> Profiled | Failure | None:
        """Its outcome, where that needs no lowering."""
        place = self.place(candidate)
        if place is None:
            return None
        config, order = _base(candidate)
        family = place.known.get(config)
        if family is None:
            return None
        begin = time.perf_counter()
        try:
            kernels = self._instantiated(family, candidate.workload)
        except DAMAGE:  # what was kept is damaged: it is lowered anew
            del place.known[config]
            return None
        if kernels is None:
            return None
        failure = unfit(kernels, candidate.target)
        if failure is not None:
            return failure
        found = Profiled(kernels, family.fingerprint(candidate.workload.dims), time.perf_counter() - begin)
        return ordered(found, order)

    def _instantiated(self, family: ProfileFamily, workload: Workload) -> tuple[KernelProfile, ...] | None:
        """The family's kernels at `workload`. Twins are mostly asked for one after another, and share them."""
        latest = self._instance
        if latest is None or latest[0] is not family or latest[1] is not workload:
            latest = self._instance = family, workload, family.kernels(workload.dims)
        return latest[2]

    def place(self, candidate: Candidate) -> _Class | None:
        """What is known of its class; None where the template says of no dimension that it may scale."""
        if self._latest is not None:
            latest = self._latest[0]
            same = latest.workload is candidate.workload and latest.template is candidate.template and latest.open == candidate.open
            if same and latest.target is candidate.target:
                return self._latest[1]
        found = self._find_class(candidate) if candidate.template.scales else None
        self._latest = candidate, found
        return found

    def _find_class(self, candidate: Candidate) -> _Class | None:
        shape_class = ShapeClass(candidate.template, candidate.workload, candidate.open)
        if not shape_class.free:
            return None
        template = candidate.template
        key = FamilyKey(template.name, template.version, _lowering_figures(candidate.target), shape_class.key, reader_version())
        if key.digest not in self._classes:
            kept, lessons = self._store.kept_families(key), Lessons(shape_class)
            lessons.recall(kept)
            place = _Class(key, lessons, {family.config: lessons.place(family) for family in kept})
            self._classes[key.digest] = place
        return self._classes[key.digest]


@dataclass
class _Study:
    """A structure that is being learned: `waiting` candidates are answered when it is."""

    place: _Class
    family: ProfileFamily
    probed: dict[int, Profiled | Failure] = field(default_factory=dict)
    waiting: list[Candidate] = field(default_factory=list)


class _Call:
    """One call of `stream`: the source's jobs, and probes that teach something of them, in one stream through the workers."""

    def __init__(self, keeper: KeptExecutor, inner: Executor, store: FamilyStore, source: Source) -> None:
        self._keeper, self._inner, self._store, self._source = keeper, inner, store, source
        self._next: deque[Candidate] = deque()  # to be lowered before others are looked at
        self._ready: deque[Answer] = deque()
        self._waiting: dict[str, list[tuple[Candidate, Rasterization | None]]] = {}  # by key of what is lowered for them
        self._studies: dict[tuple[str, str], _Study] = {}
        self._later: list[Candidate] = []  # looked at again when a study ends
        self._probes: dict[str, tuple[_Study, int]] = {}  # by key of the candidate at the probe
        self._changed: dict[tuple[str, Config], tuple[FamilyKey, ProfileFamily]] = {}

    def events(self) -> Generator[Event]:
        try:
            came = True
            while came:  # what needed no worker may have more asked for after the workers' stream has ended
                came = False
                with closing(self._inner.stream(self)) as stream:
                    for event in stream:
                        came = True
                        if isinstance(event, Lowered):
                            self._take(event.job.candidate, event.outcome)
                        else:
                            yield event
                        yield from self._drained()
                while self._ready:
                    came = True
                    yield from self._drained()
        finally:
            self._write()

    def next(self, lane: Lane) -> Job | None:
        """What to lower, as the workers have room for it; other jobs as they are."""
        while lane is Lane.DEVICE or not self._next:
            job = self._source.next(lane)
            if not isinstance(job, Lower):
                return job
            self._begin(job.candidate)
        return Lower(self._next.popleft())

    def _drained(self) -> Iterator[Event]:
        while self._ready:
            candidate, outcome = self._ready.popleft()
            yield Lowered(Lower(candidate), outcome)

    def _begin(self, candidate: Candidate) -> None:
        answer = self._keeper.known(candidate)
        if answer is not None:
            self._ready.append((candidate, answer))
            return
        place = self._keeper.place(candidate)
        family = place.known.get(_base(candidate)[0]) if place is not None else None
        if place is None or family is None or not self._is_worth_a_study(place, family):
            self._lower(candidate)
        elif self._studies and not place.lessons.known:
            self._later.append(candidate)  # the first lesson of a class tells what others are worth
        else:
            self._study(place, family, candidate).waiting.append(candidate)

    def _is_worth_a_study(self, place: _Class, family: ProfileFamily) -> bool:
        """Whether configs of this structure were lowered as often for other workloads as learning it costs."""
        if family.rules is not None or family.refusal is not None or family.structure in place.lessons.known:
            return False
        if len(family.seen) < place.lessons.samples:
            return False  # it would have to be lowered all the same
        return sum(len(other.seen) for other in place.alike(family.structure)) >= PROBES

    def _study(self, place: _Class, family: ProfileFamily, candidate: Candidate) -> _Study:
        study = self._studies.get((place.key.digest, family.structure))
        if study is None:
            study = self._studies[place.key.digest, family.structure] = _Study(place, family)
            for number in range(PROBES):
                probe = replace(candidate, workload=place.lessons.shape_class.probe(number), config=family.config)
                self._probes[probe.key] = study, number
                self._next.append(probe)
        return study

    def _lower(self, candidate: Candidate) -> None:
        config, order = _base(candidate)
        base = candidate if order is None else replace(candidate, config=config)
        if base.key not in self._waiting:
            self._next.append(base)
        self._waiting.setdefault(base.key, []).append((candidate, order))

    def _take(self, lowered: Candidate, outcome: Profiled | Failure) -> None:
        probe = self._probes.pop(lowered.key, None)
        if probe is not None:
            study, number = probe
            study.probed[number] = outcome
            if len(study.probed) == PROBES:
                self._end(study)
            return
        for candidate, order in self._waiting.pop(lowered.key):
            self._ready.append((candidate, ordered(outcome, order)))
        place = self._keeper.place(lowered)
        if place is not None and isinstance(outcome, Profiled):
            self._remember(place, lowered, outcome)

    def _remember(self, place: _Class, lowered: Candidate, outcome: Profiled) -> None:
        family = place.lessons.begin(lowered.config, lowered.workload.dims, outcome.fingerprint, outcome.kernels)
        before = place.known.get(lowered.config)
        if before is not None:
            family = before.with_seen(family)
        self._keep(place, place.lessons.place(family))
        if family.structure not in place.lessons.known and len(place.alike(family.structure)) >= ENOUGH_ALIKE:
            self._study(place, family, lowered)

    def _end(self, study: _Study) -> None:
        place, probed = study.place, [study.probed[number] for number in range(PROBES)]
        self._keep(place, place.lessons.learn(study.family, [p.kernels for p in probed if isinstance(p, Profiled)]))
        for family in place.alike(study.family.structure):
            self._keep(place, place.lessons.place(family))
        del self._studies[place.key.digest, study.family.structure]
        for candidate in study.waiting:
            answer = self._keeper.known(candidate)
            if answer is None:
                self._lower(candidate)
            else:
                self._ready.append((candidate, answer))
        later, self._later = self._later, []
        for candidate in later:
            self._begin(candidate)

    def _keep(self, place: _Class, family: ProfileFamily) -> None:
        if place.known.get(family.config) == family:
            return
        place.known[family.config] = family
        self._changed[place.key.digest, family.config] = place.key, family
        if len(self._changed) >= WRITTEN_TOGETHER:
            self._write()

    def _write(self) -> None:
        by_key: dict[FamilyKey, list[ProfileFamily]] = {}
        for key, family in self._changed.values():
            by_key.setdefault(key, []).append(family)
        self._changed.clear()
        for key, families in by_key.items():
            self._store.keep_families(key, families)


def _base(candidate: Candidate) -> tuple[Config, Rasterization | None]:
    """The config that is lowered for `candidate`, and the order of blocks that it has instead of that config's."""
    found = candidate.template.reordered(candidate.config)
    return (candidate.config, None) if found is None else found


def _lowering_figures(target: Target) -> str:
    """What lowering and reading take from a target: targets that agree in it share their profiles."""
    options = ",".join(f"{name}={value}" for name, value in sorted(target.tvm_target().items()))
    return f"{target.kind}:{target.arch}:{target.int('warp.threads')}:{options}"


@cache
def reader_version() -> str:
    """12 hex digits over all code between a template and its profiles, and TileLang's version. What is asked (workload, config,
    target) is part of a family's key instead."""
    return recorded_version(digest(f"{version('tilelang')} {module_hash(_READERS, _PACKAGES)}"))


def reader_modules() -> list[str]:
    """Full names of the modules with that code."""
    return modules_used(_READERS, _PACKAGES)


_PACKAGE = __name__.rpartition(".")[0]
_PACKAGES = tuple(
    f"{_PACKAGE}.{name}"
    for name in (
        "costmodel.profile",
        "lowering",
        "open_dims",
        "profile",
        "profile_json",
        "profile_tree",
        "families",
        "lessons",
        "scaling",
        "shape_class",
    )
)
_READERS = tuple(f"{_PACKAGE}.{name}" for name in ("costmodel.profile", "open_dims", "lessons"))
