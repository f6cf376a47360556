"""Predictions of the cost model from cached profiles; nothing is lowered.

A profile is cached for the shape class where its config was lowered. A shape of another class is predicted
with each scaling dimension rounded up to whole tiles of the config: these are the blocks that the kernel
launches there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ...bounded_dict import BoundedDict
from ...costmodel.model import CostModel, fast_part, predict_many
from ...errors import TileSightError
from ...executor.profile_cache import CacheEntry, ProfileCache, ProfileStore
from ...executor.shared_lowering import rasterized
from ...executor.tasks import Profiled, fit_failure
from ...machine.fork_locks import ForkLock
from ...problem.candidate import Candidate
from ...problem.rasterization import Rasterization
from ...problem.space import Config
from ...problem.workload import Workload
from ...profile.parametric import DECODE_ERRORS, ParametricProfile
from ...profile.shape_class import ShapeClass
from ...profile.values import KernelProfile
from ...records.trial import Prediction
from ..problem import DispatchProblem

CACHE_LIMIT = 4096  # predictions in memory
MIN_TILES = 2  # a grid axis of one block disappears from the IR, and with it the profile
# A class is ranked as a whole at these sizes of each free dimension. For a new shape, only the configs that
# are best at the nearest of these shapes are predicted.
RANKED_SIZES = (64, 256, 1024, 4096, 16384)
BEST_PER_SHAPE, NEAREST_SHAPES = 2, 2


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The best configs at one shape, predicted from the profiles in the class of `anchor`.

    `factors` are the ratios of the whole model's times to those of its analytical part.
    """

    workload: Workload
    anchor: Workload
    factors: Mapping[Config, float]


@dataclass(frozen=True, slots=True)
class _ScaledProfile:
    """A config's cached profile and the dimensions for which it is evaluated.

    `key` identifies the predicted time.
    """

    key: tuple[object, ...]
    profile: ParametricProfile
    dims: Mapping[str, int]
    rasterization: Rasterization | None


