"""The profile cache: profiles of earlier lowerings, in memory and in the database, that answer new ones."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Protocol

from .. import lowering
from .. import profile as profile_package
from ..code_hash import digest, module_hash, modules_used, recorded_version
from ..costmodel import extract
from ..errors import Failure
from ..lowering import dynamic
from ..problem.candidate import Candidate
from ..problem.rasterization import Rasterization
from ..problem.space import Config
from ..problem.workload import Workload
from ..profile import inference
from ..profile.inference import LawInference
from ..profile.parametric import DECODE_ERRORS, ParametricProfile, ProfileKey
from ..profile.shape_class import ShapeClass
from ..profile.values import KernelProfile
from ..target.spec import Target
from .shared_lowering import rasterized
from .tasks import Profiled, fit_failure

BATCH_SIZE = 32  # profiles that one transaction writes


class ProfileStore(Protocol):
    """Stores parametric profiles under a key."""

    def cached_profiles(self, key: ProfileKey) -> list[ParametricProfile]:
        """All profiles that are stored under `key`."""
        ...

    def cache_profiles(self, key: ProfileKey, profiles: Iterable[ParametricProfile]) -> None:
        """Store profiles, each in place of an earlier one of the same key and config."""
        ...


@dataclass
class CacheEntry:
    """The cached profiles of one shape class on one target, and the laws of their structures."""

    key: ProfileKey
    inference: LawInference
    profiles: dict[Config, ParametricProfile] = field(default_factory=dict)

    @property
    def is_exact(self) -> bool:
        """Whether the class is one workload: there is nothing that laws could follow."""
        return not self.inference.shape_class.free

    def without_laws(self, structure: str) -> list[ParametricProfile]:
        """The profiles of one structure that have no laws yet."""
        found = (profile for profile in self.profiles.values() if profile.structure == structure)
        return [profile for profile in found if profile.laws is None and profile.refusal is None]


class ProfileCache:
    """Profiles of candidates that need no lowering. They are kept in memory and in `store`."""

    def __init__(self, store: ProfileStore) -> None:
        self._store = store
        self._entries: dict[str, CacheEntry] = {}  # by digest of the key
        self._latest_entry: tuple[Candidate, CacheEntry | None] | None = None
        self._latest_kernels: tuple[ParametricProfile, Workload, tuple[KernelProfile, ...] | None] | None = (
            None
        )
        self._unwritten: dict[tuple[str, Config], tuple[ProfileKey, ParametricProfile]] = {}

    def lookup(self, candidate: Candidate) -> Profiled | Failure | None:
        """The outcome of lowering `candidate`; None if it must be lowered."""
        entry = self.entry(candidate)
        if entry is None:
            return None
        config, rasterization = base_of(candidate)
        profile = entry.profiles.get(config)
        if profile is None:
            return None
        begin = time.perf_counter()
        try:
            kernels = self._kernels(profile, candidate.workload)
        except DECODE_ERRORS:  # the stored profile is damaged: its config is lowered again
            del entry.profiles[config]
            return None
        if kernels is None:
            return None
        failure = fit_failure(kernels, candidate.target)
        if failure is not None:
            return failure
        fingerprint = profile.fingerprint(candidate.workload.dims)
        found = Profiled(kernels, fingerprint, time.perf_counter() - begin)
        return rasterized(found, rasterization)

    def _kernels(self, profile: ParametricProfile, workload: Workload) -> tuple[KernelProfile, ...] | None:
        """The kernels of `profile` at `workload`.

        Rasterization variants follow one another and share them.
        """
        latest = self._latest_kernels
        if latest is None or latest[0] is not profile or latest[1] is not workload:
            latest = self._latest_kernels = profile, workload, profile.kernels(workload.dims)
        return latest[2]

    def entry(self, candidate: Candidate) -> CacheEntry | None:
        """The entry of the shape class of `candidate`.

        A class without a dimension that scales is one workload, and its profiles have no laws. Those of
        kernels of several devices and of processors are not cached: None.
        """
        if self._latest_entry is not None:
            latest = self._latest_entry[0]
            same = latest.workload is candidate.workload and latest.template is candidate.template
            if same and latest.dynamic == candidate.dynamic and latest.target is candidate.target:
                return self._latest_entry[1]
        found = self._find_entry(candidate)
        self._latest_entry = candidate, found
        return found

    def _find_entry(self, candidate: Candidate) -> CacheEntry | None:
        shape_class = ShapeClass(candidate.template, candidate.workload, candidate.dynamic)
        # the key has neither the network between devices nor which processor `native` is
        if not shape_class.free and (candidate.template.operator.communicates or not candidate.target.is_gpu):
            return None
        template, figures = candidate.template, _lowering_figures(candidate.target)
        key = ProfileKey(template.name, template.version, figures, shape_class.key, reader_version())
        if key.digest not in self._entries:
            stored, laws = self._store.cached_profiles(key), LawInference(shape_class)
            laws.load(stored)
            profiles = {profile.config: laws.apply_laws(profile) for profile in stored}
            self._entries[key.digest] = CacheEntry(key, laws, profiles)
        return self._entries[key.digest]

    def add(self, entry: CacheEntry, profile: ParametricProfile) -> None:
        """Cache `profile`. It is written to the store with others, at the latest by `flush`."""
        if entry.profiles.get(profile.config) == profile:
            return
        entry.profiles[profile.config] = profile
        self._unwritten[entry.key.digest, profile.config] = entry.key, profile
        if len(self._unwritten) >= BATCH_SIZE:
            self.flush()

    def flush(self) -> None:
        """Write all profiles that the store does not have yet."""
        by_key: dict[ProfileKey, list[ParametricProfile]] = {}
        for key, profile in self._unwritten.values():
            by_key.setdefault(key, []).append(profile)
        self._unwritten.clear()
        for key, profiles in by_key.items():
            self._store.cache_profiles(key, profiles)


def base_of(candidate: Candidate) -> tuple[Config, Rasterization | None]:
    """The config that is lowered for `candidate`, and its rasterization if it is a variant of that config."""
    found = candidate.template.reordered(candidate.config)
    return (candidate.config, None) if found is None else found


def _lowering_figures(target: Target) -> str:
    """The figures of a target that lowering and reading use. Targets with equal figures share profiles."""
    options = ",".join(f"{name}={value}" for name, value in sorted(target.tvm_target().items()))
    return f"{target.kind}:{target.arch}:{target.int('warp.threads')}:{options}"


_READER_ROOTS = (dynamic.__name__, extract.__name__, inference.__name__)
_READER_PACKAGES = (lowering.__name__, profile_package.__name__, extract.__name__)


@cache
def reader_version() -> str:
    """12 hex digits over TileLang's version and all code between a template and its profiles.

    The workload, the config and the target are other parts of the key of a profile.
    """
    return recorded_version(digest(f"{version('tilelang')} {module_hash(_READER_ROOTS, _READER_PACKAGES)}"))


def reader_modules() -> list[str]:
    """Full names of the modules with that code: those that lowering and reading a candidate import."""
    return modules_used(_READER_ROOTS, _READER_PACKAGES)
