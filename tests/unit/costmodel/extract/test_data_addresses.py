"""Addresses that depend on loaded data: what is read of them, and what is predicted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.costmodel import chain_kernels, sample_kernels
from tests.unit.costmodel import gather_kernels as kernels
from tests.unit.costmodel.extract.reading import accesses, read
from tilesight.costmodel import default_model
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.analytical.traffic import ATOMIC_NS, FLOAT_ATOMIC_NS
from tilesight.profile.values import Access, KernelProfile, Space
from tilesight.records.trial import Prediction
from tilesight.target.spec import load_target

MB = 1 << 20
SECTOR, LINE = 32, 64


def chosen(profile: KernelProfile, *, write: bool = False) -> Access:
    """The access whose places loaded data chooses, in the longest phase."""
    found = [a for a in accesses(profile, write=write) if a.row_bytes]
    assert {a.tensor for a in found} == {found[0].tensor}
    return found[-1]


def predict(kernel: object, target: str = "h200") -> Prediction:
    return AnalyticalModel().predict([read(kernel, target)], load_target(target))


def test_chosen_rows_are_contiguous_and_single_elements_waste_their_sectors() -> None:
    rows, single = (
        chosen(read(k)) for k in (kernels.embedding(1 << 16, 256, 1 << 14), kernels.elements(MB, 1 << 20))
    )
    assert (rows.row_bytes, single.row_bytes) == (1024, 4)
    assert rows.transactions * SECTOR == rows.bytes  # a warp reads whole sectors
    assert single.transactions * SECTOR == 8 * single.bytes  # each lane reads a sector for four bytes
    assert rows.axes == single.axes == frozenset("x")


@pytest.mark.parametrize("target", ["h200", "a100", "mi300x"])
@pytest.mark.parametrize("staged", [False, True])
def test_blocks_that_choose_by_the_same_numbers_share_rows(target: str, staged: bool) -> None:
    # the column of blocks does not choose, also if the numbers go through shared memory
    x = chosen(read(kernels.token_matmul(4096, 1024, 1024, 8192, staged), target))
    assert x.axes == frozenset("y")
    assert x.loop_dependent
    assert x.row_bytes == 128  # 64 elements of each token in an iteration


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.embedding(1 << 18, 256, 1 << 16),
        kernels.two_steps(1 << 18, 256, 1 << 16),
        kernels.through_registers(1 << 18, 256, 1 << 16, variable=False),
        kernels.through_registers(1 << 18, 256, 1 << 16, variable=True),
    ],
    ids=["direct", "two steps", "fragment", "variable"],
)
@pytest.mark.parametrize("target", ["h200", "a100", "mi300x"])
def test_each_way_of_an_index_chooses_the_same_rows(kernel: object, target: str) -> None:
    p = read(kernel, target)
    largest = max(p.tensors, key=lambda t: t.bytes)
    (rows,) = {(a.row_bytes, a.footprint_bytes) for a in accesses(p) if a.tensor == largest.label}
    assert rows == (1024, 4096)  # four rows a block
    found = AnalyticalModel().predict([p], load_target(target)).expected["dram_read_bytes"]
    assert found == pytest.approx((1 << 16) * 1024, rel=0.05)


def test_reading_is_reproducible() -> None:
    first, second = (read(kernels.token_matmul(4096, 1024, 1024, 8192, True)) for _ in range(2))
    assert first == second


def test_an_index_is_loaded_once_for_bounds_checks_and_addresses() -> None:
    p = read(kernels.elements(MB, 1 << 20))
    assert len([a for a in accesses(p) if not a.row_bytes]) == 1


@pytest.mark.parametrize("target", ["h200", "a100", "mi300x", "cpu"])
def test_a_prediction_names_the_tensor_and_is_less_certain(target: str) -> None:
    gathered, chip = read(kernels.embedding(1 << 16, 256, 1 << 14), target), load_target(target)
    known = read(sample_kernels.scale(1 << 20, 1024) if target != "cpu" else _plain_nest(), target)
    for model in (AnalyticalModel(), default_model()):
        found, plain = (model.predict([p], chip) for p in (gathered, known))
        (note,) = [n for n in found.notes if "loaded data chooses" in n]
        assert "Table is read" in note
        assert "spread evenly" in note
        assert not any("loaded data" in n for n in plain.notes)
        assert found.uncertainty >= plain.uncertainty + 0.1


def test_scatters_and_atomics_are_noted_as_written() -> None:
    for kernel, name in ((kernels.scatter(4096, 256, 4096), "Table"), (kernels.histogram(256, MB), "Bins")):
        assert any(f"{name} is written" in note for note in read(kernel).notes)


@pytest.mark.parametrize("target", ["h200", "a100", "mi300x"])
def test_a_table_beyond_the_cache_is_fetched_again(target: str) -> None:
    picks = 1 << 26
    tables = [MB >> 2, 2 * MB, 128 * MB, 512 * MB]  # elements: 1 MB to 2 GB
    other = 4 * picks  # the indices
    read_bytes = [
        predict(kernels.elements(n, picks), target).expected["dram_read_bytes"] - other for n in tables
    ]
    assert read_bytes == sorted(read_bytes)
    assert read_bytes[0] == pytest.approx(4 * tables[0], rel=0.05)  # the table once
    assert read_bytes[-1] == pytest.approx(SECTOR * picks, rel=0.15)  # a sector for nearly every pick
    assert read_bytes[2] > 2 * 4 * tables[2]  # fetched again and again


def test_the_share_that_is_fetched_again_grows_with_the_table() -> None:
    rows, dim = 1 << 20, 128  # 512 MB of chosen rows
    extra = []
    for table in (1 << 14, 1 << 16, 1 << 17, 1 << 18, 1 << 19):  # rows: 8 MB to 256 MB
        found = predict(kernels.embedding(table, dim, rows)).expected["dram_read_bytes"]
        extra.append((found - 4 * rows - 4 * dim * table) / (4 * dim * (rows - table)))
    assert extra == sorted(extra)
    assert extra[0] < 0.01
    assert extra[-1] > 0.75


def test_pages_of_a_block_table_are_read_once() -> None:
    batch, pages, page, dim = 64, 128, 64, 128
    found = predict(kernels.paged_scores(batch, 64, pages, batch * pages, page, dim))
    keys = batch * pages * page * dim * 2
    others = batch * (64 * dim * 2 + pages * 4)
    assert found.expected["dram_read_bytes"] == pytest.approx(keys + others, rel=0.02)


def test_pages_that_all_queries_share_are_read_once() -> None:
    # 64 queries choose among 128 pages of 16 KiB: 2 MB, whatever they choose
    found = predict(kernels.paged_scores(64, 64, 128, 128, 64, 128))
    assert found.expected["dram_read_bytes"] < 1.2 * (128 * 64 * 128 * 2 + 64 * (64 * 128 * 2 + 128 * 4))


def test_scattered_rows_are_written_once_to_a_table_that_fits() -> None:
    picks, dim = 1 << 18, 128  # 128 MB of rows
    once, again = (
        predict(kernels.scatter(table, dim, picks)).terms_us["dram"] for table in (1 << 12, 1 << 18)
    )
    assert again > 1.2 * once


def test_few_bins_contend_for_atomics() -> None:
    few, many = (predict(kernels.histogram(bins, 1 << 22)).terms_us["atomics"] for bins in (16, 1 << 16))
    assert few > 1e-3 * ATOMIC_NS * (1 << 18)  # adds to each of 16 bins
    assert few > 8 * many  # most units of L2 have no line of them


def test_floats_are_added_to_one_address_more_slowly_than_integers() -> None:
    floats, integers = (
        predict(chain_kernels.sum_of_all(dtype, 1 << 20)).terms_us["atomics"]
        for dtype in ("float32", "int32")
    )
    assert floats == pytest.approx(1e-3 * FLOAT_ATOMIC_NS * (1 << 20) / 128)
    assert integers < 0.6 * floats


def test_a_table_beyond_the_caches_of_a_cpu_is_fetched_again() -> None:
    picks = 1 << 22
    small, large = (predict(kernels.elements(n, picks), "cpu") for n in (1 << 12, 1 << 26))
    chip = load_target("cpu")
    lines = picks * LINE / chip["device.memory.dram.gb_per_s"] / 1e3
    assert small.terms_us["dram"] < 0.2 * lines  # only the indices and the results
    assert large.terms_us["dram"] > 0.8 * lines  # a line for nearly every pick


@pytest.mark.parametrize("kernel", [kernels.row_by_row, kernels.row_numbers_first])
def test_row_numbers_in_local_memory_choose_on_a_cpu(kernel: Callable[[int, int, int], object]) -> None:
    (table,) = [a for a in accesses(read(kernel(1 << 16, 256, 1 << 14), "cpu")) if a.row_bytes]
    assert table.row_bytes == 1024
    assert table.levels[-1] == (1.0, (1 << 14) * 1024.0)  # another row for each number


def test_known_addresses_have_no_rows_of_data() -> None:
    for kernel in (sample_kernels.matmul(512, 512, 256, 128, 128, 64, 2, 128),):
        p = read(kernel)
        assert not any(a.row_bytes for s in Space for w in (False, True) for a in accesses(p, s, write=w))
        assert p.notes == ()


def _plain_nest() -> object:
    from tilesight.kernels import operator, template_for

    chip = load_target("cpu")
    template, workload = (
        template_for("matmul", chip, "float32"),
        operator("matmul").workload("S512", "float32"),
    )
    config = template.default_config(workload, chip)
    assert config is not None
    return template.build(workload, config)
