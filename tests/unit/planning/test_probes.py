"""Where a plan measures next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilesight.dispatch.table import Segment
from tilesight.planning.probes import ends_to_try
from tilesight.space import Config

SMALL, LARGE = Config({"block": 128}), Config({"block": 192})
TABLE: Any = SimpleNamespace(
    kernels=(SMALL, LARGE), segments=(Segment(65, 128, 0), Segment(129, 192, 1), Segment(193, 256, 0), Segment(257, 4096, 1))
)


def whole(size: int, config: Config) -> int:
    tile = config.int("block")
    return -(-size // tile) * tile


def test_the_farthest_end_comes_first_and_ends_near_a_tried_size_are_left_out() -> None:
    found = ends_to_try(TABLE, [65, 160, 4000], whole, 10)
    assert found[0] == 257  # two tiles, far from one and from twenty
    assert 65 not in found
    assert 192 in found  # one tile as at 160, but a quarter of a doubling above
    assert 4096 not in found
    assert len(found) == len(set(found))
    assert ends_to_try(TABLE, [65, 160, 4000], whole, 2) == found[:2]
    assert ends_to_try(TABLE, [65, 160, 4000], whole, 0) == []


def test_sizes_side_by_side_are_apart_where_a_tile_begins() -> None:
    one: Any = SimpleNamespace(kernels=(SMALL,), segments=(Segment(1, 128, 0), Segment(129, 256, 0)))
    assert ends_to_try(one, [1, 128, 256], whole, 9) == [129]
    assert ends_to_try(one, [1, 128, 256], lambda size, _config: size, 9) == []


def test_nothing_is_left_where_all_ends_were_tried() -> None:
    assert ends_to_try(TABLE, [65, 128, 129, 192, 193, 256, 257, 4096], whole, 9) == []
