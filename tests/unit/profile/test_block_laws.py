"""Laws of numbers that differ from block to block."""

from __future__ import annotations

import pytest

from tilesight.problem.space import Config
from tilesight.problem.template import Scale
from tilesight.profile.block_laws import TripRamp, TurnLaw, Turns, find_ramp, find_turns, tile_counts
from tilesight.profile.scaling_laws import Measure, ScalingLaw, Term

SCALES = {
    "m": Scale(("bm",), (64, 192), "rows"),
    "n": Scale(("bn",), (64, 192), "cols"),
    "k": Scale(("bk",), (32,)),
}
CONFIG = Config({"bm": 192, "bn": 64, "bk": 32, "rows": 2})
SHAPES = [
    {"m": 1709, "n": 256 * 13, "k": 128 * 31},
    {"m": 1733, "n": 256 * 29, "k": 128 * 23},
    {"m": 5003, "n": 256 * 17, "k": 128 * 19},
]
BLOCKS, PAIR = 12, 2


def turns(dims: dict[str, int]) -> list[int]:
    """Of each block of six pairs, which share the pairs of tiles."""
    pairs = -(-dims["m"] // 384) * -(-dims["n"] // 64)
    found = [0] * BLOCKS
    for pair in range(pairs):
        for block in range(PAIR):
            found[pair % (BLOCKS // PAIR) * PAIR + block] += 1
    return found


def law_of(values: list[float | list[float]]) -> TurnLaw | None:
    for tiles in tile_counts(SCALES, CONFIG):
        found = find_turns(values, SHAPES, SCALES, CONFIG, Turns(tiles, BLOCKS, PAIR))
        if found is not None:
            return found
    return None


@pytest.mark.parametrize("backwards", [True, False])
def test_causal_trips_are_a_ramp(backwards: bool) -> None:
    scales, config = {"s": Scale(("bm", "bn"), (128,))}, Config({"bm": 128, "bn": 96})

    def trips(seq: int) -> list[float]:
        found = [float(min(-(-seq // 96), -(-(j + 1) * 128 // 96))) for j in range(-(-seq // 128))]
        return found[::-1] if backwards else found

    ramp = find_ramp(trips(3328), {"s": 3328}, scales, config)
    assert ramp == TripRamp("s", "bm", "bn", backwards, 0)
    assert ramp.value({"s": 8192}, config) == trips(8192)
    assert find_ramp([1.0, 5.0, 2.0], {"s": 3 * 128}, scales, config) is None


def test_trips_of_blocks_that_take_tiles_in_turns() -> None:
    found = law_of([[count * dims["k"] / 32 for count in turns(dims)] for dims in SHAPES])
    assert found is not None
    assert found.dims == {"m", "n", "k"}
    for other in (
        {"m": 384 * 5, "n": 640, "k": 4096},
        {"m": 1, "n": 64, "k": 64},
        {"m": 400, "n": 1024, "k": 32},
    ):
        assert found.value(other, CONFIG) == [count * other["k"] / 32 for count in turns(other)]


def test_the_number_of_turns_is_that_of_the_first_block() -> None:
    found = law_of([float(turns(dims)[0]) for dims in SHAPES])
    assert found is not None
    assert found.value({"m": 384 * 5, "n": 640, "k": 4096}, CONFIG) == -(-5 * 10 // 6)


def test_another_config_is_checked_at_one_shape() -> None:
    found = law_of([[count * dims["k"] / 32 for count in turns(dims)] for dims in SHAPES])
    assert found is not None
    longer = [count * SHAPES[0]["k"] / 64 for count in turns(SHAPES[0])]
    other = Config({**CONFIG, "bk": 64})
    again = find_turns([longer], SHAPES[:1], SCALES, other, found.turns, found.per_turn)
    assert again is not None
    assert again.value(SHAPES[1], other) == [count * SHAPES[1]["k"] / 64 for count in turns(SHAPES[1])]
    late = [*longer[:-1], longer[-1] + 1]
    assert find_turns([late], SHAPES[:1], SCALES, other, found.turns, found.per_turn) is None
    fixed = find_turns(
        [[3.0 * count for count in turns(dims)] for dims in SHAPES], SHAPES, SCALES, CONFIG, found.turns
    )
    assert fixed is not None
    assert fixed.per_turn == ScalingLaw((), 3.0)
    own = find_turns(
        [[5.0 * count for count in turns(SHAPES[0])]], SHAPES[:1], SCALES, CONFIG, fixed.turns, fixed.per_turn
    )
    assert own is not None
    assert own.per_turn == ScalingLaw((), 5.0), "each config has its own"


def test_trips_that_do_not_follow_the_turns() -> None:
    assert law_of([[float(block) for block in range(1, BLOCKS + 1)] for _ in SHAPES]) is None
    assert law_of([[1.0] * (BLOCKS - 1) for _ in SHAPES]) is None, "fewer blocks"


def test_tiles_are_counted_along_one_dimension_or_more() -> None:
    counts = [law.value(SHAPES[0], CONFIG) for law in tile_counts(SCALES, CONFIG)]
    assert counts[0] == 5 * 52 * 124
    assert sorted(counts) == sorted([5 * 52 * 124, 5 * 52, 5 * 124, 52 * 124, 5, 52, 124])
    assert Term(Measure.TILES, "n", "bn").value(SHAPES[0], CONFIG) == 52
