"""Rules by which numbers of a profile follow the dimensions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilesight.scaling import Kind, Measure, Ramp, Rule, Sample, Term, find_ramp, find_rule, refit
from tilesight.space import Config
from tilesight.template import Scale

SCALES = {"m": Scale(("bm",), (64, 192)), "n": Scale(("bn",), (64, 192)), "k": Scale(("bk",), (32,))}
CONFIG = Config({"bm": 192, "bn": 64, "bk": 32})
SHAPES = [
    {"m": 256 * 7, "n": 256 * 13, "k": 128 * 31},
    {"m": 256 * 17, "n": 256 * 29, "k": 128 * 23},
    {"m": 256 * 29, "n": 256 * 17, "k": 128 * 19},
]
OTHER = {"m": 4096, "n": 1024, "k": 8192}


def samples(value: Callable[[dict[str, int]], float], shapes: list[dict[str, int]] = SHAPES) -> list[Sample]:
    return [Sample(dims, value(dims)) for dims in shapes]


@pytest.mark.parametrize(
    "value",
    [
        lambda d: -(-d["m"] // 192),  # blocks along an axis
        lambda d: d["k"] / 32 - 2,  # trips of a loop with two iterations taken out
        lambda d: 2 * d["m"] * d["k"],  # bytes of a tensor
        lambda d: d["n"] / 64 * -(-d["m"] // 192),
        lambda d: 1000 + 8192 / d["k"],  # work of the last iteration, shared out over all
    ],
    ids=["tiles", "shorter loop", "bytes", "blocks", "shared out"],
)
def test_a_rule_found_at_three_shapes_holds_at_a_fourth(value: Callable[[dict[str, int]], float]) -> None:
    rule = find_rule(samples(value), SCALES, CONFIG)
    assert rule is not None
    assert rule.value(OTHER, CONFIG) == pytest.approx(value(OTHER), rel=1e-9)


def test_what_follows_no_rule_has_none() -> None:
    assert find_rule(samples(lambda d: d["m"] % 1000 + d["k"] % 700), SCALES, CONFIG) is None
    assert find_rule(samples(lambda d: d["m"] * d["m"]), SCALES, CONFIG) is None


def test_a_share_is_that_of_the_tiles_that_the_dimension_fills() -> None:
    def share(d: dict[str, int]) -> float:
        return d["m"] / (192 * -(-d["m"] // 192))

    rule = find_rule(samples(lambda d: 500 * share(d) * 1.005), SCALES, CONFIG, Kind.SHARE, 500.0)  # as sampled, not exactly
    assert rule is not None
    assert rule.value(OTHER, CONFIG) == pytest.approx(500 * share(OTHER))
    assert find_rule(samples(lambda d: 400 * share(d)), SCALES, CONFIG, Kind.SHARE, 500.0) is None


def test_a_least_share_is_at_most_what_was_met() -> None:
    found = find_rule(samples(lambda d: 1 - (-d["m"] % 192) / 192), SCALES, CONFIG, Kind.LEAST)
    assert found is not None
    assert found.value(OTHER, CONFIG) == pytest.approx(1 - (-4096 % 192) / 192)
    missed = [Sample(SHAPES[0], 1.0)]  # no sampled block was the last one
    assert refit(found, missed, CONFIG, Kind.LEAST) == found
    assert refit(found, [Sample(SHAPES[0], 0.0)], CONFIG, Kind.LEAST) is None


def test_another_config_is_placed_by_one_shape_and_checked() -> None:
    trips = Rule((Term(Measure.TILES, "k", "bk"),))
    other = Config({"bm": 64, "bn": 64, "bk": 64})
    assert refit(trips, [Sample(SHAPES[0], 128 * 31 / 64)], other) == trips
    shorter = refit(trips, [Sample(SHAPES[0], 128 * 31 / 64 - 3)], other)
    assert shorter is not None
    assert shorter.offset == -3
    assert refit(trips, [Sample(SHAPES[0], 128 * 31 / 32)], other) is None
    extent = Rule((Term(Measure.EXTENT, "m"),), 2.0)
    assert refit(extent, [Sample(SHAPES[0], 4.0 * SHAPES[0]["m"])], other) is None


def test_a_line_needs_two_shapes() -> None:
    line = Rule((Term(Measure.PER_EXTENT, "k"),), 100.0, 7.0)
    assert refit(line, samples(lambda d: 5 + 900 / d["k"], SHAPES[:1]), CONFIG) is None
    own = refit(line, samples(lambda d: 5 + 900 / d["k"], SHAPES[:2]), CONFIG)
    assert own is not None
    assert own.value(OTHER, CONFIG) == pytest.approx(5 + 900 / 8192)


@pytest.mark.parametrize("backwards", [True, False])
def test_causal_trips_are_a_ramp(backwards: bool) -> None:
    scales, config = {"s": Scale(("bm", "bn"), (128,))}, Config({"bm": 128, "bn": 96})

    def trips(seq: int) -> list[float]:
        found = [float(min(-(-seq // 96), -(-(j + 1) * 128 // 96))) for j in range(-(-seq // 128))]
        return found[::-1] if backwards else found

    ramp = find_ramp(trips(3328), {"s": 3328}, scales, config)
    assert ramp == Ramp("s", "bm", "bn", backwards, 0)
    assert ramp.values({"s": 8192}, config) == trips(8192)
    assert find_ramp([1.0, 5.0, 2.0], {"s": 3 * 128}, scales, config) is None
