"""Scaling laws: how a number of a profile follows the dimensions, found from its values at several shapes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from ..problem.space import Config
from ..problem.template import Scale

EXACT_TOLERANCE = 1e-9  # relative error of exact numbers
# relative error of numbers that the reader samples: shares of blocks at an edge, work under a condition
SAMPLED_TOLERANCE = 0.05
MAX_OFFSET = 8  # iterations that a pipeline may take out of a loop
BOX_COUNTS = (1, 2, 3, 4, 6, 8)  # possible numbers of bulk copies that together move one tile

Dims = Mapping[str, int]


class Measure(StrEnum):
    """The function of a dimension that a term uses."""

    EXTENT = "extent"
    TILES = "tiles"  # number of tiles; the last one may hang over the edge
    SHARE = "share"  # share of all tiles that the dimension fills
    LEAST = "least"  # share of the last of `boxes` boxes of the last tile that the dimension fills
    PER_EXTENT = "per_extent"
    PER_TILES = "per_tiles"


@dataclass(frozen=True, slots=True)
class Term:
    """One factor of a law: a measure of one dimension."""

    measure: Measure
    dim: str
    tile: str = ""  # the parameter that tiles the dimension; empty for none
    boxes: int = 1
    divided_by: str = ""  # the parameter that divides the number of tiles, rounded up; empty for none

    def value(self, dims: Dims, config: Config) -> float:
        extent = dims[self.dim]
        if not self.tile:
            return 1 / extent if self.measure is Measure.PER_EXTENT else extent
        tile = config.int(self.tile) * max(1, config.int(self.divided_by, 1))
        tiles = -(-extent // tile)
        if self.measure is Measure.SHARE:
            return extent / (tiles * tile)
        if self.measure is Measure.LEAST:
            rest = extent - (tiles - 1) * tile
            return min(1.0, max(0.0, 1 - (tile - rest) * self.boxes / tile))
        return tiles if self.measure is Measure.TILES else 1 / tiles


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """A number as offset + factor * product of terms."""

    terms: tuple[Term, ...]
    factor: float = 1.0
    offset: float = 0.0

    @property
    def is_line(self) -> bool:
        """Whether both factor and offset are fitted."""
        return self.factor != 1 and self.offset != 0

    @property
    def is_sampled(self) -> bool:
        """Whether it gives a number that the reader samples, and holds within a tolerance only."""
        return self.is_line or any(term.measure is Measure.SHARE for term in self.terms)

    @property
    def dims(self) -> frozenset[str]:
        """The dimensions that it depends on."""
        return frozenset(term.dim for term in self.terms)

    def value(self, dims: Dims, config: Config) -> float:
        return self.offset + self.factor * _product(self.terms, dims, config)


@dataclass(frozen=True, slots=True)
class ValueSample:
    """One number of the profile of one config at one shape."""

    dims: Dims
    value: float


class NumberKind(StrEnum):
    """The kinds of numbers that scale differently."""

    COUNT = "count"
    SIZE = "size"  # bytes of a tensor, of which a config may have several, as of partial sums
    SHARE = "share"  # part of a copy that lies inside its tensor, mean of the sampled blocks
    LEAST = "least"  # the same, minimum of the sampled blocks

    @property
    def is_share(self) -> bool:
        return self in (NumberKind.SHARE, NumberKind.LEAST)


Scales = Mapping[str, Scale]


def find_law(
    samples: Sequence[ValueSample],
    scales: Scales,
    config: Config,
    kind: NumberKind = NumberKind.COUNT,
    full: float = 1.0,
) -> ScalingLaw | None:
    """Find the simplest law that holds at all samples.

    Args:
        samples: three or more, with no two dimensions in the same ratio.
        scales: the dimensions that may scale, with their tiles.
        config: the config of the samples.
        kind: the kind of the number.
        full: for a share, its value if nothing hangs over an edge.

    Returns:
        The law, or None if no law holds.
    """
    if kind.is_share:
        measure = Measure.SHARE if kind is NumberKind.SHARE else Measure.LEAST
        shares = [ScalingLaw(terms, full) for terms in _shares(_frozen(scales, config), measure)]
        fitting = [law for law in shares if agrees(law, samples, config, kind)]
        return min(
            fitting,
            key=lambda law: sum(abs(law.value(s.dims, config) - s.value) for s in samples),
            default=None,
        )
    candidates = _counts(_frozen(scales, config))
    for terms in candidates:  # simple laws first, and laws of whole tiles before laws with a fitted factor
        if worst_error(law := ScalingLaw(terms), samples, config) <= EXACT_TOLERANCE:
            return law
    for terms in candidates:
        shifted = (
            _shifted(terms, samples, config)
            if len(terms) == 1 and terms[0].measure is Measure.TILES
            else None
        )
        if shifted is not None:
            return shifted
    for terms in candidates:
        if worst_error(law := _fitted(terms, samples[:1], config), samples, config) <= EXACT_TOLERANCE:
            return law
    inverse = [
        terms
        for terms in candidates
        if len(terms) == 1 and terms[0].measure in (Measure.PER_EXTENT, Measure.PER_TILES)
    ]
    lines = [line for terms in inverse if (line := _line(terms, samples, config))]
    # rows that ordinary stores leave out at an edge
    shares = [
        _fitted(terms, samples, config) for terms in _shares(_frozen(scales, config), Measure.SHARE) if terms
    ]
    best = min([*lines, *shares], key=lambda law: worst_error(law, samples, config), default=None)
    return best if best is not None and worst_error(best, samples, config) <= SAMPLED_TOLERANCE else None


def refit(
    law: ScalingLaw,
    samples: Sequence[ValueSample],
    config: Config,
    kind: NumberKind = NumberKind.COUNT,
    full: float = 1.0,
) -> ScalingLaw | None:
    """Fit a law to another config of the same structure; None if it does not hold.

    Args:
        law: the law of the structure.
        samples: samples of the other config: one is enough, except that a line needs two.
        config: the other config.
        kind: the kind of the number.
        full: for a share, its value if nothing hangs over an edge.
    """
    own: ScalingLaw | None = law
    if kind.is_share:
        own = ScalingLaw(law.terms, full)
    elif law.is_line:
        own = _line(law.terms, samples, config) if len(samples) > 1 else None
    elif law.is_sampled:
        own = _fitted(law.terms, samples, config)
    elif law.factor != 1 and kind is NumberKind.SIZE:
        own = _fitted(law.terms, samples[:1], config)
    elif law.factor == 1 and law.terms[0].measure is Measure.TILES and len(law.terms) == 1:
        own = _shifted(
            law.terms, samples, config
        )  # each config has its own number of iterations outside the loop
    if own is None or not agrees(own, samples, config, kind):
        return None
    return own


def agrees(law: ScalingLaw, samples: Sequence[ValueSample], config: Config, kind: NumberKind) -> bool:
    """Whether `law` agrees with the samples.

    Counts must agree exactly, sampled numbers within a tolerance. A least share may not exceed the sampled
    minimum.
    """
    if kind is NumberKind.LEAST:
        return all(law.value(s.dims, config) <= s.value + SAMPLED_TOLERANCE for s in samples)
    allowed = SAMPLED_TOLERANCE if law.is_sampled or kind is NumberKind.SHARE else EXACT_TOLERANCE
    return worst_error(law, samples, config) <= allowed


def worst_error(law: ScalingLaw, samples: Sequence[ValueSample], config: Config) -> float:
    """The largest relative error of `law` at the samples."""
    return max(abs(law.value(s.dims, config) - s.value) / max(abs(s.value), 1e-12) for s in samples)


def _product(terms: Sequence[Term], dims: Dims, config: Config) -> float:
    return math.prod(term.value(dims, config) for term in terms)


def _shifted(terms: tuple[Term, ...], samples: Sequence[ValueSample], config: Config) -> ScalingLaw | None:
    offset = samples[0].value - _product(terms, samples[0].dims, config)
    law = ScalingLaw(terms, 1.0, offset)
    return (
        law
        if offset == round(offset)
        and -MAX_OFFSET <= offset <= 0
        and worst_error(law, samples, config) <= EXACT_TOLERANCE
        else None
    )


def _line(terms: tuple[Term, ...], samples: Sequence[ValueSample], config: Config) -> ScalingLaw | None:
    """The least-squares fit of offset + factor * product; None if the product does not vary."""
    xs = [_product(terms, s.dims, config) for s in samples]
    ys = [s.value for s in samples]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    if not spread:
        return None
    factor = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return ScalingLaw(terms, factor, mean_y - factor * mean_x)


def _fitted(terms: tuple[Term, ...], samples: Sequence[ValueSample], config: Config) -> ScalingLaw:
    """The terms with the mean factor of the samples."""
    factors = [s.value / _product(terms, s.dims, config) for s in samples]
    return ScalingLaw(terms, sum(factors) / len(factors))


def scales_of(scales: Scales, config: Config) -> Scales:
    """The scales, with only those parameters that divide tiles in `config`."""
    return {
        dim: scale if config.int(scale.divided_by, 1) > 1 else replace(scale, divided_by="")
        for dim, scale in scales.items()
    }


def _frozen(scales: Scales, config: Config) -> tuple[tuple[str, Scale], ...]:
    return tuple(scales_of(scales, config).items())


@lru_cache(maxsize=64)
def _counts(scales: tuple[tuple[str, Scale], ...]) -> tuple[tuple[Term, ...], ...]:
    """Products of at most one term for each dimension, simple products first."""
    options: list[list[Term | None]] = []
    for dim, scale in scales:
        tiled = [
            Term(measure, dim, tile, divided_by=divider)
            for tile, divider in _tilings(scale)
            for measure in (Measure.TILES, Measure.PER_TILES)
        ]
        options.append([None, Term(Measure.EXTENT, dim), Term(Measure.PER_EXTENT, dim), *tiled])
    products = [tuple(term for term in terms if term) for terms in itertools.product(*options)]
    inverse = (Measure.PER_EXTENT, Measure.PER_TILES)
    return tuple(sorted(products, key=lambda terms: (len(terms), sum(t.measure in inverse for t in terms))))


@lru_cache(maxsize=64)
def _shares(scales: tuple[tuple[str, Scale], ...], measure: Measure) -> tuple[tuple[Term, ...], ...]:
    """Products of at most one share for each dimension."""

    def options() -> Iterator[list[Term | None]]:
        for dim, scale in scales:
            boxes = BOX_COUNTS if measure is Measure.LEAST else (1,)
            tiled = (Term(measure, dim, tile, n, divider) for tile, divider in _tilings(scale) for n in boxes)
            yield [None, *tiled]

    return tuple(tuple(term for term in terms if term) for terms in itertools.product(*options()))


def _tilings(scale: Scale) -> list[tuple[str, str]]:
    """Parameters that tile a dimension, each with that which divides the tiles; then without it."""
    return [(tile, divider) for divider in dict.fromkeys((scale.divided_by, "")) for tile in scale.tiles]
