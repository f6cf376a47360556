"""Cycles of L2 in one iteration, of all bytes and of those that lanes write; cycles of bulk copies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilesight.costmodel.analytical.constants import DEFAULT
from tilesight.costmodel.analytical.demand import (
    CONTINUED_REQUEST_BYTES,
    L2_UPDATES,
    L2_WRITES,
    LINE_REQUEST_BYTES,
    bulk_copies,
    copy_cycles,
    demand,
)
from tilesight.profile.values import Access, Space, Work
from tilesight.target.spec import load_target

H200, A100 = load_target("h200"), load_target("a100")
CORES = H200.int("core.count")
SECTORS = 1024.0


def l2_cycles(access: Access, target: object = H200) -> float:
    return demand(Work(accesses=(access,)), target, DEFAULT, CORES).l2  # type: ignore[arg-type]


def moving(mechanism: str, *, write: bool, alone: float = 0.0, filled: float = 1.0) -> Access:
    return Access(
        Space.GLOBAL, "t0", write, mechanism, SECTORS * 32 * filled, SECTORS, SECTORS / 16, 16,
        alone_share=alone,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mechanism", "filled", "alone", "figure"),
    [
        ("st", 1.0, 0.0, L2_WRITES),
        ("st", 0.5, 0.0, L2_UPDATES),
        ("st", 1.0, 1.0, L2_WRITES),
        ("atomic", 1.0, 0.0, L2_UPDATES),
        ("atomic", 1.0, 1.0, L2_UPDATES),
    ],
)
def test_what_lanes_write_takes_the_bandwidth_of_writes(
    mechanism: str, filled: float, alone: float, figure: str
) -> None:
    share = H200[figure] * 1e3 / H200["core.clock_mhz"] / CORES  # bytes a cycle
    cycles = l2_cycles(moving(mechanism, write=True, filled=filled, alone=alone))
    assert cycles == pytest.approx((1 + alone) * SECTORS * 32 / share)


def test_sectors_that_instructions_in_turn_touch_are_moved_once() -> None:
    """Each of two instructions fills one half of the same sectors."""
    halves = moving("st", write=True, filled=0.5)
    together = replace(halves, sector_bytes=SECTORS / 2 * 32)
    share = H200[L2_WRITES] * 1e3 / H200["core.clock_mhz"] / CORES
    assert l2_cycles(together) == pytest.approx(SECTORS / 2 * 32 / share)
    assert l2_cycles(together) < 0.4 * l2_cycles(halves)


@pytest.mark.parametrize(
    ("filled", "lines", "busy"),
    [
        (0.25, SECTORS / 4, SECTORS / 4 * LINE_REQUEST_BYTES),  # four sectors a line
        (0.25, SECTORS, SECTORS * LINE_REQUEST_BYTES),  # one sector a line: a request each
        (0.5, SECTORS, SECTORS * CONTINUED_REQUEST_BYTES),  # the next instruction fills the other half
        (1.0, SECTORS, SECTORS * 32),  # whole sectors
    ],
)
def test_stores_of_parts_of_sectors_take_a_request_a_line(filled: float, lines: float, busy: float) -> None:
    store = replace(moving("st", write=True, filled=filled), lines=lines)
    figure = L2_WRITES if filled == 1.0 else L2_UPDATES
    share = H200[figure] * 1e3 / H200["core.clock_mhz"] / CORES
    assert l2_cycles(store) == pytest.approx(busy / share)


def test_bulk_stores_and_targets_without_the_figure_take_that_of_reads() -> None:
    read = l2_cycles(moving("ld", write=False))
    assert l2_cycles(moving("tma", write=True)) == read < 0.6 * l2_cycles(moving("st", write=True))
    assert L2_WRITES not in A100.figures
    assert l2_cycles(moving("st", write=True), A100) == l2_cycles(moving("ld", write=False), A100)


@pytest.mark.parametrize(("alone", "lines"), [(0.0, SECTORS / 4), (1.0, SECTORS)])
def test_the_first_level_cache_finds_one_line_a_cycle(alone: float, lines: float) -> None:
    work = Work(accesses=(moving("ld", write=False, alone=alone),))
    assert demand(work, H200, DEFAULT, CORES).shared == lines


def test_an_instruction_takes_a_cycle_of_the_first_level_cache() -> None:
    """Lanes that load one element: a line has four sectors, but no instruction finds two lines."""
    load = replace(moving("ld", write=False), transactions=SECTORS, instructions=SECTORS)
    assert demand(Work(accesses=(load,)), H200, DEFAULT, CORES).shared == SECTORS


def test_a_cluster_reads_its_neighbours_over_its_network() -> None:
    """Of four blocks that read all sums, each has a quarter itself."""
    neighbours = replace(moving("ld_cluster", write=False), space=Space.SHARED)
    found = demand(Work(accesses=(neighbours,)), H200, DEFAULT, CORES, blocks=4)
    assert found.cluster == pytest.approx(0.75 * neighbours.bytes / H200["cluster.network.bytes_per_cycle"])
    assert (
        demand(Work(accesses=(replace(neighbours, mechanism="ld"),)), H200, DEFAULT, CORES, blocks=4).cluster
        == 0
    )
    # targets without clusters have no such figure, and no such access
    assert l2_cycles(moving("ld", write=False), A100) > 0


def bulk_load(copies: float, *, inside: float = 1.0, turns: int = 1) -> tuple[Access, Access]:
    """Copies of 64 rows of 128 bytes of the mean block, and what each block receives: one such box."""
    box = 64 * 128.0
    outer = Access(
        Space.GLOBAL, "t0", False, "tma", box * copies, box * copies / 32, copies, 128, True, 1, box,
        least_inside=inside, turns=turns,
    )  # fmt: skip
    return outer, Access(Space.SHARED, "", True, "tma", box, box / 128, 1.0, 16, True, 1, box)


def test_the_block_of_a_cluster_that_copies_for_all_sets_the_pace() -> None:
    alone, shared = (Work(accesses=bulk_load(copies)) for copies in (1.0, 0.5))
    assert bulk_copies(shared, 2) == [(shared.accesses[0], 2.0)]
    assert bulk_copies(alone, 2) == bulk_copies(alone, 1) == [(alone.accesses[0], 1.0)]
    one, two = demand(alone, H200, DEFAULT, CORES), demand(shared, H200, DEFAULT, CORES, blocks=2)
    assert two.copy == one.copy > 0
    assert two.l2 == pytest.approx(one.l2 / 2)  # the tile crosses L2 once for both


def test_a_block_that_walks_through_tiles_copies_the_one_at_the_edge_once() -> None:
    def extra(turns: int) -> float:
        (access, _) = bulk_load(1.0, inside=0.0, turns=turns)
        return copy_cycles(access, DEFAULT, 1.0) - copy_cycles(access, DEFAULT, 0.0)

    assert extra(1) == pytest.approx(64 * DEFAULT.outside_row_cycles)
    assert extra(4) == pytest.approx(extra(1) / 4)
