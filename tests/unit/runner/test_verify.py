"""Checks of outputs: each kind of fault is reported as such."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.support.sample_kernels import Product, Scale
from tilesight.decorator.compare_tensors import difference
from tilesight.errors import FailureKind
from tilesight.kernels import operator
from tilesight.problem.workload import Workload
from tilesight.runner.compare import bits, poison
from tilesight.runner.verify import Verdict, check_outputs, check_repeat

ONES = {"C": torch.ones((), dtype=torch.bfloat16).expand(2048, 8192)}  # a magnitude
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class TwoOutputs(Scale):
    def reference(self, workload: object, inputs: object) -> dict[str, torch.Tensor]:
        return {"y": torch.ones(8), "z": torch.ones(8)}


def verdict(y: torch.Tensor, reference: torch.Tensor, dtype: str = "float32") -> Verdict:
    ours = Scale()
    return check_outputs(ours, ours.workload(f"n={y.numel()}", dtype), {"y": y}, {"y": reference})


def message(found: Verdict) -> str:
    assert found.failure is not None
    assert found.failure.kind is FailureKind.WRONG_RESULT
    return found.failure.message


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_nan_and_counted_exactly(dtype: torch.dtype) -> None:
    y = torch.zeros(1000, dtype=dtype)
    poison({"y": y})
    assert torch.isnan(y).all()
    y[:990] = 1
    assert message(verdict(y, torch.ones(1000))) == "output 'y': 10 of 1000 elements were never written"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_computed_nan_and_infinity_differ_from_unwritten(value: float) -> None:
    y = torch.ones(1000)
    y[3:5] = value
    assert (
        message(verdict(y, torch.ones(1000)))
        == "output 'y': 2 of 1000 elements are NaN or infinite where the reference is finite"
    )


def test_where_the_reference_is_not_finite_nothing_is_compared() -> None:
    y, reference = torch.ones(1000), torch.ones(1000)
    y[0] = reference[0] = math.inf
    assert verdict(y, reference) == Verdict(0.0, None, 0.0, 0.0)


def test_the_relative_error_is_of_the_norms() -> None:
    reference = torch.tensor([3.0, 4.0] * 500)
    y = reference.clone()
    y[0] += 0.5
    found = verdict(y, reference)
    assert found.relative_error == pytest.approx(0.5 / math.sqrt(500 * 25), rel=1e-9)
    assert "(relative error 0.00447" in message(found)
    spread = reference * (1 + 1.5e-6)
    text = (
        "output 'y': relative error 1.56e-06 exceeds 1e-06, the limit for float32; [1] is 4.00001, expected 4"
    )
    assert message(verdict(spread, reference)).startswith(text)


def test_errors_within_the_limit_pass() -> None:
    reference = torch.randn(1000, dtype=torch.float64)
    found = verdict(reference.bfloat16(), reference, "bfloat16")
    assert found.failure is None
    assert 0 < found.relative_error < 5e-3


@pytest.mark.parametrize(("y", "error"), [(torch.zeros(8), 0.0), (torch.ones(8), math.inf)])
def test_a_reference_of_zeros(y: torch.Tensor, error: float) -> None:
    found = verdict(y, torch.zeros(8))
    assert found.relative_error == error
    assert (found.failure is None) == (error == 0.0)


def test_large_errors_do_not_overflow() -> None:
    found = verdict(torch.full((8,), 3e38), torch.ones(8))
    assert found.relative_error == pytest.approx(3e38)


def test_outputs_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesight.runner.compare._CHUNK", 7)
    reference = torch.randn(10, 10)
    y = reference.clone()
    assert verdict(y, reference).failure is None
    y[9, 9] = math.nan
    assert "1 of 100" in message(verdict(y, reference))


def test_of_several_outputs_the_worst_error_and_the_first_fault_are_reported() -> None:
    ours = TwoOutputs()
    outputs = {"y": torch.full((8,), 1.1), "z": torch.full((8,), 2.0)}
    found = check_outputs(ours, ours.workload("n=8"), outputs, ours.reference(None, None))
    assert found.relative_error == pytest.approx(1.0)
    assert "output 'y'" in message(found)


def test_a_reference_of_another_shape_is_an_error_of_the_operator() -> None:
    ours = Product()
    with pytest.raises(ValueError, match=r"shape \(4, 4\) has a reference of shape \(16,\)"):
        check_outputs(ours, ours.workload("m=4,n=4,k=4"), {"c": torch.ones(4, 4)}, {"c": torch.ones(16)})


@pytest.fixture(scope="module")
def large() -> tuple[Workload, torch.Tensor, torch.Tensor]:
    """A product with 16 million elements: its workload, reference, and a rounded result, which is right."""
    workload = operator("matmul").workload("m=2048,n=8192,k=8192")
    reference = torch.randn(2048, 8192, generator=torch.Generator().manual_seed(1))
    right = reference.bfloat16()
    found = check_outputs(operator("matmul"), workload, {"C": right}, {"C": reference}, ONES)
    assert found.failure is None
    return workload, reference, right


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (lambda c: c[:8, :8].zero_(), "of 16777216 elements are off by more than their bounds"),
        (lambda c: c[1000, 7000].add_(12), "[1000, 7000] is "),
        (lambda c: c[64:70, 128:134].neg_(), "tile of 64 x 64 elements that begins at [64, 128]"),
        (lambda c: c[1024:1088, 64:128].mul_(1.01), "tile of 64 x 64 elements that begins at [1024, 64]"),
    ],
)
def test_few_wrong_elements_of_many_are_found(
    large: tuple[Workload, torch.Tensor, torch.Tensor], fault: Callable[[torch.Tensor], object], text: str
) -> None:
    """All of these are within the limit of the norm of the whole output."""
    workload, reference, right = large
    ours, c = operator("matmul"), right.clone()
    fault(c)
    found = check_outputs(ours, workload, {"C": c}, {"C": reference}, ONES)
    assert found.relative_error is not None
    assert found.relative_error < ours.max_relative_error(workload)
    assert text in message(found)
    if text.startswith("[1000"):
        _, words = difference(c, reference, 1e-2, 1e-2, 0.01)
        assert "elements are off by more than 50 times what rtol=0.01, atol=0.01 allow" in words


def test_a_bias_of_a_tile_is_found_where_no_element_is_beyond_its_bound(
    large: tuple[Workload, torch.Tensor, torch.Tensor],
) -> None:
    workload, _, right = large
    reference, c = right.float(), right.clone()
    bits(c)[1024:1088, 64:128] += 1  # the next number
    found = check_outputs(operator("matmul"), workload, {"C": c}, {"C": reference}, ONES)
    assert found.element_ratio is not None
    assert found.element_ratio <= 1
    tile = "the tile of 64 x 64 elements that begins at [1024, 64]"
    assert message(found).startswith(f"output 'C': {tile} has a root mean square error of 1.")


@pytest.mark.parametrize("dtype", DTYPES)
def test_runs_are_compared_bit_by_bit(dtype: torch.dtype) -> None:
    first = {
        "y": torch.randn(100, dtype=torch.float64).to(dtype),
        "z": torch.full((7,), math.nan, dtype=dtype),
    }
    second = {name: tensor.clone() for name, tensor in first.items()}
    assert check_repeat(second, first) is None, "equal NaN are equal"
    bits(second["y"])[[3, 50]] ^= 1
    failure = check_repeat(second, first)
    assert failure is not None
    assert failure.kind is FailureKind.NONDETERMINISTIC
    assert failure.message == "output 'y': 2 of 100 elements differ between runs on the same inputs"
