"""Comparing tensors: any shape, in parts, element by element and tile by tile."""

from __future__ import annotations

import math

import pytest
import torch

from tilesight.problem.rounding import Rounding, ShortSums
from tilesight.runner import compare as module
from tilesight.runner.compare import Deviation, compare, poison, scale_of
from tilesight.runner.error_bounds import (
    CUT,
    FAITHFUL,
    INNER,
    SUMMED,
    exact_bound,
    limit_bound,
    rounding_bound,
    smallest,
    tile_limit,
    tolerance_bound,
    unit_roundoff,
)

SHAPES = (
    (),
    (1,),
    (7,),
    (5000,),
    (3, 5),
    (64, 64),
    (130, 200),
    (2, 3, 65, 7),
    (300, 1),
    (1, 9000),
    (4, 2, 1),
)


@pytest.mark.parametrize("chunk", [1, 5000, 1 << 24])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_worst_element_and_its_tile_are_found_anywhere(
    shape: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    generator = torch.Generator().manual_seed(len(shape))
    wanted = torch.randn(shape, generator=generator)
    for place in {0, wanted.numel() // 2, wanted.numel() - 1}:
        got = wanted + 1e-4
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), shape)) if shape else ()
        got[index] += 0.5
        found = compare(got, wanted, tolerance_bound(0.0, 1e-2))
        assert found.beyond == 1
        assert found.element is not None
        assert found.element.index == index
        assert found.element.ratio == pytest.approx(50.01, rel=1e-3)
        assert found.element.got == pytest.approx(float(got[index]))
        assert found.element.wanted == pytest.approx(float(wanted[index]))
        assert found.tile is not None
        rows, columns = found.tile.sides
        first = found.tile.index
        assert rows * columns <= 4096
        column, row, size = _flat(shape, index), _flat(shape, first), shape[-1] if shape else 1
        assert row[0] <= column[0] < row[0] + rows
        assert row[1] <= column[1] < row[1] + columns <= size


def _flat(shape: tuple[int, ...], index: tuple[int, ...]) -> tuple[int, int]:
    """(row, column) in the matrix of the last axis and all others."""
    row = 0
    for size, at in zip(shape[:-1], index[:-1], strict=True):
        row = row * size + at
    return row, index[-1] if index else 0


@pytest.mark.parametrize("sides", [(130, 200), (300, 3), (1, 9000)])
def test_a_tile_is_judged_by_its_own_elements(sides: tuple[int, int]) -> None:
    """Also a tile at the edge: its mean is over the elements that it has."""
    wanted = torch.zeros(sides)
    height, width = module._tile_sides(sides)
    rows, columns = (
        slice((side - 1) // part * part, None) for side, part in zip(sides, (height, width), strict=True)
    )
    got = wanted.clone()
    got[rows, columns] = 0.7
    count = got[rows, columns].numel()
    found = compare(got, wanted, tolerance_bound(0.0, 1.0))
    assert found.tile is not None
    assert found.tile.index == (rows.start, columns.start)
    assert found.tile.ratio == pytest.approx(0.7 / float(tile_limit(torch.tensor(float(count)))), rel=1e-6)
    assert found.beyond == 0


def test_counts_and_norms() -> None:
    wanted = torch.tensor([1.0, 2.0, math.inf, math.nan, 4.0, 5.0, 6.0, -math.inf])
    got = wanted.clone()
    poison({"row": got[:1]})
    got[1], got[2], got[3], got[4] = math.nan, 3.0, 7.0, 4.5
    found = compare(got, wanted, tolerance_bound(0.0, 0.1))
    assert (found.size, found.unwritten, found.wild, found.unlike, found.beyond) == (8, 1, 1, 2, 1)
    assert found.relative_error == pytest.approx(0.5 / math.sqrt(16 + 25 + 36))
    assert found.norm_ratio == pytest.approx(0.5 / math.sqrt(3 * 0.01))
    assert compare(torch.zeros(0, 3), torch.zeros(0, 3), exact_bound()) == Deviation(0)


@pytest.mark.parametrize("dtype", ["int8", "bool", "int64", "float8_e4m3fn", "float64"])
def test_other_dtypes(dtype: str) -> None:
    wanted = torch.ones(100).to(getattr(torch, dtype))
    assert compare(wanted.clone(), wanted, exact_bound()).beyond == 0
    got = wanted.clone()
    got[3] = 0
    assert compare(got, wanted, exact_bound()).beyond == 1
    poison({"part": got[50:]})
    assert compare(got, wanted, exact_bound()).unwritten == 50
    if dtype == "int8":
        assert compare(got[50:], got[50:].clone(), exact_bound()).unwritten == 0, "a right 127 was written"


def test_the_bound_of_known_roundings() -> None:
    wanted, magnitude = torch.tensor([[2.0, -4.0]]), torch.tensor([[8.0, 8.0]])
    whole = (slice(0, 1), slice(0, 2))
    bound = rounding_bound(Rounding(100, "float16", cuts=True), torch.bfloat16, magnitude)(wanted, whole)
    noise = 8 * (INNER * 2**-11 + (SUMMED * 10 + CUT * 100) * 2**-24)
    assert bound.tolist()[0] == pytest.approx([FAITHFUL * 2**-8 * 2 + noise, FAITHFUL * 2**-8 * 4 + noise])
    plain = rounding_bound(Rounding(100), torch.float32, None)(wanted, whole)
    assert plain.tolist()[0] == pytest.approx([(FAITHFUL + SUMMED * 10) * 2**-24 * size for size in (2, 4)])
    short = Rounding(100, short_sums=ShortSums(additions=4, digits=14))
    more = rounding_bound(short, torch.float32, magnitude)(wanted, whole)
    less = rounding_bound(Rounding(100), torch.float32, magnitude)(wanted, whole)
    assert (more - less).tolist()[0] == pytest.approx([8 * (SUMMED * 2 + CUT * 4) * 2**-14] * 2)


def test_a_bound_without_known_roundings_follows_rows_and_columns() -> None:
    """Noise of an element is proportional to factors of its row and its column, whatever the element is."""
    generator = torch.Generator().manual_seed(2)
    rows = 10.0 ** torch.randint(-3, 4, (300, 1), generator=generator)
    columns = 10.0 ** torch.randint(-3, 4, (1, 200), generator=generator)
    wanted = torch.randn(300, 200, generator=generator) * rows * columns
    noise = 1e-3 * torch.randn(300, 200, generator=generator) * rows * columns
    found = compare(wanted + noise, wanted, limit_bound(2e-3, torch.float32, scale_of(wanted)))
    assert found.beyond == 0
    assert 0.1 < found.element_ratio < 1


def test_roundoffs() -> None:
    roundoffs = [unit_roundoff(t) for t in (torch.bfloat16, torch.float16, torch.float32, torch.int8)]
    assert roundoffs == [2**-8, 2**-11, 2**-24, 0]
    assert smallest(torch.float16) == 2**-24
    assert smallest(torch.bfloat16) == smallest(torch.float32) == torch.finfo(torch.float32).tiny
    assert smallest(torch.int32) == 1
