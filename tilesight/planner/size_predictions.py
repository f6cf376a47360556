"""Predictions of many configs at many sizes.

A search at a few anchor sizes decides which configs are lowered. At other sizes they are predicted from
cached profiles; a template without these has only promising configs lowered again.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..costmodel.model import CostModel, predict_many
from ..errors import Failure
from ..executor.jobs import Executor, LowerDone, LowerJob, SingleLaneSource
from ..executor.shared_lowering import RasterizationGroups
from ..executor.tasks import Profiled
from ..problem.candidate import Candidate
from ..problem.space import Config
from ..records.trial import Prediction
from ..search.optuna_search import Searcher
from ..search.stratified import stratified
from ..tuner.observers import Observer
from ..tuner.predict import TOGETHER, without_garbage
from .plan_problem import PlanProblem
from .size_correction import Row
from .sizes import evenly_spaced

ANCHORS = 8
EVEN_PART = 3  # one in this many of an anchor's configs belongs to a stratified sample
ROUNDS = 3  # of requests for the other configs, each by the predictions known then
AROUND = 4  # anchors around a size whose best configs are promising there
# times the best predicted time: configs that are promising, and configs whose rasterization variants are
# predicted
NEAR, NEAR_VARIANT = 1.3, 1.1

Pair = tuple[Config, int]


@dataclass(frozen=True, slots=True)
class SizePrediction:
    """The prediction of a config at a size, and the profile that it follows from."""

    prediction: Prediction
    lowered: Profiled


class SizePredictions:
    """`until`: when lowering ends, by the monotonic clock."""

    def __init__(
        self,
        problem: PlanProblem,
        model: CostModel,
        executor: Executor,
        observer: Observer,
        until: float = math.inf,
    ) -> None:
        self._problem, self._model, self._executor, self._observer, self._until = (
            problem,
            model,
            executor,
            observer,
            until,
        )
        self._known: dict[
            Pair, SizePrediction | None
        ] = {}  # at sizes of `PlanProblem.profile_size`; None: it failed there
        self._times: dict[Config, dict[int, float]] = {}
        self.anchors: list[int] = []
        self.configs: dict[Config, None] = {}  # explored configs, in order
        self.lowered = 0
        self._is_closed = False  # whether predictions were given, and no others are made
        self.is_cut = False  # the time ended before all that was wanted was lowered

    @property
    def count(self) -> int:
        """Number of predictions."""
        return sum(map(len, self._times.values()))

    def prediction_at(self, config: Config, size: int) -> SizePrediction | None:
        """What is known of a config at a size."""
        return self._known.get((config, self._problem.profile_size(size, config)))

    def time_us(self, config: Config, size: int) -> float:
        """The predicted time that configs are ranked by, in microseconds; NaN if there is none."""
        return self._times.get(config, {}).get(self._problem.profile_size(size, config), math.nan)

    def row(self, config: Config, sizes: Sequence[int]) -> Row:
        """Predicted times of a config at these sizes, in microseconds.

        Sizes without a prediction are interpolated between those with one (in whole tiles). Below all of
        these it is the time of the smallest, which is too high if anything; above all it is NaN.
        """
        times = np.array([self.time_us(config, size) for size in sizes])
        known = self._times.get(config, {})
        if known and np.isnan(times).any():
            at = sorted(known)
            wanted = np.array([self._problem.profile_size(size, config) for size in sizes])
            between = np.interp(np.log(wanted), np.log(at), np.log([known[size] for size in at]))
            times = np.where(np.isnan(times) & (wanted <= at[-1]), np.exp(between), times)
        return times

    def take(
        self, configs: Iterable[Config], predicted_us: Mapping[Config, Mapping[int, float]] | None = None
    ) -> None:
        """Predict these configs at the anchor sizes, in place of an exploration.

        With `predicted_us`, from `known_times`, nothing is predicted, now or later.
        """
        self.anchors = self._anchors(ANCHORS)
        self.configs.update(dict.fromkeys(configs))
        if predicted_us is not None:
            self._is_closed = True
            self._times.update({c: dict(times) for c, times in predicted_us.items() if c in self.configs})
            return
        self._observer.phase("predict", None)
        works = self._problem.works
        self.predict(
            (config, size) for size in self.anchors for config in self.configs if works(size, config)
        )
        counts = f"{len(self.configs)} given configs at {len(self.anchors)} sizes, {self.lowered} lowered"
        self._observer.phase_done(f"{counts}, {self.count} predictions")

    def known_times(self, config: Config) -> dict[int, float]:
        """The predicted times of a config in microseconds, by size."""
        return dict(self._times.get(config, {}))

    def _anchors(self, count: int) -> list[int]:
        return evenly_spaced(self._problem.vary, count, min(self._problem.tile_sizes))

    def explore(self, wanted: int, seed: int) -> None:
        """Lower and predict about `wanted` groups of configs, those that matter at some anchor size.

        Configs with cached profiles, e.g. those of other sizes of the fixed dimensions, come first.
        """
        self.anchors = self._anchors(max(2, min(ANCHORS, wanted // 4)))
        searches = [_AnchorSearch(self._problem, size, seed) for size in self.anchors]
        share = max(1, wanted // len(searches))
        self._observer.phase("explore", None)
        for search in searches:
            self.predict(((config, search.size) for config in search.firsts), lower=False)
            self.configs.update(dict.fromkeys(self.times(search.firsts, search.size)))
        for round_number in range(1 + ROUNDS):
            requested: list[Pair] = []
            for search in searches:
                self.predict(((c, search.size) for c in self.configs if search.includes(c)), lower=False)
                search.learn(self)
                if round_number == 0:
                    default = self._problem.default(search.size)
                    known = [default] if default is not None else []
                    new = search.stratified(max(1, share // EVEN_PART), known)
                else:
                    new = search.promising((share - share // EVEN_PART) // ROUNDS)
                requested += [(config, search.size) for config in new]
            self.predict(requested)
            self.configs.update(dict.fromkeys(config for config, _ in requested))
        for search in searches:
            self._add_variants(search)
        self._observer.phase_done(
            f"{len(self.configs)} configs at {len(searches)} sizes, {self.lowered} lowered, "
            f"{self.count} predictions"
        )

    def _add_variants(self, search: _AnchorSearch) -> None:
        """Predict rasterization variants of the best configs: their lowering is known."""
        times = self.times(self.configs, search.size)
        best = min(times.values(), default=math.nan)
        variants = [
            variant
            for config, us in times.items()
            if us <= NEAR_VARIANT * best
            for variant in search.variants(config)
        ]
        self.predict((config, search.size) for config in variants)
        self.configs.update(dict.fromkeys(variants))

    def times(self, configs: Iterable[Config], size: int) -> dict[Config, float]:
        """Predicted times at a size, of configs that have one."""
        return {config: us for config in configs if not math.isnan(us := self.time_us(config, size))}

    def promising(self, size: int, count: int) -> list[Config]:
        """Up to `count` configs that are among the best at the anchors around a size.

        The best config of each tile (all parameters that tile a dimension) comes first, then the second of
        each, and so on: between the anchors another tile may be the one that fits.
        """
        around = sorted(self.anchors, key=lambda anchor: abs(math.log(anchor / size)))[:AROUND]
        ratios: dict[Config, float] = {}
        for anchor in around:
            times = self.times(self.configs, anchor)
            best = min(times.values(), default=math.nan)
            for config, us in times.items():
                if us <= NEAR * best and self._problem.works(size, config):
                    ratios[config] = min(us / best, ratios.get(config, math.inf))
        scales = self._problem.template.scales.values()
        tile_parameters, count_of = (
            sorted({name for scale in scales for name in scale.tiles}),
            Counter[object](),
        )
        turns: dict[Config, int] = {}
        for config in sorted(ratios, key=lambda config: (ratios[config], config.key)):
            tile = tuple(config.get(name) for name in tile_parameters)
            turns[config] = count_of[tile]
            count_of[tile] += 1
        return sorted(turns, key=lambda config: turns[config])[:count]

    def predict(self, pairs: Iterable[Pair], *, lower: bool = True) -> None:
        """Predict configs at sizes; with `lower` also those without cached profiles."""
        if self._is_closed:
            return
        wanted = list(self._unknown(pairs))
        with without_garbage():
            candidates = (self._problem.candidate(size, config) for config, size in wanted)
            answers = ((c.config, self._size(c), outcome) for c, outcome in self._executor.cached(candidates))
            while some := list(itertools.islice(answers, TOGETHER)):
                self._handle(some)
        if lower:
            self._lower([pair for pair in wanted if pair not in self._known])

    def _unknown(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        seen: set[Pair] = set()
        for config, size in pairs:
            pair = config, self._problem.profile_size(size, config)
            if pair not in self._known and pair not in seen:
                seen.add(pair)
                yield pair

    def _lower(self, pairs: Sequence[Pair]) -> None:
        # all sizes of a config together: a process lowers a dynamic kernel once for several sizes
        first = {config: place for place, (config, _) in reversed(list(enumerate(pairs)))}
        jobs = (
            LowerJob(self._problem.candidate(size, config))
            for config, size in sorted(pairs, key=lambda pair: first[pair[0]])
            if time.monotonic() < self._until
        )
        waiting: list[tuple[Config, int, Profiled | Failure]] = []
        for event in self._executor.stream(SingleLaneSource(jobs)):
            assert isinstance(event, LowerDone)
            self.lowered += 1
            self._observer.advanced()
            candidate = event.job.candidate
            self._observer.detail(f"lowered {candidate.config} for {candidate.workload.label}")
            waiting.append((event.job.candidate.config, self._size(event.job.candidate), event.outcome))
        self._handle(waiting)
        self.is_cut = self.is_cut or len(waiting) < len(pairs)

    def _size(self, candidate: Candidate) -> int:
        return candidate.workload.dims[self._problem.vary.dim]

    def _handle(self, answers: Sequence[tuple[Config, int, Profiled | Failure]]) -> None:
        good = [(config, size, outcome) for config, size, outcome in answers if isinstance(outcome, Profiled)]
        self._known.update({(config, size): None for config, size, _ in answers})
        found = (
            predict_many(
                self._model, [outcome.kernels for _, _, outcome in good], self._problem.placement.target
            )
            if good
            else []
        )
        for (config, size, outcome), prediction in zip(good, found, strict=True):
            if isinstance(prediction, Prediction):
                self._known[config, size] = SizePrediction(prediction, outcome)
                self._times.setdefault(config, {})[size] = prediction.ranking_us


class _AnchorSearch:
    """The search at one size, among the first configs of the size's rasterization groups."""

    def __init__(self, problem: PlanProblem, size: int, seed: int) -> None:
        self.size, self._seed = size, seed
        self._space = problem.space(size)
        configs = (config for config in self._space.configs() if problem.explores(config))
        self._groups = RasterizationGroups(problem.template, configs)
        self._explores = problem.explores
        self.firsts = dict.fromkeys(self._groups.firsts)
        self._learned: set[Config] = set()
        self._search = Searcher(self._space, seed=seed, configs=self._groups.firsts)

    def includes(self, config: Config) -> bool:
        """Whether the search chooses among configs with this one."""
        return config in self.firsts

    def learn(self, predictions: SizePredictions) -> None:
        """Tell the search all new predictions."""
        new = [c for c in predictions.configs if c in self.firsts and c not in self._learned]
        for config, us in predictions.times(new, self.size).items():
            self._search.tell(config, us)
            self._learned.add(config)

    def stratified(self, count: int, first: Sequence[Config]) -> list[Config]:
        """`first`, and about `count` configs of an even sample."""
        own = [config for config in first if config in self._space and self._explores(config)]
        known = [self._groups.first(config) for config in own]
        sample = filter(self._explores, stratified(self._space, 3 * count, self._seed))
        return self._search.take(
            list(dict.fromkeys([*known, *map(self._groups.first, sample)]))[: count + len(known)]
        )

    def promising(self, count: int) -> list[Config]:
        """Configs that the search expects to be fast."""
        return self._search.promising(count) or self._search.ask(count)

    def variants(self, config: Config) -> list[Config]:
        """The other configs of its rasterization group, if it is the first of one."""
        return (
            [member for member in self._groups.members(config) if member != config]
            if config in self.firsts
            else []
        )
