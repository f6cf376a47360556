"""Forecasts: what the cost model says of a config at a shape, from profiles that are kept: nothing is lowered.

A config's profile was kept at the shape where it was recorded. What follows a dimension there does so by the config's own
tiles, so a shape of another class is looked at with each such dimension rounded up to whole tiles: these are the blocks that it launches.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..candidate import Candidate
from ..costmodel.model import CostModel, predict_many
from ..errors import TileSightError
from ..families import DAMAGE, ProfileFamily
from ..jobs import Answer, Profiled, unfit
from ..kept import FamilyStore, KeptExecutor
from ..profile import KernelProfile, Rasterization
from ..shape_class import ShapeClass
from ..space import Config
from ..trial import Prediction
from ..twins import ordered
from ..work import Event, Lane, Source
from ..workload import Workload
from .problem import Problem

MOST_KEPT = 4096  # predictions in memory
LEAST_TILES = 2  # a grid axis of one block disappears from the IR, and with it the profile
# A class is ranked as a whole at these sizes of each free dimension; of what is ahead there so many are looked at for a
# new shape: those of the nearest sizes.
SIZES = (64, 256, 1024, 4096, 16384)
LEADERS, NEAREST = 2, 2


class _Nothing:
    """An executor of which nothing is ever asked."""

    def stream(self, source: Source) -> Generator[Event]:
        yield from ()

    def width(self, lane: Lane) -> int:
        return 1

    def kept(self, candidates: Iterable[Candidate]) -> Iterator[Answer]:
        return iter(())


@dataclass(frozen=True, slots=True)
class _Lead:
    """What is ahead at one shape, by the profiles of the class of `anchor`."""

    workload: Workload
    anchor: Workload
    factors: Mapping[Config, float]  # configs, and what the learned part of the model makes of the analytical time there


@dataclass(frozen=True, slots=True)
class _Kept:
    """A config's kept profiles, and the dimensions at which they are looked at. `key`: what its time is remembered by."""

    key: tuple[object, ...]
    family: ProfileFamily
    dims: Mapping[str, int]
    order: Rasterization | None


