"""How a number of a profile follows the dimensions of a workload, found from the same number at several shapes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from .space import Config
from .template import Scale

EXACT = 1e-9
NEAR = 0.05  # largest relative error that passes, of what the reader samples: shares of blocks at an edge, work under a condition
MOST_OFFSET = 8  # iterations that a pipeline takes out of a loop
BOXES = (1, 2, 3, 4, 6, 8)  # bulk copies side by side that a tile may be moved by

Dims = Mapping[str, int]


class Measure(StrEnum):
    """What counts of a dimension."""

    EXTENT = "extent"
    TILES = "tiles"  # the last one may hang over the edge
    SHARE = "share"  # of the tiles that the dimension fills
    LEAST = "least"  # of the last of `boxes` boxes of the last tile
    PER_EXTENT = "per_extent"
    PER_TILES = "per_tiles"


@dataclass(frozen=True, slots=True)
class Term:
    measure: Measure
    dim: str
    tile: str = ""  # the parameter that tiles it
    boxes: int = 1

    def value(self, dims: Dims, config: Config) -> float:
        extent = dims[self.dim]
        if not self.tile:
            return 1 / extent if self.measure is Measure.PER_EXTENT else extent
        tile = config.int(self.tile)
        tiles = -(-extent // tile)
        if self.measure is Measure.SHARE:
            return extent / (tiles * tile)
        if self.measure is Measure.LEAST:
            rest = extent - (tiles - 1) * tile
            return min(1.0, max(0.0, 1 - (tile - rest) * self.boxes / tile))
        return tiles if self.measure is Measure.TILES else 1 / tiles


@dataclass(frozen=True, slots=True)
class Rule:
    """offset + factor * product of terms."""

    terms: tuple[Term, ...]
    factor: float = 1.0
    offset: float = 0.0

    @property
    def is_line(self) -> bool:
        """Whether factor and offset are both fitted."""
        return self.factor != 1 and self.offset != 0

    def value(self, dims: Dims, config: Config) -> float:
        return self.offset + self.factor * _product(self.terms, dims, config)


@dataclass(frozen=True, slots=True)
class Ramp:
    """Trips that grow with the block along one axis until a loop's end: causal masks.

    Block j of n (counted from the other end where `backwards`) makes
    max(0, min(tiles of `dim`, ceil((j + 1) * step / width)) + offset) trips; `step` and `width` are parameters.
    """

    dim: str
    step: str
    width: str
    backwards: bool
    offset: int

    def values(self, dims: Dims, config: Config) -> list[float]:
        step, width = config.int(self.step), config.int(self.width)
        top, blocks = -(-dims[self.dim] // width), -(-dims[self.dim] // step)
        trips = [float(max(0, min(top, -(-(j + 1) * step // width)) + self.offset)) for j in range(blocks)]
        return trips[::-1] if self.backwards else trips


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of one config's profile at one shape."""

    dims: Dims
    value: float


class Kind(StrEnum):
    """What a number is, as far as it decides how it may scale."""

    COUNT = "count"
    SHARE = "share"  # what of a copy lies inside its tensor, averaged over sampled blocks
    LEAST = "least"  # the same in the worst of the sampled blocks


Scales = Mapping[str, Scale]


def find_rule(samples: Sequence[Sample], scales: Scales, config: Config, kind: Kind = Kind.COUNT, full: float = 1.0) -> Rule | None:
    """The simplest rule that holds at all `samples` (three or more, no two dimensions in the same ratio); None where
    none does. `full` is a share's value where nothing hangs over an edge."""
    if kind is not Kind.COUNT:
        measure = Measure.SHARE if kind is Kind.SHARE else Measure.LEAST
        shares = [Rule(terms, full) for terms in _shares(_frozen(scales), measure)]
        fitting = [rule for rule in shares if agrees(rule, samples, config, kind)]
        return min(fitting, key=lambda rule: sum(abs(rule.value(s.dims, config) - s.value) for s in samples), default=None)
    candidates = _counts(_frozen(scales))
    for terms in candidates:  # simple ones first, those of whole tiles before those that a factor makes fit
        if worst_error(rule := Rule(terms), samples, config) <= EXACT:
            return rule
    for terms in candidates:
        shifted = _shifted(terms, samples, config) if len(terms) == 1 and terms[0].measure is Measure.TILES else None
        if shifted is not None:
            return shifted
    for terms in candidates:
        factor = samples[0].value / _product(terms, samples[0].dims, config)
        if factor and worst_error(rule := Rule(terms, factor), samples, config) <= EXACT:
            return rule
    inverse = [terms for terms in candidates if len(terms) == 1 and terms[0].measure in (Measure.PER_EXTENT, Measure.PER_TILES)]
    lines = [line for terms in inverse if (line := _line(terms, samples, config))]
    best = min(lines, key=lambda line: worst_error(line, samples, config), default=None)
    return best if best is not None and worst_error(best, samples, config) <= NEAR else None


