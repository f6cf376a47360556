"""Loops and branches of which kernels compute from floats how far they go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.costmodel import data_loops
from tests.unit.costmodel.extract.reading import total
from tilesight.api.foreign_kernel import ForeignKernel, profiles_of
from tilesight.api.run_time_facts import RunTimeFacts
from tilesight.profile.values import KernelProfile, Space
from tilesight.target.spec import load_target

H200 = load_target("h200")
WARP = 32


def profile(prim_func: Any, *inputs: Any) -> KernelProfile:
    (found,) = profiles_of(ForeignKernel("kernel", prim_func), H200, RunTimeFacts(inputs=inputs))
    return found


def functions(kernel: KernelProfile) -> float:
    """Lanes that compute an exponential, of a block."""
    return total(kernel, "special_ops")


def was_executed(kernel: KernelProfile) -> bool:
    return any("was found by executing" in note for note in kernel.notes)


@pytest.fixture
def numbers() -> np.random.Generator:
    return np.random.default_rng(5)


def test_a_loop_ends_when_what_it_adds_up_is_enough(numbers: np.random.Generator) -> None:
    """A warp goes on until its last thread has left the loop."""
    limits = numbers.uniform(5, 60, 256).astype("float32")
    numbers_of_list = numbers.uniform(-1, 1, 128).astype("float32")
    added = 0
    for warp in limits.reshape(-1, WARP):
        sums = np.zeros(WARP)
        for tile in numbers_of_list.reshape(-1, data_loops.LIST):
            inside = np.ones(WARP, dtype=bool)
            for number in tile:
                inside &= sums <= warp
                added += inside.any()
                sums += inside * np.exp(number)
    kernel = profile(data_loops.covered(256, 128), limits, numbers_of_list)
    assert was_executed(kernel)
    assert not any("may end early" in note for note in kernel.notes)
    assert functions(kernel) * 4 == pytest.approx(added * WARP, rel=0.01)
    assert 0.2 < added / (8 * 128) < 0.6


def test_without_inputs_all_iterations_are_charged() -> None:
    kernel = profile(data_loops.covered(256, 128), None)
    assert not was_executed(kernel)
    assert any("may end early" in note for note in kernel.notes)


def test_a_warp_skips_what_none_of_its_threads_wants(numbers: np.random.Generator) -> None:
    """Of the limits of each second warp none is met. In the others, a number is above some of the limits."""
    above = numbers.uniform(0, 1, (4, WARP)).astype("float32")
    limits = np.stack([above, np.full_like(above, 9)], axis=1).ravel()
    chosen = numbers.uniform(0, 1, 100).astype("float32")
    wanted = chosen[None, :] > above.reshape(-1, 1)
    kernel = profile(data_loops.skipped(256, 100), limits, chosen)
    assert was_executed(kernel)
    warps = wanted.reshape(4, WARP, 100).any(axis=1).sum()
    assert functions(kernel) * 4 == pytest.approx(warps * WARP, rel=0.01)


def test_a_warp_votes_on_what_it_skips(numbers: np.random.Generator) -> None:
    limits = np.full((8, WARP), 9, dtype="float32")
    limits[::2, 3] = 0.25  # one thread of each second warp wants what is above
    chosen = numbers.uniform(0, 1, 100).astype("float32")
    kernel = profile(data_loops.skipped(256, 100, voted=True), limits.ravel(), chosen)
    assert functions(kernel) * 4 == pytest.approx((chosen > 0.25).sum() * 4 * WARP, rel=0.01)


def test_threads_return_and_others_repeat_until_they_are_done() -> None:
    numbers = np.zeros((8, WARP), dtype="float32")
    numbers[:2] = 1000.0  # ten halvings; the other warps return
    numbers[2, 0] = 5.0  # three halvings of one thread
    kernel = profile(data_loops.ended(256), numbers.ravel())
    assert functions(kernel) * 4 == pytest.approx((2 * 10 + 3) * WARP, rel=0.01)


def test_a_sum_over_the_threads_of_a_block_decides() -> None:
    rows = np.full((8, 256), -1.0, dtype="float32")
    rows[:2, 7] = 1000.0
    kernel = profile(data_loops.block_sums(8), rows)
    assert functions(kernel) * 8 == pytest.approx(2 * 256)


def test_a_sum_by_exchanges_decides() -> None:
    """Each warp has one number that outweighs the others."""
    numbers = np.full((8, WARP), -1.0, dtype="float32")
    numbers[np.arange(8), np.arange(8) * 4] = [99, 99, 99, 0, 0, 0, 0, 99]
    kernel = profile(data_loops.positive_in_turn(256), numbers.ravel())
    assert was_executed(kernel)
    assert functions(kernel) * 4 == pytest.approx(4 * WARP)


def test_tensors_of_torch_are_taken_as_well() -> None:
    import torch

    rows = torch.full((8, 256), -1.0)
    rows[:2, 7] = 1000.0
    assert functions(profile(data_loops.block_sums(8), rows)) * 8 == pytest.approx(2 * 256)


def test_what_tensor_cores_decide_is_not_executed(numbers: np.random.Generator) -> None:
    a = numbers.uniform(-1, 1, (64, 64)).astype("float16")
    kernel = profile(data_loops.multiplied(), a)
    assert not was_executed(kernel)
    assert functions(kernel) == functions(profile(data_loops.multiplied(), None))


def test_a_long_execution_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilesight.costmodel.extract import execution

    monkeypatch.setattr(execution, "MOST_WORK", 1_000_000)
    limits, numbers = np.full(256, 50, dtype="float32"), np.zeros(128, dtype="float32")
    kernel = profile(data_loops.covered(256, 128), limits, numbers)
    assert not was_executed(kernel)
    assert any("may end early" in note for note in kernel.notes)


@pytest.mark.parametrize("grid", [(5, 1), (4, 4), (1, 7), (3, 5)])
def test_every_block_of_a_small_grid_is_executed(grid: tuple[int, int]) -> None:
    x, y = grid
    for marked in range(x * y):
        marks = np.zeros(x * y, dtype="float32")
        marks[marked] = 1
        kernel = profile(data_loops.block_marks(grid), marks.reshape(y, x))
        assert functions(kernel) * x * y == pytest.approx(128)
    assert any(f"executing {x * y} of {x * y} blocks" in note for note in kernel.notes)


def test_blocks_of_a_large_grid_are_sampled_without_a_period() -> None:
    for period in (2, 5, 8):
        marks = (np.arange(4096) % period == 1).astype("float32")
        kernel = profile(data_loops.block_marks((4096, 1)), marks[None, :])
        assert functions(kernel) == pytest.approx(128 / period, rel=0.3)


def test_what_no_sampled_block_enters_is_not_taken_for_dead() -> None:
    marks = np.zeros((1, 4096), dtype="float32")
    kernel = profile(data_loops.block_marks((4096, 1)), marks)
    assert 0 < functions(kernel) < 128 / 50
    assert stored(kernel) > 0


def stored(kernel: KernelProfile) -> float:
    """Bytes that a block stores to device memory."""
    return sum(
        p.trips.mean * a.bytes
        for role in kernel.roles for p in role.phases for a in p.work.accesses
        if a.write and a.space is Space.GLOBAL
    )  # fmt: skip


@pytest.mark.parametrize(("above_zero", "above_one"), [(16, 8), (32, 8), (8, 8), (32, 32)])
def test_lanes_of_nested_branches_are_counted_once(above_zero: int, above_one: int) -> None:
    numbers = np.full((8, WARP), -1, dtype="float32")
    numbers[:, :above_zero] = 0.5
    numbers[:, :above_one] = 2.0
    stores = 8 * (max(above_zero, above_one) + above_one)
    assert stored(profile(data_loops.nested(256), numbers.ravel())) * 4 == pytest.approx(stores * 4)


def test_threads_that_return_in_a_loop_end_it() -> None:
    numbers = np.repeat([5, 20, 20, 20, 20, 20, 20, 20], WARP).astype("float32")
    kernel = profile(data_loops.returns_in_turn(256, 100), numbers)
    assert functions(kernel) * 4 == pytest.approx((5 + 7 * 20) * WARP, rel=0.05)


def test_a_loop_in_which_threads_return_is_charged_in_full_without_inputs() -> None:
    kernel = profile(data_loops.returns_in_turn(256, 100), None)
    assert any("may end early" in note for note in kernel.notes)


@pytest.mark.parametrize(("dtype", "steps"), [("float32", 24), ("float16", 11), ("int32", 31)])
def test_numbers_are_computed_in_their_type(dtype: str, steps: int) -> None:
    """A sum is rounded to 24 or 11 bits, and a whole number of 32 bits becomes negative."""
    kernel = profile(data_loops.doubled(256, dtype), np.ones(256, dtype=dtype))
    assert functions(kernel) == pytest.approx(steps * 64, rel=0.05)


def test_what_an_atomic_returns_and_stores_is_unknown() -> None:
    kernel = profile(data_loops.counted(256), np.full(256, 5, dtype="float32"))
    assert not was_executed(kernel)
    assert functions(kernel) >= 64


def test_a_tensor_that_an_earlier_kernel_stores_has_no_example() -> None:
    inputs = (np.ones(256, dtype="float32"), np.zeros(256, dtype="float32"), np.zeros(256, dtype="float32"))
    found = profiles_of(
        ForeignKernel("kernel", data_loops.two_kernels(256)), H200, RunTimeFacts(inputs=inputs)
    )
    assert functions(found[-1]) >= 64


def test_functions_of_cuda_exchange_numbers() -> None:
    numbers = np.full((8, WARP), -1, dtype="float32")
    numbers[:, 1] = 1  # lane 0 gets it
    kernel = profile(data_loops.exchanged_by_name(256), numbers.ravel())
    assert was_executed(kernel)
    assert stored(kernel) * 4 == pytest.approx(8 * 4)


@pytest.mark.parametrize(
    "example",
    [
        np.ones(256, dtype="int8"),
        np.ones(256, dtype=bool),
        np.array(["a"] * 256),
        np.array([None] * 256),
        np.zeros(256, dtype="datetime64[s]"),
    ],
)
def test_examples_of_other_types_are_converted_or_left_out(example: np.ndarray) -> None:
    kernel = profile(data_loops.doubled(256), example)
    assert was_executed(kernel) is (example.dtype.kind in "ib")


def test_tensors_without_numbers_are_left_out() -> None:
    import torch

    assert not was_executed(profile(data_loops.doubled(256), torch.ones(256, device="meta")))


def test_whole_numbers_wrap_around_without_inputs() -> None:
    """A generator's state is known, however often it was multiplied."""
    for steps in (40, 1000):
        assert profile(data_loops.generated(256, steps), None).roles
