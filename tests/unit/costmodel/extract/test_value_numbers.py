"""Equal parts of one value are computed once, and so counted once."""

from __future__ import annotations

import pytest

from tests.unit.costmodel import lane_kernels as kernels
from tests.unit.costmodel.extract.reading import accesses, read, total

THREADS = 128


def test_equal_parts_of_a_value_are_counted_once() -> None:
    once, apart = (read(kernels.stated_twice(same)) for same in (True, False))
    assert (total(once, "special_ops"), total(apart, "special_ops")) == (THREADS, 2 * THREADS)
    assert [len(accesses(one)) for one in (once, apart)] == [1, 2]
    # both have the multiplication and the difference
    function = total(apart, "vector_ops") - total(once, "vector_ops")
    assert function == total(once, "vector_ops") - 2 * THREADS


def test_loads_with_other_variables_are_other_loads() -> None:
    profile = read(kernels.products_of_pairs())
    loaded = sum(
        access.instructions * phase.trips.mean
        for role in profile.roles
        for phase in role.phases
        for access in phase.work.accesses
        if not access.write
    )
    assert loaded > 16 * 16 * THREADS / 32  # both of each product, or one and that of the outer loop


@pytest.mark.parametrize(("code", "most"), [("uint8", 24), ("int32", 32)])
def test_a_byte_chooses_among_256_places(code: str, most: int) -> None:
    (table,) = [a for a in accesses(read(kernels.from_codebook(code))) if a.tensor == "t0"]
    sectors = table.transactions / table.instructions
    assert most - 6 < sectors <= most