def refit(rule: Rule, samples: Sequence[Sample], config: Config, kind: Kind = Kind.COUNT, full: float = 1.0) -> Rule | None:
    """The same rule for another config, from its own samples (one is enough unless it is a line); None where it does not
    hold."""
    own: Rule | None = rule
    if kind is not Kind.COUNT:
        own = Rule(rule.terms, full)
    elif rule.is_line:
        own = _line(rule.terms, samples, config) if len(samples) > 1 else None
    elif rule.factor == 1 and rule.terms[0].measure is Measure.TILES and len(rule.terms) == 1:
        own = _shifted(rule.terms, samples, config)  # what a pipeline takes out of the loop is this config's own
    if own is None or not agrees(own, samples, config, kind):
        return None
    return own


def find_ramp(values: Sequence[float], dims: Dims, scales: Scales, config: Config) -> Ramp | None:
    """The ramp that gives exactly these trips; None where there is none."""
    for dim, scale in scales.items():
        for step, width in itertools.product(scale.tiles, repeat=2):
            for backwards in (True, False):
                for offset in range(0, -MOST_OFFSET, -1):
                    ramp = Ramp(dim, step, width, backwards, offset)
                    if ramp.values(dims, config) == list(values):
                        return ramp
    return None


def agrees(rule: Rule, samples: Sequence[Sample], config: Config, kind: Kind) -> bool:
    """Whether `rule` gives what was read: counts exactly, what was sampled nearly, a least value at most what was met."""
    if kind is Kind.LEAST:
        return all(rule.value(s.dims, config) <= s.value + NEAR for s in samples)
    allowed = NEAR if rule.is_line or kind is Kind.SHARE else EXACT
    return worst_error(rule, samples, config) <= allowed


def worst_error(rule: Rule, samples: Sequence[Sample], config: Config) -> float:
    """Largest relative error of `rule` at the samples."""
    return max(abs(rule.value(s.dims, config) - s.value) / max(abs(s.value), 1e-12) for s in samples)


def _product(terms: Sequence[Term], dims: Dims, config: Config) -> float:
    return math.prod(term.value(dims, config) for term in terms)


def _shifted(terms: tuple[Term, ...], samples: Sequence[Sample], config: Config) -> Rule | None:
    offset = samples[0].value - _product(terms, samples[0].dims, config)
    rule = Rule(terms, 1.0, offset)
    return rule if offset == round(offset) and -MOST_OFFSET <= offset <= 0 and worst_error(rule, samples, config) <= EXACT else None


def _line(terms: tuple[Term, ...], samples: Sequence[Sample], config: Config) -> Rule | None:
    """offset + factor * product by least squares; None where the product does not vary."""
    xs = [_product(terms, s.dims, config) for s in samples]
    ys = [s.value for s in samples]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    if not spread:
        return None
    factor = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return Rule(terms, factor, mean_y - factor * mean_x)


def _frozen(scales: Scales) -> tuple[tuple[str, Scale], ...]:
    return tuple(scales.items())


@lru_cache(maxsize=64)
def _counts(scales: tuple[tuple[str, Scale], ...]) -> tuple[tuple[Term, ...], ...]:
    """Products of terms, one or none of each dimension, simple ones first."""
    options: list[list[Term | None]] = []
    for dim, scale in scales:
        tiled = [Term(measure, dim, tile) for tile in scale.tiles for measure in (Measure.TILES, Measure.PER_TILES)]
        options.append([None, Term(Measure.EXTENT, dim), Term(Measure.PER_EXTENT, dim), *tiled])
    products = [tuple(term for term in terms if term) for terms in itertools.product(*options)]
    inverse = (Measure.PER_EXTENT, Measure.PER_TILES)
    return tuple(sorted(products, key=lambda terms: (len(terms), sum(t.measure in inverse for t in terms))))


@lru_cache(maxsize=64)
def _shares(scales: tuple[tuple[str, Scale], ...], measure: Measure) -> tuple[tuple[Term, ...], ...]:
    """Products of shares, one or none of each dimension."""

    def options() -> Iterator[list[Term | None]]:
        for dim, scale in scales:
            boxes = BOXES if measure is Measure.LEAST else (1,)
            yield [None, *(Term(measure, dim, tile, count) for tile in scale.tiles for count in boxes)]

    return tuple(tuple(term for term in terms if term) for terms in itertools.product(*options()))
