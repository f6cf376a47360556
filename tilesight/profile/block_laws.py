"""Laws of numbers that differ from block to block, and of blocks that stay and take tiles in turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..problem.space import Config
from .scaling_laws import (
    EXACT_TOLERANCE,
    MAX_OFFSET,
    Dims,
    Measure,
    Scales,
    ScalingLaw,
    Term,
    ValueSample,
    find_law,
    refit,
    scales_of,
)


@dataclass(frozen=True, slots=True)
class TripRamp:
    """Trips that grow from block to block along one axis, as under a causal mask.

    Block j of n has max(0, min(tiles of `dim`, ceil((j + 1) * step / width)) + offset) trips. `step` and
    `width` are parameters of the config. If `backwards`, j counts from the last block.
    """

    dim: str
    step: str
    width: str
    backwards: bool
    offset: int

    @property
    def dims(self) -> frozenset[str]:
        """The dimensions that it depends on."""
        return frozenset([self.dim])

    def value(self, dims: Dims, config: Config) -> list[float]:
        step, width = config.int(self.step), config.int(self.width)
        top, blocks = -(-dims[self.dim] // width), -(-dims[self.dim] // step)
        trips = [float(max(0, min(top, -(-(j + 1) * step // width)) + self.offset)) for j in range(blocks)]
        return trips[::-1] if self.backwards else trips


@dataclass(frozen=True, slots=True)
class Turns:
    """How blocks that stay share out tiles, as in a persistent kernel.

    Clusters of `together` blocks take the tiles in turns: cluster c takes the tiles c, c + clusters, and so
    on.

    Attributes:
        tiles: their number; with clusters the number of groups of tiles that a cluster takes at once.
        blocks: of the launch.
        together: blocks of a cluster.
    """

    tiles: ScalingLaw
    blocks: int
    together: int

    def of_blocks(self, dims: Dims, config: Config) -> list[int]:
        """The number of turns of each block."""
        tiles, clusters = round(self.tiles.value(dims, config)), self.blocks // self.together
        return [max(0, -(-(tiles - block // self.together) // clusters)) for block in range(self.blocks)]

    def most(self, dims: Dims, config: Config) -> int:
        """The number of turns of the first cluster, which has the most."""
        return -(-round(self.tiles.value(dims, config)) // (self.blocks // self.together))


@dataclass(frozen=True, slots=True)
class TurnLaw:
    """A number that is `per_turn` for each turn: a list of those of all blocks, or that of the first one."""

    turns: Turns
    per_turn: ScalingLaw
    by_block: bool

    @property
    def dims(self) -> frozenset[str]:
        """The dimensions that it depends on."""
        return self.turns.tiles.dims | self.per_turn.dims

    def value(self, dims: Dims, config: Config) -> float | list[float]:
        one = self.per_turn.value(dims, config)
        if not self.by_block:
            return one * self.turns.most(dims, config)
        return [one * count for count in self.turns.of_blocks(dims, config)]


Law = ScalingLaw | TripRamp | TurnLaw


def find_ramp(values: Sequence[float], dims: Dims, scales: Scales, config: Config) -> TripRamp | None:
    """The ramp that gives exactly these trips; None if there is none."""
    for dim, scale in scales.items():
        for step, width in itertools.product(scale.tiles, repeat=2):
            for backwards in (True, False):
                for offset in range(0, -MAX_OFFSET, -1):
                    ramp = TripRamp(dim, step, width, backwards, offset)
                    if ramp.value(dims, config) == list(values):
                        return ramp
    return None


def tile_counts(scales: Scales, config: Config) -> Iterator[ScalingLaw]:
    """The numbers of tiles that blocks may share: of the tiles of one dimension or more."""
    options: list[list[Term | None]] = [
        [*(Term(Measure.TILES, dim, tile, divided_by=scale.divided_by) for tile in scale.tiles), None]
        for dim, scale in scales_of(scales, config).items()
    ]
    for terms in itertools.product(*options):
        found = tuple(term for term in terms if term)
        if found:
            yield ScalingLaw(found)


def find_turns(
    values: Sequence[float | list[float]],
    dims: Sequence[Dims],
    scales: Scales,
    config: Config,
    turns: Turns,
    known: ScalingLaw | None = None,
) -> TurnLaw | None:
    """The law of a number that follows the turns, None if it does not.

    Args:
        values: the number at each sample.
        dims: of the samples: one if the law of one turn is `known`, else three.
        scales: the dimensions that may scale, with their tiles.
        config: of the samples.
        turns: of the blocks.
        known: the law of one turn of another config of the same structure.
    """
    one_turn = [_one_turn(value, turns.of_blocks(d, config)) for value, d in zip(values, dims, strict=True)]
    samples = [ValueSample(d, one) for d, one in zip(dims, one_turn, strict=True) if one is not None]
    if len(samples) < len(values):
        return None
    if known is None:
        per_turn = find_law(samples, scales, config)
        if per_turn is not None and per_turn.is_sampled:
            return None  # turns are counted, not sampled
    elif known.terms:
        per_turn = refit(known, samples, config)
    else:
        first = samples[0].value
        per_turn = ScalingLaw((), first) if all(s.value == first for s in samples) else None
    return None if per_turn is None else TurnLaw(turns, per_turn, isinstance(values[0], list))


def _one_turn(value: float | list[float], turns: Sequence[int]) -> float | None:
    """What one turn counts; None if the number does not follow the turns."""
    if not isinstance(value, list):
        return value / turns[0]
    one = value[0] / turns[0]
    fits = len(value) == len(turns) and all(
        abs(v - one * count) <= EXACT_TOLERANCE * max(1.0, v) for v, count in zip(value, turns, strict=True)
    )
    return one if fits else None
