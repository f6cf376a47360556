"""Sectors of warp instructions that lie alone in their 64 bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tilesight.costmodel.analytical.demand import l2_bytes
from tilesight.costmodel.extract.patterns import alone_share, sectors
from tilesight.profile.values import Access, Space

LANES = np.arange(32)[None, :]


@pytest.mark.parametrize(
    ("addresses", "width", "found", "alone"),
    [
        (LANES * 4, 4, 4, 0.0),  # coalesced
        (LANES * 4 + 16, 4, 5, 0.0),  # its ends lie alone, most do not
        (LANES * 32, 4, 32, 0.0),  # each sector, for a part of it
        (LANES * 64, 4, 32, 1.0),
        (LANES * 128, 16, 32, 1.0),
        (LANES * 64 + 28, 8, 64, 0.0),  # each element in both halves
        (LANES * 0, 4, 1, 0.0),  # one element for all: it is served once, as before
    ],
)
def test_sectors_without_their_neighbour(
    addresses: np.ndarray, width: int, found: float, alone: float
) -> None:
    assert sectors(addresses, width) == found
    assert alone_share(addresses, width) == alone


def test_inactive_lanes_touch_nothing() -> None:
    every_other = LANES % 2 == 0
    assert alone_share(LANES * 32, 4, every_other) == 1.0
    assert alone_share(LANES * 32, 4) == 0.0


def test_a_lone_sector_moves_64_bytes() -> None:
    access = Access(Space.GLOBAL, "t0", False, "ld", 128.0, 32.0, 1.0)
    lone = Access(Space.GLOBAL, "t0", False, "ld", 128.0, 32.0, 1.0, alone_share=1.0)
    assert (l2_bytes(access), l2_bytes(lone)) == (1024.0, 2048.0)
