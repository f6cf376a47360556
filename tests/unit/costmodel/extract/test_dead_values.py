"""Elements of local buffers from which no result derives are not computed."""

from __future__ import annotations

import pytest

from tilesight.profile.values import KernelProfile, Space

from .. import fragment_kernels as kernels
from .reading import accesses, read, role, total


def products(profile: KernelProfile) -> float:
    return sum(p.trips.mean * m.count for r in profile.roles for p in r.phases for m in p.work.matrix)


def loaded(profile: KernelProfile) -> float:
    return sum(a.instructions for a in accesses(profile, Space.SHARED) if a.mechanism == "ldmatrix")


def test_rows_of_padding_are_not_computed_where_registers_are_known_rows() -> None:
    whole, padded = (read(kernels.padded_product(32, kept)) for kept in (64, 16))
    assert products(padded) == products(whole) / 4
    assert total(padded, "special_ops") == total(whole, "special_ops") / 4
    # operands of the rows, and those of the columns, which all rows need
    assert loaded(whole) > loaded(padded) > loaded(whole) / 4
    assert role(padded, "all").local_registers < role(whole, "all").local_registers / 2


@pytest.mark.parametrize("kept", [16, 64])
def test_rows_that_depend_on_the_thread_are_computed(kept: int) -> None:
    # of four warps each has 16 rows
    assert products(read(kernels.padded_product(128, kept))) == products(
        read(kernels.padded_product(128, 64))
    )


def test_nothing_is_left_of_what_is_not_stored() -> None:
    nothing = read(kernels.padded_product(32, 0))
    assert products(nothing) == 0
    assert loaded(nothing) == 0
