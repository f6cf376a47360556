"""Iterations of loops that the compiler joins, compared with machine code."""

from __future__ import annotations

import pytest

from tilesight.costmodel.analytical.unrolling import iterations_joined
from tilesight.profile.values import Access, Phase, Space, Trips, Work


def loop(trips: float, depth: int, loads: float, instructions: float, *, is_loop: bool = True) -> Phase:
    """A loop of 64 threads with `loads` and other `instructions` of each of them in an iteration."""
    size = 64 * 8.0 * loads
    load = Access(Space.GLOBAL, "x", False, "ld", size, size / 32, 2.0 * loads, 8)
    work = Work(accesses=(load,), vector_ops=64.0 * instructions)
    return Phase(Trips((trips,)), work, pipeline_depth=depth, is_loop=is_loop)


@pytest.mark.parametrize(
    ("trips", "depth", "loads", "instructions", "joined"),
    [
        (1000, 4, 4, 120, 1),  # cross-entropy, 32 rows of a block of 64 threads: 130 instructions, 4 loads
        (250, 8, 2, 110, 1),  # 16 rows of 128 threads: 118 instructions, 2 loads
        (1002, 8, 2, 58, 2),  # softmax, two rows: 125 instructions, 4 loads
        (16, 8, 2, 54, 2),  # softmax, one row in two vectors: 113 instructions, 4 loads
        (144, 3, 5, 41, 3),  # gemv: no fewer than the profile has
    ],
)
def test_long_iterations_are_joined_as_in_the_machine_code(
    trips: int, depth: int, loads: int, instructions: int, joined: int
) -> None:
    assert iterations_joined(loop(trips, depth, loads, instructions), 64, 32) == joined


def test_all_passes_are_equal_if_possible_else_the_number_is_a_power_of_two() -> None:
    assert iterations_joined(loop(12, 8, 1, 40), 64, 32) == 3
    assert iterations_joined(loop(11, 8, 1, 40), 64, 32) == 2


def test_loops_that_are_unrolled_completely_and_straight_code_stay_as_they_are() -> None:
    assert iterations_joined(loop(8, 8, 4, 120), 64, 32) == 8
    assert iterations_joined(loop(1, 1, 4, 120, is_loop=False), 64, 32) == 1


def test_a_part_of_a_warp_executes_no_more_instructions_than_a_warp() -> None:
    load = Access(Space.GLOBAL, "x", False, "ld", 128.0, 4, 1.0, 16)
    phase = Phase(Trips((64.0,)), Work(accesses=(load,), vector_ops=32 * 20.0), 4, is_loop=True)
    assert iterations_joined(phase, 8, 32) == iterations_joined(phase, 32, 32) == 4
