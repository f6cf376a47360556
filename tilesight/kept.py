"""An executor that lowers for a whole shape class instead of one workload, and keeps what it learns.

A candidate whose profiles are kept needs no compiler. One whose are not is lowered at probe shapes of its class, which
costs about as much as lowering it at its own, and answers every other workload of the class from then on.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from .candidate import Candidate
from .costmodel.occupancy import misfit
from .errors import Failure, FailureKind
from .executor import Built, Comparison, Executor
from .families import PROBES, Families, FamilyKey, ProfileFamily
from .jobs import Profiled
from .profile import KernelProfile, Rasterization
from .shape_class import ShapeClass
from .space import Config
from .target import Target
from .trial import Measurement
from .twins import twin
from .workload import Workload

CHUNK = 32  # candidates that are looked at together: how finely whoever gives them can stop

Answer = tuple[Candidate, Profiled | Failure]


class FamilyStore(Protocol):
    def kept_families(self, key: FamilyKey) -> list[ProfileFamily]: ...

    def keep_families(self, key: FamilyKey, families: Iterable[ProfileFamily]) -> None: ...


@dataclass
class _Class:
    """What is known of one shape class on one target."""

    key: FamilyKey
    families: Families
    known: dict[Config, ProfileFamily] = field(default_factory=dict)


class KeptExecutor:
    """Wraps another executor. Building and measuring are passed on."""

    def __init__(self, inner: Executor, store: FamilyStore) -> None:
        self._inner, self._store = inner, store
        self._classes: dict[str, _Class] = {}
        self._latest: tuple[Candidate, _Class | None] | None = None
        self._instance: tuple[ProfileFamily, Workload, tuple[KernelProfile, ...] | None] | None = None

    def lower(self, candidates: Iterable[Candidate]) -> Iterator[Answer]:
        remaining = iter(candidates)
        while chunk := list(itertools.islice(remaining, CHUNK)):
            unknown = []
            for candidate in chunk:
                answer = self._known(candidate)
                if answer is None:
                    unknown.append(candidate)
                else:
                    yield candidate, answer
            if unknown:
                yield from self._learn(unknown)

    def kept(self, candidates: Iterable[Candidate]) -> Iterator[Answer]:
        for candidate in candidates:
            answer = self._known(candidate)
            if answer is not None:
                yield candidate, answer

    def build(self, candidates: Iterable[Candidate]) -> Iterator[Built]:
        return self._inner.build(candidates)

    def measure(self, builds: Iterable[Built]) -> Iterator[tuple[Candidate, Measurement]]:
        return self._inner.measure(builds)

    def compare(self, finalists: Sequence[Built]) -> Comparison | Failure:
        return self._inner.compare(finalists)

    # ---- what is kept

    def _known(self, candidate: Candidate) -> Profiled | Failure | None:
        place = self._class(candidate)
        if place is None:
            return None
        config, order = _base(candidate)
        family = place.known.get(config)
        if family is None:
            return None
        begin = time.perf_counter()
        try:
            kernels = self._instantiated(family, candidate.workload)
        except (KeyError, IndexError, TypeError, ValueError):  # what was kept is damaged: it is lowered anew
            del place.known[config]
            return None
        if kernels is None:
            return None
        for kernel in kernels:
            reason = misfit(kernel, candidate.target)
            if reason is not None:
                return Failure(FailureKind.DOES_NOT_FIT, f"the kernel {reason}")
        # the code itself is not known: configs that made the same at the probe make the same here
        fingerprint = hashlib.sha256(f"{family.fingerprint}|{candidate.workload.key}".encode()).hexdigest()[:16]
        found = Profiled(kernels, fingerprint, time.perf_counter() - begin)
        return found if order is None else twin(found, order)

    def _instantiated(self, family: ProfileFamily, workload: Workload) -> tuple[KernelProfile, ...] | None:
        """The family's kernels at `workload`. Twins are mostly asked for one after another, and share them."""
        latest = self._instance
        if latest is None or latest[0] is not family or latest[1] is not workload:
            latest = self._instance = family, workload, family.kernels(workload.dims)
        return latest[2]

    def _class(self, candidate: Candidate) -> _Class | None:
        """None where the template says of no dimension that it may scale."""
        if self._latest is not None:
            latest = self._latest[0]
            if latest.workload is candidate.workload and latest.template is candidate.template and latest.target is candidate.target:
                return self._latest[1]
        found = self._find_class(candidate) if candidate.template.scales else None
        self._latest = candidate, found
        return found

    def _find_class(self, candidate: Candidate) -> _Class | None:
        shape_class = ShapeClass(candidate.template, candidate.workload)
        if not shape_class.free:
            return None
        template = candidate.template
        key = FamilyKey(template.name, template.version, _lowering_figures(candidate.target), shape_class.key, reader_version())
        if key.digest not in self._classes:
            place = _Class(key, Families(shape_class))
            place.known |= {family.config: family for family in self._store.kept_families(key)}
            self._classes[key.digest] = place
        return self._classes[key.digest]

    # ---- what is learned

    def _learn(self, candidates: Sequence[Candidate]) -> Iterator[Answer]:
        place = self._class(candidates[0])
        if place is not None:
            self._make_families(place, candidates)
        direct = []
        for candidate in candidates:
            answer = self._known(candidate) if place is not None else None
            if answer is None:
                direct.append(candidate)
            else:
                yield candidate, answer
        yield from self._inner.lower(direct)

    def _make_families(self, place: _Class, candidates: Sequence[Candidate]) -> None:
        """Lower what is needed of `candidates`, all of one class, and keep the families that come of it."""
        bases = {}
        for candidate in candidates:
            config, _ = _base(candidate)
            if config not in place.known:
                bases[config] = replace(candidate, config=config)
        probed: dict[Config, list[Profiled]] = {config: [] for config in bases}
        self._probe(place, bases, probed, bases)
        probed = {config: found for config, found in probed.items() if found}
        families = place.families
        made: list[ProfileFamily] = []
        while probed:
            # of each structure that is new, one config shows the rules; then the others are placed by them
            new: dict[str, Config] = {}
            for config, found in probed.items():
                if families.needed(config, found[0].kernels) == PROBES:
                    new.setdefault(families.structure(config, found[0].kernels), config)
            ready = list(new.values()) or list(probed)
            for count in range(1, PROBES):
                wanted = [c for c in ready if len(probed[c]) == count < families.needed(c, probed[c][0].kernels)]
                self._probe(place, bases, probed, wanted)
            for config in ready:
                found = probed.pop(config)
                tried = len(found) >= families.needed(config, found[0].kernels)
                family = families.make(config, found[0].fingerprint, [p.kernels for p in found])
                if family is None and tried:
                    family = ProfileFamily.refusal(config)
                if family is not None:
                    place.known[config] = family
                    made.append(family)
        self._store.keep_families(place.key, made)

    def _probe(
        self, place: _Class, bases: dict[Config, Candidate], probed: dict[Config, list[Profiled]], configs: Iterable[Config]
    ) -> None:
        """Lower each of `configs` at its next probe. What fails there is left as it is: it is lowered at its own shape."""
        candidates = [replace(bases[config], workload=place.families.shape_class.probe(len(probed[config]))) for config in configs]
        for candidate, outcome in self._inner.lower(candidates):
            if isinstance(outcome, Profiled):
                probed[candidate.config].append(outcome)


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
    """12 hex digits over all code between a template and its profiles."""
    root = Path(__file__).resolve().parent
    files = [*sorted((root / "costmodel" / "profile").glob("*.py")), *(root / f"{name}.py" for name in _MAKERS)]
    digest = hashlib.sha256(version("tilelang").encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


_MAKERS = ("lowering", "profile", "profile_tree", "families", "scaling", "shape_class")
