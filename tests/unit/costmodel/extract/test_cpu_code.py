"""What the compiler makes of a store: rules of gcc that were seen in measured kernels."""

from __future__ import annotations

import pytest

from tilesight.costmodel.extract.cpu_code import Address, Code, CpuLoop, code_of


def loops(*extents: int, constant: bool = True) -> tuple[CpuLoop, ...]:
    return tuple(CpuLoop(number, float(extent), constant) for number, extent in enumerate(extents))


def code(
    around: tuple[CpuLoop, ...],
    store: tuple[int, ...],
    *loads: tuple[int, ...],
    accumulates: bool = False,
    operations: float = 1.0,
    calls_library: bool = False,
) -> Code:
    return code_of(
        around,
        Address(store, 4.0),
        [Address(load, 4.0) for load in loads],
        accumulates=accumulates,
        operations=operations,
        calls_library=calls_library,
    )


def test_stores_to_neighbours_become_vectors() -> None:
    assert code(loops(16, 64), (64, 1), (64, 1)).lanes == 64


def test_a_loop_over_distant_elements_stays_scalar() -> None:
    assert code(loops(64, 1024), (1, 64), (1, 64)).lanes == 1


def test_a_long_loop_is_a_tile_of_its_own() -> None:
    found = code(loops(16, 2048), (2048, 1), (2048, 1))
    assert (found.tile, found.lanes) == (1, 2048)


def test_a_sum_waits_for_each_addition() -> None:
    found = code(loops(16, 1024), (1, 0), (1, 0), (1024, 1), accumulates=True)
    assert found.chained
    assert found.lanes == 1


def test_a_library_call_keeps_the_loop_scalar() -> None:
    assert code(loops(16, 1024), (1024, 1), (1024, 1), calls_library=True).lanes == 1


@pytest.mark.parametrize(("operations", "lanes"), [(1.0, 1), (2.0, 16)])
def test_a_short_accumulation_is_unrolled_and_scalar_unless_it_is_large(
    operations: float, lanes: float
) -> None:
    found = code(
        loops(256, 4, 16), (0, 16, 1), (0, 16, 1), (4, 1, 0), accumulates=True, operations=operations
    )
    assert found.lanes == lanes


def test_the_loop_around_an_unrolled_one_becomes_vectors() -> None:
    found = code(loops(4096, 8), (1, 4096), (1, 4096))
    assert (found.inner, found.lanes) == (0, 4096)
    assert found.tile == 2


def test_an_unrolled_loop_with_several_loads_stays_scalar() -> None:
    assert code(loops(4096, 8), (8, 1), (8, 1)).lanes == 8
    assert code(loops(4096, 8), (8, 1), (8, 1), (8, 2)).lanes == 1


def test_neighbouring_elements_share_lines() -> None:
    assert Address((1024, 1), 4.0).lines(loops(16, 1024)) == (16 * 1024 * 4, 0.0)


def test_distant_elements_take_a_line_each() -> None:
    assert Address((1, 1024), 4.0).lines(loops(16, 64)[1:]) == (64 * 64, 4096.0)


def test_a_loop_that_fills_the_gaps_joins_the_lines() -> None:
    assert Address((1024, 1), 4.0).lines(loops(64, 1024)) == Address((1, 1024), 4.0).lines(loops(1024, 64))


def test_rows_of_several_lines_are_no_gaps() -> None:
    assert Address((1024, 1), 4.0).lines(loops(8, 64)) == (8 * 64 * 4, 0.0)