class CachedPredictor:
    """Predicts configs of one problem. Threads may share it, since its tables are only added to.

    Args:
        problem: the operator, the target and the fixed dimensions.
        store: holds the cached profiles.
        model: predicts times from profiles.
    """

    def __init__(self, problem: DispatchProblem, store: ProfileStore, model: CostModel) -> None:
        self.problem, self.model = problem, model
        # The learned part takes a millisecond, and the ratio of a record to its prediction covers it.
        self._fast_model = fast_part(model)
        self._cache = ProfileCache(store)
        # NaN: there is no prediction
        self._times: BoundedDict[tuple[object, ...], float] = BoundedDict(CACHE_LIMIT)
        self._lowered_times: BoundedDict[tuple[Config, str], float] = BoundedDict(CACHE_LIMIT)
        self._rankings: dict[str, list[_Ranking]] = {}  # by shape class
        self._lock = ForkLock()
        self._entries: dict[str, CacheEntry | None] = {}  # by shape class
        self._class_keys: BoundedDict[tuple[str, tuple[str, ...]], str] = BoundedDict(CACHE_LIMIT)
        # A kernel with dynamic dimensions is predicted from its own profile, else from a static one.
        self._dynamics = tuple(dict.fromkeys([problem.dynamic, ()]))

    def load(self, workloads: Iterable[Workload]) -> None:
        """Read the cached profiles of the workloads' shape classes; later decisions then need no store."""
        for workload in workloads:
            for dynamic_dims in self._dynamics:
                self._entry(workload, dynamic_dims)

    def load_ranking(self, workloads: Iterable[Workload]) -> None:
        """Rank the first shape class of `workloads` that has profiles, so that no decision waits for that."""
        for workload in workloads:
            if self._rank(workload):
                return

    def predict(self, config: Config, workload: Workload, anchor: Workload) -> float | None:
        """Microseconds of `config` at `workload`, from the profiles in the class of `anchor`.

        None if there is no profile, infinity if the kernel does not fit the target.
        """
        lowered = self._lowered_times.get((config, workload.key))
        if lowered is not None:
            return lowered
        for scaled in self._profiles(config, workload, anchor):
            us = self._times.get(scaled.key)
            if us is None:
                us = self._predict(scaled)
                self._times[scaled.key] = us
            if not math.isnan(us):
                return us
        return None

    def set_time(self, config: Config, workload: Workload, us: float) -> None:
        """Use this prediction, made from a lowering, from now on; infinity if the lowering failed."""
        self._lowered_times[config, workload.key] = us

    def best_configs(
        self, workload: Workload, is_legal: Callable[[Config], bool] = bool
    ) -> list[tuple[Config, float]]:
        """A few legal configs with cached profiles and their predicted microseconds, best first.

        A class is ranked as a whole once, at a few shapes. After that only the configs that are best at the
        nearest of these shapes are predicted, also for shapes of other classes. Empty if there are no
        profiles.
        """
        own = self._rankings.get(self._class_key(workload))
        ranking = own or next((found for found in self._rankings.values() if found), None)
        if ranking is None and own is None:
            ranking = self._rank(workload)
        if not ranking:
            return []
        nearest = sorted(ranking, key=lambda ranked: _distance(ranked.workload, workload))[:NEAREST_SHAPES]
        factors: dict[Config, float] = {}
        for ranked in reversed(nearest):
            factors |= {config: factor for config, factor in ranked.factors.items() if is_legal(config)}
        timed = [
            (config, self.predict(config, workload, nearest[0].anchor), f) for config, f in factors.items()
        ]
        found = [(config, us * factor) for config, us, factor in timed if us is not None and us < math.inf]
        return sorted(found, key=lambda pair: pair[1])

    def time_of(self, kernels: Sequence[KernelProfile]) -> float:
        """Microseconds of the fast part of the model; infinity if a kernel does not fit the target."""
        if fit_failure(kernels, self.problem.target) is not None:
            return math.inf
        return self._fast_model.predict(kernels, self.problem.target).latency_us

    # ---- ranking

    def _rank(self, workload: Workload) -> list[_Ranking]:
        found: list[_Ranking] = []
        self._rankings[self._class_key(workload)] = found
        entries = [self._entry(workload, dynamic_dims) for dynamic_dims in self._dynamics]
        filled = [entry for entry in entries if entry is not None and entry.profiles]
        if not filled:
            return found
        shapes = {workload.key: workload}
        for dim in self.problem.free:
            for size in RANKED_SIZES:
                with suppress(TileSightError):  # a size that the operator refuses
                    shape = self.problem.workload(self.problem.key_of({**workload.dims, dim: size}))
                    shapes.setdefault(shape.key, shape)
        for shape in shapes.values():
            factors = self._best_at(list(filled[0].profiles), shape, workload)
            found += [_Ranking(shape, workload, factors)] if factors else []
        return found

    def _best_at(self, configs: Sequence[Config], shape: Workload, anchor: Workload) -> dict[Config, float]:
        """The configs that the whole model ranks first at `shape`, with their factors."""
        known: list[tuple[Config, tuple[KernelProfile, ...]]] = []
        for config in configs:
            kernels = next(map(self._kernels, self._profiles(config, shape, anchor)), None)
            if kernels is not None:
                known.append((config, kernels))
        predictions = predict_many(self.model, [kernels for _, kernels in known], self.problem.target)
        ranked = [
            (prediction.ranking_us, config.key, config, prediction)
            for (config, _), prediction in zip(known, predictions, strict=True)
            if isinstance(prediction, Prediction)
        ]
        best: dict[Config, float] = {}
        for _, _, config, prediction in sorted(ranked, key=lambda item: item[:2])[:BEST_PER_SHAPE]:
            us = self.predict(config, shape, anchor)
            if us is not None and us < math.inf:
                best[config] = prediction.latency_us / us
        return best

    # ---- profiles

    def _entry(self, workload: Workload, dynamic_dims: tuple[str, ...] = ()) -> CacheEntry | None:
        """The cached profiles of its class; None if there are none, or if the store fails."""
        key = self._class_key(workload, dynamic_dims)
        with self._lock:
            if key not in self._entries:
                problem = self.problem
                candidate = Candidate(workload, problem.target, problem.template, Config({}), dynamic_dims)
                self._entries[key] = None
                with suppress(Exception):  # no fault of the store, nor of its content, may fail a call
                    self._entries[key] = self._cache.entry(candidate)
            return self._entries[key]

    def _class_key(self, workload: Workload, dynamic_dims: tuple[str, ...] = ()) -> str:
        pair = workload.key, dynamic_dims
        found = self._class_keys.get(pair)
        if found is None:
            found = self._class_keys[pair] = ShapeClass(self.problem.template, workload, dynamic_dims).key
        return found

    def _profiles(self, config: Config, workload: Workload, anchor: Workload) -> Iterator[_ScaledProfile]:
        """The cached profiles of `config` in the classes of `anchor`, with the dimensions for `workload`."""
        base, rasterization = self.problem.template.reordered(config) or (config, None)
        for dynamic_dims in self._dynamics:
            entry = self._entry(anchor, dynamic_dims)
            profile = None if entry is None else entry.profiles.get(base)
            if profile is not None:
                if not dynamic_dims and self._class_key(workload) == self._class_key(anchor):
                    dims = dict(workload.dims)
                else:
                    dims = self._whole_tiles(config, workload, 1 if dynamic_dims else MIN_TILES)
                key = config, tuple(dims.values()), self._class_key(anchor, dynamic_dims)
                yield _ScaledProfile(key, profile, dims, rasterization)

    def _predict(self, scaled: _ScaledProfile) -> float:
        kernels = self._kernels(scaled)
        with suppress(Exception):  # a damaged profile may raise anything
            return math.nan if kernels is None else self.time_of(kernels)
        return math.nan

    def _kernels(self, scaled: _ScaledProfile) -> tuple[KernelProfile, ...] | None:
        with suppress(*DECODE_ERRORS):
            kernels = scaled.profile.kernels(scaled.dims)
            if kernels is not None:
                found = rasterized(Profiled(kernels, "", 0.0), scaled.rasterization)
                return found.kernels if isinstance(found, Profiled) else None
        return None

    def _whole_tiles(self, config: Config, workload: Workload, min_tiles: int) -> dict[str, int]:
        """The dimensions of `workload`; the free ones that scale are rounded up to whole tiles."""
        dims = dict(workload.dims)
        for dim, scale in self.problem.template.scales.items():
            values = [config.get(name) for name in scale.tiles]
            tile = math.lcm(*(value for value in values if isinstance(value, int) and value > 0), 1)
            if tile > 1 and dim in self.problem.free:
                dims[dim] = max(min_tiles, -(-dims[dim] // tile)) * tile
        return dims


def _distance(one: Workload, other: Workload) -> float:
    return math.dist(*([math.log2(size) for size in workload.dims.values()] for workload in (one, other)))
