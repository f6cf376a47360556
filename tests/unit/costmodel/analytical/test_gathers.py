from __future__ import annotations

import numpy as np
import pytest

from tilesight.costmodel.analytical.gathers import (
    fetched_bytes,
    first_share,
    hit_share,
    with_stores_once,
)
from tilesight.profile.values import Access, KernelProfile, Phase, Role, Space, Tensor, Trips, Work


def test_a_row_takes_whole_units() -> None:
    assert fetched_bytes(4, 32) == 8
    assert fetched_bytes(32, 32) == fetched_bytes(1024, 64) == 1
    assert fetched_bytes(48, 32) == pytest.approx(64 / 48)


def test_parts_of_units_fall_on_units_by_chance() -> None:
    units, picks = 1000, 1500
    drawn = np.random.default_rng(0).integers(0, units, (400, picks))
    distinct = np.mean([len(np.unique(row)) for row in drawn])
    assert first_share(32.0 * picks, 32.0 * units, 4, 32) * picks == pytest.approx(distinct, rel=0.01)


def test_rows_are_different_until_the_whole_tensor_was_read() -> None:
    assert first_share(1e6, 2e6, 128, 32) == 1
    assert first_share(4e6, 2e6, 128, 32) == 0.5
    assert first_share(4e6, 0.0, 128, 32) == 1  # of unknown size
    assert first_share(64.0, 8.0, 4, 32) == 0.5  # a tensor of less than a sector


@pytest.mark.parametrize("streams", [0, 1])  # lines of other data beside each access
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_hits_are_those_of_a_cache_that_evicts_the_oldest(streams: int, share: float) -> None:
    lines, accesses = 400, 30_000
    capacity = round(share * lines)
    cache: dict[int, None] = {}
    hits = 0
    for step, line in enumerate(np.random.default_rng(1).integers(0, lines, accesses).tolist()):
        hits += line in cache
        for touched in (line, *(lines + streams * step + k for k in range(streams))):
            cache.pop(touched, None)
            cache[touched] = None
        while len(cache) > capacity:
            del cache[next(iter(cache))]
    found = hit_share(float(accesses), float(lines), float(streams * accesses), float(capacity))
    assert found == pytest.approx(hits / accesses, abs=0.02)


def test_a_cache_that_holds_everything_always_hits() -> None:
    assert hit_share(1e9, 1e6, 1e6, 3e6) == 1
    assert hit_share(0.0, 0.0, 1e6, 3e6) == 0


def test_stores_to_chosen_places_write_a_tensor_once() -> None:
    def selection(tensor_bytes: int, mechanism: str = "st") -> KernelProfile:
        chosen = Access(
            Space.GLOBAL, "y", True, mechanism, 4096.0, 1024.0, 32.0, footprint_bytes=4096.0, row_bytes=4.0,
            lines=1024.0,
        )  # fmt: skip
        phase = Phase(Trips((8.0,)), Work(accesses=(chosen,)), is_loop=True)
        tensors = (Tensor("y", tensor_bytes, 4),)
        return KernelProfile(
            "cuda", "sm_90a", (16, 1, 1), 128, 1, 0, (Role("all", 128, (phase, phase)),), tensors
        )

    stored = 2 * 8 * 16 * 4096
    whole, few = selection(stored), selection(stored // 64)
    assert with_stores_once(whole) is whole
    (access,) = with_stores_once(few).roles[0].phases[1].work.accesses
    assert (access.bytes, access.transactions, access.instructions, access.lines) == (64.0, 16.0, 0.5, 16.0)
    added = selection(stored // 64, "atomic")
    assert with_stores_once(added) is added
