from __future__ import annotations

import pytest

from tests.unit.costmodel.measured_samples import rows
from tilesight.costmodel.analytical.constants import DEFAULT
from tilesight.costmodel.training.fit_constants import FEWEST_OF_CASE, ROUGH, fit, sample_rows


def test_a_constant_that_no_kernel_depends_on_returns_to_its_round_figure() -> None:
    fitted = fit(rows(["copying"]), evaluations=12, most_rows=8)
    # copying kernels exchange nothing between lanes and have no matrix instructions
    assert fitted.shuffle_cycles == pytest.approx(ROUGH.shuffle_cycles, rel=0.02) != DEFAULT.shuffle_cycles
    assert fitted.operand_share == pytest.approx(ROUGH.operand_share, rel=0.02)


def test_a_fit_of_few_rows_takes_cases_of_every_operator() -> None:
    measured = rows(["matmul", "copying"])
    chosen = sample_rows(measured, 2 * FEWEST_OF_CASE)
    assert {measured[i].operator for i in chosen} == {row.operator for row in measured}
    assert len({measured[i].case for i in chosen}) == 2
