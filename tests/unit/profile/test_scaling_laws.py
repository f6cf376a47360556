"""Scaling laws: how numbers of a profile follow the dimensions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilesight.problem.space import Config
from tilesight.problem.template import Scale
from tilesight.profile.scaling_laws import (
    Measure,
    NumberKind,
    ScalingLaw,
    Term,
    ValueSample,
    find_law,
    refit,
)

SCALES = {"m": Scale(("bm",), (64, 192)), "n": Scale(("bn",), (64, 192)), "k": Scale(("bk",), (32,))}
CONFIG = Config({"bm": 192, "bn": 64, "bk": 32})
SHAPES = [
    {"m": 256 * 7, "n": 256 * 13, "k": 128 * 31},
    {"m": 256 * 17, "n": 256 * 29, "k": 128 * 23},
    {"m": 256 * 29, "n": 256 * 17, "k": 128 * 19},
]
OTHER = {"m": 4096, "n": 1024, "k": 8192}


def samples(
    value: Callable[[dict[str, int]], float], shapes: list[dict[str, int]] = SHAPES
) -> list[ValueSample]:
    return [ValueSample(dims, value(dims)) for dims in shapes]


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
def test_a_law_found_at_three_shapes_holds_at_a_fourth(value: Callable[[dict[str, int]], float]) -> None:
    law = find_law(samples(value), SCALES, CONFIG)
    assert law is not None
    assert law.value(OTHER, CONFIG) == pytest.approx(value(OTHER), rel=1e-9)


def test_numbers_without_a_law() -> None:
    assert find_law(samples(lambda d: d["m"] % 1000 + d["k"] % 700), SCALES, CONFIG) is None
    assert find_law(samples(lambda d: d["m"] * d["m"]), SCALES, CONFIG) is None


def test_a_share_is_that_of_the_tiles_that_the_dimension_fills() -> None:
    def share(d: dict[str, int]) -> float:
        return d["m"] / (192 * -(-d["m"] // 192))

    law = find_law(
        samples(lambda d: 500 * share(d) * 1.005), SCALES, CONFIG, NumberKind.SHARE, 500.0
    )  # as sampled, not exactly
    assert law is not None
    assert law.value(OTHER, CONFIG) == pytest.approx(500 * share(OTHER))
    assert find_law(samples(lambda d: 400 * share(d)), SCALES, CONFIG, NumberKind.SHARE, 500.0) is None


def test_a_least_share_is_at_most_the_sampled_one() -> None:
    found = find_law(samples(lambda d: 1 - (-d["m"] % 192) / 192), SCALES, CONFIG, NumberKind.LEAST)
    assert found is not None
    assert found.value(OTHER, CONFIG) == pytest.approx(1 - (-4096 % 192) / 192)
    missed = [ValueSample(SHAPES[0], 1.0)]  # no sampled block was the last one
    assert refit(found, missed, CONFIG, NumberKind.LEAST) == found
    assert refit(found, [ValueSample(SHAPES[0], 0.0)], CONFIG, NumberKind.LEAST) is None


def test_another_config_is_fitted_and_checked_at_one_shape() -> None:
    trips = ScalingLaw((Term(Measure.TILES, "k", "bk"),))
    other = Config({"bm": 64, "bn": 64, "bk": 64})
    assert refit(trips, [ValueSample(SHAPES[0], 128 * 31 / 64)], other) == trips
    shorter = refit(trips, [ValueSample(SHAPES[0], 128 * 31 / 64 - 3)], other)
    assert shorter is not None
    assert shorter.offset == -3
    assert refit(trips, [ValueSample(SHAPES[0], 128 * 31 / 32)], other) is None
    extent = ScalingLaw((Term(Measure.EXTENT, "m"),), 2.0)
    assert refit(extent, [ValueSample(SHAPES[0], 4.0 * SHAPES[0]["m"])], other) is None


def test_each_config_has_its_own_number_of_parts() -> None:
    scales = {**SCALES, "k": Scale(("bk",), (32,), "parts")}
    four, three = (Config({**CONFIG, "parts": parts}) for parts in (4, 3))

    def trips(parts: int) -> Callable[[dict[str, int]], float]:
        return lambda d: -(-d["k"] // (32 * parts))

    law = find_law(samples(trips(4)), scales, four)
    assert law is not None
    assert refit(law, samples(trips(3), SHAPES[:1]), three) == law
    assert law.value({**OTHER, "k": 8224}, three) == 86, "257 tiles, three parts of up to 86"
    assert refit(law, samples(trips(2), SHAPES[:1]), three) is None
    whole = find_law(samples(lambda d: d["k"] / 32), scales, four)
    assert whole is not None
    assert whole.value(OTHER, three) == OTHER["k"] / 32


def test_rows_that_stores_leave_out_follow_the_share_of_whole_tiles() -> None:
    def rows(d: dict[str, int], full: float) -> float:
        return full * d["m"] / (192 * -(-d["m"] // 192))

    edges = [
        {"m": 100, "n": 1024, "k": 512},
        {"m": 1709, "n": 2048, "k": 640},
        {"m": 1733, "n": 640, "k": 512},
    ]
    law = find_law(samples(lambda d: 1.02 * rows(d, 4096.0), edges), SCALES, CONFIG)  # as sampled
    assert law is not None
    assert law.value(OTHER, CONFIG) == pytest.approx(rows(OTHER, 4096.0), rel=0.03)
    own = refit(law, samples(lambda d: rows(d, 512.0), edges[:1]), CONFIG)
    assert own is not None
    assert own.value(OTHER, CONFIG) == pytest.approx(rows(OTHER, 512.0))
    assert refit(law, samples(lambda d: rows(d, 512.0) if d["m"] < 1000 else 700.0, edges), CONFIG) is None


def test_a_line_needs_two_shapes() -> None:
    line = ScalingLaw((Term(Measure.PER_EXTENT, "k"),), 100.0, 7.0)
    assert refit(line, samples(lambda d: 5 + 900 / d["k"], SHAPES[:1]), CONFIG) is None
    own = refit(line, samples(lambda d: 5 + 900 / d["k"], SHAPES[:2]), CONFIG)
    assert own is not None
    assert own.value(OTHER, CONFIG) == pytest.approx(5 + 900 / 8192)
