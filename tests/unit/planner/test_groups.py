"""Plans of an operator that two devices compute together: threads of the processor stand for devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tilesight
from tests.support.group_kernels import SumOfRanks, cpu_pair
from tilesight import kernels
from tilesight.dispatch.table.table_file import read_table, write_table
from tilesight.errors import InputError, WorkloadError
from tilesight.planner.sizes import (
    Cell,
    SizeRange,
    cells,
    evenly_spaced,
    nearest_cells,
    size_step,
    sizes_at_jumps,
)
from tilesight.problem.workload import Workload

KERNEL = "sum_of_ranks"


@pytest.fixture(autouse=True)
def of_the_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The operator takes even sizes, as one that divides them between ranks."""
    validate = SumOfRanks.validate

    def even(self: SumOfRanks, workload: Workload) -> None:
        validate(self, workload)
        if workload.dims["n"] % 2:
            raise WorkloadError(f"n={workload.dims['n']} must be even")

    monkeypatch.setattr(SumOfRanks, "validate", even)
    monkeypatch.setenv("TILESIGHT_KERNELS", "tests.support.group_kernels")
    monkeypatch.setenv("TILESIGHT_DB", str(tmp_path / "group.db"))
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    kernels._registry.cache_clear()
    yield
    kernels._registry.cache_clear()


@pytest.mark.full
def test_a_table_with_world_and_topology(tmp_path: Path) -> None:
    pair = cpu_pair(tmp_path)
    found = tilesight.plan(
        KERNEL, "n=64..128", pair, kernels=2, shapes=2, static=True, effort="predict", workers=1
    )
    table = found.table
    assert dict(table.fixed) == {"world": 2}
    assert (table.target, table.target_fingerprint) == ("cpux2", pair.fingerprint)
    assert (table.first, table.last) == (64, 128)
    assert [piece.size for piece in table.evidence] == [64, 128]
    write_table(table, tmp_path / "table.json")
    assert read_table(tmp_path / "table.json") == table


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"vary": "n=63..64"}, InputError, "at n=63: n=63 must be even"),
        ({"vary": "n=64..128", "target": "cpu"}, InputError, "target cpu is one"),
        ({"vary": "n=64..128", "static": False}, InputError, "or plan with --static"),
        ({"vary": "n=64..128", "shape": "world=3"}, WorkloadError, "states world=3, and target cpux2 has 2"),
    ],
)
def test_what_does_not_fit_is_refused(
    arguments: dict[str, str | bool], error: type[Exception], message: str, tmp_path: Path
) -> None:
    given = {"target": str(tmp_path / "cpux2.toml"), "static": True, **arguments}
    cpu_pair(tmp_path)
    with pytest.raises(error, match=message):
        tilesight.plan(KERNEL, effort="predict", **given)  # type: ignore[arg-type]


def test_sizes_are_whole_steps() -> None:
    vary = SizeRange("m", 4, 4096, 4)
    assert (vary.next(4), vary.next(5), vary.next(4095)) == (4, 8, 4096)
    assert SizeRange("m", 4, 16, 4).all() == [4, 8, 12, 16]
    for sizes in (
        evenly_spaced(vary, 17),
        sizes_at_jumps(vary, 17, [(Cell(4, 99), 1.0), (Cell(100, 4096), 3.0)]),
    ):
        assert len(sizes) > 12
        assert all(size % 4 == 0 for size in sizes)
        assert all(cell.last % 4 == 0 for cell in nearest_cells(sizes, vary, 4))
    assert all(cell.last % 4 == 0 for cell in cells(vary, [4, 64], 50))
    assert evenly_spaced(SizeRange("m", 4, 16, 4), 4) == [4, 8, 12, 16]


def test_the_step_of_an_operator() -> None:
    assert size_step(lambda _: True, SizeRange("m", 1, 10), 4) == 1
    assert size_step(lambda size: size % 4 == 0, SizeRange("m", 4, 12), 4) == 4
