"""Sizes that a plan adds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilesight.dispatch.table.table_file import Segment
from tilesight.planner.extra_sizes import sizes_to_try
from tilesight.problem.space import Config

SMALL, LARGE = Config({"block": 128}), Config({"block": 192})
SEGMENTS = (Segment(65, 128, 0), Segment(129, 192, 1), Segment(193, 256, 0), Segment(257, 4096, 1))
TABLE: Any = SimpleNamespace(kernels=(SMALL, LARGE), segments=SEGMENTS, vary="m", first=65, last=4096)


def whole_tiles(size: int, config: Config) -> int:
    tile = config.int("block")
    return -(-size // tile) * tile


def test_the_farthest_end_comes_first_and_ends_near_a_tried_size_are_left_out() -> None:
    found = sizes_to_try(TABLE, [65, 160, 4000], whole_tiles, 6)
    assert found[0] == 257  # two tiles, far from one and from twenty
    assert 65 not in found
    assert 192 in found  # one tile as at 160, but a quarter of a doubling above
    assert 4096 not in found
    assert len(found) == len(set(found)) == 6
    assert sizes_to_try(TABLE, [65, 160, 4000], whole_tiles, 2) == found[:2]
    assert sizes_to_try(TABLE, [65, 160, 4000], whole_tiles, 0) == []


def test_neighbouring_sizes_are_far_apart_at_the_beginning_of_a_tile() -> None:
    one: Any = SimpleNamespace(
        kernels=(SMALL,), segments=(Segment(1, 128, 0), Segment(129, 256, 0)), vary="m", first=1, last=256
    )
    assert sizes_to_try(one, [1, 128, 256], whole_tiles, 1) == [129]
    assert sizes_to_try(one, [1, 128, 256], lambda size, _config: size, 1) != [129]


def test_without_ends_the_widest_gaps_are_filled() -> None:
    ends = [65, 128, 129, 192, 193, 256, 257, 4096]
    found = sizes_to_try(TABLE, ends, whole_tiles, 3)
    assert len(found) == 3
    assert 900 < found[0] < 1150  # the middle of 257 .. 4096, in log size
    assert not set(found) & set(ends)


def test_ends_count_by_the_weight_of_their_segments() -> None:
    tried = [65, 4096]
    assert sizes_to_try(TABLE, tried, whole_tiles, 1, {150: 1.0, 160: 2.0})[0] in (129, 192)
    assert sizes_to_try(TABLE, tried, whole_tiles, 1, {1000: 1.0})[0] == 257
