"""A user's kernel as an operator: inputs, references, comparison of results."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tilesight.decorator.check_programs import CheckPrograms
from tilesight.decorator.compare_tensors import difference
from tilesight.decorator.interface import Interface, TensorArgument
from tilesight.decorator.random_inputs import SUPPLIES, draw, draw_all, supplied
from tilesight.decorator.user_operator import CheckOptions, UserOperator
from tilesight.errors import InputError, ProgramError
from tilesight.problem.workload import Workload
from tilesight.runner.compare import poison
from tilesight.runner.verify import check_outputs

WORKLOAD = Workload("user.kernel", {"n": 64}, "float32")
X = TensorArgument("X", (64,), "float32", "float32", is_read=True, is_written=False, is_result=False)
Y = TensorArgument("Y", (64,), "float32", "float32", is_read=False, is_written=True, is_result=True)
STATE = TensorArgument("S", (64,), "int32", "int32", is_read=True, is_written=True, is_result=False)


def operator(*tensors: TensorArgument, checking: CheckOptions | None = None, **programs: Any) -> UserOperator:
    made = CheckPrograms(**programs)
    interface = Interface(tensors or (X, Y), accumulates=False)
    return UserOperator(
        "user.kernel",
        interface,
        checking or CheckOptions(),
        made.packed(),
        has_reference=made.reference is not None,
    )


DTYPES = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "uint8",
    "int32",
    "int64",
    "bool",
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("supply", SUPPLIES)
def test_every_dtype_and_supply(dtype: str, supply: str) -> None:
    tensor = TensorArgument("T", (257, 3), dtype, dtype, is_read=True, is_written=False, is_result=False)
    found = draw(tensor, supply, "cpu", torch.Generator().manual_seed(1))
    assert found.dtype is getattr(torch, dtype)
    assert tuple(found.shape) == (257, 3)
    values = found.to(torch.float64)
    assert torch.isfinite(values).all()
    assert values.abs().max() <= 8
    kinds = len(set(values.flatten().tolist()))
    assert kinds == 1 if supply in ("Zero", "One") else kinds >= 2, "neither all alike"
    if supply == "Auto" and dtype.startswith(("float", "bfloat")):
        assert values.abs().max() <= 1
        assert kinds > 10


def test_the_same_seed_draws_the_same() -> None:
    one, again, other = (draw_all([X, STATE], "Auto", "cpu", seed) for seed in (1, 1, 2))
    assert torch.equal(one["X"], again["X"])
    assert not torch.equal(one["X"], other["X"])


def test_supply_prog_is_called_with_parameters_and_checked() -> None:
    def supply(parameters: list[Any]) -> list[torch.Tensor]:
        return [torch.rand(*p.shape, dtype=p.torch_dtype()) for p in parameters]

    found = supplied(supply, [X], "cpu", 3)
    assert torch.equal(found["X"], supplied(supply, [X], "cpu", 3)["X"])
    with pytest.raises(ProgramError, match=r"gave 2 tensors, and the kernel takes 1: X"):
        supplied(lambda _: [torch.zeros(64), torch.zeros(64)], [X], "cpu", 1)
    with pytest.raises(ProgramError, match=r"gave torch.float64\[64\] for 'X', which is float32\[64\]"):
        supplied(lambda _: torch.zeros(64, dtype=torch.float64), [X], "cpu", 1)
    with pytest.raises(ProgramError, match="gave str for 'X'"):
        supplied(lambda _: ["no tensor"], [X], "cpu", 1)


def test_close_elements_and_the_share_that_may_differ() -> None:
    wanted = torch.ones(1000)
    assert difference(wanted * 1.005, wanted, 1e-2, 0.0, 0.0)[1] == ""
    off = wanted.clone()
    off[:10] = 1.1
    assert difference(off, wanted, 1e-2, 1e-2, 0.01)[1] == ""
    off[10] = 1.1
    assert difference(off, wanted, 1e-2, 1e-2, 0.01)[1].startswith("11 of 1000 elements differ")
    assert "shape [10]" in difference(torch.ones(10), wanted, 1, 1, 1)[1]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (lambda got: poison({"row": got[999:]}), "1 of 1000 elements were never written"),
        (lambda got: got[5:9].fill_(torch.nan), "4 of 1000 elements are NaN or infinite where the ref"),
        (lambda got: got[5].fill_(torch.inf), "1 of 1000 elements are NaN or infinite"),
        (lambda got: got[:9].fill_(1e30), "9 of 1000 elements are so far off that the relative error"),
        (lambda got: got[:9].fill_(5.0), "9 of 1000 elements are so far off"),
    ],
)
def test_the_share_excuses_no_fault(fault: Callable[[torch.Tensor], object], text: str) -> None:
    wanted = torch.ones(1000)
    got = wanted.clone()
    fault(got)
    assert difference(got, wanted, 1e-2, 1e-2, 0.01)[1].startswith(text)


def test_the_share_excuses_other_neighbours_of_a_coarse_grid() -> None:
    """Where numbers are rounded to few values, one near a tie may become the next value."""
    values = torch.randn(64, 200, generator=torch.Generator().manual_seed(1))
    for step in (0.4, 1.0):  # four bits for numbers of up to three standard deviations; whole numbers
        wanted = (values / step).round() * step
        got = wanted.clone()
        got[3, ::100] += step
        got[40, 7] -= step
        assert difference(got, wanted, 1e-2, 1e-2, 0.01)[1] == ""
        got[50, 50] += 12 * values.std()
        assert "[50, 50] is" in difference(got, wanted, 1e-2, 1e-2, 0.01)[1]
    mask = (values > 0).float()
    flipped = mask.clone()
    flipped[9, 9] = 1 - mask[9, 9]
    assert difference(flipped, mask, 1e-2, 1e-2, 0.01)[1] == ""


def test_nan_infinities_and_nothing() -> None:
    wanted = torch.tensor([1.0, float("inf"), float("nan"), 0.0])
    assert difference(wanted.clone(), wanted, 1e-2, 1e-2, 0.0) == (0.0, "")
    finite = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert difference(finite, wanted, 1e-2, 1e-2, 0.0)[1].startswith("3 of 4 elements differ")
    finite[3] = float("nan")
    assert difference(finite, wanted, 1e-2, 1e-2, 0.0)[1].startswith("1 of 4 elements are NaN")
    assert difference(torch.zeros(0), torch.zeros(0), 0, 0, 0) == (0.0, "")
    error, text = difference(torch.ones(4), torch.zeros(4), 1e-2, 1e-2, 0.0)
    assert (error, text != "") == (1.0, True), "an error without a norm stays finite"


@pytest.mark.parametrize("dtype", ["bool", "int8", "float8_e4m3fn", "int64"])
def test_poisoned_results_are_wrong(dtype: str) -> None:
    wanted = torch.zeros(100).to(getattr(torch, dtype))
    got = wanted.clone()
    assert difference(got, wanted, 1e-2, 1e-2, 0.01)[1] == ""
    poison({"out": got})
    assert difference(got, wanted, 1e-2, 1e-2, 0.01)[1] != ""


def test_judged_by_ref_prog() -> None:
    ours = operator(reference=lambda x: x * 2)
    inputs = ours.inputs(WORKLOAD, "cpu", 1)
    reference = ours.reference(WORKLOAD, inputs)
    right = check_outputs(ours, WORKLOAD, {"Y": inputs["X"] * 2}, reference)
    assert (right.failure, right.relative_error) == (None, 0.0)
    wrong = check_outputs(ours, WORKLOAD, {"Y": inputs["X"] * 3}, reference)
    assert wrong.failure is not None
    assert "output 'Y'" in wrong.failure.message
    assert ours.vendor(WORKLOAD, inputs)["ref_prog"]() is not None


def test_a_reference_may_write_to_its_arguments_or_leave_some_out() -> None:
    def in_place(x: torch.Tensor, s: torch.Tensor) -> None:
        s += (x > 0).int()

    ours = operator(X, STATE, reference=in_place)
    inputs = ours.inputs(WORKLOAD, "cpu", 1)
    start = {"S": torch.empty(64, dtype=torch.int32)}
    assert ours.preset(WORKLOAD, start)
    assert torch.equal(ours.reference(WORKLOAD, inputs)["S"], start["S"] + (inputs["X"] > 0).int())
    assert torch.equal(ours.reference(WORKLOAD, inputs)["S"], start["S"] + (inputs["X"] > 0).int()), (
        "each time from the same values"
    )
    two = operator(X, Y, replace(Y, name="Z"), reference=lambda x: (x, None))
    assert list(two.reference(WORKLOAD, inputs)) == ["Y"], (
        "what the reference gives None for is not looked at"
    )
    with pytest.raises(ProgramError, match=r"ref_prog gave 1 results, and '.*' has 2: Y, Z"):
        operator(X, Y, replace(Y, name="Z"), reference=lambda x: x).reference(WORKLOAD, inputs)


def test_errors_of_a_users_program_except_for_memory_and_the_device() -> None:
    def raising(error: Exception) -> Callable[..., Any]:
        def program(*_: Any) -> None:
            raise error

        return program

    inputs = operator(X, Y).inputs(WORKLOAD, "cpu", 1)
    with pytest.raises(ProgramError, match=r"ref_prog of '.*': FileNotFoundError: gold.pt"):
        operator(X, Y, reference=raising(FileNotFoundError("gold.pt"))).reference(WORKLOAD, inputs)
    with pytest.raises(MemoryError):
        operator(X, Y, reference=raising(MemoryError())).reference(WORKLOAD, inputs)
    with pytest.raises(RuntimeError, match="illegal"):
        operator(
            X, Y, reference=raising(RuntimeError("CUDA error: an illegal memory access was encountered"))
        ).reference(WORKLOAD, inputs)


def test_manual_checks() -> None:
    def check(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
        assert ours[0].sum() == theirs[0].sum(), "sums differ"

    judged = operator(reference=lambda x: x.flip(0), manual_check=check)
    x = torch.arange(64.0)
    reference = judged.reference(WORKLOAD, {"X": x})
    assert check_outputs(judged, WORKLOAD, {"Y": x}, reference).failure is None, (
        "in another order, which the check allows"
    )
    failure = check_outputs(judged, WORKLOAD, {"Y": x + 1}, reference).failure
    assert failure is not None
    assert failure.message.startswith("manual_check_prog: sums differ")


def test_with_skip_check_nothing_is_compared() -> None:
    ours = operator(checking=CheckOptions(skip=True), reference=lambda x: x)
    reference = ours.reference(WORKLOAD, {"X": torch.zeros(64)})
    verdict = check_outputs(ours, WORKLOAD, {"Y": torch.full((64,), 7.0)}, reference)
    assert (verdict.failure, verdict.relative_error) == (None, None)


def test_without_a_reference() -> None:
    with pytest.raises(RuntimeError, match="no config was built"):
        operator().reference(WORKLOAD, {"X": torch.zeros(64)})


def test_it_is_sent_with_the_users_code() -> None:
    scale = 3.0
    ours = operator(reference=lambda x: x * scale)
    sent = pickle.dumps(ours)
    assert b"__main__" not in sent, "a worker would import the user's script for it"
    there = pickle.loads(sent)
    assert torch.equal(there.reference(WORKLOAD, {"X": torch.ones(64)})["Y"], torch.full((64,), 3.0))


def test_programs_that_cannot_be_sent_are_named() -> None:
    lock = threading.Lock()

    def reference(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return x

    with pytest.raises(InputError, match="ref_prog cannot be sent to the process that measures"):
        CheckPrograms(reference).packed()


def test_bytes_and_flops() -> None:
    assert operator().min_bytes(WORKLOAD) == 2 * 64 * 4
    assert operator(X, STATE).min_bytes(WORKLOAD) == 64 * 4 + 2 * 64 * 4
    assert operator().flops(WORKLOAD) == 0


@pytest.mark.parametrize(
    ("name", "value"), [("rtol", -1), ("atol", float("nan")), ("max_mismatched_ratio", 1.5), ("rtol", "1")]
)
def test_bad_tolerances(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        CheckOptions(**{name: value})
