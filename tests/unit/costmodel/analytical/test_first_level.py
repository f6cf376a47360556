"""The first-level cache holds the sectors of rows that single lanes read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilesight.costmodel.analytical.first_level import (
    first_level_room,
    fresh_share,
    with_held_sectors,
)
from tilesight.profile.values import Access, KernelProfile, Phase, Role, Space, Tensor, Trips, Work
from tilesight.target.spec import load_target

H200 = load_target("h200")


def rows_of_lanes(row_bytes: int, blocks: int = 16, shared_bytes: int = 0) -> KernelProfile:
    """Each of 256 threads reads a row of its own, two bytes at a time, in steps of 100 loads."""
    step = 100 * 2
    load = Access(
        Space.GLOBAL, "x", False, "ld", 256.0 * step, 100 * 8 * 32.0, 100 * 8.0, vector_bytes=2,
        axes=frozenset("x"), loop_dependent=True, footprint_bytes=256.0 * step, alone_share=1.0,
        run_bytes=128.0,
    )  # fmt: skip
    phase = Phase(Trips((row_bytes / step,)), Work(accesses=(load,)), is_loop=True)
    tensors = (Tensor("x", blocks * 256 * row_bytes, 2),)
    return KernelProfile(
        "cuda", "sm_90a", (blocks, 1, 1), 256, 1, shared_bytes, (Role("all", 256, (phase,)),), tensors
    )


def alone(profile: KernelProfile, resident: float = 1.0) -> float:
    (access,) = with_held_sectors(profile, H200, resident).roles[0].phases[0].work.accesses
    return access.alone_share


def test_sectors_of_rows_are_held() -> None:
    assert alone(rows_of_lanes(31_400)) == 0.0


def test_rows_at_distances_of_whole_lines_meet_in_the_same_sets() -> None:
    assert alone(rows_of_lanes(256 * 128)) == 1.0


def test_the_lines_of_many_threads_do_not_fit() -> None:
    profile = rows_of_lanes(31_400, shared_bytes=32 * 1024)
    assert first_level_room(profile, H200, 6) == H200["core.memory.shared.bytes"] - 6 * 32 * 1024
    assert alone(profile, 6) == 1.0
    assert 0 < alone(rows_of_lanes(31_400), 8) < 1


def test_loads_that_lanes_share_are_left_alone() -> None:
    profile = rows_of_lanes(31_400)
    (phase,) = profile.roles[0].phases
    (load,) = phase.work.accesses
    shared = replace(load, transactions=load.transactions / 2)
    parts = replace(phase, work=Work(accesses=(shared,)))
    other = replace(profile, roles=(Role("all", 256, (parts,)),))
    assert with_held_sectors(other, H200, 1) is other


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_parts_of_rows_are_not_known_to_follow_each_other(share: float) -> None:
    profile = rows_of_lanes(31_400)
    (phase,) = profile.roles[0].phases
    fewer = replace(phase, trips=Trips((phase.trips.mean * share,)))
    assert alone(replace(profile, roles=(Role("all", 256, (fewer,)),))) == 1.0


@pytest.mark.parametrize(
    ("step", "loads", "lanes", "share"),
    [
        (0.0, 1, 32, 1.0),  # not a walk
        (2.0, 1, 32, 1 / 16),
        (2.0, 8, 32, 1 / 2),
        (4.0, 16, 32, 1.0),  # two sectors
        (2.0, 1, 4096, 1.0),  # their lines do not stay
    ],
)
def test_a_walk_comes_to_a_new_sector_now_and_then(
    step: float, loads: float, lanes: int, share: float
) -> None:
    load = Access(
        Space.GLOBAL, "x", False, "ld", 2.0 * lanes, lanes, lanes / 32, vector_bytes=2, step_bytes=step
    )
    assert fresh_share(load, loads, resident=1, room=128 * 1024) == share
