"""Survey: what the model says of many configs at many sizes.

Configs are lowered where a search at a few anchor sizes asks for them, and predicted at all other sizes from the profiles that
are kept of them; where nothing is kept, only the most promising are lowered again.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..costmodel.model import CostModel, predict_many
from ..errors import Failure
from ..jobs import Profiled
from ..observers import Observer
from ..predicting import TOGETHER, without_garbage
from ..sampling import stratified
from ..search import Searcher
from ..space import Config
from ..trial import Prediction
from ..twins import Groups
from ..work import Executor, Lower, Lowered, OneLane
from .correction import Row
from .sizes import even
from .subject import Subject

ANCHORS = 8
EVEN_PART = 3  # of the configs that an anchor asks for, one in so many is of an even sample
ROUNDS = 3  # in which the others are asked for, those promising by what is known then
AROUND = 4  # anchors whose best configs are promising at a size between them
NEAR, NEAR_TWINS = 1.3, 1.1  # factors of the best predicted within which configs, and those that reorder their blocks, count

Pair = tuple[Config, int]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is expected of a config at a size."""

    prediction: Prediction
    lowered: Profiled


class Survey:
    """`until`: when, by the monotonic clock, nothing more is lowered."""

    def __init__(self, subject: Subject, model: CostModel, executor: Executor, observer: Observer, until: float = math.inf) -> None:
        self._subject, self._model, self._executor, self._observer, self._until = subject, model, executor, observer, until
        self._known: dict[Pair, Outlook | None] = {}  # at sizes as `Subject.alike` has them; None: it comes to nothing there
        self._times: dict[Config, dict[int, float]] = {}
        self.anchors: list[int] = []
        self.configs: dict[Config, None] = {}  # that were looked at
        self.lowered = 0

    @property
    def count(self) -> int:
        """Predictions that were made."""
        return sum(map(len, self._times.values()))

    def outlook(self, config: Config, size: int) -> Outlook | None:
        return self._known.get((config, self._subject.alike(size, config)))

    def time_us(self, config: Config, size: int) -> float:
        """As predicted; NaN where nothing is."""
        found = self.outlook(config, size)
        return math.nan if found is None else found.prediction.ranking_us

    def row(self, config: Config, sizes: Sequence[int]) -> Row:
        """Predicted times at these sizes. Where nothing is predicted, what lies between the sizes where something is (as
        `Subject.alike` has them): below the first of them, its time, which is too much if anything; NaN above the last."""
        times = np.array([self.time_us(config, size) for size in sizes])
        known = self._times.get(config, {})
        if known and np.isnan(times).any():
            at, asked = sorted(known), np.array([self._subject.alike(size, config) for size in sizes])
            between = np.interp(np.log(asked), np.log(at), np.log([known[size] for size in at]))
            times = np.where(np.isnan(times) & (asked <= at[-1]), np.exp(between), times)
        return times

    # ---- exploring

    def explore(self, wanted: int, seed: int) -> None:
        """Look at about `wanted` groups of configs, those that matter at some anchor size."""
        self.anchors = even(self._subject.vary, max(2, min(ANCHORS, wanted // 4)), min(self._subject.steps))
        searches = [_Anchor(self._subject, size, seed) for size in self.anchors]
        share = max(1, wanted // len(searches))
        self._observer.phase("explore", None)
        for round_number in range(1 + ROUNDS):
            asked: list[Pair] = []
            for search in searches:
                self.predict(((c, search.size) for c in self.configs if search.asks_for(c)), lower=False)
                search.learn(self)
                if round_number == 0:
                    new = search.even(max(1, share // EVEN_PART), [c for c in [self._subject.default(search.size)] if c is not None])
                else:
                    new = search.promising((share - share // EVEN_PART) // ROUNDS)
                asked += [(config, search.size) for config in new]
            self.predict(asked)
            self.configs.update(dict.fromkeys(config for config, _ in asked))
        for search in searches:
            self._twins(search)
        self._observer.phase_done(f"{len(self.configs)} configs at {len(searches)} sizes, {self.lowered} lowered, {self.count} predictions")

    def _twins(self, search: _Anchor) -> None:
        """Configs that reorder the blocks of the best ones: their lowering is known."""
        times = self.times(self.configs, search.size)
        best = min(times.values(), default=math.nan)
        twins = [twin for config, us in times.items() if us <= NEAR_TWINS * best for twin in search.twins(config)]
        self.predict((config, search.size) for config in twins)
        self.configs.update(dict.fromkeys(twins))

    def times(self, configs: Iterable[Config], size: int) -> dict[Config, float]:
        """Predicted times of those that have one there."""
        return {config: us for config in configs if not math.isnan(us := self.time_us(config, size))}

    def promising(self, size: int, count: int) -> list[Config]:
        """Configs that look best at the anchors around a size: those worth being predicted there. The best of each tile (all
        parameters that tile a dimension), then the second of each, and so on: at a size between anchors another may be the one
        that fits."""
        around = sorted(self.anchors, key=lambda anchor: abs(math.log(anchor / size)))[:AROUND]
        ratios: dict[Config, float] = {}
        for anchor in around:
            times = self.times(self.configs, anchor)
            best = min(times.values(), default=math.nan)
            for config, us in times.items():
                if us <= NEAR * best and self._subject.works(size, config):
                    ratios[config] = min(us / best, ratios.get(config, math.inf))
        tiles, place = sorted({name for scale in self._subject.template.scales.values() for name in scale.tiles}), Counter[object]()
        turns: dict[Config, int] = {}
        for config in sorted(ratios, key=lambda config: (ratios[config], config.key)):
            tile = tuple(config.get(name) for name in tiles)
            turns[config] = place[tile]
            place[tile] += 1
        return sorted(turns, key=lambda config: turns[config])[:count]

    # ---- predicting

    def predict(self, pairs: Iterable[Pair], *, lower: bool = True) -> None:
        """Predict configs at sizes; with `lower` also those of which no profiles are kept."""
        wanted = list(self._open(pairs))
        with without_garbage():
            candidates = (self._subject.candidate(size, config) for config, size in wanted)
            answers = ((c.config, self._size(c.workload.dims), outcome) for c, outcome in self._executor.kept(candidates))
            while some := list(itertools.islice(answers, TOGETHER)):
                self._take(some)
        if lower:
            self._lower([pair for pair in wanted if pair not in self._known])

    def _open(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        seen: set[Pair] = set()
        for config, size in pairs:
            pair = config, self._subject.alike(size, config)
            if pair not in self._known and pair not in seen:
                seen.add(pair)
                yield pair

    def _lower(self, pairs: Sequence[Pair]) -> None:
        jobs = (Lower(self._subject.candidate(size, config)) for config, size in pairs if time.monotonic() < self._until)
        waiting: list[tuple[Config, int, Profiled | Failure]] = []
        for event in self._executor.stream(OneLane(jobs)):
            assert isinstance(event, Lowered)
            self.lowered += 1
            self._observer.advanced()
            waiting.append((event.job.candidate.config, self._size(event.job.candidate.workload.dims), event.outcome))
        self._take(waiting)

    def _size(self, dims: object) -> int:
        return dims[self._subject.vary.dim]  # type: ignore[index,no-any-return]

    def _take(self, answers: Sequence[tuple[Config, int, Profiled | Failure]]) -> None:
        good = [(config, size, outcome) for config, size, outcome in answers if isinstance(outcome, Profiled)]
        self._known.update({(config, size): None for config, size, _ in answers})
        said = predict_many(self._model, [outcome.kernels for _, _, outcome in good], self._subject.where.target) if good else []
        for (config, size, outcome), prediction in zip(good, said, strict=True):
            if isinstance(prediction, Prediction):
                self._known[config, size] = Outlook(prediction, outcome)
                self._times.setdefault(config, {})[size] = prediction.ranking_us


class _Anchor:
    """The search at one size, over the configs that its space has."""

    def __init__(self, subject: Subject, size: int, seed: int) -> None:
        self.size, self._seed = size, seed
        self._space = subject.space(size)
        self._groups = Groups(subject.template, self._space.configs())
        self._firsts = set(self._groups.firsts)
        self._told: set[Config] = set()
        self._search = Searcher(self._space, seed=seed, configs=self._groups.firsts)

    def asks_for(self, config: Config) -> bool:
        return config in self._firsts

    def learn(self, survey: Survey) -> None:
        for config, us in survey.times((c for c in survey.configs if c in self._firsts and c not in self._told), self.size).items():
            self._search.tell(config, us)
            self._told.add(config)

    def even(self, count: int, first: Sequence[Config]) -> list[Config]:
        known = [self._groups.first(config) for config in first if config in self._space]
        sample = stratified(self._space, 3 * count, self._seed)
        return self._search.take(list(dict.fromkeys([*known, *map(self._groups.first, sample)]))[: count + len(known)])

    def promising(self, count: int) -> list[Config]:
        return self._search.promising(count) or self._search.ask(count)

    def twins(self, config: Config) -> list[Config]:
        return [member for member in self._groups.members(config) if member != config] if config in self._firsts else []