class Forecaster:
    """Threads may share it: what it keeps is only ever added to."""

    def __init__(self, problem: Problem, store: FamilyStore, model: CostModel) -> None:
        self.problem, self.model = problem, model
        # What the learned part adds is in the ratio of a record to its prediction already, and takes a millisecond.
        self._fast: CostModel = getattr(model, "analytical", None) or getattr(model, "model", None) or model
        self._keeper = KeptExecutor(_Nothing(), store)
        self._times: dict[tuple[object, ...], float] = {}  # not a number: it is not known
        self._rankings: dict[str, list[_Lead]] = {}  # by class
        self._lock = threading.Lock()
        self._places: dict[str, Any] = {}  # by class
        self._classes: dict[tuple[str, tuple[str, ...]], str] = {}  # of shapes
        self._taught: dict[tuple[Config, str], float] = {}
        # a kernel with open dimensions is itself known at all their values; if not, the one that is built for a size is like it
        self._opens = tuple(dict.fromkeys([problem.open, ()]))

    def recall(self, workloads: Iterable[Workload]) -> None:
        """Read what is kept of the shape classes of `workloads`, so that no decision waits for it. Damage is passed over."""
        for workload in workloads:
            for open_dims in self._opens:
                self._place(workload, open_dims)

    def at(self, config: Config, workload: Workload, anchor: Workload) -> float | None:
        """Microseconds that the model gives `config` at `workload`, by what is kept of it in the class of `anchor`; None
        where that is not known, infinity where the kernel does not fit the target."""
        taught = self._taught.get((config, workload.key))
        if taught is not None:
            return taught
        for found in self._kept(config, workload, anchor):
            us = self._times.get(found.key)
            if us is None:
                us = self._predicted(found)
                if len(self._times) >= MOST_KEPT:
                    self._times.clear()
                self._times[found.key] = us
            if not math.isnan(us):
                return us
        return None

    def teach(self, config: Config, workload: Workload, us: float) -> None:
        """What a lowering showed: the model's time, or infinity where it failed."""
        if len(self._taught) >= MOST_KEPT:
            self._taught.clear()
        self._taught[config, workload.key] = us

    def survey(self, workloads: Iterable[Workload]) -> None:
        """Rank what is kept of the class of the first of `workloads` that has some, so that no decision waits for that."""
        for workload in workloads:
            if self._rank(workload):
                return

    def first_choices(self, workload: Workload, is_legal: Callable[[Config], bool] = bool) -> list[tuple[Config, float]]:
        """The legal configs whose kept profiles the model likes best at `workload`, best first, with their times; empty where
        no profiles are kept. A class is ranked as a whole once, at a few sizes; after that only those ahead at the nearest of
        these sizes are looked at, also for shapes of other classes."""
        own = self._rankings.get(self._class(workload))
        ranking = own or next((found for found in self._rankings.values() if found), None)
        if ranking is None and own is None:
            ranking = self._rank(workload)
        if not ranking:
            return []
        nearest = sorted(ranking, key=lambda lead: _distance(lead.workload, workload))[:NEAREST]
        factors = {config: factor for lead in reversed(nearest) for config, factor in lead.factors.items() if is_legal(config)}
        timed = [(config, self.at(config, workload, nearest[0].anchor), factor) for config, factor in factors.items()]
        return sorted([(config, us * f) for config, us, f in timed if us is not None and us < math.inf], key=lambda pair: pair[1])

    def _rank(self, workload: Workload) -> list[_Lead]:
        found: list[_Lead] = []
        self._rankings[self._class(workload)] = found
        places = [place for open_dims in self._opens if (place := self._place(workload, open_dims)) is not None and place.known]
        if not places:
            return found
        shapes = {workload.key: workload}
        for dim in self.problem.free:
            for size in SIZES:
                with suppress(TileSightError):  # a size that the operator refuses
                    shape = self.problem.workload(self.problem.key_of({**workload.dims, dim: size}))
                    shapes.setdefault(shape.key, shape)
        for shape in shapes.values():
            factors = self._ahead(list(places[0].known), shape, workload)
            found += [_Lead(shape, workload, factors)] if factors else []
        return found

    def _ahead(self, configs: Sequence[Config], shape: Workload, anchor: Workload) -> dict[Config, float]:
        """The few that the whole model puts first at `shape`."""
        kept = [(config, next(map(self._kernels, self._kept(config, shape, anchor)), None)) for config in configs]
        known = [(config, kernels) for config, kernels in kept if kernels is not None]
        predictions = predict_many(self.model, [kernels for _, kernels in known], self.problem.target)
        good = [(p.ranking_us, c.key, c, p) for (c, _), p in zip(known, predictions, strict=True) if isinstance(p, Prediction)]
        ahead: dict[Config, float] = {}
        for _, _, config, prediction in sorted(good, key=lambda g: g[:2])[:LEADERS]:
            us = self.at(config, shape, anchor)
            if us is not None and us < math.inf:
                ahead[config] = prediction.latency_us / us
        return ahead

    def _place(self, workload: Workload, open_dims: tuple[str, ...] = ()) -> Any:
        """What is kept of its class; None where nothing is, or the database does not say."""
        key = self._class(workload, open_dims)
        with self._lock:
            if key not in self._places:
                candidate = Candidate(workload, self.problem.target, self.problem.template, Config({}), open_dims)
                self._places[key] = None
                with suppress(Exception):  # any database, any text in it: no call is hurt by that
                    self._places[key] = self._keeper.place(candidate)
            return self._places[key]

    def _class(self, workload: Workload, open_dims: tuple[str, ...] = ()) -> str:
        asked = workload.key, open_dims
        found = self._classes.get(asked)
        if found is None:
            if len(self._classes) >= MOST_KEPT:
                self._classes.clear()
            found = self._classes[asked] = ShapeClass(self.problem.template, workload, open_dims).key
        return found

    def _kept(self, config: Config, workload: Workload, anchor: Workload) -> Iterator[_Kept]:
        """What is kept of `config` in the classes of `anchor`, and where it is looked at for `workload`."""
        base, order = self.problem.template.reordered(config) or (config, None)
        for open_dims in self._opens:
            place = self._place(anchor, open_dims)
            family = None if place is None else place.known.get(base)
            if family is not None:
                same = not open_dims and self._class(workload) == self._class(anchor)
                dims = dict(workload.dims) if same else self._rounded(config, workload, 1 if open_dims else LEAST_TILES)
                yield _Kept((config, tuple(dims.values()), self._class(anchor, open_dims)), family, dims, order)

    def _predicted(self, found: _Kept) -> float:
        kernels = self._kernels(found)
        with suppress(Exception):  # any profile may come here
            return math.nan if kernels is None else self.time_of(kernels)
        return math.nan

    def _kernels(self, found: _Kept) -> tuple[KernelProfile, ...] | None:
        with suppress(*DAMAGE):
            kernels = found.family.kernels(found.dims)
            made = None if kernels is None else ordered(Profiled(kernels, "", 0.0), found.order)
            return made.kernels if isinstance(made, Profiled) else None
        return None

    def time_of(self, kernels: Sequence[KernelProfile]) -> float:
        """Infinity where a kernel does not fit the target."""
        if unfit(kernels, self.problem.target) is not None:
            return math.inf
        return self._fast.predict(kernels, self.problem.target).latency_us

    def _rounded(self, config: Config, workload: Workload, least: int) -> dict[str, int]:
        """The dimensions of `workload`, those that scale as whole tiles of `config`, `least` at least."""
        dims = dict(workload.dims)
        for dim, scale in self.problem.template.scales.items():
            tile = math.lcm(*(value for name in scale.tiles if isinstance(value := config.get(name), int) and value > 0), 1)
            if tile > 1 and dim in self.problem.free:
                dims[dim] = max(least, -(-dims[dim] // tile)) * tile
        return dims


def _distance(one: Workload, other: Workload) -> float:
    return math.dist(*([math.log2(size) for size in workload.dims.values()] for workload in (one, other)))
