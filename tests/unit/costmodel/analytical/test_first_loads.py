from __future__ import annotations

import pytest

from tilesight.costmodel.analytical.first_loads import first_bytes, first_loads_us
from tilesight.costmodel.analytical.traffic import TensorTraffic, Traffic
from tilesight.profile.values import Access, KernelProfile, Phase, Role, Space, Trips, Work
from tilesight.target.spec import load_target

H200 = load_target("h200")
BYTES = 32768.0
READ = BYTES * 132


def _profile(trips: float, *, asynchronous: bool = True, depth: int = 1) -> KernelProfile:
    load = Access(
        Space.GLOBAL, "x", False, "ld", BYTES / trips, BYTES / trips / 32, 1.0, 16,
        asynchronous=asynchronous, loop_dependent=trips > 1, axes=frozenset("x"),
        footprint_bytes=BYTES / trips,
    )  # fmt: skip
    store = Access(Space.GLOBAL, "y", True, "st", BYTES, BYTES / 32, 1.0, 16)
    phases = (
        Phase(Trips((trips,)), Work(accesses=(load,)), pipeline_depth=depth, is_loop=trips > 1),
        Phase(Trips((1.0,)), Work(accesses=(store,))),
    )
    return KernelProfile("cuda", "sm_90a", (132, 1, 1), 128, 1, 0, (Role("all", 128, phases),), ())


def _wait_us(profile: KernelProfile, waves: float = 1.0, core_us: float = 0.0) -> float:
    moved = (TensorTraffic("x", False, READ, READ, READ), TensorTraffic("y", True, READ, READ, READ))
    return first_loads_us(profile, H200, Traffic(READ, READ, READ, READ, tensors=moved), waves, core_us)


def test_the_first_wave_waits_for_device_memory_to_move_what_all_its_blocks_load() -> None:
    whole_us = READ / (H200["device.memory.dram.read_gb_per_s"] * 1e3)
    assert _wait_us(_profile(1)) == pytest.approx(whole_us)
    assert _wait_us(_profile(1), core_us=0.25 * whole_us) == pytest.approx(0.75 * whole_us)


def test_later_waves_load_beside_the_arithmetic_of_others() -> None:
    assert _wait_us(_profile(1), waves=4.0) == pytest.approx(_wait_us(_profile(1)) / 4)
    assert _wait_us(_profile(1), waves=0.5) == pytest.approx(_wait_us(_profile(1)))


def test_the_port_moves_the_first_loads_of_one_wave_at_a_time() -> None:
    whole_us = _wait_us(_profile(1))
    assert _wait_us(_profile(1), waves=4.0, core_us=0.1 * whole_us) == pytest.approx(0.15 * whole_us)


def test_only_the_first_iteration_of_a_pipelined_loop_is_waited_for() -> None:
    assert _wait_us(_profile(16)) == pytest.approx(_wait_us(_profile(1)) / 16)
    assert first_bytes(_profile(16), H200) == BYTES / 16


def test_joined_iterations_are_waited_for_together() -> None:
    assert _wait_us(_profile(16, asynchronous=False, depth=4)) == pytest.approx(_wait_us(_profile(1)) / 4)


def test_a_port_that_is_slower_than_device_memory_hides_it() -> None:
    assert _wait_us(_profile(1), core_us=1e3) == 0.0
